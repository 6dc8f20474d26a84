import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from hewfl import InvalidInputError
from hewfl.core.validation import Array
from hewfl.theory.appendix.lemmas import (
    cumulative_gronwall,
    flow_excess,
    flow_slope,
    largest_gap,
    largest_sq_gradient,
    linear_trajectory,
    scalar_trajectory,
    telescoping_bound,
)
from hewfl.theory.scalar import (
    closed_rate,
    flow,
    linear_rate,
    power,
    printed_scalar_rate,
    scalar_floor,
    scalar_rate,
)

RELATIVE = 1e-12
DIGITS = 50
decades = st.floats(-8, 8).map(lambda x: 10.0**x)
EXTREME = [0.0, 5e-324, 1e-300, 1e-160, 1e-20, 0.3, 1.0, 7.0, 1e20, 1e160, 1e300]


def close(ours: object, exact: object, size: object = None) -> bool:
    """Whether the relative error is at most 1e-12, of `size` where it is given."""
    scale = abs(mpf(exact if size is None else size))
    return bool(abs(mpf(float(np.asarray(ours))) - exact) <= RELATIVE * scale)


# lem:gap


def test_gap_and_gradient_bounds_are_met_with_equality_on_their_extremes() -> None:
    """|x| at distance R has f = R‖∇F‖; Lx²/2 has ‖∇F‖² = 2Lf."""
    assert largest_gap(1.0, 3.0) == 3.0
    L, x = 5.0, 0.7
    assert largest_sq_gradient(L * x**2 / 2, L) == pytest.approx((L * x) ** 2)


# T_a


def test_the_flow_keeps_its_digits_at_the_extremes() -> None:
    with mpmath.workdps(1400):
        for a in EXTREME:
            for u in EXTREME:
                exact = mpf(u) / (1 + mpf(a) * mpf(u))
                miss = abs(mpf(float(flow(a, u))) - exact)
                assert miss <= 4e-16 * exact + mpf(5e-324), (a, u)


@given(decades, decades, decades)
def test_flow_lemmas(a: float, b: float, u: float) -> None:
    with mpmath.workdps(DIGITS):
        A, U = mpf(a), mpf(u)
        exact = U / (1 + A * U) - (U - A * U**2)
        assert close(flow_excess(a, u), A**2 * U**3 / (1 + A * U))
        assert abs(exact - A**2 * U**3 / (1 + A * U)) <= mpf(10) ** -15 * abs(exact)
        assert close(flow_slope(a, u), 1 / (1 + A * U) ** 2)
    assert float(flow(b, flow(a, u))) == pytest.approx(float(flow(a + b, u)), rel=1e-14)
    assert flow(a, u + b) <= (flow(a, u) + b) * (1 + 1e-15)
    assert flow(a, u) <= flow(a, 2 * u)


def test_telescoping_bounds_the_recursion(rng: np.random.Generator) -> None:
    a, b = rng.uniform(0, 1, (2, 7, 30))
    z: Array = rng.uniform(0, 3, 30)
    bounds, tight = telescoping_bound(z, a, b), telescoping_bound(z, a, 0 * b)
    exact: Array = z
    for step in range(7):
        z, exact = flow(a[step], z) + b[step], flow(a[step], exact)
        assert (z <= bounds[step] * (1 + 1e-14)).all()
        np.testing.assert_allclose(tight[step], exact, rtol=1e-13)


# lem:scalar


@given(decades, decades, decades)
def test_the_floor_is_the_positive_root(a: float, beta: float, delta: float) -> None:
    with mpmath.workdps(DIGITS):
        A, B, D = mpf(a), mpf(beta), mpf(delta)
        assert close(
            scalar_floor(a, beta, delta), (B + mpmath.sqrt(B**2 + 4 * A * D)) / (2 * A)
        )
        assert close(scalar_floor(a, beta, 0.0), B / A)
        assert close(scalar_floor(a, 0.0, delta), mpmath.sqrt(D / A))


def test_the_floor_overflows_nowhere_below_its_value() -> None:
    assert float(scalar_floor(1e-200, 1e200 * 1e-200, 1e-200)) == pytest.approx(
        1e200, rel=1e-15
    )
    assert float(scalar_floor(1e300, 0.0, 1e300)) == pytest.approx(1.0, rel=1e-15)
    assert float(scalar_floor(1e200, 1e200, 0.0)) == pytest.approx(1.0, rel=1e-15)


def exact_rate(x0: float, a: float, beta: float, delta: float, T: int) -> object:
    """The telescoping_bound bound of the docstring in 80 digits."""
    x, A, B, D = mpf(x0), mpf(a), mpf(beta), mpf(delta)
    r = mpmath.sqrt(B**2 + 4 * A * D)
    m, q = (B + r) / (2 * A), 1 - r
    if x <= m or T == 0:
        return max(m, x)
    ages = mpf(T) if r == 0 else (q ** (-T) - 1) / r
    return m + 1 / (q ** (-T) / (x - m) + A / q * ages)


@given(
    decades,
    decades,
    st.one_of(st.just(0.0), st.floats(-12, -0.5).map(lambda x: 10.0**x)),
    st.one_of(st.just(0.0), st.floats(-12, -1.0).map(lambda x: 10.0**x)),
    st.integers(0, 100_000),
)
def test_the_closed_rate_has_all_its_digits(
    x0: float, a: float, beta: float, share: float, T: int
) -> None:
    delta = share / a  # so that β² + 4aδ < 1
    rate = scalar_rate(x0, a, beta, delta, T)
    assert rate.holds
    with mpmath.workdps(80):
        assert close(rate.value, exact_rate(x0, a, beta, delta, T))


def test_the_closed_rate_bounds_every_trajectory(rng: np.random.Generator) -> None:
    size = 2000
    a, x0 = 10 ** rng.uniform(-3, 3, size), 10 ** rng.uniform(-4, 4, size)
    beta, share = 10 ** rng.uniform(-6, -0.2, (2, size))
    beta, delta = (
        beta * rng.integers(0, 2, size),
        share / a / 8 * rng.integers(0, 2, size),
    )
    rounds = 60
    x = scalar_trajectory(x0, a, beta, delta, rounds)
    T = np.arange(rounds + 1)[:, None]
    rate = scalar_rate(x0, a, beta, delta, T)
    met = np.broadcast_to(rate.holds, x.shape)
    assert met.mean() > 0.5
    assert (x <= rate.value * (1 + 1e-12))[met].all()
    paper = closed_rate(x0, scalar_floor(a, beta, delta), a, T)
    assert (rate.value <= paper * (1 + 1e-12))[met].all()
    gained = (paper / rate.value)[met]
    assert gained.max() > 2  # the geometric decay is worth having
    np.testing.assert_array_equal(rate.vacuous[0], scalar_floor(a, beta, delta) >= x0)


def test_a_trajectory_is_the_largest_sequence_that_obeys() -> None:
    """From x_0 = 10 the map falls to −89; a sequence may start lower and end higher."""
    x = scalar_trajectory(10.0, 1.0, 0.0, 0.5, 2)
    np.testing.assert_allclose(x, [10.0, 0.75, 0.5 + 0.25])


def test_the_printed_lemma_fails_at_level_zero() -> None:
    """E-07: a = 1, β = ½, δ = 0 stands still at ½; m = 0 meets both conditions."""
    trajectory = scalar_trajectory(0.5, 1.0, 0.5, 0.0, 1000)
    np.testing.assert_array_equal(trajectory, 0.5)
    printed = printed_scalar_rate(0.5, 1.0, 0.5, 0.0, 1000, 0.0)
    assert printed.holds
    assert float(printed.value) == pytest.approx(1 / (2 + 1000))
    assert trajectory[-1] > 500 * printed.value
    ours = scalar_rate(0.5, 1.0, 0.5, 0.0, 1000)
    assert ours.holds
    assert float(ours.value) == float(ours.floor) == 0.5
    at_zero = scalar_rate(0.5, 1.0, 0.5, 0.0, np.arange(1001), level=0.0)
    assert at_zero.holds.all()
    assert (trajectory <= at_zero.value).all()
    assert at_zero.value.max() <= 0.75  # the fixed point of y ← 3y/2/(1 + 2y/3)


def test_any_level_serves_above_the_floor(rng: np.random.Generator) -> None:
    a, beta, delta, x0 = 0.5, 0.1, 0.01, 30.0
    x = scalar_trajectory(x0, a, beta, delta, 40)
    for level in float(scalar_floor(a, beta, delta)) * rng.uniform(1.0001, 2, 20):
        rate = scalar_rate(x0, a, beta, delta, np.arange(41), level=level)
        assert rate.holds.all()
        assert (x <= rate.value).all()
    assert not scalar_rate(x0, a, beta, delta, 5, level=0.1).holds
    assert not scalar_rate(x0, a, beta, delta, 5, level=1.2).holds  # 2am > 1 + β


def test_a_floor_too_high_is_reported() -> None:
    rate = scalar_rate(1.0, 1.0, 1.5, 0.0, 3)
    (safe,) = rate.hypotheses
    assert (float(safe.left), float(safe.right), bool(safe.holds)) == (3.0, 2.5, False)


# lem:lin-scalar


@given(
    decades, st.floats(-12, 0).map(lambda x: 10.0**x), decades, st.integers(0, 10**6)
)
def test_the_linear_rate_has_all_its_digits(
    x0: float, a: float, delta: float, T: int
) -> None:
    rate = linear_rate(x0, a, delta, T)
    with mpmath.workdps(DIGITS):
        A, m = mpf(a), mpf(delta) / mpf(a)
        decay = (1 - A) ** T if T else mpf(1)
        assert close(rate.value, m + decay * max(mpf(x0) - m, 0) if T else mpf(x0))
        assert close(power(a, T), decay, max(decay, mpf(10) ** -290))
    assert rate.holds


def test_before_the_first_round_a_rate_is_its_start() -> None:
    """Also below the floor, where later bounds are the floor."""
    for rate in (
        linear_rate(0.1, 0.5, 0.5, [0, 1]),
        scalar_rate(0.1, 1.0, 0.0, 1.0, [0, 1]),
    ):
        assert rate.value.tolist() == [0.1, 1.0]


def test_the_linear_rate_bounds_its_trajectory(rng: np.random.Generator) -> None:
    x0, a, delta = 10 ** rng.uniform(-3, 0, (3, 200))
    x = linear_trajectory(x0, a, delta, 50)
    rate = linear_rate(x0, a, delta, np.arange(51)[:, None])
    assert (x <= rate.value * (1 + 1e-13)).all()
    above = x0 > delta / a
    np.testing.assert_allclose(x[:, above], rate.value[:, above], rtol=1e-12)
    assert not linear_rate(1.0, 1.5, 0.0, 3).holds


# lem:cum-gronwall


def test_gronwall_bounds_the_sum_recursion(rng: np.random.Generator) -> None:
    a, beta = np.sort(rng.uniform(0, 1, (12, 40)), axis=0), rng.uniform(0, 1, 40)
    x = np.zeros_like(a)
    for step in range(12):
        x[step] = a[step] + beta * x[:step].sum(0)
    bound = cumulative_gronwall(a, beta)
    assert (x <= bound * (1 + 1e-13)).all()
    level = np.ones((12, 40))
    x = (1 + beta) ** np.arange(12)[:, None]  # constant a: equality
    np.testing.assert_allclose(cumulative_gronwall(level, beta), x, rtol=1e-13)
    loose = cumulative_gronwall(a, beta, exponential=True)
    np.testing.assert_allclose(loose, a * np.exp(beta * np.arange(12)[:, None]))
    assert (bound <= loose).all()


# errors


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: scalar_floor(0.0, 1.0, 1.0), "`a` must be positive; got 0.0"),
        (lambda: scalar_floor(1.0, -1.0, 1.0), "`beta` must be nonnegative; got -1.0"),
        (lambda: flow([0.1, -2.0], 1.0), "`a` must be nonnegative; got -2.0"),
        (lambda: linear_rate(1.0, 0.0, 1.0, 1), "`a` must be positive; got 0.0"),
        (
            lambda: linear_rate(1.0, 0.5, 1.0, [3, 1.5]),
            "`rounds` must be a whole number of at least 0; got 1.5",
        ),
        (
            lambda: cumulative_gronwall([2.0, 1.0], 0.1),
            "`a` must be nondecreasing along its first axis",
        ),
    ],
)
def test_undefined_quantities_are_refused(call: object, text: str) -> None:
    assert callable(call)
    with pytest.raises(InvalidInputError, match=text):
        call()


def test_flow_is_the_map_of_appendix_a() -> None:
    assert flow(2.0, 1.0) == 1 / 3
