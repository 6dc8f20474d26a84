"""Robust rules: cases worked by hand, breakdown, units, the median's certificate."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.conformance.rounds import decide, make_cohort, step_of

from hewfl import InvalidInputError, LocalSGD, Method
from hewfl.aggregators import (
    CenteredClipping,
    CoordinateMedian,
    GeometricMedian,
    Krum,
    MultiKrum,
    TrimmedMean,
)
from hewfl.aggregators.distance import (
    PLAIN,
    fermat_weber_gap,
    weiszfeld,
    weiszfeld_plain,
)
from hewfl.core import native

Array = NDArray[np.float64]

ROBUST: list[Any] = [
    Method(LocalSGD(1.0), GeometricMedian()),
    Method(LocalSGD(1.0), CoordinateMedian()),
    Method(LocalSGD(1.0), TrimmedMean()),
    Method(LocalSGD(1.0), Krum()),
    Method(LocalSGD(1.0), MultiKrum()),
    Method(LocalSGD(1.0), CenteredClipping()),
]
every_rule = pytest.mark.parametrize("rule", ROBUST, ids=lambda rule: rule.name)


def of(n: int) -> Any:
    return make_cohort([1] * n)


# ------------------------------------------------------------------ what all promise


@every_rule
@pytest.mark.parametrize("far", [1e3, 1e6, 1e9])
def test_one_far_client_of_nine_does_not_move_the_step_far(
    rule: Any, far: float, rng: np.random.Generator
) -> None:
    """All honest clients are within 1 of the origin, so the bound has no R in it."""
    moved = rng.standard_normal((9, 4))
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    moved[3] *= far
    decision, _ = decide(rule, of(9), moved)
    assert np.linalg.norm(step_of(decision, moved)) < 1.5
    if rule.name == "Centered clipping":  # a pull of τ, whatever its length
        assert decision.weights[3] * far < 1.5
    else:
        assert decision.weights[3] < 2 / far


@pytest.mark.parametrize(
    "rule",
    [
        Method(LocalSGD(1.0), GeometricMedian()),
        Method(LocalSGD(1.0), CoordinateMedian()),
        Method(LocalSGD(1.0), TrimmedMean(0.34)),
        Method(LocalSGD(1.0), Krum(0.34)),
        Method(LocalSGD(1.0), MultiKrum(0.34)),
        Method(LocalSGD(1.0), CenteredClipping()),
    ],
    ids=lambda rule: rule.name,
)
@pytest.mark.parametrize("far", [1e3, 1e9])
def test_three_of_nine_that_collude_do_not_carry_the_step_away(
    rule: Any, far: float, rng: np.random.Generator
) -> None:
    """The geometric median's known bound: 2 (n − f)/(n − 2f) = 4 radii."""
    moved = rng.standard_normal((9, 4))
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    moved[[1, 4, 8]] = far
    decision, _ = decide(rule, of(9), moved)
    assert np.linalg.norm(step_of(decision, moved)) < 4


@every_rule
@pytest.mark.parametrize("scale", [-1e-100, -1e-6, 1e6, 1e100])
def test_steps_scale_with_the_displacements(
    rule: Any, scale: float, rng: np.random.Generator
) -> None:
    """And turn with them: a factor below zero is a point reflection."""
    moved = rng.standard_normal((7, 5))
    one, _ = decide(rule, of(7), moved)
    other, _ = decide(rule, of(7), scale * moved)
    np.testing.assert_allclose(other.weights, one.weights, atol=1e-12)
    expected = scale * step_of(one, moved)
    found = step_of(other, scale * moved)
    np.testing.assert_allclose(found, expected, atol=1e-10 * abs(scale))


@pytest.mark.parametrize(
    "rule", [rule for rule in ROBUST if rule.name != "Centered clipping"], ids=repr
)
def test_steps_move_with_a_common_part(rule: Any, rng: np.random.Generator) -> None:
    moved, common = rng.standard_normal((7, 5)), 100 * rng.standard_normal(5)
    one, _ = decide(rule, of(7), moved)
    other, _ = decide(rule, of(7), moved + common)
    expected = step_of(one, moved) + common
    np.testing.assert_allclose(step_of(other, moved + common), expected, atol=1e-8)


# ------------------------------------------------------------------ geometric median


def test_geometric_median_of_a_triangle_is_its_fermat_point() -> None:
    # a regular triangle with one corner pulled out along its height: the point that
    # sees all sides under 120° stays the centre, at 0
    corners = np.array([[0.0, 1.0], [-math.sqrt(0.75), -0.5], [math.sqrt(0.75), -0.5]])
    corners[0] *= 50
    decision, _ = decide(Method(LocalSGD(1.0), GeometricMedian()), of(3), corners)
    np.testing.assert_allclose(step_of(decision, corners), 0.0, atol=1e-9)
    # weights are inverse distances: 1/50, 1, 1
    expected = np.array([1, 50, 50]) / 101
    np.testing.assert_allclose(decision.weights, expected, rtol=1e-9)
    assert decision.gap < 1e-12


def test_geometric_median_of_a_square_and_its_centre() -> None:
    # the centre itself is a client: distance zero, where plain Weiszfeld divides by it
    moved = [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]]
    decision, _ = decide(Method(LocalSGD(1.0), GeometricMedian()), of(5), moved)
    np.testing.assert_allclose(step_of(decision, moved), 0.0, atol=1e-12)
    assert decision.weights[4] > 1 - 1e-5
    assert decision.gap < 1e-12


def test_geometric_median_at_a_corner() -> None:
    # an angle above 120° at the second: it is the median, to within ν
    moved = np.array([[-3.0, 1.0], [0.0, 0.0], [2.0, 1.0]])
    decision, _ = decide(Method(LocalSGD(1.0), GeometricMedian()), of(3), moved)
    assert np.linalg.norm(step_of(decision, moved)) < 1e-5
    assert decision.gap < 1e-9


def test_geometric_median_of_numbers_is_a_median() -> None:
    moved = [[5.0], [1.0], [2.0], [100.0], [3.0]]
    decision, _ = decide(Method(LocalSGD(1.0), GeometricMedian()), of(5), moved)
    np.testing.assert_allclose(step_of(decision, moved), [3.0], atol=1e-4)


def test_geometric_median_by_size_counts_a_client_as_often_as_its_data() -> None:
    rng = np.random.default_rng(7)
    moved, sizes = rng.standard_normal((4, 6)), [1, 2, 3, 1]
    rule = Method(LocalSGD(1.0), GeometricMedian(by="size"))
    decision, _ = decide(rule, make_cohort([1] * 4, sizes), moved)
    copies = np.repeat(moved, sizes, axis=0)
    other, _ = decide(Method(LocalSGD(1.0), GeometricMedian()), of(7), copies)
    found = step_of(decision, moved)
    np.testing.assert_allclose(found, step_of(other, copies), atol=1e-8)


def test_geometric_median_keeps_to_a_majority_of_twins() -> None:
    moved = np.vstack([np.tile([1.0, 2.0], (4, 1)), [[1e9, 0.0], [0.0, -1e9]]])
    decision, _ = decide(Method(LocalSGD(1.0), GeometricMedian()), of(6), moved)
    np.testing.assert_allclose(step_of(decision, moved), [1.0, 2.0], atol=1e-5)


def test_geometric_median_certifies_rounds_of_twins(rng: np.random.Generator) -> None:
    """Half of the clients or more send the same: the gap is no more than rounding."""
    for i in range(150):
        n, d = int(rng.integers(4, 14)), int(rng.choice([1, 3, 50, 2000]))
        moved = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-3, 4)
        moved[: (n + 1) // 2 + int(rng.integers(0, n // 2))] = moved[0]
        moved = rng.permutation(moved) + 10.0 ** rng.integers(0, 4) * (i % 2)
        decision, _ = GeometricMedian()(moved)
        value = np.linalg.norm(moved - decision.step, axis=1).mean()
        assert decision.gap < 1e-9 * value


def test_geometric_median_gap_bounds_the_excess(rng: np.random.Generator) -> None:
    """After few steps the gap is no less than what many more steps gain."""
    for _ in range(20):
        moved = rng.standard_normal((6, 3)) * rng.uniform(0.1, 10, (6, 1))

        def value(decision: Any, moved: Any = moved) -> float:
            step = step_of(decision, moved)
            return float(np.linalg.norm(moved - step, axis=1).mean())

        best, _ = decide(Method(LocalSGD(1.0), GeometricMedian()), of(6), moved)
        for steps in (1, 2, 5, 20):
            rule = Method(LocalSGD(1.0), GeometricMedian(iterations=steps))
            early, _ = decide(rule, of(6), moved)
            assert steps == 20 or "still moving" in early.status
            assert early.gap >= value(early) - value(best) - 1e-13
            assert early.gap < value(early)
        assert best.gap < 1e-5 * value(best)


def plain_weiszfeld(gram: Array, nu: float, steps: int) -> Array:
    """Weights after so many plain steps from the mean."""
    n = len(gram)
    weights = np.full(n, 1 / n)
    for _ in range(steps):
        squares = np.diagonal(gram) - 2 * gram @ weights + weights @ gram @ weights
        c = 1 / np.maximum(nu, np.sqrt(np.maximum(squares, 0)))
        weights = c / c.sum()
    return weights


def test_extrapolated_weiszfeld_steps_find_the_same_weights_sooner(
    rng: np.random.Generator,
) -> None:
    """Colluders between the others and the origin: plain steps take hundreds."""
    for _ in range(5):
        rows = 1 + 3 * rng.standard_normal((20, 60))
        rows[:8] = -rows[8:].mean(axis=0)
        rows[:8] += 1e-3 * rng.standard_normal((8, 60))
        gram, alpha = rows @ rows.T, np.full(20, 0.05)
        c, _ = weiszfeld(gram, alpha, 1e-5, 100)
        exact = plain_weiszfeld(gram, 1e-5, 20_000)
        np.testing.assert_allclose(c / c.sum(), exact, atol=1e-9)
        assert np.abs(plain_weiszfeld(gram, 1e-5, 100) - exact).max() > 1e-7
        few, _ = weiszfeld(gram, alpha, 1e-5, PLAIN)
        first = plain_weiszfeld(gram, 1e-5, PLAIN)
        np.testing.assert_allclose(few / few.sum(), first, rtol=1e-10)


def test_compiled_weiszfeld_steps_are_those_of_numpy(
    rng: np.random.Generator,
) -> None:
    if not hasattr(native.library(native.SOLVER), "weiszfeld"):
        pytest.skip("no compiled kernels")
    for n, d in ((1, 3), (2, 3), (7, 2), (20, 60), (33, 5)):
        rows = rng.standard_normal((n, d)) * rng.uniform(0.1, 10, (n, 1))
        rows[: n // 3] = rows[-1]
        gram, alpha = rows @ rows.T, rng.dirichlet(np.ones(n))
        for steps in (1, PLAIN + 1, PLAIN + 2, PLAIN + 3, 40):
            c, change = weiszfeld(gram, alpha, 1e-3, steps)
            plain, moved = weiszfeld_plain(gram, alpha, 1e-3, steps)
            np.testing.assert_allclose(c / c.sum(), plain / plain.sum(), atol=1e-8)
            assert change == pytest.approx(moved, abs=1e-8)
    assert np.isnan(weiszfeld(np.full((3, 3), np.nan), np.ones(3) / 3, 1.0, 5)[0]).all()


def test_more_weiszfeld_steps_never_raise_the_sum_of_distances(
    rng: np.random.Generator,
) -> None:
    for n, d in ((5, 2), (12, 3), (30, 40)):
        rows = rng.standard_normal((n, d)) * rng.uniform(0.1, 10, (n, 1))
        rows[: n // 3] = rows[0]
        gram, alpha = rows @ rows.T, np.full(n, 1 / n)
        sums = []
        for steps in range(1, 60):
            c, _ = weiszfeld(gram, alpha, 1e-6, steps)
            step = c @ rows / c.sum()
            sums.append(float(np.linalg.norm(rows - step, axis=1).sum()))
        assert all(b <= a * (1 + 1e-9) for a, b in pairwise(sums))


def test_gap_of_two_points_by_hand() -> None:
    # clients at ±1, z at a: the sum of distances is flat between them, so any z⁺ there
    # is best: c = ½/(1 − a), ½/(1 + a) give z⁺ = a, d = 1 − a, 1 + a, lengths ½, ½
    a = 0.25
    d = np.array([1 - a, 1 + a])
    alpha = np.full(2, 0.5)
    assert fermat_weber_gap(d, alpha / d, alpha, 1e-9) == pytest.approx(0.0, abs=1e-15)
    # equal c are the mean's: z⁺ = 0 and d = 1, 1; with c = ¼ the multipliers are half
    # as long as they may be: bound ½ − ¼·ν/2·… + ν/2, and the value is 1
    found = fermat_weber_gap(np.ones(2), np.full(2, 0.25), alpha, 1e-9)
    assert found == pytest.approx(0.5, abs=1e-8)


# ------------------------------------------------------------------ coordinate-wise


def test_coordinate_median_by_hand() -> None:
    moved = [[1.0, 9.0, 5.0], [2.0, -4.0, 5.0], [30.0, 0.0, 5.0]]
    decision, _ = decide(Method(LocalSGD(1.0), CoordinateMedian()), of(3), moved)
    np.testing.assert_array_equal(decision.step, [2.0, 0.0, 5.0])
    # the second was it in the first column, the third in the second; in the last all
    # agree, which does not count
    np.testing.assert_array_equal(decision.weights, [0.0, 0.5, 0.5])
    # of four, the mean of the two in the middle
    moved = [[1.0], [2.0], [4.0], [100.0]]
    decision, _ = decide(Method(LocalSGD(1.0), CoordinateMedian()), of(4), moved)
    np.testing.assert_array_equal(decision.step, [3.0])
    np.testing.assert_array_equal(decision.weights, [0.0, 0.5, 0.5, 0.0])


def test_ties_share_a_place() -> None:
    # sorted 1, 1, 1, 5, 6: the median 1 is three clients'
    moved = [[1.0], [6.0], [1.0], [5.0], [1.0]]
    decision, _ = decide(Method(LocalSGD(1.0), CoordinateMedian()), of(5), moved)
    third = 1 / 3
    expected = [third, 0, third, 0, third]
    np.testing.assert_allclose(decision.weights, expected, rtol=1e-14)
    # f = 1 keeps 1, 1, 5: two places for three clients at 1
    decision, _ = decide(Method(LocalSGD(1.0), TrimmedMean()), of(5), moved)
    np.testing.assert_allclose(decision.step, [7 / 3], rtol=1e-14)
    two = 2 / 9
    np.testing.assert_allclose(decision.weights, [two, 0, two, third, two], rtol=1e-14)


def test_trimmed_mean_by_hand() -> None:
    moved = [[0.0, -50.0], [1.0, 3.0], [2.0, 4.0], [3.0, 8.0], [99.0, 9.0]]
    for f, step in (
        (0.0, (21.0, -5.2)),
        (0.19, (21.0, -5.2)),  # ⌊0.95⌋ = 0
        (0.2, (2.0, 5.0)),
        (0.4, (2.0, 4.0)),
        (0.49, (2.0, 4.0)),
    ):
        decision, _ = decide(Method(LocalSGD(1.0), TrimmedMean(f)), of(5), moved)
        np.testing.assert_allclose(decision.step, step, rtol=1e-14)
    decision, _ = decide(Method(LocalSGD(1.0), TrimmedMean()), of(5), moved)
    sixth = 1 / 6  # kept: clients 2, 3, 4 in both columns
    np.testing.assert_allclose(
        decision.weights, [0, 2 * sixth, 2 * sixth, 2 * sixth, 0]
    )


def test_trimmed_mean_counts_places_in_spite_of_rounding() -> None:
    # 0.29 · 100 is 28.999999999999996
    moved = np.arange(100.0)[:, None] ** 2
    decision, _ = decide(Method(LocalSGD(1.0), TrimmedMean(0.29)), of(100), moved)
    assert "but 29 values" in decision.status
    np.testing.assert_allclose(decision.step, [(moved[29:71]).mean()], rtol=1e-14)


def test_coordinate_wise_rules_agree_with_numpy(rng: np.random.Generator) -> None:
    for n in (1, 2, 5, 8):
        moved = rng.standard_normal((n, 13))
        decision, _ = decide(Method(LocalSGD(1.0), CoordinateMedian()), of(n), moved)
        np.testing.assert_allclose(decision.step, np.median(moved, axis=0), rtol=1e-14)
        mean, _ = decide(Method(LocalSGD(1.0), TrimmedMean(0.0)), of(n), moved)
        np.testing.assert_allclose(mean.step, moved.mean(axis=0), atol=1e-14)
        np.testing.assert_allclose(mean.weights, 1 / n, rtol=1e-13)


# ------------------------------------------------------------------ Krum


def test_krum_by_hand() -> None:
    # 0, 1, 3, 7, 50; f = 1, so two neighbours: scores 1 + 9, 1 + 4, 4 + 9, 16 + 36,
    # 43² + 47²: the second
    moved = [[0.0], [1.0], [3.0], [7.0], [50.0]]
    decision, _ = decide(Method(LocalSGD(1.0), Krum()), of(5), moved)
    np.testing.assert_array_equal(decision.weights, [0, 1, 0, 0, 0])
    assert decision.status == "lowest score, 1 faulty clients assumed"
    # f = 0, three neighbours: 1 + 9 + 49, 1 + 4 + 36, 4 + 9 + 16, …: the third
    decision, _ = decide(Method(LocalSGD(1.0), Krum(f=0.0)), of(5), moved)
    np.testing.assert_array_equal(decision.weights, [0, 0, 1, 0, 0])
    # ⌊0.5 · 5⌋ = 2 lowest of the first scores, and ⌊0.6 · 5⌋ = 3
    decision, _ = decide(Method(LocalSGD(1.0), MultiKrum()), of(5), moved)
    np.testing.assert_array_equal(decision.weights, [0.5, 0.5, 0, 0, 0])
    decision, _ = decide(
        Method(LocalSGD(1.0), MultiKrum(selected_fraction=0.6)), of(5), moved
    )
    np.testing.assert_allclose(decision.weights, [1 / 3, 1 / 3, 1 / 3, 0, 0])
    decision, _ = decide(
        Method(LocalSGD(1.0), MultiKrum(selected_fraction=1.0)), of(5), moved
    )
    np.testing.assert_allclose(decision.weights, 0.2)


def test_krum_reckons_with_no_more_bad_than_its_bound_allows() -> None:
    # n ≥ 2f + 3: of 6 clients one may be bad, though ⌊0.4 · 6⌋ = 2
    moved = np.arange(6.0)[:, None] ** 2
    decision, _ = decide(Method(LocalSGD(1.0), Krum(f=0.4)), of(6), moved)
    assert "1 faulty" in decision.status
    for n in (1, 2):
        decision, _ = decide(Method(LocalSGD(1.0), Krum(f=0.4)), of(n), moved[:n])
        np.testing.assert_array_equal(decision.weights, np.full(n, 1 / n))


def test_krum_shares_among_clients_that_tie() -> None:
    # of three, the nearest two are each other's neighbour
    decision, _ = decide(Method(LocalSGD(1.0), Krum()), of(3), [[0.0], [10.0], [1.0]])
    np.testing.assert_array_equal(decision.weights, [0.5, 0.0, 0.5])
    # two places for three that tie: numbers at equal distances, one neighbour counted
    moved = [[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(0.75)], [40.0, 0.0]]
    decision, _ = decide(
        Method(LocalSGD(1.0), MultiKrum(selected_fraction=0.5)), of(4), moved
    )
    third = 1 / 3
    np.testing.assert_allclose(decision.weights, [third, third, third, 0])


# ------------------------------------------------------------------ centred clipping


def test_centred_clipping_by_hand() -> None:
    rule = Method(
        LocalSGD(1.0), CenteredClipping(radius=2.0, iterations=1, relative=False)
    )
    moved = [[1.0, 0.0], [0.0, 8.0]]
    # from v = 0 with τ = 2: (1, 0) whole and (0, 8) at a quarter: v = (½, 1)
    decision, state = decide(rule, of(2), moved)
    np.testing.assert_allclose(decision.step, [0.5, 1.0], rtol=1e-14)
    np.testing.assert_allclose(decision.weights, [0.5, 0.125], rtol=1e-14)
    np.testing.assert_array_equal(state.previous[0], decision.step)
    # from v = (½, 1): to (½, 4) it is 3, clipped to 2; to (½, −1) it is 2, whole;
    # v + ½ (0, 2) + ½ (0, −2) = (½, 1), of which v itself is 1 − ½ (⅔ + 1) = 1/6
    moved = [[0.5, 4.0], [0.5, -1.0]]
    decision, _ = decide(rule, of(2), moved, state=state)
    np.testing.assert_allclose(decision.step, [0.5, 1.0], rtol=1e-14)
    np.testing.assert_allclose(decision.weights, [1 / 3, 1 / 2], rtol=1e-13)


def test_centred_clipping_relative_by_hand() -> None:
    # distances to 0 are 1, 2, 9: τ = 2 clips the last to 2: v = (1 + 2 − 2)/3 = 1/3;
    # again: 2/3, 5/3, 28/3: τ = 5/3: v = 1/3 + (2/3 + 5/3 − 5/3)/3 = 5/9
    moved = [[1.0], [2.0], [-9.0]]
    for passes, step in ((1, 1 / 3), (2, 5 / 9)):
        rule = Method(LocalSGD(1.0), CenteredClipping(iterations=passes))
        decision, _ = decide(rule, of(3), moved)
        np.testing.assert_allclose(decision.step, [step], rtol=1e-13)
        assert decision.status == "1 of 3 clipped in the last pass"
        found = decision.weights @ np.array(moved)  # from v = 0 weights make the step
        np.testing.assert_allclose(found, [step], rtol=1e-13)


def test_centred_clipping_with_a_large_radius_is_the_mean(
    rng: np.random.Generator,
) -> None:
    rule, moved = (
        Method(LocalSGD(1.0), CenteredClipping(radius=1e6)),
        rng.standard_normal((5, 3)),
    )
    state = rule.init(5, 3, None)
    for _ in range(2):
        decision, state = decide(rule, of(5), moved, state=state)
        np.testing.assert_allclose(decision.step, moved.mean(axis=0), atol=1e-13)
        np.testing.assert_allclose(decision.weights, 0.2, rtol=1e-12)


def test_centred_clipping_is_its_formula(rng: np.random.Generator) -> None:
    """Against the plain loop over vectors, over rounds with a memory."""
    rule = Method(LocalSGD(1.0), CenteredClipping(radius=0.7, iterations=4))
    state, v = rule.init(6, 5, None), np.zeros(5)
    for _ in range(4):
        moved = 3 + rng.standard_normal((6, 5))
        for _ in range(4):
            far = np.linalg.norm(moved - v, axis=1)
            tau = 0.7 * np.median(far)
            v = v + ((moved - v) * np.minimum(1, tau / far)[:, None]).mean(axis=0)
        decision, state = decide(rule, of(6), moved, state=state)
        np.testing.assert_allclose(decision.step, v, rtol=1e-11)


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: Method(LocalSGD(1.0), TrimmedMean(0.5)),
            "`f` must be a count .* or a fraction",
        ),
        (
            lambda: Method(LocalSGD(1.0), Krum(0.5)),
            "`f` must be a count .* or a fraction",
        ),
        (
            lambda: Method(LocalSGD(1.0), MultiKrum(0.7)),
            "`f` must be a count .* or a fraction",
        ),
        (
            lambda: Method(LocalSGD(1.0), MultiKrum(selected_fraction=1.5)),
            "`selected_fraction` must be above 0 and at most 1; got 1.5",
        ),
        (
            lambda: Method(LocalSGD(1.0), GeometricMedian(iterations=0)),
            "`iterations` must be at least 1; got 0",
        ),
        (
            lambda: Method(LocalSGD(1.0), CenteredClipping(iterations=0)),
            "`iterations` must be at least 1; got 0",
        ),
    ],
)
def test_numbers_out_of_range_are_refused(make: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        make()
