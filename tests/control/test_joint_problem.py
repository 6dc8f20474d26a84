"""The predictive controller: certified, global, and the same by two roads."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hewfl import (
    ClientProfile,
    ControlSolution,
    InvalidInputError,
    ProblemBounds,
    SolverError,
    UpperState,
)
from hewfl.control import joint_problem as control
from hewfl.control.amplitude import best_alone, best_at_weight, coefficients
from hewfl.control.certificate import (
    VARIANTS,
    Variant,
    clipped_gap,
    gain,
    round_bound,
    situation_of,
    variance_bound,
)
from hewfl.control.joint_problem import (
    alternating_control,
    global_control,
    predictive_control,
)
from hewfl.solver.threshold import threshold_weights

pytestmark = pytest.mark.unchecked
Array = NDArray[np.float64]
Problem = tuple[ClientProfile, UpperState, ProblemBounds]

GLOBAL = 1e-13
"""Certified gap of the dual method over the terms of J: rounding of the lower bound."""
ALTERNATING = 1.1e-12
"""Certified gap of Algorithm 4 over the terms of J: its own target and rounding."""
GRID = 1e-3
"""What a grid of 400 weights and 800 amplitudes may miss of the optimum."""
AMPLITUDES = 1e-6
"""Amplitudes of two solves: the objective is flat to second order around them."""

BOX = ProblemBounds(1.0, 1.0, 0.01, 1.0)

variants = pytest.mark.parametrize("variant", VARIANTS)
solvers = pytest.mark.parametrize("solve", [global_control, alternating_control])


@st.composite
def problems(draw: st.DrawFn, *, decades: float = 3, width: float = 1.5) -> Problem:
    """L, R, U, Q, v², H, b and boxes at random; some clients riskless, some alike."""
    n = draw(st.integers(1, 6))
    L, R = (
        10 ** draw(st.floats(-decades, decades)),
        10 ** draw(st.floats(-decades, decades)),
    )
    u = 10 ** draw(st.floats(-decades, 1)) * draw(st.sampled_from([1.0, 1.0, 1.0, 0.0]))
    q = 10 ** draw(st.floats(-decades - 3, 0)) * draw(st.sampled_from([1.0, 1.0, 0.0]))
    noise = st.one_of(st.just(-np.inf), st.floats(-decades - 1, decades), st.just(0.5))
    v = 10.0 ** np.array(draw(st.lists(noise, min_size=n, max_size=n)))
    H = draw(st.lists(st.sampled_from([1, 2, 4, 8, 50]), min_size=n, max_size=n))
    high = draw(st.sampled_from([1.0, 0.5, 0.1]))
    low = high * 10 ** -draw(st.floats(0, width))
    clients = ClientProfile(H, draw(st.sampled_from([1, 32])), v * (L * R) ** 2)
    state = UpperState(u * L * R * R, q * (L * R) ** 2)
    return clients, state, ProblemBounds(L, R, low, high)


def random_problem(rng: np.random.Generator, n: int) -> Problem:
    """The study of section R: L = R = 1, noise over four decades."""
    u = float(rng.uniform(0.016, 0.5))
    clients = ClientProfile(
        rng.choice([1, 2, 4, 8], n),
        rng.choice([1, 8, 32], n),
        10 ** rng.uniform(-3, 1, n),
    )
    low = float(10 ** rng.uniform(-3, -1))
    high = low + float(rng.uniform(0, 1)) * (1 - low)
    q = u * u / 32 * 10 ** float(rng.uniform(-1, 1))
    return clients, UpperState(u, q), ProblemBounds(1.0, 1.0, low, high)


def terms(problem: Problem, solution: ControlSolution, variant: Variant) -> float:
    """Size of what J is summed from: U♯, and the gains and risks that are weighed."""
    clients, state, bounds = problem
    w, theta = solution.weights, solution.amplitudes
    at = situation_of(clients, state, bounds)
    mu, kappa = gain(theta, at, variant), variance_bound(theta, at, variant)
    u = clipped_gap(state, bounds)
    weighed = w * (np.abs(mu) + 2 * u * theta + bounds.smoothness / 2 * w * kappa)
    return u + float(weighed.sum())


def assert_certify(
    problem: Problem, solution: ControlSolution, variant: Variant, tolerance: float
) -> None:
    """Feasible, valued by the certificate, and proved by its lower bound."""
    clients, state, bounds = problem
    w, theta = solution.weights, solution.amplitudes
    assert w.min() >= 0
    assert w.sum() == pytest.approx(1, abs=1e-14)
    assert theta.min() >= bounds.amplitude_min
    assert theta.max() <= bounds.amplitude_max
    value = round_bound(w, theta, clients, state, bounds, variant=variant)
    assert solution.value == float(value)
    gap = solution.value - solution.lower_bound
    assert 0 <= gap <= tolerance * terms(problem, solution, variant) + 1e-300


def random_controls(
    rng: np.random.Generator, problem: Problem, solution: ControlSolution, count: int
) -> tuple[Array, Array]:
    """Feasible pairs, half of them near the solution."""
    low, high = problem[2].amplitude_min, problem[2].amplitude_max
    n = len(solution.weights)
    w = rng.dirichlet(np.full(n, 0.5), count)
    theta = low * (high / low) ** rng.random((count, n))
    near = rng.random((count, 1)) < 0.5
    w = np.where(near, solution.weights + 1e-3 * (w - solution.weights), w)
    wiggled = solution.amplitudes * (1 + 1e-3 * rng.normal(size=(count, n)))
    return w, np.where(near, np.clip(wiggled, low, high), theta)


# ------------------------------------------------------------------ certificates


@variants
@given(problem=problems(decades=8, width=8))
def test_the_dual_method_is_always_certify(variant: Variant, problem: Problem) -> None:
    solution = global_control(*problem, variant=variant)
    assert_certify(problem, solution, variant, GLOBAL)


@variants
@given(problem=problems())
def test_both_solvers_agree(variant: Variant, problem: Problem) -> None:
    best = global_control(*problem, variant=variant)
    other = alternating_control(*problem, variant=variant)
    assert_certify(problem, other, variant, ALTERNATING)
    size = terms(problem, best, variant)
    assert abs(other.value - best.value) <= ALTERNATING * size
    assert other.value >= best.lower_bound
    assert best.value >= other.lower_bound


@variants
@given(problem=problems(decades=5, width=3), seed=st.integers(0, 1000))
def test_weak_duality(variant: Variant, problem: Problem, seed: int) -> None:
    """No feasible pair falls below the lower bound."""
    solution = global_control(*problem, variant=variant)
    rng = np.random.default_rng(seed)
    w, theta = random_controls(rng, problem, solution, 500)
    value = round_bound(w, theta, *problem, variant=variant)
    assert value.min() >= solution.lower_bound


@variants
def test_weak_duality_in_the_study(variant: Variant, rng: np.random.Generator) -> None:
    for n in (2, 3, 8, 8):
        problem = random_problem(rng, n)
        solution = global_control(*problem, variant=variant)
        w, theta = random_controls(rng, problem, solution, 20_000)
        value = round_bound(w, theta, *problem, variant=variant)
        assert value.min() >= solution.lower_bound


@variants
@given(problem=problems(width=3), seed=st.integers(0, 1000))
def test_the_gap_is_a_bound_at_any_amplitudes(
    variant: Variant, problem: Problem, seed: int
) -> None:
    """J(w, θ) − D(λ), with D from a fine grid, stays below the certified gap."""
    inner = control._problem(*problem, variant)
    rng, c = np.random.default_rng(seed), inner.c
    share = rng.random(len(inner.low)) * float(rng.choice([1.0, 1e-3]))
    share = share if seed % 2 else 1 - share
    theta = inner.low * (inner.top / inner.low) ** share
    law = control._law(inner, theta)
    point = control._certify(inner, theta, law)
    box = (problem[2].amplitude_min, problem[2].amplitude_max)
    grid = np.concatenate(
        [np.geomspace(*box, 2000)[:, None] + 0 * theta, [point.amplitudes]]
    )
    dual = -law.level
    for row, (low, top) in enumerate(zip(inner.low, inner.top, strict=True)):
        one = c.take(np.full(len(grid), row))
        above = np.maximum(one.gain(grid[:, row]) - law.level, 0)
        risk = one.risk(grid[:, row])
        assert low <= top
        if risk.max() == 0:
            dual -= np.inf if above.max() > 1e-14 * point.size else 0.0
        else:
            dual -= 0.5 * float((above**2 / np.maximum(risk, 1e-300)).max())
    rounding = 1e-13 * (point.size + abs(dual))
    assert point.gap >= point.objective - dual - rounding


# ------------------------------------------------------------------ brute force


@variants
@pytest.mark.parametrize("n", [2, 3])
def test_brute_force(variant: Variant, n: int, rng: np.random.Generator) -> None:
    """Σ_i h_i(w_i) over a grid of w, h_i(w) the least over a grid of θ (section R)."""
    points, amplitudes = (2001, 1501) if n == 2 else (401, 801)
    for _ in range(4):
        clients, state, bounds = problem = random_problem(rng, n)
        w = np.linspace(0, 1, points)[:, None, None]
        theta = np.geomspace(bounds.amplitude_min, bounds.amplitude_max, amplitudes)
        at = situation_of(clients, state, bounds)
        mu = gain(theta[:, None], at, variant)
        kappa = variance_bound(theta[:, None], at, variant)
        h = (-w * mu + bounds.smoothness / 2 * w**2 * kappa).min(1)
        if n == 2:
            brute = (h[:, 0] + h[::-1, 1]).min()
        else:
            i, j = np.triu_indices(points)
            brute = (h[i, 0] + h[j - i, 1] + h[points - 1 - j, 2]).min()
        solution = global_control(*problem, variant=variant)
        best = solution.value - clipped_gap(state, bounds)
        assert -1e-14 <= brute - best <= GRID * (abs(best) + 1e-4 * state.gap)


@variants
@solvers
def test_one_client_takes_its_best_amplitude(
    variant: Variant, solve: Any, rng: np.random.Generator
) -> None:
    for _ in range(5):
        problem = random_problem(rng, 1)
        solution = solve(*problem, variant=variant)
        box = (problem[2].amplitude_min, problem[2].amplitude_max)
        theta = np.geomspace(*box, 100_001)
        value = round_bound([1.0], theta[:, None], *problem, variant=variant)
        assert solution.weights.tolist() == [1.0]
        assert solution.value <= value.min()
        assert solution.value == pytest.approx(value.min(), abs=1e-9)
        best = theta[np.argmin(value)]
        assert solution.amplitudes[0] == pytest.approx(best, rel=1e-2)


# ------------------------------------------------------------------ Algorithm 4


def sweeps(
    problem: Problem,
    variant: Variant,
    start: Array | None = None,
    *,
    keep: bool = False,
) -> list[float]:
    """J − U♯ of Algorithm 4, sweep by sweep; `keep` leaves idle clients alone."""
    inner = control._problem(*problem, variant)
    c, theta = inner.c, inner.low if start is None else start
    values = []
    for _ in range(150):
        law = control._law(inner, theta)
        values.append(control._certify(inner, theta, law).objective * c.unit)
        new = best_at_weight(c, law.weights, inner.low, inner.top)
        new = np.where((law.weights > 0) | (not keep), new, theta)
        if np.array_equal(new, theta) or values[-1] == values[-3:][0] != values[0]:
            break
        theta = new
    return values


@variants
def test_algorithm_4_descends(variant: Variant, rng: np.random.Generator) -> None:
    """prop:solver, 3, from random starts."""
    for _ in range(5):
        problem = random_problem(rng, 5)
        low, high = problem[2].amplitude_min, problem[2].amplitude_max
        values = sweeps(problem, variant, low * (high / low) ** rng.random(5))
        assert len(values) > 1
        assert np.diff(values).max() <= 1e-15


def test_without_the_tie_rule_clients_are_trapped(rng: np.random.Generator) -> None:
    """E-11: random starts stick far from the optimum; with the rule they do not."""
    trapped = 0
    for _ in range(10):
        problem = random_problem(rng, 3)
        low, high = problem[2].amplitude_min, problem[2].amplitude_max
        start = low * (high / low) ** rng.random(3)
        best = global_control(*problem).value - clipped_gap(*problem[1:])
        saved = sweeps(problem, "paper", start, keep=True)[-1]
        ruled = sweeps(problem, "paper", start)[-1]
        assert ruled == pytest.approx(best, rel=1e-6)
        trapped += saved - best > 1e-4 * abs(best)
    assert trapped >= 5


def test_idle_clients_get_the_amplitude_best_alone(rng: np.random.Generator) -> None:
    for solve in (global_control, alternating_control):
        problem = random_problem(rng, 8)
        solution = solve(*problem)
        idle = solution.weights == 0
        assert idle.any()
        c = coefficients(*problem, "paper")
        box = np.ones((2, 8)) * [[problem[2].amplitude_min], [problem[2].amplitude_max]]
        assert np.array_equal(solution.amplitudes[idle], best_alone(c, *box)[idle])


# ------------------------------------------------------------------ riskless (E-05)


@solvers
@pytest.mark.parametrize("variant", ["sharp", "absorbed"])
def test_riskless_clients_hold_the_threshold(solve: Any, variant: Variant) -> None:
    """v = 0: such a client offers max μ at no risk, and equal ones share equally."""
    clients = ClientProfile([4, 4, 1, 8], 8, [0.0, 0.0, 0.5, 0.0])
    problem = (clients, UpperState(0.4, 1e-4), ProblemBounds(1.0, 1.0, 0.01, 1.0))
    solution = solve(*problem, variant=variant)
    assert_certify(problem, solution, variant, ALTERNATING)
    assert solution.weights[0] == solution.weights[1] > 0
    assert solution.weights[3] == 0.0
    assert 0 < solution.weights[2] < 1
    theta = np.geomspace(0.01, 1, 100_001)
    alone = situation_of(ClientProfile(4, 8, 0.0), *problem[1:])
    best = gain(theta, alone, variant).max()
    at = situation_of(*problem)
    third = gain(solution.amplitudes, at, variant)[2]
    risk = variance_bound(solution.amplitudes, at, variant)[2]
    assert solution.weights[2] == pytest.approx((third - best) / risk, rel=1e-6)


def test_no_certificate_below_a_riskless_gain() -> None:
    """D(λ) = −∞ there: the gap at a trial λ is infinite, the gap of the law remains."""
    clients = ClientProfile([4, 1], 8, [0.0, 0.5])
    inner = control._problem(clients, UpperState(0.4, 1e-4), BOX, "sharp")
    law, theta = control._law(inner, inner.low), inner.low
    mu, kappa = inner.c.gain(theta), inner.c.risk(theta)
    below = law.level / 2
    gap = control._gap(inner, law.weights, theta, kappa, mu - below, below)
    assert gap == np.inf
    assert control._certify(inner, theta, law, below).gap < np.inf


@variants
@solvers
def test_nothing_to_gain_and_nothing_to_lose(variant: Variant, solve: Any) -> None:
    """U = Q = v = 0: J is zero whatever is played; equal clients share equally."""
    problem = (ClientProfile([2, 2], 1, 0.0), UpperState(0.0, 0.0), BOX)
    solution = solve(*problem, variant=variant)
    assert solution.weights.tolist() == [0.5, 0.5]
    assert solution.value == 0.0
    assert solution.amplitudes.tolist() == [0.01, 0.01]


@variants
@solvers
def test_without_a_gap_amplitudes_are_least(variant: Variant, solve: Any) -> None:
    """U = 0: only noise is left, weights go as 1/κ where drift costs nothing."""
    clients = ClientProfile([1, 1], 1, [1.0, 3.0])
    solution = solve(clients, UpperState(0.0, 0.0), BOX, variant=variant)
    assert solution.amplitudes.tolist() == [0.01, 0.01]
    if variant != "paper":
        assert solution.weights == pytest.approx([0.75, 0.25], rel=1e-14)


# ------------------------------------------------------------------ relations


@variants
@given(problem=problems(), seed=st.integers(0, 1000))
def test_permuting_clients_permutes_controls(
    variant: Variant, problem: Problem, seed: int
) -> None:
    clients, state, bounds = problem
    order = np.random.default_rng(seed).permutation(
        len(np.atleast_1d(clients.variance))
    )
    moved = replace(
        clients,
        horizon=np.asarray(clients.horizon)[order],
        variance=np.asarray(clients.variance)[order],
    )
    one = global_control(clients, state, bounds, variant=variant)
    two = global_control(moved, state, bounds, variant=variant)
    assert two.value == pytest.approx(one.value, rel=1e-13, abs=1e-300)
    assert two.weights == pytest.approx(one.weights[order], abs=AMPLITUDES)


@variants
def test_equal_clients_get_equal_controls(
    variant: Variant, rng: np.random.Generator
) -> None:
    clients, state, bounds = random_problem(rng, 4)
    tiled = ClientProfile(
        np.tile(clients.horizon, 3),
        np.tile(clients.batch_size, 3),
        np.tile(clients.variance, 3),
    )
    solution = global_control(tiled, state, bounds, variant=variant)
    for values in (solution.weights, solution.amplitudes):
        copies = values.reshape(3, 4)
        assert np.array_equal(copies[0], copies[1])
        assert np.array_equal(copies[0], copies[2])


@variants
@given(problem=problems(), powers=st.tuples(st.integers(-40, 40), st.integers(-40, 40)))
def test_units_change_nothing(
    variant: Variant, problem: Problem, powers: tuple[int, int]
) -> None:
    """L → aL, R → bR with U, Q, v² in their units: same controls, J in the new unit."""
    clients, state, bounds = problem
    a, b = 2.0 ** powers[0], 2.0 ** powers[1]
    scaled = global_control(
        replace(clients, variance=np.asarray(clients.variance) * (a * b) ** 2),
        UpperState(state.gap * a * b * b, state.tracking * (a * b) ** 2),
        replace(bounds, smoothness=bounds.smoothness * a, radius=bounds.radius * b),
        variant=variant,
    )
    plain = global_control(*problem, variant=variant)
    assert np.array_equal(scaled.weights, plain.weights)
    assert np.array_equal(scaled.amplitudes, plain.amplitudes)
    assert scaled.value == plain.value * a * b * b


@given(problem=problems(decades=5, width=4))
def test_sharper_constants_give_smaller_bounds(problem: Problem) -> None:
    paper, sharp, absorbed = (global_control(*problem, variant=v) for v in VARIANTS)
    slack = 1e-13 * terms(problem, paper, "paper")
    assert sharp.value <= paper.value + slack
    assert absorbed.value <= sharp.value + slack


@given(problem=problems())
def test_more_noise_never_helps(problem: Problem) -> None:
    clients, state, bounds = problem
    noisier = replace(clients, variance=2 * np.asarray(clients.variance))
    quiet, loud = (global_control(c, state, bounds) for c in (clients, noisier))
    assert loud.value >= quiet.lower_bound


def test_a_profile_per_client_is_one_profile(rng: np.random.Generator) -> None:
    clients, state, bounds = random_problem(rng, 5)
    columns = np.stack([clients.horizon, clients.batch_size, clients.variance])
    rows = [ClientProfile(*column) for column in columns.T.tolist()]
    one = predictive_control(clients, state, bounds)
    many = predictive_control(rows, state, bounds)
    assert np.array_equal(one.weights, many.weights)
    assert one.value == many.value


@variants
@solvers
def test_a_hundred_thousand_clients(
    variant: Variant, solve: Any, rng: np.random.Generator
) -> None:
    n = 100_000
    clients = ClientProfile(
        rng.choice([1, 2, 4, 8], n),
        rng.choice([1, 8, 32], n),
        10 ** rng.uniform(-3, 1, n),
    )
    problem = (clients, UpperState(0.3, 1e-4), ProblemBounds(1.0, 1.0, 1e-3, 1.0))
    solution = solve(*problem, variant=variant)
    assert_certify(problem, solution, variant, ALTERNATING)
    assert 100 < (solution.weights > 0).sum() < n


# ------------------------------------------------------------------ failure is said


def test_algorithm_4_says_when_it_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise dominates in a wide box: λ is far below the gains and descent crawls."""
    clients, bounds = (
        ClientProfile([1, 2], 1, [4.0, 30.0]),
        replace(BOX, amplitude_min=1e-6),
    )
    problem = (clients, UpperState(0.07, 2.7e-4), bounds)
    assert_certify(problem, global_control(*problem, variant="sharp"), "sharp", GLOBAL)
    monkeypatch.setattr(control, "MAX_SWEEPS", 50)
    with pytest.raises(
        SolverError, match=r"Algorithm 4 did not certify .* in 50 steps"
    ):
        alternating_control(*problem, variant="sharp")


def test_both_controllers_answer_through_the_public_door() -> None:
    clients = ClientProfile([1, 4, 4], 8, [1.0, 1.0, 9.0])
    setting = (clients, UpperState(0.5, 0.0), ProblemBounds(1.0, 1.0, 0.01, 1.0))
    first = predictive_control(*setting, solver="global")
    second = predictive_control(*setting, solver="alternating")
    assert first.value == pytest.approx(second.value, rel=1e-11)
    with pytest.raises(InvalidInputError, match="`solver` must be one of global"):
        predictive_control(*setting, solver="magic")  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize(
    ("profiles", "options", "text"),
    [
        ([], {}, r"`profiles` must be at least one client; got none"),
        (
            ClientProfile(1, 1, 1.0),
            {"solver": "fast"},
            r"`solver` must be one of global, al",
        ),
        (
            ClientProfile(1, 1, 1.0),
            {"variant": "best"},
            r"`variant` must be one of paper, ",
        ),
    ],
)
def test_bad_input_is_named(profiles: Any, options: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        predictive_control(profiles, UpperState(0.1, 0.0), BOX, **options)


def test_units_out_of_range_are_named() -> None:
    bounds = ProblemBounds(1e200, 1e200, 0.1, 1.0)
    with pytest.raises(
        InvalidInputError, match=r"`radius` must be such that 0 < LR² < ∞"
    ):
        predictive_control(ClientProfile(1, 1, 1.0), UpperState(0.1, 0.0), bounds)


# ------------------------------------------------------- Algorithm 4 as it is printed


FEW = ClientProfile([1, 4, 4], 8, [1.0, 1.0, 9.0])
STATE, WIDE = UpperState(0.5, 0.0), ProblemBounds(1.0, 1.0, 0.01, 1.0)


def printed_sweeps(theta: Any, epsilon: float) -> tuple[Any, Any, int]:
    """Algorithm 4 from its text: weights and amplitudes over a fine grid."""
    grid = np.linspace(0.01, 1.0, 4001)
    at = situation_of(FEW, STATE, WIDE)
    each = [situation_of(ClientProfile(h, 8, v), STATE, WIDE) for h, v in PAIRS]
    alone = [grid[np.argmax(gain(grid, here, "sharp"))] for here in each]
    theta, old = np.minimum(theta, alone), np.inf  # more is worse at any weight
    for sweep in range(1, 100):
        mu = gain(theta, at, "sharp")
        w = threshold_weights(mu, variance_bound(theta, at, "sharp")).weights
        first = float(round_bound(w, theta, FEW, STATE, WIDE, variant="sharp"))
        old = first if sweep == 1 else old
        for i, here in enumerate(each):
            risk = variance_bound(grid, here, "sharp")
            value = w[i] * gain(grid, here, "sharp") - w[i] ** 2 / 2 * risk
            theta[i] = grid[np.argmax(value)] if w[i] > 0 else alone[i]
        new = float(round_bound(w, theta, FEW, STATE, WIDE, variant="sharp"))
        if old - new <= epsilon:
            break
        old = new
    return w, theta, sweep


PAIRS = [(1, 1.0), (4, 1.0), (4, 9.0)]


@pytest.mark.parametrize("epsilon", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("start", [0.01, 0.3, 1.0, (0.9, 0.1, 0.5)])
def test_algorithm_4_starts_and_stops_where_it_is_told(
    start: Any, epsilon: float
) -> None:
    more: dict[str, Any] = {"variant": "sharp", "solver": "alternating"}
    result = predictive_control(
        FEW, STATE, WIDE, start=start, tolerance=epsilon, **more
    )
    best = predictive_control(FEW, STATE, WIDE, variant="sharp")
    tops = predictive_control(FEW, STATE, WIDE, start=start, tolerance=0.0, **more)
    w, theta, sweeps = printed_sweeps(np.broadcast_to(start, 3).copy(), epsilon)
    assert result.sweeps == sweeps
    np.testing.assert_allclose(result.weights, w, atol=1e-2)
    np.testing.assert_allclose(result.amplitudes, theta, atol=1e-2)
    assert result.lower_bound <= best.value * (1 + 1e-12) <= result.value * (1 + 2e-12)
    assert tops.value == pytest.approx(best.value, rel=1e-9)
    assert result.status == f"stopped: a sweep gained at most {epsilon}"


def test_a_start_outside_the_box_or_for_the_other_solver_is_named() -> None:
    more: dict[str, Any] = {"solver": "alternating"}
    wrong: list[tuple[Any, str]] = [
        (1.5, r"`start` must be from 0\.01 to 1\.0; got 1\.5"),
        ([0.1, 0.2], "`start` must be one number or 3 of them"),
    ]
    for start, text in wrong:
        with pytest.raises(InvalidInputError, match=text):
            predictive_control(FEW, STATE, WIDE, start=start, **more)
    with pytest.raises(InvalidInputError, match="`tolerance` must be a nonnegative"):
        predictive_control(FEW, STATE, WIDE, tolerance=-1.0, **more)
    for name in ("start", "tolerance"):
        other: dict[str, Any] = {name: 0.5}
        with pytest.raises(InvalidInputError, match=f"`{name}` must be left out"):
            predictive_control(FEW, STATE, WIDE, **other)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("solver", ["global", "alternating"])
def test_amplitudes_whose_squares_vanish_are_refused(
    variant: Variant, solver: control.Solver
) -> None:
    """At θ_lo = 1e-200 a noisy client looked riskless and was certified as best."""
    clients, state = ClientProfile([1, 4, 4], 8, [1.0, 1.0, 9.0]), UpperState(0.5, 0.0)
    for least in (1e-200, 1e-160, 0.9e-70):
        with pytest.raises(InvalidInputError, match="`amplitude_min` must be at least"):
            control.predictive_control(
                clients,
                state,
                ProblemBounds(1.0, 1.0, least, 1.0),
                variant=variant,
                solver=solver,
            )
    faint = replace(clients, variance=1e-290)  # k₂θ² underflows at 1e-20, not at 1
    with pytest.raises(InvalidInputError, match="`amplitude_min` must be at least"):
        control.predictive_control(
            faint, state, ProblemBounds(1.0, 1.0, 1e-20, 1.0), variant="sharp"
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_least_amplitude_certifies_what_larger_ones_do(variant: Variant) -> None:
    clients, state = ClientProfile([1, 4, 4], 8, [1.0, 1.0, 9.0]), UpperState(0.5, 0.0)
    deep, shallow = (
        control.predictive_control(
            clients, state, ProblemBounds(1.0, 1.0, least, 1.0), variant=variant
        )
        for least in (control.LEAST_AMPLITUDE, 1e-3)
    )
    assert deep.lower_bound <= shallow.value
    assert deep.value == pytest.approx(shallow.value, rel=1e-12)
