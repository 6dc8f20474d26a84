"""A client's local branch: H steps of size η from the model that was sent.

    y ← y − η (g − correction + μ (y − x)),     H times, from y = x

or along what an optimiser of the client's own makes of the bracket. Then the endpoint
does not show the gradients, and their mean is handed back beside it. Vectors are of
NumPy or torch. The plain twin of a transport's client; `hewfl.simulation.branches_reference`
has the same lines for the simulator, and a test ties the two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from numpy.typing import NDArray

from hewfl.core.validation import Count, Validated


@final
@dataclass(frozen=True, slots=True)
class StepContext:
    """Where a gradient is asked for, so that draws can follow from it.

    Attributes:
        round: rounds done before this one; 2^31 for the gradient at the start, as in
            the engine.
        step: local steps done before this one.
    """

    round: int
    step: int


Gradient = Callable[[Any, StepContext], Any]
"""From a model, as a vector, to a stochastic gradient there."""
Direction = Callable[[Any], Any]
"""From a corrected gradient to the direction of a step; may remember earlier ones."""


def _same(vector: Any) -> Any:
    return vector


@final
@dataclass(frozen=True, slots=True)
class ClientObjective(Validated):
    """A client's own objective.

    Attributes:
        gradient: from a model and a `StepContext` to a stochastic gradient, both vectors.
        examples: samples held, m_i ≥ 1.
        batch_size: samples of one gradient, b_i ≥ 1.
        lift: from the vector received to what `gradient` takes; itself by default.
        lower: back to a NumPy vector; itself by default.
        finish: what the server is to have of an endpoint; itself by default.
        optimiser: makes the `Direction` of a new branch, Adam's for one, whose vectors
            are those of `gradient`; None for plain SGD. All clients of a federation
            with control variates have one, or none has.
    """

    gradient: Gradient
    examples: Count
    batch_size: Count = 1
    lift: Callable[[NDArray[Any]], Any] = _same
    lower: Callable[[Any], NDArray[Any]] = _same
    finish: Callable[[Any], Any] = _same
    optimiser: Callable[[], Direction] | None = None


@final
@dataclass(frozen=True, slots=True)
class Order:
    """What the server wants of a branch.

    Attributes:
        round: rounds done before this one.
        steps: H_i.
        step_size: η_i.
        proximal: μ ≥ 0, pulls towards the model that was sent.
        hold: whether all gradients are taken at that model.
    """

    round: int
    steps: int
    step_size: float
    proximal: float = 0.0
    hold: bool = False


def run_branch(
    local: ClientObjective, anchor: Any, order: Order, correction: Any | None = None
) -> tuple[Any, Any]:
    """The endpoint of a local branch, and the mean of its gradients.

    Args:
        local: the client's objective and optimiser.
        anchor: x, a vector of NumPy or torch.
        order: steps, step size, and the rest of the plan.
        correction: subtracted from every gradient, in the precision of the anchor.

    Returns:
        y and ḡ; None in place of ḡ without an optimiser of the client's own, where the
        endpoint shows it.
    """
    direction = None if local.optimiser is None else local.optimiser()
    y, total = anchor, 0.0
    for step in range(order.steps):
        point = anchor if order.hold else y
        g = local.gradient(point, StepContext(order.round, step))
        if direction is not None:
            total = total + g
        if correction is not None:
            g = g - correction
        if order.proximal > 0:
            g = g + order.proximal * (y - anchor)
        y = y - order.step_size * (g if direction is None else direction(g))
    return y, None if direction is None else total / order.steps
