"""HEW-Fixed: HEW's branches with weights fixed by horizon, batch and noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Float64

from hewfl.aggregate.variates import (
    ControlVariates,
    Start,
    correction,
    start_variates,
    updated,
)
from hewfl.core.checks import Array, invalid, nonnegative, positive, positives
from hewfl.core.round import (
    Decision,
    LocalPlan,
    PiecewiseRound,
    Roster,
    Round,
    Traffic,
)


@final
@dataclass(frozen=True, slots=True)
class HewFixed:
    """Branches of equal ground, weights a_i ∝ (H_i b_i / v_i²)^λ.

    The paper names the method without defining it (erratum E-28): λ = 1 is its
    noise-optimal comparator a*, λ = 0 uniform weights.

    Attributes:
        smoothness: L.
        amplitude: ϑ; η_i = ϑ/(L H_i).
        power: λ ≥ 0.
        variance: v_i², one number or one per client; equal by default.
        corrected: use control variates, as Algorithm 2 does.
        start: where they start.
    """

    smoothness: float
    amplitude: float
    power: float = 1.0
    variance: float | Sequence[float] = 1.0
    corrected: bool = False
    start: Start = "gradient"

    needs_losses: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check ranges."""
        positive("smoothness", self.smoothness)
        positive("amplitude", self.amplitude)
        nonnegative("power", self.power)
        positives("variance", self.variance)
        if self.start not in ("zero", "gradient"):
            raise invalid("start", "one of zero, gradient", repr(self.start))

    @property
    def name(self) -> str:
        """How tables call it."""
        rule = "uniform" if self.power == 0 else "horizon"
        return f"HEW-Fixed ({rule}{', corrected' if self.corrected else ''})"

    @property
    def traffic(self) -> Traffic:
        """As Algorithm 2 or 3, whichever branches are used."""
        if self.corrected:
            return Traffic(down=2, paper_up=2, common_scalars=1)
        return Traffic(common_scalars=1)

    @property
    def needs_gradients(self) -> bool:
        """Where control variates are used and start at gradients."""
        return self.corrected and self.start == "gradient"

    def init(
        self, n: int, d: int, gradients: Float64[Array, "n d"] | None
    ) -> ControlVariates | None:
        """Control variates, if any."""
        return start_variates(n, d, self.start, gradients) if self.corrected else None

    def plan(self, roster: Roster, state: ControlVariates | None) -> LocalPlan:
        """Branches of equal ground."""
        eta = self.amplitude / (self.smoothness * roster.horizons)
        if state is None:
            return LocalPlan(eta)
        return LocalPlan(eta, correction(state, roster))

    def decide(
        self, round_: Round, state: ControlVariates | None
    ) -> tuple[Decision, ControlVariates | None]:
        """The fixed law, normalised over those who took part."""
        return self.weigh(round_, state), self.follow(round_, state, owned=False)

    def weigh(
        self,
        round_: Round | PiecewiseRound,
        state: ControlVariates | None,  # noqa: ARG002 - the law is fixed
    ) -> Decision:
        """The law; displacements are not looked at."""
        roster = round_.roster
        variance = np.broadcast_to(np.asarray(self.variance), roster.population)
        worth = roster.horizons * roster.batch_sizes / variance[roster.clients]
        law = (worth / worth.max()) ** self.power
        return Decision(law / law.sum(), "fixed weights")

    def follow(
        self,
        round_: Round | PiecewiseRound,
        state: ControlVariates | None,
        *,
        owned: bool,
    ) -> ControlVariates | None:
        """The control variates of the next round, if any."""
        if state is None:
            return None
        return updated(state, round_, owned=owned)
