"""One client's local branch, for any gradient function.

    y ← y − η (g − correction + μ (y − x)),     H times, from y = x

The same lines as `hewfl.sim.branches_reference`, with a clock; a test ties the two.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from hewfl.flower.protocol import Order


@final
@dataclass(frozen=True, slots=True)
class Moment:
    """Where a gradient is asked for, so that draws can follow from it.

    Attributes:
        round: rounds done before this one; `protocol.START` for the gradient at the
            start.
        step: local steps done before this one.
    """

    round: int
    step: int


Gradient = Callable[[Any, Moment], Any]
"""From a model, as a vector, to a stochastic gradient there."""


@final
@dataclass(frozen=True, slots=True)
class Branch:
    """What a local branch comes to.

    Attributes:
        endpoint: y, in the library of the anchor.
        steps: done; fewer than asked for when the time was up.
        seconds: they took.
    """

    endpoint: Any
    steps: int
    seconds: float


def run_branch(
    gradient: Gradient,
    anchor: Any,
    order: Order,
    correction: Any | None = None,
    budget: float | None = None,
) -> Branch:
    """Run a branch: at least one step, and no further one once the budget is spent.

    Args:
        gradient: of the client's own objective.
        anchor: x, a vector of NumPy or torch.
        order: steps, step size, proximal term.
        correction: subtracted from every gradient, in the precision of the anchor.
        budget: seconds; no limit by default.
    """
    y, done, began = anchor, 0, time.monotonic()
    while done < order.steps:
        point = anchor if order.hold else y
        g = gradient(point, Moment(order.round, done))
        if correction is not None:
            g = g - correction
        if order.proximal > 0:
            g = g + order.proximal * (y - anchor)
        y = y - order.step_size * g
        done += 1
        if budget is not None and time.monotonic() - began >= budget:
            break
    return Branch(y, done, time.monotonic() - began)
