"""The predictive controller: weights and amplitudes of the least certified bound.

    min over w ∈ Δ_n, θ ∈ [θ_lo, θ_hi]ⁿ of  J(w, θ)                 (th:one-step-hetero)

With p_i = w_i θ_i the problem is convex in (w, p): −w μ(p/w) and w √κ(p/w) are
perspectives of convex functions (PAPER.md, row R). Hence no duality gap: for every λ

    D(λ) = U♯ − λ − ½ Σ_i max_θ ((μ_i(θ) − λ)₊)² / (L κ_i(θ))  ≤  min J,

with equality for the best λ. `global_control` searches for it, `alternating_control` is
the paper's Algorithm 4; both stop on the same certificate J − D and return it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from hewfl.control.amplitude import (
    Coefficients,
    best_alone,
    best_at_threshold,
    best_at_weight,
    coefficients,
)
from hewfl.control.certificate import Variant, check_variant, round_bound
from hewfl.core.records import ClientProfile, ControlSolution, ProblemBounds, UpperState
from hewfl.core.validation import (
    ArrayLike,
    PerClient,
    as_float64,
    format_value,
    invalid,
    nonnegative,
)
from hewfl.errors import SolverError
from hewfl.solver.threshold import ThresholdLaw, threshold_law

EXACT = 2.0**-52
"""Relative gap at which the dual search stops: one rounding."""
ACCEPTED = 1e-12
"""Relative gap at which Algorithm 4 stops, and above which no control is returned: far
above rounding, far below anything a certificate made of bounds can resolve."""
ROUNDING = 2.0**-49
"""Taken off the lower bound for the rounding of μ and κ, relative to their terms."""
LEAST_AMPLITUDE = 1e-70
"""Smallest θ_lo that is solved for: θ⁴, by which risk is measured, stays a number."""
MAX_STEPS = 200
MAX_SWEEPS = 5000
_TINY = float(np.finfo(np.float64).tiny)

Profiles = ClientProfile | Sequence[ClientProfile]
if TYPE_CHECKING:
    Solver = Literal["global", "alternating"]
else:  # a wrong name passes run-time type checks, to an error with the choices
    Solver = str


def predictive_control(  # noqa: PLR0913 - all but three are optional
    profiles: Profiles,
    state: UpperState,
    bounds: ProblemBounds,
    *,
    variant: Variant = "paper",
    solver: Solver = "global",
    start: ArrayLike | None = None,
    tolerance: float | None = None,
) -> ControlSolution:
    """Weights and amplitudes with the least certified bound on the next gap.

        (w*, θ*) ∈ argmin J(w, θ) over w ∈ Δ_n, θ ∈ [θ_lo, θ_hi]ⁿ   (th:one-step-hetero)

    A client of weight zero gets the amplitude that is best alone (erratum E-11).

    Args:
        profiles: one profile with an entry per client, or one profile per client.
        state: (U, Q).
        bounds: L, R and the box of amplitudes.
        variant: constants of the certificate, "paper", "sharp" or "absorbed".
        solver: "global" is the dual method, "alternating" is Algorithm 4.
        start: θ⁽⁰⁾ of Algorithm 4, one number or one per client; θ_lo by default.
        tolerance: ε of Algorithm 4: it stops after a sweep that gained no more, as
            printed. By default it stops on the certified gap (E-12).

    Returns:
        The controls, J at them, and a lower bound on J at all others.

    Raises:
        InvalidInputError: no client, an unknown variant or solver, an `amplitude_min`
            so small that risks vanish in float64, a start outside the box, or a start
            or tolerance for the dual method, which has none.
        SolverError: the gap could not be certified to 1e-12, where no tolerance is
            given. Algorithm 4 may need more than its 5000 sweeps when noise dominates
            in a box of several decades.

    Examples:
        >>> clients = ClientProfile([1, 4, 4], batch_size=8, variance=[1.0, 1.0, 9.0])
        >>> state, bounds = UpperState(0.5, 0.0), ProblemBounds(1.0, 1.0, 0.01, 1.0)
        >>> control = predictive_control(clients, state, bounds, variant="sharp")
        >>> control.weights.round(3), control.amplitudes.round(3)
        (array([0.761, 0.239, 0.   ]), array([0.882, 0.204, 0.187]))
        >>> round(control.value, 6), control.value - control.lower_bound < 1e-15
        (0.455476, True)
    """
    check_variant(variant)
    if solver == "alternating":
        given = (profiles, state, bounds)
        return alternating_control(
            *given, variant=variant, start=start, tolerance=tolerance
        )
    if solver == "global":  # Alg. 1, l. 2
        for name, value in (("start", start), ("tolerance", tolerance)):
            if value is not None:
                raise invalid(name, 'left out unless solver = "alternating"', value)
        return global_control(profiles, state, bounds, variant=variant)
    raise invalid("solver", "one of global, alternating", repr(solver))


def global_control(
    profiles: Profiles,
    state: UpperState,
    bounds: ProblemBounds,
    *,
    variant: Variant = "paper",
) -> ControlSolution:
    """The dual method: a one-dimensional search for the threshold (PAPER.md, row R).

    Given λ, each client takes its best amplitude θ_i(λ); the threshold law at those
    amplitudes answers with a threshold Λ(λ). The miss Λ(λ) − λ has the sign of D'(λ),
    falls with λ and vanishes at the optimum. Secant steps find it inside a bracket,
    halved at every fourth step. θ_i(λ) grows with λ, so a bracket of λ is one of every
    amplitude. No search is needed where all amplitudes are best at θ_lo. Arguments are
    those of `predictive_control`.

    Raises:
        InvalidInputError: no client, or an unknown variant.
        SolverError: the gap could not be certified to 1e-12.
    """
    problem = _problem(profiles, state, bounds, variant)
    point, steps = _certify(problem, problem.low, _law(problem, problem.low)), 0
    if not point.gap <= EXACT * point.size:
        point, steps = _search(problem)
    return _solution(problem, point, "the dual method", steps)


def _search(problem: "_Problem") -> tuple["_Point", int]:
    """The last point of the dual search, and the steps it took."""
    c, left, right = problem.c, problem.low, problem.top
    low, high = max(float(c.threshold(left).min()), _TINY), float(c.gain(right).max())
    old, trial = high, max(_law(problem, right).level, low)
    old_miss = trial - high
    for step in range(1, MAX_STEPS + 1):
        theta = best_at_threshold(c, trial, left, right)
        law = _law(problem, theta)
        point = _certify(problem, theta, law, trial)
        if point.gap <= EXACT * point.size:
            break
        miss = law.level - trial
        if miss > 0:
            low, left = trial, theta
        else:
            high, right = trial, theta
        secant = trial - miss * (trial - old) / (miss - old_miss or _TINY)
        old, old_miss = trial, miss
        middle = float(np.sqrt(low) * np.sqrt(high))
        trial = secant if step % 4 and low < secant < high else middle
        if not low < trial < high:  # the bracket is one rounding wide
            break
    return point, step


def alternating_control(
    profiles: Profiles,
    state: UpperState,
    bounds: ProblemBounds,
    *,
    variant: Variant = "paper",
    start: ArrayLike | None = None,
    tolerance: float | None = None,
) -> ControlSolution:
    """Algorithm 4: exact weights and exact amplitudes in turn, from θ⁽⁰⁾.

    O is J up to a constant. A client of weight zero gets the amplitude that is best
    alone, the limit of small weights; any other choice may trap it there (E-11). As
    printed it stops after a sweep that gained at most ε, which does not bound the
    distance from the least O: the lower bound of the solution does. Without an ε it
    stops on the certified gap itself (E-12). w⁽⁰⁾, which the printed test needs and the
    paper does not define, is the best one for θ⁽⁰⁾. Arguments are those of
    `predictive_control`.

    Raises:
        InvalidInputError: no client, an unknown variant, or a start outside the box.
        SolverError: without a tolerance, the gap could not be certified to 1e-12; with
            one, no sweep gained so little.
    """
    problem = _problem(profiles, state, bounds, variant)
    epsilon = None if tolerance is None else nonnegative("tolerance", tolerance)
    c, theta, value = problem.c, _start(problem, start), np.inf
    for sweep in range(1, MAX_SWEEPS + 1):  # Alg. 4, l. 1, 10
        mu, kappa = c.gain(theta), c.risk(theta)  # Alg. 4, l. 2
        law = threshold_law(mu, kappa)  # Alg. 4, l. 3
        point = _certify(problem, theta, law)
        assert point.objective <= value + ROUNDING * point.size  # prop:solver, item 3
        before = point.objective if sweep == 1 else value
        box = (problem.low, problem.top)  # Alg. 4, l. 4, 6 (all i)
        theta = best_at_weight(c, law.weights, *box)  # Alg. 4, l. 5
        if epsilon is None:
            value, point = point.objective, replace(point, amplitudes=theta)
            done = point.gap <= ACCEPTED * point.size
        else:
            point = _certify(problem, theta, law)
            gained, value = c.unit * (before - point.objective), point.objective
            done = gained <= epsilon  # Alg. 4, l. 7
        if done:
            break  # Alg. 4, l. 8-9
    if epsilon is None or not done:
        return _solution(problem, point, "Algorithm 4", sweep)
    return _answer(problem, point, sweep, f"stopped: a sweep gained at most {epsilon}")


def _start(problem: "_Problem", start: ArrayLike | None) -> PerClient:
    """θ⁽⁰⁾, one entry per client.

    Raises:
        InvalidInputError: it is not one number or one per client, or outside the box.
    """
    low, high = problem.bounds.amplitude_min, problem.bounds.amplitude_max
    if start is None:
        return problem.low
    theta = as_float64("start", start)
    if theta.shape not in ((), problem.low.shape):
        rule = f"one number or {len(problem.low)} of them"
        raise invalid("start", rule, f"shape {theta.shape}")
    if not ((theta >= low) & (theta <= high)).all():
        raise invalid("start", f"from {low} to {high}", format_value(start))
    # an amplitude above the one that is best alone is worse at any weight, and the
    # certificate is proved below it
    return np.asarray(np.clip(theta, problem.low, problem.top))


@final
@dataclass(frozen=True, slots=True)
class _Problem:
    """The data of both solvers.

    Attributes:
        clients: one profile with an entry per client.
        state: (U, Q).
        bounds: L, R and the box.
        variant: constants of the certificate.
        c: gain and risk of the clients.
        low: θ_lo; for a riskless client `top`, which is best at any weight.
        top: the amplitude that is best alone; no weight makes a larger one better.
    """

    clients: ClientProfile
    state: UpperState
    bounds: ProblemBounds
    variant: Variant
    c: Coefficients
    low: PerClient
    top: PerClient


@final
@dataclass(frozen=True, slots=True)
class _Point:
    """Controls with their value and its certificate, in units of `Coefficients.unit`.

    Attributes:
        weights: w ∈ Δ_n.
        amplitudes: θ.
        objective: J − U♯.
        size: Σ_i w_i (s_i + ρ_i + ½ w_i κ_i), the terms that make up the objective.
        gap: bound on objective − its minimum.
    """

    weights: PerClient
    amplitudes: PerClient
    objective: float
    size: float
    gap: float


def _certify(
    problem: _Problem, theta: PerClient, law: ThresholdLaw, trial: float | None = None
) -> _Point:
    """The point (w, θ) of a threshold law, with the better gap of its λ and `trial`.

    The law keeps μ_i − λ exact where risk is small, `trial` keeps λ exact where it is
    small next to the gains.
    """
    c, w = problem.c, law.weights
    theta = np.where(w > 0, theta, problem.top)
    (s, rho), kappa = c.gain_parts(theta), c.risk(theta)
    gap = _gap(problem, w, theta, kappa, law.above(s - rho), law.level)
    if trial is not None:
        gap = min(gap, _gap(problem, w, theta, kappa, (s - rho) - trial, trial))
    noise = 0.5 * w * kappa
    objective, size = w * (noise + rho - s), w * (noise + rho + np.abs(s))
    return _Point(w, theta, float(objective.sum()), float(size.sum()), gap)


def _gap(
    problem: _Problem,
    w: PerClient,
    theta: PerClient,
    kappa: PerClient,
    above: PerClient,
    lam: float,
) -> float:
    """J(w, θ) − D(λ) or a little more, given m = μ − λ as `above`.

    As Σ w_i = 1, the difference is a sum over clients of terms that are not negative,

        ½κ(w − m/κ)²  if m > 0,  w(½κw − m)  else       (the weight is off)
        ½(max_θ z² − z²),  z = m/√κ,  if m > 0          (the amplitude is off).
    """
    active = above > 0
    if (active & (kappa == 0)).any():
        return np.inf
    ideal = np.divide(above, kappa, out=np.zeros_like(above), where=active)
    idle = w * (0.5 * kappa * w - above)
    off = np.where(active, 0.5 * kappa * (w - ideal) ** 2, idle)
    with np.errstate(over="ignore"):  # infinite: nothing certified
        excess = 0.5 * ideal * above * _ratio_excess(problem, theta, above, lam)
        return float(off.sum() + excess.sum())


def _ratio_excess(
    problem: _Problem, theta: PerClient, above: PerClient, lam: float
) -> PerClient:
    """Bound on max_θ z²/z² − 1: zero where λ = ℓ(θ), or past ℓ at an end of the box.

        log(max_θ z²/z²) ≤ 12 (|λ − ℓ|/m) |log(ℓ/λ)| max(1, ℓ/λ)⁶

    Proof. d log z/d log θ = e(λ − ℓ)/m with e ≤ 3, and |λ − ℓ| shrinks on the way to
    the best θ*. ℓ grows at least like √θ, so the way is at most 2|log(ℓ/λ)| long. Going
    up, m grows; going down, z grows while √κ falls no faster than θ³, so m keeps at
    least the share (θ*/θ)³ ≥ (λ/ℓ)⁶. For λ ≤ 0 only the low end is best.
    """
    ell = problem.c.threshold(theta)
    pull = np.where(theta < problem.top, lam - ell, 0.0)
    pull = np.maximum(pull, np.where(theta > problem.low, ell - lam, 0.0))
    k = np.flatnonzero((above > 0) & (pull > 0))
    excess = np.zeros_like(above)
    if lam <= 0:
        excess[k] = np.inf
        return excess
    with np.errstate(over="ignore", divide="ignore"):  # infinite: nothing certified
        way, share = np.abs(np.log(ell[k] / lam)), np.maximum(ell[k] / lam, 1.0) ** -6
        excess[k] = np.expm1(12 * pull[k] / above[k] * way / share)
    return excess


def _law(problem: _Problem, theta: PerClient) -> ThresholdLaw:
    """Exact weights for given amplitudes (prop:KKT)."""
    return threshold_law(problem.c.gain(theta), problem.c.risk(theta))


def _problem(
    profiles: Profiles, state: UpperState, bounds: ProblemBounds, variant: Variant
) -> _Problem:
    clients = _stack_profiles(profiles)
    c = coefficients(clients, state, bounds, variant)
    low = np.full(c.k2.shape, float(bounds.amplitude_min))
    top = best_alone(c, low, np.full(c.k2.shape, float(bounds.amplitude_max)))
    # a risk k₂θ² + k₄θ⁴ that underflows at θ_lo makes the client look riskless there:
    # all weight goes to it, and D(λ) "proves" that nothing is better
    vanished = (c.risk(top) > 0) & (c.risk(low) < _TINY)
    if bounds.amplitude_min < LEAST_AMPLITUDE or vanished.any():
        rule = f"at least {LEAST_AMPLITUDE:g} and large enough that θ²v² is not lost"
        raise invalid("amplitude_min", rule, bounds.amplitude_min)
    low = np.where(c.risk(top) > 0, low, top)
    return _Problem(clients, state, bounds, variant, c, low, top)


def _stack_profiles(profiles: Profiles) -> ClientProfile:
    """One profile with an entry per client."""
    rows = [profiles] if isinstance(profiles, ClientProfile) else profiles
    if len(rows) == 0:
        raise invalid("profiles", "at least one client", "none")
    fields = [np.atleast_1d(p.horizon, p.batch_size, p.variance) for p in rows]
    columns = zip(*(np.broadcast_arrays(*f) for f in fields), strict=True)
    return ClientProfile(*(np.concatenate(column) for column in columns))


def _solution(
    problem: _Problem, point: _Point, method: str, count: int
) -> ControlSolution:
    """The solution in the units of the state, or an error if it is not certified."""
    if not point.gap <= ACCEPTED * point.size:
        text = (
            f"{method} did not certify its controls in {count} steps: the gap is "
            f"{point.gap / max(point.size, _TINY):.1e} of the terms of J, above "
            f"{ACCEPTED:.0e}; Algorithm 4 is slow when noise dominates in a wide box: "
            "use the global solver or raise `amplitude_min`"
        )
        raise SolverError(text)
    return _answer(problem, point, count, f"optimal: certified by {method}")


def _answer(
    problem: _Problem, point: _Point, count: int, status: str
) -> ControlSolution:
    """A point in the units of the state."""
    w, theta = point.weights, point.amplitudes
    setting = (problem.clients, problem.state, problem.bounds)
    value = float(round_bound(w, theta, *setting, variant=problem.variant))
    miss = problem.c.unit * (point.gap + ROUNDING * point.size)
    lower = float(np.nextafter(value - miss, -np.inf))
    return ControlSolution(w, theta, value, lower, count, status)
