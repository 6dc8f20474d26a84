"""Closed bounds of the master recursion S ← R_a(S) + bS + d + ε.

Two forms of each bound: `*_rate` for terms constant in time and any number of rounds,
`*_bounds` for terms that change, which returns the whole trajectory. The generator
decides which corollary it is (quadratic, power, exponential), or the theorem itself.
"""

import numpy as np

from hewfl.core.checks import ArrayLike, Reals, invalid, nonnegatives, positives, wholes
from hewfl.core.shapes import broadcasting
from hewfl.theory.general.drift import Terms
from hewfl.theory.general.floors import floor_hypothesis, log_contraction, noisy_floor
from hewfl.theory.general.generator import Generator
from hewfl.theory.statement import Hypothesis, Rate, at_most, below


@broadcasting
def master_trajectory(generator: Generator, start: ArrayLike, terms: Terms) -> Reals:
    """The recursion itself, played to the end (thm:master, eq:master_rec).

        S_{t+1} = R_{a_t}(S_t) + b_t S_t + d_t + ε_t

    The theorem bounds E[s_t] by it for any comparator controls, since R_a is concave
    and increasing.

    Args:
        generator: φ.
        start: S_0 ≥ 0.
        terms: rounds first, shape (T, *c).

    Returns:
        S_0, ..., S_T.
    """
    _require_rounds(terms)
    states = [_start(start, terms.a[0], generator)]
    for a, b, d in zip(terms.a, terms.b, terms.d, strict=True):
        s = states[-1]
        states.append(np.asarray(generator.flow(a, s) + b * s + d))
    return np.stack(states)


# ------------------------------------------------------------------ without noise


@broadcasting
def noiseless_rate(
    generator: Generator,
    start: ArrayLike,
    terms: Terms,
    rounds: ArrayLike,
    *,
    objective: ArrayLike = 1.0,
) -> Rate:
    """S_T ≤ R_{Ta}(S_0) for constant terms (thm:noiseless, cor:quadratic, ...).

        φ = κs²        S_T ≤ 1/(1/S_0 + κA_T)                       cor:quadratic
        φ = κs^{1+p}   S_T ≤ (S_0^{−p} + κpA_T)^{−1/p}              cor:power
        φ = ρs         S_T ≤ e^{−ρA_T} S_0                          cor:exp

    with A_T = Σ a_t (eq:noiseless_bound).

    Args:
        generator: φ.
        start: S_0 ≥ 0.
        terms: constant in time; the theorem wants b = d = ε = 0 (eq:noiseless_ass).
        rounds: T.
        objective: C_obj of eq:obj_dom, for the bound on the objective gap.

    Returns:
        The rate, whose floor is zero.
    """
    elapsed = wholes("rounds", rounds) * terms.a
    value, conditions = _noiseless(generator, start, terms, elapsed, objective)
    return _to_zero(generator, start, value, value.shape, conditions)


@broadcasting
def noiseless_bounds(
    generator: Generator, start: ArrayLike, terms: Terms, *, objective: ArrayLike = 1.0
) -> Rate:
    """S_t ≤ R_{a_0 + ... + a_{t−1}}(S_0) for terms that change over rounds.

    Args:
        generator: φ.
        start: S_0 ≥ 0.
        terms: rounds first, shape (T, *c); the theorem wants b = d = ε = 0.
        objective: C_obj of eq:obj_dom, for the bound on the objective gap.

    Returns:
        The rate; its `value` has one entry per t = 0, ..., T.
    """
    _require_rounds(terms)
    elapsed = np.concatenate([0 * terms.a[:1], np.cumsum(terms.a, axis=0)])
    worst = Terms(*(np.max(x, axis=0) for x in (terms.a, terms.b, terms.d)))
    value, conditions = _noiseless(generator, start, worst, elapsed, objective)
    return _to_zero(generator, start, value, value.shape[1:], conditions)


@broadcasting
def noiseless_coordinate(
    generator: Generator, start: ArrayLike, elapsed: ArrayLike, reference: ArrayLike
) -> Reals:
    """Least time coordinate after time A_T (eq:noiseless_chi).

        χ(S_T) ≥ χ(S_0) + A_T

    It needs S_0 and S_T positive; that R_{A_T}(S_0) is, as the paper asks, leaves
    χ(S_T) undefined when the run arrives at zero early (erratum E-24).
    """
    S0, time = positives("start", start), nonnegatives("elapsed", elapsed)
    return np.asarray(generator.coordinate(S0, reference) + time)


def _noiseless(
    generator: Generator,
    start: ArrayLike,
    terms: Terms,
    elapsed: ArrayLike,
    objective: ArrayLike,
) -> tuple[Reals, tuple[Hypothesis, ...]]:
    C, S0 = positives("objective", objective), nonnegatives("start", start)
    quiet = (at_most("b ≤ 0", terms.b, 0.0), at_most("d + ε ≤ 0", terms.d, 0.0))
    return np.asarray(C * generator.flow(elapsed, S0)), quiet


def _to_zero(
    generator: Generator,
    start: ArrayLike,
    value: Reals,
    shape: tuple[int, ...],
    conditions: tuple[Hypothesis, ...],
) -> Rate:
    """A rate whose floor is zero: it says something unless the run starts there."""
    vacuous = np.broadcast_to(np.asarray(start) <= 0, shape)
    return Rate(generator.noiseless, value, np.zeros(shape), vacuous, conditions)


# ------------------------------------------------------------------ with noise


@broadcasting
def noisy_rate(  # noqa: PLR0913 - the statement has as many letters
    generator: Generator,
    start: ArrayLike,
    terms: Terms,
    rounds: ArrayLike,
    *,
    floor: ArrayLike | None = None,
    objective: ArrayLike = 1.0,
    printed: bool = False,
) -> Rate:
    """S_T ≤ m + λ^T (S_0 − m)₊ for constant terms (thm:noisy, corollaries).

        φ = κs²        λ = 1/(1 + κam)² + b                    cor:quadratic_noisy
        φ = κs^{1+p}   λ = (1 + κpa m^p)^{−1−1/p} + b          cor:power_noisy
        φ = ρs         λ = e^{−ρa} + b                         cor:exp_noisy

    Args:
        generator: φ.
        start: S_0 ≥ 0.
        terms: constant in time.
        rounds: T.
        floor: m; the smallest by default.
        objective: C_obj of eq:obj_dom, for the bound on the objective gap.
        printed: also ask for λ < 1, which the bound does not need (erratum E-24).

    Returns:
        The rate with its floor C_obj m.

    Raises:
        InvalidInputError: no floor exists, or an argument is out of range.
    """
    m = noisy_floor(generator, terms) if floor is None else nonnegatives("floor", floor)
    log = log_contraction(generator, terms, m)
    C, S0 = positives("objective", objective), nonnegatives("start", start)
    with np.errstate(over="ignore"):  # λ > 1: a bound that says nothing
        value = np.asarray(C * (m + _scaled_power(log, rounds, S0 - m)))
    conditions = [floor_hypothesis(generator, terms, m)]
    conditions += [below("λ < 1", np.exp(log), 1.0)] if printed else []
    vacuous = np.broadcast_to((m >= S0) | (log >= 0), value.shape)
    level = np.broadcast_to(C * m, value.shape)
    return Rate(generator.noisy, value, level, vacuous, tuple(conditions))


@broadcasting
def noisy_bounds(
    generator: Generator,
    start: ArrayLike,
    terms: Terms,
    *,
    floor: ArrayLike | None = None,
    objective: ArrayLike = 1.0,
    printed: bool = False,
) -> Rate:
    """S_t ≤ m + Λ_{t,0} (S_0 − m)₊ for terms of shape (T, *c)  (eq:noisy_bound).

    One m serves all rounds: by default the largest of the rounds' own. `value` has one
    entry per t = 0, ..., T; each step obeys r_{t+1} ≤ λ_t r_t (eq:noisy_onestep). The
    hypotheses show the round that comes closest to breaking them.

    Args:
        generator: φ.
        start: S_0 ≥ 0.
        terms: rounds first, shape (T, *c).
        floor: m, one for all rounds; the largest of their own by default.
        objective: C_obj of eq:obj_dom, for the bound on the objective gap.
        printed: also ask for λ < 1, which the bound does not need (E-24).

    Returns:
        The rate; its `value` has one entry per t = 0, ..., T.

    Raises:
        InvalidInputError: no floor exists, or an argument is out of range.
    """
    _require_rounds(terms)
    if floor is None:
        m = noisy_floor(generator, terms).max(axis=0)
    else:
        m = nonnegatives("floor", floor)
    log = log_contraction(generator, terms, m)
    C, S0 = positives("objective", objective), nonnegatives("start", start)
    sums = np.concatenate([0 * log[:1], np.cumsum(log, axis=0)])
    with np.errstate(over="ignore"):  # λ > 1: a bound that says nothing
        value = np.asarray(C * (m + _scaled_power(sums, 1, S0 - m)))
    conditions = [_tightest(floor_hypothesis(generator, terms, m))]
    conditions += [below("λ < 1", np.exp(log).max(axis=0), 1.0)] if printed else []
    vacuous = np.asarray((value >= C * S0).all(axis=0))
    level = np.broadcast_to(C * m, value.shape[1:])
    return Rate(generator.noisy, value, level, vacuous, tuple(conditions))


def _scaled_power(log: Reals, rounds: ArrayLike, distance: ArrayLike) -> Reals:
    """λ^T (S_0 − m)₊, zero where the run starts below the floor."""
    r = np.maximum(distance, 0.0)
    power = np.where(r > 0, wholes("rounds", rounds) * log, 0.0)
    return np.asarray(np.exp(power) * r)


def _tightest(condition: Hypothesis) -> Hypothesis:
    left, right = np.broadcast_arrays(condition.left, condition.right)
    at = np.argmax(left - right, axis=0, keepdims=True)
    pick = (np.take_along_axis(side, at, axis=0)[0] for side in (left, right))
    return at_most(condition.name, *pick)


def _require_rounds(terms: Terms) -> None:
    if terms.a.ndim == 0 or len(terms.a) == 0:
        rule = "of shape (T, *c) with T ≥ 1 rounds"
        raise invalid("terms", rule, f"shape {terms.a.shape}")


def _start(start: ArrayLike, like: ArrayLike, generator: Generator) -> Reals:
    """S_0 in the shape of the trajectory."""
    S0 = nonnegatives("start", start)
    return np.asarray(S0 + np.zeros_like(like) + np.zeros_like(generator.origin_slope))
