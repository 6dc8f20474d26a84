"""What clients train on, and the stochastic gradient of many models at once.

    g = min(1, c/(‖∇ℓ‖ + 10⁻⁶)) ∇ℓ + λy,     ℓ(y) = (1/b) Σ_j loss(f_y(a_j), label_j)

Clipping at c is torch's `clip_grad_norm_`: it acts on the gradient of the minibatch
loss alone. The weight decay λy comes after it, as in torch's SGD, and so do the
correction and the proximal pull of a plan, which are parts of the algorithm's direction
and no noise to be tamed. With AdamW the sum without λy is what its moments see, and λy
is added to Adam's direction; see `adam`.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, final

from jaxtyping import Float, Int

from hewfl.core.round import LocalPlan
from hewfl.problems.module.backend import torch
from hewfl.problems.module.network import Network
from hewfl.problems.module.training import Training

CLIP_GUARD = 1e-6
"""Against a division by zero; the number is that of torch's `clip_grad_norm_`."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """All that a local step needs besides the models.

    Attributes:
        network: in the precision of the models.
        features: a_j of all clients, pooled.
        labels: of each.
        normalise: mean and deviation taken off features on the fly, or None.
        training: the settings.
        footprint: numbers that a forward pass keeps of one sample.
    """

    network: Network
    features: Any
    labels: Any
    normalise: tuple[float, float] | None
    training: Training
    footprint: int

    def inputs(self, rows: Any, dtype: Any) -> Any:
        """The samples of some rows as the module takes them."""
        return as_inputs(self.features[rows], self.normalise, dtype)

    def autocast(self) -> Any:
        """The precision of a local step.

        Casts are not kept: a CUDA graph would replay those of the step it captured.
        """
        if self.training.precision == "full":
            return nullcontext()
        device = self.features.device.type
        return torch.autocast(device, torch.bfloat16, cache_enabled=False)


def measured_lanes(task: Task, plans: Sequence[LocalPlan]) -> list[int]:
    """Lanes whose mean gradients are wanted: corrected ones, where Δ_i hides them."""
    if task.training.optimiser == "sgd":
        return []
    return [k for k, plan in enumerate(plans) if plan.correction is not None]


def as_inputs(raw: Any, normalise: tuple[float, float] | None, dtype: Any) -> Any:
    """Features as the module takes them: (a − mean)/deviation in the given precision.

    Without `normalise` reals only change precision, and integers stay as they are.
    """
    if normalise is not None:
        mean, deviation = normalise
        return (raw.to(dtype) - mean) / deviation
    return raw.to(dtype) if raw.is_floating_point() else raw


def stacked_gradients(
    task: Task,
    points: Float[Any, "models d"],
    batch: tuple[Any, Any],
    shares: Float[Any, "models b"],
    keys: Int[Any, " models"],
) -> Float[Any, "models d"]:
    """The clipped gradients of many models at once, each on its own minibatch.

    Args:
        task: what is trained.
        points: y, one row per model.
        batch: inputs (models, b, …) and labels (models, b, …).
        shares: 1/b_i on the first b_i samples of a minibatch, 0 on its padding.
        keys: of the dropout masks.

    Returns:
        min(1, c/(‖∇ℓ‖ + 10⁻⁶)) ∇ℓ of each model.
    """

    def mean_loss(x: Any, inputs: Any, labels: Any, share: Any, key: Any) -> Any:
        return (task.network.losses(x, inputs, labels, key) * share).sum()

    with task.autocast():
        g = torch.func.vmap(torch.func.grad(mean_loss))(points, *batch, shares, keys)
    clip = task.training.clip
    if clip is not None:
        norm = torch.linalg.vector_norm(g, dim=1, keepdim=True)
        g = g * (clip / (norm + CLIP_GUARD)).clamp(max=1.0)
    return g
