"""Robust rules of the literature: cases worked by hand, and searches by brute force."""

import itertools
from typing import Any

import numpy as np
import pytest

from hewfl import InvalidInputError, RuleError
from hewfl.aggregators import (
    CAF,
    MDA,
    Bulyan,
    CoordinateMedian,
    DnC,
    FLTrust,
    Krum,
    Meamed,
    SignGuard,
    TrimmedMean,
    make,
)
from hewfl.aggregators.coordinatewise import COMPILED, NETWORK, sort_columns
from hewfl.aggregators.similarity import largest_cluster
from hewfl.core import native

FAR = 1e9


def column(*values: float) -> Any:
    return np.array(values)[:, None]


# ------------------ sorting


@pytest.mark.parametrize("n", [1, 2, 3, 7, 20, NETWORK, NETWORK + 1])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_columns_are_sorted_as_by_numpy(
    n: int, kind: Any, rng: np.random.Generator
) -> None:
    block = rng.integers(-4, 4, (n, 500)).astype(kind)
    before = block.copy()
    np.testing.assert_array_equal(sort_columns(block), np.sort(block, axis=0))
    np.testing.assert_array_equal(block, before)
    block[rng.random((n, 500)) < 0.1] = np.nan
    block[rng.random((n, 500)) < 0.1] = np.inf
    np.testing.assert_array_equal(sort_columns(block), np.sort(block, axis=0))
    assert sort_columns(block).dtype == kind


@pytest.mark.parametrize("n", [1, 2, 3, 20, NETWORK + 1, 100, COMPILED, COMPILED + 1])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("values", ["different", "tied", "partly equal"])
def test_the_kernel_of_columns_agrees_with_numpy(
    n: int, kind: Any, values: str, rng: np.random.Generator
) -> None:
    rows = rng.standard_normal((n, 71)).astype(kind)
    if values == "tied":
        rows = np.round(2 * rows)
    elif values == "partly equal":
        rows[:, ::3] = rows[0, ::3]
    for rule in (CoordinateMedian(), TrimmedMean(f=0.2)):
        for given in (rows, rows[:, :1], rows[:, 5:37]):
            compiled, _ = rule(given)
            with native.disabled():
                plain, _ = rule(given)
            np.testing.assert_allclose(compiled.step, plain.step, rtol=1e-14)
            np.testing.assert_allclose(compiled.weights, plain.weights, rtol=1e-12)


def test_float32_is_averaged_in_float64(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((9, 40)).astype(np.float32)
    for given in (rows, list(rows)):
        narrow, _ = TrimmedMean(f=2)(given)
        wide, _ = TrimmedMean(f=2)(rows.astype(np.float64))
        np.testing.assert_array_equal(narrow.step, wide.step)
        np.testing.assert_array_equal(narrow.weights, wide.weights)


# ------------------ mean around median


def test_meamed_by_hand() -> None:
    # median 2 of 0, 1, 2, 4, 100: the three nearest are 0 or 4 (at 2 both), 1, 2
    decision, _ = Meamed(f=2)(column(0, 1, 2, 4, 100))
    np.testing.assert_allclose(decision.step, [(3 / 3 + 7 / 3) / 2])
    sixth = 1 / 6
    np.testing.assert_allclose(
        decision.weights, [sixth, 2 * sixth, 2 * sixth, sixth, 0]
    )
    # median 2.5 of four, the three nearest without the last
    decision, _ = Meamed(f=1)(column(1, 2, 3, 100))
    np.testing.assert_allclose(decision.step, [2.0])
    decision, _ = Meamed(f=0)(column(1, 2, 3, 100))
    np.testing.assert_allclose(decision.step, [26.5])


def test_meamed_is_its_formula(rng: np.random.Generator) -> None:
    for n, f in ((5, 1), (8, 3), (21, 6), (40, 11)):
        rows = rng.standard_normal((n, 30))
        order = np.argsort(abs(rows - np.median(rows, axis=0)), axis=0)[: n - f]
        expected = np.take_along_axis(rows, order, axis=0).mean(axis=0)
        decision, _ = Meamed(f=f)(rows)
        np.testing.assert_allclose(decision.step, expected, rtol=1e-12)
        counts = np.bincount(order.ravel(), minlength=n)
        np.testing.assert_allclose(decision.weights, counts / counts.sum())


# ------------------ Bulyan


def bulyan(rows: Any, f: int) -> Any:
    """The paper's two steps, one client at a time."""
    left, chosen = list(range(len(rows))), []
    for _ in range(len(rows) - 2 * f):
        apart = ((rows[left][:, None] - rows[left]) ** 2).sum(axis=-1)
        nearest = max(1, len(left) - f - 2)
        scores = np.sort(apart, axis=1)[:, 1 : nearest + 1].sum(axis=1)
        ties = np.flatnonzero(np.isclose(scores, scores.min(), rtol=1e-9))
        to_all = ((rows[left][ties][:, None] - rows) ** 2).sum(axis=(1, 2))
        chosen.append(left.pop(ties[to_all.argmin()]))
    picked = rows[chosen]
    order = np.argsort(abs(picked - np.median(picked, axis=0)), axis=0)
    return np.take_along_axis(picked, order[: len(rows) - 4 * f], axis=0).mean(axis=0)


def test_bulyan_is_its_two_steps(rng: np.random.Generator) -> None:
    for n, f in ((7, 1), (12, 2), (15, 3), (23, 5)):
        rows = rng.standard_normal((n, 9))
        rows[:f] += 4
        decision, _ = Bulyan(f=f)(rows)
        np.testing.assert_allclose(decision.step, bulyan(rows, f), rtol=1e-10)
        assert decision.weights.sum() == pytest.approx(1.0)
        assert "f" not in decision.status[:1]


def test_bulyan_by_hand() -> None:
    # n = 7, f = 1: Krum takes 3, 2, 4, 1 or 5, … of 0, …, 5 and 100: five of the six;
    # the three values nearest to their median
    decision, _ = Bulyan(f=1)(column(0, 1, 2, 3, 4, 5, 100))
    np.testing.assert_allclose(decision.step, [2.5], atol=0.5)
    assert decision.weights[6] == 0
    assert "1 faulty" in Bulyan(f=3)(column(*range(7)))[0].status  # n ≥ 4f + 3


# ------------------ least diameter


def mda(rows: Any, f: int) -> Any:
    """The mean over all subsets of least diameter, one by one."""
    n = len(rows)
    apart = np.linalg.norm(rows[:, None] - rows, axis=-1)
    subsets = list(itertools.combinations(range(n), n - f))
    diameters = np.array([apart[np.ix_(s, s)].max() for s in subsets])
    best = [s for s, d in zip(subsets, diameters, strict=True)]
    best = [best[k] for k in np.flatnonzero(diameters <= diameters.min() + 1e-12)]
    return np.mean([rows[list(s)].mean(axis=0) for s in best], axis=0)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 11])
@pytest.mark.parametrize("kind", ["normal", "grid", "twins"])
def test_mda_is_the_best_of_all_subsets(
    n: int, kind: str, rng: np.random.Generator
) -> None:
    """On a grid many subsets have one diameter."""
    for f in range((n - 1) // 2 + 1):
        rows = {
            "normal": rng.standard_normal((n, 3)),
            "grid": rng.integers(0, 3, (n, 2)).astype(np.float64),
            "twins": np.repeat(rng.standard_normal((n, 3)), 2, axis=0)[:n],
        }[kind]
        decision, _ = MDA(f=f)(rows)
        np.testing.assert_allclose(decision.step, mda(rows, f), atol=1e-12)
        assert decision.weights.sum() == pytest.approx(1.0)


def test_mda_of_many_clients_and_its_limit(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rng.standard_normal((60, 5))
    rows[:20] += 50
    decision, _ = MDA(f=20)(rows)
    assert (decision.weights[:20] == 0).all()
    # points on the line, equally spaced: far from a hard case
    decision, _ = MDA(f=40)(np.arange(100.0)[:, None])
    assert decision.weights.sum() == pytest.approx(1.0)
    same, _ = MDA(f=49)(np.zeros((100, 3)))
    np.testing.assert_allclose(same.weights, 0.01)
    hundred, _ = MDA(f=45)(rng.standard_normal((100, 30)))
    assert (hundred.weights > 0).sum() >= 55
    monkeypatch.setattr("hewfl.aggregators.diameter.LIMIT", 1000)
    with pytest.raises(RuleError, match="the search among 100 clients with f = 45"):
        MDA(f=45)(rng.standard_normal((100, 30)))


# ------------------ along the main direction


def test_dnc_by_hand() -> None:
    # centred rows ±1 along e_2 and 8, −2, −2, −2, −2 along e_1: the first goes
    rows = [[10.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 1.0], [0.0, -1.0]]
    decision, _ = DnC(f=1)(rows)
    np.testing.assert_allclose(decision.weights, [0, 0.25, 0.25, 0.25, 0.25])


@pytest.mark.parametrize("far", [1.0, 1e3, 1e8])
def test_dnc_and_caf_are_their_formulas(far: float, rng: np.random.Generator) -> None:
    """Against vectors, with the singular vectors of the matrix itself."""
    rows, f = rng.standard_normal((11, 6)), 3
    rows[4] *= far
    _, _, vt = np.linalg.svd(rows - rows.mean(axis=0))
    scores = ((rows - rows.mean(axis=0)) @ vt[0]) ** 2
    best = np.argsort(scores)[: 11 - f]
    decision, _ = DnC(f=f)(rows)
    np.testing.assert_allclose(decision.step, rows[best].mean(axis=0), rtol=1e-6)

    c, least, step = np.ones(11), np.inf, np.zeros(6)
    while c.sum() > 11 - 2 * f:
        mean = c @ rows / c.sum()
        root = np.sqrt(c / c.sum())[:, None]
        _, s, vt = np.linalg.svd(root * (rows - mean))
        if s[0] < least:
            least, step = s[0], mean
        tau = np.where(c > 0, ((rows - mean) @ vt[0]) ** 2, 0.0)
        c = c * (1 - tau / tau.max())
    decision, _ = CAF(f=f)(rows)
    np.testing.assert_allclose(decision.step, step, rtol=1e-6, atol=1e-7)


def test_caf_by_hand() -> None:
    # mean 2, τ = 4, 4, 4, 36: c = 8/9, 8/9, 8/9, 0: all variance is gone
    decision, _ = CAF(f=1)(column(0, 0, 0, 8))
    np.testing.assert_allclose(decision.weights, [1 / 3, 1 / 3, 1 / 3, 0], atol=1e-15)
    np.testing.assert_allclose(CAF(f=0)(column(0, 0, 0, 8))[0].step, [2.0])


# ------------------ a root gradient


def test_fltrust_by_hand() -> None:
    # g_0 = −2 (−3, 0) = (6, 0): cosines 1, 0.6, 0, −1; steps (6, 0), 0.6 (3.6, 4.8)
    rows = [[2.0, 0.0], [3.0, 4.0], [0.0, 1.0], [-FAR, 0.0]]
    decision, _ = FLTrust(total=2.0)(rows, root=[-3.0, 0.0])
    np.testing.assert_allclose(decision.step, [8.16 / 1.6, 2.88 / 1.6], rtol=1e-12)
    np.testing.assert_allclose(
        decision.weights, [3 / 1.6, 0.6 * 6 / 5 / 1.6, 0, 0], rtol=1e-12
    )
    # total steps 2, 2, 8, 1: their median
    by_steps, _ = FLTrust()(
        rows, root=[-3.0, 0.0], steps=[1, 2, 4, 1], step_sizes=[2.0, 1.0, 2.0, 1.0]
    )
    np.testing.assert_allclose(by_steps.step, decision.step)
    against, _ = FLTrust(total=2.0)(rows[:2], root=[1.0, 1.0])
    np.testing.assert_array_equal(against.step, 0.0)
    nothing, _ = FLTrust()(rows, root=[0.0, 0.0])
    np.testing.assert_array_equal(nothing.step, 0.0)
    with pytest.raises(InvalidInputError, match="`root` must be given for FLTrust"):
        FLTrust()(rows)
    assert FLTrust().needs == {"root", "steps", "step_sizes"}
    assert FLTrust(total=1.0).needs == {"root"}


# ------------------ signs


def test_signguard_by_hand() -> None:
    usual = np.array([[3.0, 4.0, 0.0, 0.0]])  # signs ½, ½, 0 and length 5
    rows = np.vstack(
        [usual, usual, 2 * usual, usual, usual, -usual, 20 * usual, 0.01 * usual]
    )
    decision, _ = SignGuard()(rows)
    # M = 5: the last two are too long and too short, the one before flips its signs,
    # the third is clipped to half
    np.testing.assert_allclose(
        decision.weights, [0.2, 0.2, 0.1, 0.2, 0.2, 0, 0, 0], rtol=1e-12
    )
    assert "5 of 8" in decision.status
    np.testing.assert_allclose(decision.step, usual[0])


def test_signguard_where_the_filters_disagree() -> None:
    """Most clients did not move; those of usual length are none of the cluster."""
    rows = np.zeros((5, 4))
    rows[0] = 1.0
    decision, _ = SignGuard()(rows)
    np.testing.assert_allclose(decision.step, 0.0)
    for bounds in ({"lower": 1.5}, {"upper": 1.5}):
        with pytest.raises(InvalidInputError, match="must be at"):
            SignGuard(**bounds)


def test_the_largest_cluster_by_hand() -> None:
    # distances to the third nearest: 2, 1, 1, 2, 8, 9, 10: width 33/7. The first four
    # climb to their mean, the others stay or climb to theirs
    points = column(0.0, 1.0, 2.0, 3.0, 11.0, 12.0, 21.0)
    expected = [True] * 4 + [False] * 3
    np.testing.assert_array_equal(largest_cluster(points), expected)
    order = np.array([4, 0, 6, 1, 5, 3, 2])
    moved = largest_cluster(points[order])
    np.testing.assert_array_equal(moved, np.array(expected)[order])
    # most are one point: the width is zero, and equals are one cluster
    twins = column(1.0, 5.0, 5.0, 5.0, 2.0)
    np.testing.assert_array_equal(
        largest_cluster(twins), [False, True, True, True, False]
    )


# ------------------ breakdown


@pytest.mark.parametrize("name", ["meamed", "mda", "caf", "dnc", "bulyan"])
@pytest.mark.parametrize("far", [1e3, 1e9])
def test_colluders_far_away_do_not_carry_the_step(
    name: str, far: float, rng: np.random.Generator
) -> None:
    rows = rng.standard_normal((15, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[[1, 4, 8]] = far
    decision, _ = make(name, f=3)(rows)
    assert np.linalg.norm(decision.step) < 1.5


def test_krum_before_and_after_selection_agree(rng: np.random.Generator) -> None:
    """Bulyan's first choice is Krum's: with n = 3 and f = 0 all are taken."""
    rows = rng.standard_normal((9, 5))
    decision, _ = Krum(f=1)(rows)
    assert decision.weights.max() == 1
    whole, _ = Bulyan(f=0)(rows)
    np.testing.assert_allclose(whole.step, rows.mean(axis=0), rtol=1e-12)
