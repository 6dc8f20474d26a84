"""The server's own optimiser: a step size and momentum on the aggregated step.

plain      x ← x + γ s
heavy ball m ← β m + s,   x ← x + γ m
Nesterov   m ← β m + s,   x ← x + γ (s + β m)
"""

from dataclasses import dataclass
from typing import Any, final

from hewfl.core.checks import invalid, nonnegative, positive


@final
@dataclass(frozen=True, slots=True)
class Outer:
    """What the server does with the step s = Σ w_iΔ_i.

    Attributes:
        step: γ > 0; one in the paper.
        momentum: β from 0 to below 1; zero in the paper.
        nesterov: look ahead, as DiLoCo does.
    """

    step: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        """Check that step size and momentum are in range."""
        positive("step", self.step)
        if nonnegative("momentum", self.momentum) >= 1:
            raise invalid("momentum", "below 1", self.momentum)


def outer_step(outer: Outer, step: Any, memory: Any) -> tuple[Any, Any]:
    """The move really made, and the momentum to keep.

    Vectors are of NumPy or torch, whole or in part: every entry goes by itself.

    Args:
        outer: what to do.
        step: s, or some entries of it.
        memory: m on the same entries; not looked at without momentum.
    """
    if outer.momentum == 0:
        return outer.step * step, memory
    memory = outer.momentum * memory + step
    ahead = step + outer.momentum * memory if outer.nesterov else memory
    return outer.step * ahead, memory
