"""Local training of modules: settings, clipping, Adam's direction, and the route.

    g = min(1, c/(‖∇ℓ‖ + 10⁻⁶)) ∇ℓ + λy,     ℓ(y) = (1/b) Σ_j loss(f_y(a_j), label_j)

Clipping at c is torch's `clip_grad_norm_`: it acts on the gradient of the minibatch
loss alone. Weight decay λy comes after it, as in torch's SGD. So do the correction and
the proximal term of a plan, which belong to the algorithm's direction. With AdamW the
sum u without λy goes into the moments, and λy is added to Adam's direction a:

    m ← β m + (1 − β) u,   v ← γ v + (1 − γ) u²,   a = m̂/(√v̂ + ε)

with m̂ = m/(1 − βᵏ) and v̂ = v/(1 − γᵏ) in the k-th step of a branch. Moments start at
zero in every round: clients keep no state between rounds.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import numpy as np

from hewfl.core.array_types import Float
from hewfl.core.round import LocalPlan
from hewfl.core.validation import format_value, invalid, nonnegative, positive
from hewfl.problems.module.network import Network, torch

Optimiser = Literal["sgd", "adamw"]
Route = Literal["auto", "graph", "stacked", "loop"]

BETA, GAMMA, GUARD = 0.9, 0.999, 1e-8
"""β, γ and ε: the defaults of `torch.optim.AdamW`."""
CLIP_GUARD = 1e-6
"""Against a division by zero; the number is that of torch's `clip_grad_norm_`."""
STACK_MIN_ROWS, STACK_MAX_PARAMETERS, STACK_MAX_NUMBERS = 8, 2**14, 2**18
"""On a CPU stacking is faster for at least so many models, of at most so many
parameters, with minibatches that store at most so many numbers: measurements in
docs/torch_module.md."""


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
        """Check the settings."""
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
            raise invalid("client_chunk", '"auto" or at least 1', format_value(chunk))


@final
@dataclass(frozen=True, slots=True, eq=False)
class LocalTask:
    """The data and settings of local steps.

    Attributes:
        network: in the precision of the models.
        features: a_j of all clients, pooled.
        labels: of each.
        normalise: mean and deviation taken off features on the fly, or None.
        training: the settings.
        footprint: numbers that a forward pass stores for one sample.
    """

    network: Network
    features: Any
    labels: Any
    normalise: tuple[float, float] | None
    training: Training
    footprint: int

    def inputs(self, rows: Any, dtype: Any) -> Any:
        """The samples of some rows as inputs of the module."""
        return as_inputs(self.features[rows], self.normalise, dtype)

    def autocast(self) -> Any:
        """The precision of a local step.

        Casts are not cached: a CUDA graph would replay those of the step it captured.
        """
        if self.training.precision == "full":
            return nullcontext()
        device = self.features.device.type
        return torch.autocast(device, torch.bfloat16, cache_enabled=False)


def measured_models(task: LocalTask, plans: Sequence[LocalPlan]) -> list[int]:
    """Models whose mean gradients are needed: corrected ones under AdamW."""
    if task.training.optimiser == "sgd":
        return []
    return [k for k, plan in enumerate(plans) if plan.correction is not None]


def as_inputs(raw: Any, normalise: tuple[float, float] | None, dtype: Any) -> Any:
    """Features as inputs of the module: (a − mean)/deviation in the given precision.

    Without `normalise` reals only change precision, and integers stay as they are.
    """
    if normalise is not None:
        mean, deviation = normalise
        return (raw.to(dtype) - mean) / deviation
    return raw.to(dtype) if raw.is_floating_point() else raw


def adam_direction(
    u: Float[Any, "*rows d"],
    first: Float[Any, "*rows d"],
    second: Float[Any, "*rows d"],
    step: int | Float[Any, ""],
) -> Float[Any, "*rows d"]:
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


def choose_route(
    task: LocalTask, rows: int, width: int
) -> Literal["graph", "stacked", "loop"]:
    """The route of the settings; for `auto` the fastest one in measurements.

    Args:
        task: data and settings.
        rows: local models of a round, clients × models.
        width: samples of the largest minibatch.
    """
    if task.training.route != "auto":
        return task.training.route
    if task.features.device.type == "cuda":
        return "graph"
    is_small = (
        task.network.layout.d <= STACK_MAX_PARAMETERS
        and width * task.footprint <= STACK_MAX_NUMBERS
    )
    return "stacked" if rows >= STACK_MIN_ROWS and is_small else "loop"
