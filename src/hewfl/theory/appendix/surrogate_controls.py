"""The surrogate system: expected gap and tracking bounded by numbers (th:sur-system).

    u⁺ = min{f̄, J(w, θ; u, χ)},     χ⁺ = A + B u + C χ

for controls (w, θ) known before the run. Nothing random enters, so the controls of the
whole run are a schedule that can be computed offline. The theorem does not cover a
recursion fed with estimates of a run (erratum E-18).
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from hewfl.control.certificate import Variant, certified_change, check_variant
from hewfl.control.joint_problem import predictive_control
from hewfl.control.tracking import predictable_tracking
from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.records import ClientProfile, ProblemBounds, UpperState
from hewfl.core.validation import Array, ArrayLike, invalid, nonnegatives, positives
from hewfl.theory.comparators import tracking_hypothesis
from hewfl.theory.noise import simplex_weights
from hewfl.theory.one_step_bound import Controls, situation
from hewfl.theory.recursion import (
    State,
    Trajectory,
    Whole,
    as_trajectory,
    by_round,
    one_whole,
    validate_start,
)
from hewfl.theory.statement import Hypothesis, at_most
from hewfl.theory.systems import System, require_single_clients


@final
@dataclass(frozen=True, slots=True, eq=False)
class Surrogate:
    """The optimised system, rounds first, with clients last for w_t and θ_t."""

    gap: Float64[Array, "states ..."]  # u_t, a bound on the expected gap
    tracking: Float64[Array, "states ..."]  # χ_t, on squared tracking errors
    weights: Float64[Array, "rounds ... n"]  # w_t
    amplitudes: Float64[Array, "rounds ... n"]  # θ_t
    solver_gap: Float64[Array, "rounds ..."]  # distance from the least J (E-18)
    hypotheses: tuple[Hypothesis, ...]


@broadcasting
def surrogate(
    system: System,
    box: tuple[ArrayLike, ArrayLike],
    start: State,
    rounds: Whole,
    *,
    variant: Variant = "paper",
    printed: bool = False,
) -> Surrogate:
    """The system under its optimal controls (th:sur-system, eq:u-rec-main).

        (w_t, θ_t) ∈ argmin J(w, θ; u_t, χ_t),   u⁺ = min{f̄, J},   χ⁺ = A + B u + C χ

    A, B, C belong to the largest amplitude used (E-09, E-33); as printed, to the end
    of the box. Configurations are solved one after the other: every round is a search.
    With proxies for the variances (`executable_system`) it is the executable system.

    Args:
        system: the constants.
        box: θ̲ and θ̄, shape (*c).
        start: (u₀, χ₀), shape (*c).
        rounds: T.
        variant: the set of constants.
        printed: tracking coefficients of the end of the box.

    Returns:
        Bounds, controls and solver gaps of all rounds.
    """
    require_single_clients(system)
    T, n = one_whole("rounds", rounds), system.n
    low, high = positives("box", box[0]), positives("box", box[1])
    u, chi, begins = validate_start(start, system.cap)
    parts = (system.cap, system.L, system.R, low, high, u, chi)
    cap, L, R, low, high, u, chi = np.broadcast_arrays(*parts)
    ceiling = _vacuous_tracking(L, R)
    noise, H, b, v2 = (
        np.broadcast_to(field, (*cap.shape, n))
        for field in (system.noise, system.horizon, system.batch_size, system.variance)
    )
    states, gaps = np.empty((T + 1, 2, *cap.shape)), np.empty((T, *cap.shape))
    controls = np.empty((T, 2, *cap.shape, n))
    states[:1] = np.stack([u, chi])
    for c in np.ndindex(cap.shape):
        clients = ClientProfile(H[c], b[c], v2[c])
        bounds = ProblemBounds(*(float(value[c]) for value in (L, R, low, high)))
        for t in range(T):
            u_t, chi_t = (float(x) for x in states[(t, slice(None), *c)])
            state = UpperState(u_t, min(chi_t, float(ceiling[c])))
            best = predictive_control(clients, state, bounds, variant=variant)
            top = high[c] if printed else best.amplitudes.max()
            track = predictable_tracking(top, noise[c], H[c], L[c], variant=variant)
            u_next = min(float(cap[c]), max(best.value, 0.0))
            states[(t + 1, slice(None), *c)] = u_next, track.after(u_t, chi_t)
            controls[(t, 0, *c)], controls[(t, 1, *c)] = best.weights, best.amplitudes
            gaps[(t, *c)] = best.value - best.lower_bound
    theta = controls[:, 1]
    top = high if printed else theta.max((0, -1), initial=0.0)
    proved = tracking_hypothesis(np.asarray(top), variant, printed=printed)
    return Surrogate(
        states[:, 0], states[:, 1], controls[:, 0], theta, gaps, (proved, begins)
    )


@broadcasting
def surrogate_under(
    system: System,
    controls: Controls,
    start: State,
    rounds: Whole | None = None,
    *,
    box_end: ArrayLike | None = None,
    variant: Variant = "paper",
) -> Trajectory:
    """The system under given controls, all configurations at once (th:sur-majorant).

    Domination needs some controls fixed before the run, not the best ones (E-18), so
    u_t and χ_t are bounds for these as well.
    Controls have shape (*c, n), or (rounds, *c, n) for a schedule, where `rounds` is
    None. The box ends at θ̄ in the recursion of χ, by default at the largest θ_i of the
    round (E-33).
    """
    check_variant(variant)
    w, theta = simplex_weights("weights", controls[0]), controls[1]
    w, theta = by_round(rounds, w, nonnegatives("amplitudes", theta))
    if w.ndim < 2:
        raise invalid("rounds", "given where no control changes over rounds", None)
    end = theta.max(-1) if box_end is None else nonnegatives("box_end", box_end)
    tops = np.broadcast_to(end, np.broadcast_shapes(end.shape, theta.shape[:-1]))
    u, chi, begins = validate_start(start, system.cap)
    states, M, H, L = [(u, chi)], system.noise, system.horizon, system.L
    ceiling = _vacuous_tracking(L, system.R)
    for w_t, theta_t, top in zip(w, theta, tops, strict=True):
        at = situation(system, u, np.minimum(chi, ceiling))
        J = np.minimum(u, system.cap) + certified_change(w_t, theta_t, at, variant)
        track = predictable_tracking(top, M, H, L, variant=variant)
        next_u = np.minimum(system.cap, np.maximum(J, 0))
        u, chi = np.asarray(next_u), track.after(u, chi)
        states.append((u, chi))
    small = at_most("θ ≤ 1", theta.max((0, -1), initial=0.0), 1)
    largest = np.asarray(tops.max(0, initial=0.0))
    proved = tracking_hypothesis(largest, variant, printed=False)
    return as_trajectory(states, (small, proved, begins))


def _vacuous_tracking(L: Array, R: Array) -> Array:
    """A χ at which J > f̄ for every amplitude above 1e-99, so that u⁺ = f̄.

    With C > 1 the bound χ soon leaves the number range. J is evaluated at this level,
    which changes neither u⁺ nor, in double precision, the best controls.
    """
    return np.asarray(1e100 * (L * R) * (L * R))
