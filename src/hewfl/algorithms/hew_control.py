"""Algorithm 1: HEW-Local SGD, weights and amplitudes chosen before the round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, final

import numpy as np

from hewfl.aggregators.averaging import check_per_client
from hewfl.aggregators.quadratic_model import STEP_NEEDS
from hewfl.control.certificate import (
    Variant,
    check_variant,
    gain,
    noise,
    round_bound,
    situation_of,
    variance_bound,
)
from hewfl.control.joint_problem import predictive_control
from hewfl.control.tracking import RoundWork, ball_tracking, propagated_bounds
from hewfl.core.algorithm import Demands, FirstGradients, Traffic, Truth
from hewfl.core.array_types import Float64, Int64
from hewfl.core.records import ClientProfile, ProblemBounds, UpperState
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.rounding import format_upper
from hewfl.core.validation import (
    Array,
    Ints,
    Nonnegative,
    PerClient,
    check_fields,
    nonnegatives,
)
from hewfl.displacements.control_variates import (
    Start,
    Variates,
    correction,
    start_variates,
)
from hewfl.solver.threshold import threshold_weights

Source = Literal["surrogate", "caps", "oracle"]
Variance = Annotated[float | Sequence[float], nonnegatives]
_ROUNDING = 1e-12
"""Relative: θ = η L H comes back from a step size so near to the one planned."""


@final
@dataclass(frozen=True, slots=True)
class KnownBounds:
    """Known bounds: U_t on the gap, and Q_i,t on the tracking error of every client.

    Attributes:
        gap: U_t.
        tracking: Q_i,t, infinite where nothing bounds the control variate of a client.
    """

    gap: float
    tracking: PerClient


@final
@dataclass(frozen=True, slots=True)
class ControlState:
    """Control variates, and the known bounds."""

    variates: Variates
    upper: KnownBounds


@final
@dataclass(frozen=True, slots=True)
class HewControl:
    """Corrected branches with the weights and amplitudes of the least certified bound.

    What is certified: the expected gap after the round is at most J, the expectation
    being over the minibatches, given the participants and their steps. With the
    "oracle" state it is the expectation given the whole past. The bound grows for
    absent clients (erratum E-19). It assumes

    - the declared L, R and v_i²,
    - honest clients: every update is that of the client's own steps on its own data,
    - a participation that does not depend on minibatches,
    - the plain server step.

    Attributes:
        bounds: L, R and the box of amplitudes.
        variance: v_i² or proxies not below it, one number or one per client; a function
            of t for proxies that clients send every round.
        variant: constants of the certificate.
        source: of (U_t, Q_t) (erratum E-18). "surrogate": the
            deterministic system (u_t, χ_t), client by client; "caps": U = f̄ and what
            the ball says of Q, or `tracking`, every round; "oracle": the true values,
            for audits in simulation.
        tracking: a bound on max_i E‖c_i − ∇F_i(x)‖², at the start for "surrogate", of
            all rounds for "caps". None derives it: v_i²/b_i for a start at minibatch
            gradients of b_i samples. Nothing bounds variates that start at zero, as
            clients may differ by any amount: there is no certificate until each client
            has taken part once, or a number is given.
        start: control variates start at zero or at a minibatch gradient.

    Raises:
        InvalidInputError: a hyper-parameter is out of its range.
    """

    bounds: ProblemBounds
    variance: Variance | Callable[[int], Variance]
    variant: Variant = "paper"
    source: Source = "surrogate"
    tracking: Nonnegative | None = None
    start: Start = "gradient"

    name: ClassVar[str] = "HEW (control)"

    def __post_init__(self) -> None:
        """Check that numbers are in range, and names."""
        check_variant(self.variant)
        check_fields(self)

    @property
    def demands(self) -> Demands:
        """Two vectors down and an amplitude each; the true state for audits.

        Proxies that change travel up, one number from each active client: ν_t = S_t.
        """
        sent = int(callable(self.variance))
        return Demands(
            Traffic(  # Alg. 1, l. 3, 12
                down=2, paper_up=2, down_scalars=1, up_scalars=sent
            ),
            STEP_NEEDS,
            gradients=self.start == "gradient",
            variates=True,
            oracle=self.source == "oracle",
        )

    def init(self, n: int, d: int, gradients: FirstGradients) -> ControlState:
        """c_0 = mean of c_i,0; U_0 = f̄; Q_0 as if first gradients had one sample.

        Raises:
            InvalidInputError: `variance` is neither one number nor one per client.
        """
        variates = start_variates(n, d, self.start, gradients)  # Alg. 1, l. 1
        samples = np.full(n, int(self.start == "gradient"))
        return self._start_tracking(
            ControlState(variates, self._unknown_bounds(n)), samples
        )

    def _start_tracking(
        self, state: ControlState, samples: Int64[Ints, " n"]
    ) -> ControlState:
        """The first state with Q_i,0 = v_i²/b_i, infinite without a gradient."""
        n = len(samples)
        if self.tracking is not None:
            return self._with(state, np.full(n, float(self.tracking)))
        with np.errstate(divide="ignore", invalid="ignore"):  # nothing over nothing
            first = self._variances(n, 0) / samples
        first = np.where(samples > 0, first, np.inf)
        return self._with(state, self._in_ball(first) if self._is_capped else first)

    def variates(self, state: ControlState) -> Variates:
        """The control variates in the state."""
        return state.variates

    def with_truth(self, state: ControlState, truth: Truth) -> ControlState:
        """Q_0 from the samples of first gradients; the true (U_t, Q_t) of an oracle."""
        if truth.samples is not None:
            state = self._start_tracking(state, truth.samples)
        upper = truth.upper
        if upper is None:
            return state
        worst = np.full(state.upper.tracking.shape, float(upper.tracking))
        return replace(state, upper=KnownBounds(upper.gap, worst))

    def plan(self, cohort: Cohort, state: ControlState) -> LocalPlan:
        """Solve for (w_t, θ_t); each client needs only its own amplitude."""
        upper = self._worst(state.upper)
        control = predictive_control(  # Alg. 1, l. 2
            self._profiles(cohort), upper, self.bounds, variant=self.variant
        )
        L, theta = self.bounds.smoothness, control.amplitudes
        eta = theta / (L * cohort.horizons)  # Alg. 1, l. 5
        return LocalPlan(eta, correction(state.variates, cohort))  # Alg. 1, l. 8

    def decide(
        self, round_: Round, state: ControlState
    ) -> tuple[Decision, ControlState]:
        """The weights that belong to the amplitudes played, and the next state."""
        cohort, known = round_.cohort, state.upper
        theta, profiles = self._amplitudes(round_), self._profiles(cohort)
        at = situation_of(profiles, self._worst(known), self.bounds)
        mu = gain(theta, at, self.variant)
        kappa = variance_bound(theta, at, self.variant)
        solution = threshold_weights(mu, self.bounds.smoothness * kappa)  # Alg. 1, l. 2
        theta, J = self.certified(round_, state, solution.weights)
        following = ControlState(
            state.variates.after(round_),
            self._next(
                cohort, RoundWork(theta, noise(profiles), cohort.horizons), J, known
            ),
        )
        sentence = self._sentence(theta, J, known)
        gap = float(solution.gap)
        return Decision(
            solution.weights, solution.status, gap, certificate=sentence
        ), following

    def certified(
        self, round_: Round, state: ControlState, weights: Float64[Array, " s"]
    ) -> tuple[Float64[Array, " s"], float]:
        """The amplitudes played and min(J, f̄), the bound on the expected next gap.

        f̄ bounds every gap on the ball (lem:gap). It is the only bound where Q is
        unknown, or where a client did so many steps that its amplitude is above 1.
        """
        theta, known = self._amplitudes(round_), state.upper
        if theta.max() > 1 or not np.isfinite(known.tracking).all():
            return theta, self._cap
        setting = (self._profiles(round_.cohort), self._worst(known), self.bounds)
        J = float(round_bound(weights, theta, *setting, variant=self.variant))
        return theta, min(J, self._cap)

    # ------------------ known bounds

    @property
    def _cap(self) -> float:
        """f̄ = LR²/2."""
        return self.bounds.smoothness * self.bounds.radius * self.bounds.radius / 2

    @property
    def _is_capped(self) -> bool:
        return self.source == "caps"

    def _in_ball(self, M: PerClient) -> PerClient:
        """The bound of the ball on variates of noise M; infinite where M is."""
        finite = np.where(np.isfinite(M), M, 0.0)
        ball = ball_tracking(finite, self.bounds.smoothness, self.bounds.radius)
        return np.where(np.isfinite(M), ball, np.inf)

    def _unknown_bounds(self, n: int) -> KnownBounds:
        return KnownBounds(self._cap, np.full(n, np.inf))

    def _with(self, state: ControlState, tracking: PerClient) -> ControlState:
        return replace(state, upper=replace(state.upper, tracking=tracking))

    def _worst(self, known: KnownBounds) -> UpperState:
        """(U, Q) with Q the largest over all clients, absent ones too: c is their mean.

        An infinite or enormous Q is replaced by one at which J > f̄ for every amplitude
        above 1e-99. That changes neither min(J, f̄) nor, in double precision, the best
        controls, and keeps the solver's terms inside the number range.
        """
        reach = self.bounds.smoothness * self.bounds.radius
        hopeless = 1e100 * reach * reach
        return UpperState(known.gap, min(float(known.tracking.max()), hopeless))

    def _amplitudes(self, round_: Round) -> Float64[Array, " s"]:
        """θ_i = η_i L H_i for the work done, which may differ from the plan.

        Rounding must not move a planned amplitude over an end of the box.
        """
        box, H = self.bounds, round_.cohort.horizons
        theta = round_.plan.step_sizes * box.smoothness * H
        clipped: Array = np.clip(theta, box.amplitude_min, box.amplitude_max)
        near = np.abs(theta - clipped) <= _ROUNDING * clipped
        return np.where(near, clipped, theta)

    def _variances(self, n: int, t: int) -> PerClient:
        """v_i² or proxies of all clients in round t."""
        given = self.variance(t) if callable(self.variance) else self.variance
        check_per_client("variance", given, n)
        return np.broadcast_to(nonnegatives("variance", given).reshape(-1), n)

    def _profiles(self, cohort: Cohort) -> ClientProfile:
        variance = self._variances(cohort.population, cohort.round)
        chosen = variance[cohort.clients]
        return ClientProfile(cohort.horizons, cohort.batch_sizes, chosen)

    def _sentence(
        self, theta: Float64[Array, " s"], J: float, known: KnownBounds
    ) -> str:
        """The certificate, or the reason why there is none."""
        if self._cap > J:
            return f"certified: expected next gap at most {format_upper(J, 6)}"
        unknown = int((~np.isfinite(known.tracking)).sum())
        if theta.max() > 1:
            why = f"an amplitude of {format_upper(theta.max(), 6)} is above 1"
        elif unknown:
            why = f"nothing bounds the control variates of {unknown} clients"
        else:
            cap = format_upper(self._cap, 6)
            why = f"the bound is not below LR²/2, at most {cap}, which no gap exceeds"
        return f"no certificate: {why}"

    def _next(
        self, cohort: Cohort, played: RoundWork, J: float, known: KnownBounds
    ) -> KnownBounds:
        """Bounds after the round; an oracle gives new ones before the next.

        u⁺ = min(f̄, J),   χ_i⁺ by `propagated_bounds`                (th:sur-system)
        """
        if self.source == "surrogate":
            tracking = propagated_bounds(
                known.tracking,
                cohort.clients,
                played,
                known.gap,
                self.bounds,
                variant=self.variant,
            )
            return KnownBounds(max(J, 0.0), tracking)
        if self._is_capped and self.tracking is None:
            tracking = known.tracking.copy()
            tracking[cohort.clients] = self._in_ball(played.noise)
            return replace(known, tracking=tracking)
        return known
