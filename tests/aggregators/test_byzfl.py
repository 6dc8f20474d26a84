"""Every rule and pre-aggregation that ByzFL has too, against ByzFL 0.0.11.

`pip install --no-deps byzfl` is enough: its rules need NumPy, SciPy and torch, its
benchmarks torchvision and seaborn.
"""

from typing import Any

import numpy as np
import pytest
from tests.aggregators.byzfl_library import load_byzfl

from hewfl.aggregators import (
    ARC,
    CAF,
    MDA,
    NNM,
    Bucketing,
    CenteredClipping,
    Clip,
    CoordinateMedian,
    GeometricMedian,
    Krum,
    Meamed,
    Mean,
    MultiKrum,
    Pipeline,
    TrimmedMean,
)

byzfl = load_byzfl()
pytestmark = pytest.mark.skipif(byzfl is None, reason="byzfl is not installed")

SIZES = [(5, 1), (11, 2), (11, 4), (20, 6), (21, 0)]
every_size = pytest.mark.parametrize(("n", "f"), SIZES)


def updates(rng: np.random.Generator, n: int, f: int) -> Any:
    """Honest clients, f of them replaced: some far, some long."""
    rows = rng.standard_normal((n, 30))
    rows[: f // 2] += 5
    rows[f // 2 : f] *= 20
    return rows


def step(rule: Any, rows: Any, **options: Any) -> Any:
    return rule(rows, **options)[0].step


@every_size
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_shared_rules_agree(
    n: int, f: int, kind: Any, rng: np.random.Generator
) -> None:
    rows = updates(rng, n, f).astype(kind)
    close = 1e-5 if kind == np.float32 else 1e-10
    pairs = [
        (Mean(), byzfl.Average()),
        (CoordinateMedian(), byzfl.Median()),
        (TrimmedMean(f=f), byzfl.TrMean(f)),
        (Meamed(f=f), byzfl.Meamed(f)),
        (
            CenteredClipping(radius=3.0, iterations=5, relative=False),
            byzfl.CenteredClipping(L=5, tau=3.0),
        ),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(
            step(ours, rows), theirs(rows), atol=close, err_msg=ours.name
        )


@pytest.mark.parametrize(("n", "f"), [(5, 1), (9, 2), (11, 4), (12, 3)])
def test_least_diameter_agrees(n: int, f: int, rng: np.random.Generator) -> None:
    """ByzFL takes the first of several best subsets; ours is the mean of them."""
    for _ in range(20):
        rows = rng.standard_normal((n, 8))
        ours, _ = MDA(f=f)(rows)
        kept = ours.weights > 0
        if kept.sum() > n - f:
            continue
        np.testing.assert_allclose(ours.step, byzfl.MDA(f)(rows), atol=1e-12)


@every_size
def test_krum_agrees_but_for_one_neighbour(
    n: int, f: int, rng: np.random.Generator
) -> None:
    """The paper sums n − f − 2 neighbours; ByzFL takes the mean of n − f − 1.

    With one client assumed faulty less, ours sums the same: n − (f − 1) − 2.
    """
    if f == 0:
        return
    theirs, near = byzfl.Krum(f), byzfl.MultiKrum(f)
    for _ in range(20):
        rows = updates(rng, n, f)
        ours, _ = Krum(f=f - 1)(rows)
        np.testing.assert_allclose(ours.step, theirs(rows), atol=1e-12)
        ours, _ = MultiKrum(f=f - 1, selected_fraction=(n - f) / n)(rows)
        np.testing.assert_allclose(ours.step, near(rows), atol=1e-12)


def test_krum_of_the_paper_is_ours(rng: np.random.Generator) -> None:
    """n = 11 and f = 4: there are rounds in which the neighbour decides."""
    differ = 0
    for _ in range(50):
        rows = rng.standard_normal((11, 3))
        apart = ((rows[:, None] - rows) ** 2).sum(axis=-1)
        scores = np.sort(apart, axis=1)[:, 1:6].sum(axis=1)  # n − f − 2 = 5
        best = np.argsort(scores)[:7]
        ours, _ = MultiKrum(f=4, selected_fraction=7 / 11)(rows)
        np.testing.assert_allclose(ours.step, rows[best].mean(axis=0), atol=1e-12)
        differ += not np.allclose(ours.step, byzfl.MultiKrum(4)(rows), atol=1e-9)
    assert differ > 0


@every_size
def test_the_geometric_median_agrees_when_both_converge(
    n: int, f: int, rng: np.random.Generator
) -> None:
    """ByzFL starts at zero, and by default stops after three steps, before that."""
    rows = updates(rng, n, f)
    ours, _ = GeometricMedian()(rows)
    many = byzfl.GeometricMedian(nu=1e-6, T=2000)(rows)
    np.testing.assert_allclose(ours.step, many, atol=1e-6)
    if f > 1:
        few = byzfl.GeometricMedian()(rows)

        def value(z: Any) -> float:
            return float(np.linalg.norm(rows - z, axis=1).sum())

        assert value(few) > value(ours.step) * (1 + 1e-9)


def filtered_mean(x: Any, f: int, *, of_all: bool) -> float:
    """CAF of numbers: the mean of the pass with the least variance."""
    c, least, best = np.ones(len(x)), np.inf, 0.0
    while c.sum() > len(x) - 2 * f:
        mean = c @ x / c.sum()
        tau, variance = (x - mean) ** 2, c @ (x - mean) ** 2 / c.sum()
        if variance < least:
            least, best = variance, mean
        c = c * np.maximum(1 - tau / tau[(c > 0) | of_all].max(), 0)
    return float(best)


@every_size
def test_caf_differs_in_one_maximum(n: int, f: int, rng: np.random.Generator) -> None:
    """ByzFL scales scores by those of clients that have no weight left, too.

    One far client then stops the filter: its score makes all others small. (ByzFL's
    eigenvector is one power step from a random vector, so numbers are compared, whose
    only direction it is. With f = 0 it gives None.)
    """
    rows = updates(rng, n, f)[:, :1]
    ours = step(CAF(f=f), rows)
    if f > 0:
        np.testing.assert_allclose(ours, filtered_mean(rows[:, 0], f, of_all=False))
        theirs = filtered_mean(rows[:, 0], f, of_all=True)
        np.testing.assert_allclose(byzfl.CAF(f)(rows), theirs)
    else:
        np.testing.assert_allclose(ours, rows.mean(axis=0))


@every_size
def test_shared_pre_aggregations_agree(
    n: int, f: int, rng: np.random.Generator
) -> None:
    rows = updates(rng, n, f)
    pairs = [
        (NNM(f=f), byzfl.NNM(f)),
        (ARC(f=f), byzfl.ARC(f)),
        (Clip(max_norm=3.0), byzfl.Clipping(3.0)),
    ]
    for ours, theirs in pairs:
        expected = theirs(rows.copy())
        for rule in (Mean(), CoordinateMedian(), MultiKrum(f=f)):
            np.testing.assert_allclose(
                step(Pipeline(ours, rule), rows),
                step(rule, expected),
                atol=1e-9,
                err_msg=f"{ours.name}, {rule.name}",
            )


def test_arc_counts_in_whole_numbers() -> None:
    """⌊2 (f/n) (n − f)⌋ is 57 for n = 242 and f = 33, by floats 56."""
    n, f = 242, 33
    rows = np.diag(np.arange(1.0, n + 1))
    ours, _ = Pipeline(ARC(f=f), Mean())(rows)
    np.testing.assert_allclose(ours.step * n, np.minimum(np.arange(1, n + 1), n - 57))
    assert np.diagonal(byzfl.ARC(f)(rows.copy())).max() == n - 56


@pytest.mark.parametrize(("n", "s"), [(12, 3), (11, 2), (5, 5), (4, 1)])
def test_buckets_are_of_the_same_kind(n: int, s: int, rng: np.random.Generator) -> None:
    """Permutations differ: the means of both are of as many clients, each used once."""
    rows = np.eye(n)
    np.random.seed(int(rng.integers(2**31)))  # noqa: NPY002 - what ByzFL draws from
    theirs = byzfl.Bucketing(s)(rows.copy())
    decision, _ = Pipeline(Bucketing(size=s), Mean())(rows)
    sizes = sorted((theirs > 0).sum(axis=1))
    counts = np.round(1 / (decision.weights * len(sizes))).astype(int)
    assert sorted(np.repeat(sizes, sizes)) == sorted(counts)
