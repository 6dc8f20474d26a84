"""The server's own optimiser: a step size and momentum on the aggregated step.

plain      x ← x + γ s
heavy ball m ← β m + s,   x ← x + γ m
Nesterov   m ← β m + s,   x ← x + γ (s + β m)
"""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float64

from hewfl.core.checks import Array, invalid, nonnegative, positive


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
        """Check ranges."""
        positive("step", self.step)
        if nonnegative("momentum", self.momentum) >= 1:
            raise invalid("momentum", "below 1", self.momentum)


def outer_step(
    outer: Outer, step: Float64[Array, " d"], memory: Float64[Array, " d"]
) -> tuple[Float64[Array, " d"], Float64[Array, " d"]]:
    """The move really made, and the momentum to keep."""
    if outer.momentum == 0:
        return outer.step * step, memory
    memory = outer.momentum * memory + step
    ahead = step + outer.momentum * memory if outer.nesterov else memory
    return outer.step * ahead, memory
