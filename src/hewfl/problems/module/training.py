"""How clients train a module: the settings, and one stochastic gradient.

    g = min(1, c/(‖∇ℓ‖ + 10⁻⁶)) ∇ℓ + λy,     ℓ(y) = (1/b) Σ_j loss(f_y(a_j), label_j)

Clipping at c is torch's `clip_grad_norm_`: it acts on the gradient of the minibatch
loss alone. The weight decay λy comes after it, as in torch's SGD, and so do the
correction and the proximal pull of a plan, which are parts of the algorithm's direction
and no noise to be tamed. With AdamW the sum without λy is what its moments see, and λy
is added to Adam's direction; see `torch_adam`.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import numpy as np
from jaxtyping import Float, Int

from hewfl.core.checks import invalid, nonnegative, positive, shown
from hewfl.problems.module.backend import torch
from hewfl.problems.module.dropout import DropoutKey, with_keyed_dropout
from hewfl.problems.module.parameters import Layout, layout_of, unflatten

Loss = Callable[[Any, Any], Any]
Optimiser = Literal["sgd", "adamw"]
Route = Literal["auto", "graph", "stacked", "loop"]
CLIP_GUARD = 1e-6
"""As in `torch.nn.utils.clip_grad_norm_`."""


def cross_entropy(outputs: Any, labels: Any) -> Any:
    """−log softmax(outputs) at the label, one number per sample."""
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")


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
    """

    weight_decay: float = 0.0
    clip: float | None = None
    optimiser: Optimiser = "sgd"
    precision: Literal["full", "bfloat16"] = "full"
    route: Route = "auto"
    client_chunk: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        """Check ranges."""
        nonnegative("weight_decay", self.weight_decay)
        if self.clip is not None:
            positive("clip", self.clip)
        if self.optimiser not in get_args(Optimiser):
            rule = f"one of {', '.join(get_args(Optimiser))}"
            raise invalid("optimiser", rule, repr(self.optimiser))
        if self.precision not in ("full", "bfloat16"):
            raise invalid("precision", '"full" or "bfloat16"', repr(self.precision))
        if self.route not in get_args(Route):
            rule = f"one of {', '.join(get_args(Route))}"
            raise invalid("route", rule, repr(self.route))
        chunk = self.client_chunk
        counts = isinstance(chunk, int | np.integer) and not isinstance(chunk, bool)
        if chunk != "auto" and not (counts and int(chunk) >= 1):
            raise invalid("client_chunk", '"auto" or at least 1', shown(chunk))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A module as a function of one flat vector of parameters.

    Attributes:
        layout: of the vector.
        learner: a copy in training mode, its dropout keyed.
        scorer: a copy in evaluation mode.
        key: what the learner's dropout layers share.
        loss: one number per sample, from outputs and labels.
        dtype: of all parameters and real buffers.
    """

    layout: Layout
    learner: Any
    scorer: Any
    key: DropoutKey
    loss: Loss
    dtype: Any

    def losses(
        self, x: Float[Any, " d"], inputs: Any, labels: Any, key: Int[Any, ""]
    ) -> Any:
        """The loss of each sample in training mode."""
        parameters = unflatten(self.layout, x)
        with self.key.set_to(key):
            outputs = torch.func.functional_call(self.learner, parameters, (inputs,))
        return self.loss(outputs, labels)

    def place(self, x: Float[Any, " d"]) -> list[Any]:
        """Let the learner's parameters be x, in the same memory; its leaves.

        From then on `placed_losses` are those at x, whatever x becomes. It saves the
        exchange of parameters at every step, which `losses` pays.
        """
        leaves = [p for p in self.learner.parameters() if p.requires_grad]
        for leaf, part in zip(leaves, unflatten(self.layout, x).values(), strict=True):
            leaf.data = part
        return leaves

    def placed_losses(self, inputs: Any, labels: Any, key: Int[Any, ""]) -> Any:
        """`losses` at the vector that was placed last."""
        with self.key.set_to(key):
            outputs = self.learner(inputs)
        return self.loss(outputs, labels)

    def outputs(self, x: Float[Any, " d"], inputs: Any) -> Any:
        """What the module answers in evaluation mode."""
        parameters = unflatten(self.layout, x)
        return torch.func.functional_call(self.scorer, parameters, (inputs,))


def network_of(module: Any, loss: Loss, device: Any, dtype: Any) -> Network:
    """Two copies of a module, for training and evaluation, there and in that dtype."""
    learner, key = with_keyed_dropout(module)
    learner.to(device=device, dtype=dtype).train()
    scorer, _ = with_keyed_dropout(module)
    scorer.to(device=device, dtype=dtype).eval()
    return Network(layout_of(learner), learner, scorer, key, loss, dtype)


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
        """The precision of a local step; casts are not kept, as a graph needs."""
        if self.training.precision == "full":
            return nullcontext()
        device = self.features.device.type
        return torch.autocast(device, torch.bfloat16, cache_enabled=False)


def as_inputs(raw: Any, normalise: tuple[float, float] | None, dtype: Any) -> Any:
    """(a − mean)/deviation; without them reals change precision, integers nothing."""
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
