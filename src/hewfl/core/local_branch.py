"""A client's local branch: H steps of size η from the anchor x.

    y ← y − η (g − correction + μ (y − x)),     H times, from y = x

A client's own optimiser, such as Adam, may turn the bracket into another direction.
Then the endpoint does not determine the gradients, and their mean is returned beside
it. Vectors are of NumPy or torch. Flower clients run this function, and so does the
plain twin of the simulator (`hewfl.simulation.branches`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from numpy.typing import NDArray

from hewfl.core.validation import Count, Validated


@final
@dataclass(frozen=True, slots=True)
class StepContext:
    """The step for which a gradient is computed, so that draws can depend on it.

    Attributes:
        round: rounds done before this one; 2^31 for the gradient at the start, as in
            the simulator.
        step: local steps done before this one.
    """

    round: int
    step: int


Gradient = Callable[[Any, StepContext], Any]
"""From a model, as a vector, to a stochastic gradient there."""
Direction = Callable[[Any], Any]
"""From a corrected gradient to the direction of a step; may have a memory."""


def _identity(vector: Any) -> Any:
    return vector


@final
@dataclass(frozen=True, slots=True)
class ClientObjective(Validated):
    """A client's own objective.

    Args:
        gradient: from a model and a `StepContext` to a stochastic gradient, both
            vectors.
        examples: samples held, m_i ≥ 1.
        batch_size: samples of one gradient, b_i ≥ 1.
        lift: from the vector received to the argument of `gradient`; the identity by
            default.
        lower: back to a NumPy vector; the identity by default.
        finish: from the endpoint to the vector that is sent; the identity by default.
        optimiser: makes the `Direction` of a new branch, such as Adam's, on vectors of
            `gradient`; None for plain SGD. With control variates all clients of a
            federation have one, or none has.

    Raises:
        InvalidInputError: `examples` or `batch_size` is not at least 1.
    """

    gradient: Gradient
    examples: Count
    batch_size: Count = 1
    lift: Callable[[NDArray[Any]], Any] = _identity
    lower: Callable[[Any], NDArray[Any]] = _identity
    finish: Callable[[Any], Any] = _identity
    optimiser: Callable[[], Direction] | None = None


@final
@dataclass(frozen=True, slots=True)
class BranchPlan:
    """One client's part of a `LocalPlan`.

    Attributes:
        round: rounds done before this one.
        steps: H_i.
        step_size: η_i.
        proximal: μ ≥ 0, pulls towards the anchor.
        hold: whether all gradients are taken at the anchor.
    """

    round: int
    steps: int
    step_size: float
    proximal: float = 0.0
    hold: bool = False


def run_branch(
    local: ClientObjective, anchor: Any, plan: BranchPlan, correction: Any | None = None
) -> tuple[Any, Any]:
    """The endpoint of a local branch, and the mean of its gradients.

    Args:
        local: the client's objective and optimiser.
        anchor: x, a vector of NumPy or torch.
        plan: steps, step size, and the rest of the plan.
        correction: subtracted from every gradient, in the precision of the anchor.

    Returns:
        y and ḡ; None in place of ḡ for plain SGD, whose endpoint determines it.
    """
    direction = None if local.optimiser is None else local.optimiser()
    y, total = anchor, 0.0
    for step in range(plan.steps):  # Alg. 1, l. 6, 9, Alg. 2, l. 4, 7, Alg. 3, l. 3, 6
        point = anchor if plan.hold else y
        g = local.gradient(point, StepContext(plan.round, step))
        if direction is not None:
            total = total + g
        if correction is not None:
            g = g - correction
        if plan.proximal > 0:
            g = g + plan.proximal * (y - anchor)
        g = g if direction is None else direction(g)
        y = y - plan.step_size * g  # Alg. 1, l. 8, Alg. 2, l. 6, Alg. 3, l. 5
    return y, None if direction is None else total / plan.steps
