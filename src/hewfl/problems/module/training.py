"""Adam's direction, for clients whose local optimiser is AdamW.

    m ← β m + (1 − β) u,   v ← γ v + (1 − γ) u²,   a = m̂/(√v̂ + ε)

with m̂ = m/(1 − βᵏ) and v̂ = v/(1 − γᵏ) in the k-th step of a branch. Moments start at
zero in every round: clients keep nothing from one to the next.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import numpy as np

from hewfl.core.array_types import Float, Int
from hewfl.core.round import LocalPlan
from hewfl.core.validation import invalid, nonnegative, positive, shown
from hewfl.problems.module.network import Network, torch

BETA, GAMMA, GUARD = 0.9, 0.999, 1e-8
"""β, γ and ε: the defaults of `torch.optim.AdamW`."""


def adapted(
    u: Float[Any, "*models d"],
    first: Float[Any, "*models d"],
    second: Float[Any, "*models d"],
    step: int | Float[Any, ""],
) -> Float[Any, "*models d"]:
    """Adam's direction a from u; the moments m and v change in place.

    Args:
        u: the direction of plain SGD, without weight decay.
        first: m.
        second: v.
        step: k ≥ 1; a tensor where a CUDA graph is to hold the step.
    """
    first.mul_(BETA).add_(u, alpha=1 - BETA)
    second.mul_(GAMMA).addcmul_(u, u, value=1 - GAMMA)
    spread = (second / (1 - GAMMA**step)).sqrt() + GUARD
    return first / (1 - BETA**step) / spread


# ------------------ Settings of local training, common to all clients and methods

Optimiser = Literal["sgd", "adamw"]
Route = Literal["auto", "graph", "stacked", "loop"]


@final
@dataclass(frozen=True, slots=True)
class Training:
    """Settings of local training, common to all clients and methods.

    Attributes:
        weight_decay: λ ≥ 0, on all trainable parameters; also (λ/2)‖x‖² in F_i.
        clip: c > 0, or None for no clipping.
        optimiser: of local steps: `sgd`, or `adamw` with moments that start anew in
            every round.
        precision: `full`, that of the models; or `bfloat16`, by autocast, for local
            steps alone: models, gradients' sums and evaluations stay as they are.
        route: `loop` steps client by client; `stacked` steps all of a round at once;
            `graph` does so in a CUDA graph; `auto` chooses, see docs/torch_module.md.
        client_chunk: most models, clients × methods, that are stepped at once; `auto`
            for as many as 0.4 of the device's memory holds.

    Raises:
        InvalidInputError: a setting breaks its rule.
    """

    weight_decay: float = 0.0
    clip: float | None = None
    optimiser: Optimiser = "sgd"
    precision: Literal["full", "bfloat16"] = "full"
    route: Route = "auto"
    client_chunk: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        """Refuse negative decay, clipping at zero, and words that are not known."""
        nonnegative("weight_decay", self.weight_decay)
        if self.clip is not None:
            positive("clip", self.clip)
        for name, words in (("optimiser", Optimiser), ("route", Route)):
            if getattr(self, name) not in get_args(words):
                rule = f"one of {', '.join(get_args(words))}"
                raise invalid(name, rule, repr(getattr(self, name)))
        if self.precision not in ("full", "bfloat16"):
            raise invalid("precision", '"full" or "bfloat16"', repr(self.precision))
        chunk = self.client_chunk
        counts = isinstance(chunk, int | np.integer) and not isinstance(chunk, bool)
        if chunk != "auto" and not (counts and int(chunk) >= 1):
            raise invalid("client_chunk", '"auto" or at least 1', shown(chunk))


# ------------------ What clients train on, and the stochastic gradient of many

# g = min(1, c/(‖∇ℓ‖ + 10⁻⁶)) ∇ℓ + λy,     ℓ(y) = (1/b) Σ_j loss(f_y(a_j), label_j)
#
# Clipping at c is torch's `clip_grad_norm_`: it acts on the gradient of the minibatch
# loss alone. The weight decay λy comes after it, as in torch's SGD, and so do the
# correction and the proximal pull of a plan, which are parts of the algorithm's direction
# and no noise to be tamed. With AdamW the sum without λy is what its moments see, and λy
# is added to Adam's direction; see `adam`.

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


# ------------------ How local steps are run: client by client, stacked, or as CUDA

FEW, SMALL, NARROW = 8, 2**14, 2**18
"""On a CPU stacking pays from this many models on, of so many parameters at most, with
minibatches that keep so many numbers at most; measured, see docs/torch_module.md."""


def choose_route(
    task: Task, models: int, width: int
) -> Literal["graph", "stacked", "loop"]:
    """The route that the settings name; for `auto` the one measured to be fastest.

    Args:
        task: what is trained, and where.
        models: clients × lanes to be stepped in a round.
        width: samples of the largest minibatch.
    """
    if task.training.route != "auto":
        return task.training.route
    if task.features.device.type == "cuda":
        return "graph"
    is_small = task.network.layout.d <= SMALL and width * task.footprint <= NARROW
    return "stacked" if models >= FEW and is_small else "loop"
