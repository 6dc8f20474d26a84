"""Algorithm 1: HEW-Local SGD, weights and amplitudes chosen before the round."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import numpy as np
from jaxtyping import Float64

from hewfl.aggregate.variates import (
    Start,
    Variates,
    check_start,
    correction,
    start_variates,
)
from hewfl.controllers.fixed import check_per_client
from hewfl.core.algorithm import Demands, Traffic
from hewfl.core.checks import Array, invalid, nonnegative, nonnegatives
from hewfl.core.records import ClientProfile, ProblemBounds, UpperState
from hewfl.core.round import Decision, LocalPlan, Roster, Round
from hewfl.predictive.certificate import (
    Variant,
    check_variant,
    clipped_gap,
    gain,
    noise,
    round_bound,
    situation_of,
    variance_bound,
)
from hewfl.predictive.control import predictive_control
from hewfl.predictive.tracking import predictable_tracking
from hewfl.solver.threshold import threshold_weights

Source = Literal["surrogate", "caps", "oracle"]


@final
@dataclass(frozen=True, slots=True)
class ControlState:
    """Control variates, and where the run is known to stand: (U_t, Q_t)."""

    variates: Variates
    upper: UpperState


@final
@dataclass(frozen=True, slots=True)
class HewControl:
    """Corrected branches with the weights and amplitudes of the least certified bound.

    Attributes:
        bounds: L, R and the box of amplitudes.
        variance: v_i² or proxies not below it, one number or one per client.
        variant: constants of the certificate.
        source: where (U_t, Q_t) comes from (erratum E-18). "surrogate": the
            deterministic system (u_t, χ_t), valid under full participation; "caps":
            U = f̄ and Q = `tracking`, every round; "oracle": the true values, for
            audits in simulation.
        tracking: χ_0 for "surrogate", Q for "caps"; a bound on max_i ‖c_i − ∇F_i(x)‖².
        start: control variates start at zero or at a minibatch gradient.
    """

    bounds: ProblemBounds
    variance: float | Sequence[float]
    variant: Variant = "paper"
    source: Source = "surrogate"
    tracking: float = 0.0
    start: Start = "gradient"

    name: ClassVar[str] = "HEW (control)"

    def __post_init__(self) -> None:
        """Check that numbers are in range, and names."""
        check_variant(self.variant)
        nonnegative("tracking", self.tracking)
        nonnegatives("variance", self.variance)
        if self.source not in ("surrogate", "caps", "oracle"):
            rule = "one of surrogate, caps, oracle"
            raise invalid("source", rule, repr(self.source))
        check_start(self.start)

    @property
    def demands(self) -> Demands:
        """Two vectors down and an amplitude each; the true state for audits."""
        return Demands(
            Traffic(down=2, paper_up=2, down_scalars=1),  # Alg. 1, l. 3, 12
            gradients=self.start == "gradient",
            variates=True,
            oracle=self.source == "oracle",
        )

    def init(
        self, n: int, d: int, gradients: Float64[Array, "n d"] | None
    ) -> ControlState:
        """c_0 = mean of c_i,0; U_0 = f̄.

        Raises:
            InvalidInputError: `variance` is neither one number nor one per client.
        """
        check_per_client("variance", self.variance, n)
        cap = clipped_gap(UpperState(np.finfo(np.float64).max, 0.0), self.bounds)
        variates = start_variates(n, d, self.start, gradients)  # Alg. 1, l. 1
        return ControlState(variates, UpperState(cap, self.tracking))

    def variates(self, state: ControlState) -> Variates:
        """The control variates in the state."""
        return state.variates

    def told(self, state: ControlState, upper: UpperState) -> ControlState:
        """The state with the true (U_t, Q_t)."""
        return replace(state, upper=upper)

    def plan(self, roster: Roster, state: ControlState) -> LocalPlan:
        """Solve for (w_t, θ_t); clients need only their own amplitude."""
        profiles = self._profiles(roster)
        control = predictive_control(  # Alg. 1, l. 2
            profiles, state.upper, self.bounds, variant=self.variant
        )
        L, theta = self.bounds.smoothness, control.amplitudes
        eta = theta / (L * roster.horizons)  # Alg. 1, l. 5
        return LocalPlan(eta, correction(state.variates, roster))  # Alg. 1, l. 8

    def decide(
        self, round_: Round, state: ControlState
    ) -> tuple[Decision, ControlState]:
        """The weights that belong to the amplitudes played, and the next state."""
        theta = self._amplitudes(round_)
        at = situation_of(self._profiles(round_.roster), state.upper, self.bounds)
        mu = gain(theta, at, self.variant)
        kappa = variance_bound(theta, at, self.variant)
        law = threshold_weights(mu, self.bounds.smoothness * kappa)  # Alg. 1, l. 2
        theta, J = self.certified(round_, state, law.weights)
        status = f"{law.status}; certified next gap {J:.6g}"
        following = ControlState(
            state.variates.after(round_),
            self._next(round_.roster, theta, J, state.upper),
        )
        return Decision(law.weights, status, float(law.gap)), following

    def certified(
        self, round_: Round, state: ControlState, weights: Float64[Array, " s"]
    ) -> tuple[Float64[Array, " s"], float]:
        """The amplitudes played and J, the bound on the expected next gap."""
        theta = self._amplitudes(round_)
        setting = (self._profiles(round_.roster), state.upper, self.bounds)
        return theta, float(round_bound(weights, theta, *setting, variant=self.variant))

    def _amplitudes(self, round_: Round) -> Float64[Array, " s"]:
        """θ_i = η_i L H_i, back from the step sizes."""
        box, H = self.bounds, round_.roster.horizons
        theta = round_.plan.step_sizes * box.smoothness * H
        clipped: Array = np.clip(theta, box.amplitude_min, box.amplitude_max)
        return clipped

    def _profiles(self, roster: Roster) -> ClientProfile:
        variance = np.broadcast_to(np.asarray(self.variance), roster.population)
        chosen = variance[roster.clients]
        return ClientProfile(roster.horizons, roster.batch_sizes, chosen)

    def _next(
        self, roster: Roster, theta: Float64[Array, " s"], J: float, upper: UpperState
    ) -> UpperState:
        """(u, χ) of the surrogate system; caps and oracle states stay (th:sur-system).

            u⁺ = min(f̄, J),   χ⁺ = A + Bu + Cχ

        As printed, A, B, C belong to the end of the box; the other constants go with
        the largest amplitude played (E-33).
        """
        if self.source != "surrogate":
            return upper
        profiles, L = self._profiles(roster), self.bounds.smoothness
        top = self.bounds.amplitude_max if self.variant == "paper" else theta.max()
        recursion = predictable_tracking(
            top, noise(profiles), roster.horizons, L, variant=self.variant
        )
        u = clipped_gap(UpperState(max(J, 0.0), 0.0), self.bounds)
        return UpperState(u, float(recursion.after(upper.gap, upper.tracking)))
