"""The certificate of robustness: its interval, its bounds in theory, and rejection."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hewfl import (
    Aggregator,
    InvalidInputError,
    robustness_certificate,
    worst_case_kappa,
)
from hewfl.aggregators import (
    CenteredClipping,
    Certified,
    Clip,
    CoordinateMedian,
    GeometricMedian,
    Krum,
    Mean,
    MultiKrum,
    Pipeline,
    TrimmedMean,
    Trust,
)
from hewfl.displacements.chunked import RANGE, ChunkedDisplacements
from hewfl.displacements.count_sketch import CountSketch
from hewfl.displacements.sketched_displacements import SketchedDisplacements
from hewfl.solver import subset_search

INEXACT = 1e-9
"""Relative error of κ̂ from well scaled updates: far above rounding."""


def exact_kappa(rows: Any, step: Sequence[Any], f: int) -> Any:
    """κ̂ by its definition, over all subsets, in fractions of the numbers given."""
    exact = [[Fraction(x) for x in row] for row in rows]
    point, n, d = [Fraction(x) for x in step], len(rows), len(step)
    worst: Any = Fraction(0)
    for members in combinations(range(n), n - f):
        mean = [sum((exact[i][k] for i in members), Fraction(0)) for k in range(d)]
        mean = [x / len(members) for x in mean]
        above = sum((point[k] - mean[k]) ** 2 for k in range(d))
        total: Any = sum(
            (exact[i][k] - mean[k]) ** 2 for i in members for k in range(d)
        )
        below = total / len(members)
        if below == 0:
            worst = max(worst, inf if above else Fraction(0))
        else:
            worst = max(worst, above / below)
    return worst


@st.composite
def rounds(draw: Any) -> tuple[Any, int]:
    """Updates with duplicates, a common offset and clients that are far away."""
    n, d = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    entry = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0, 1e6])
    rows = draw(
        st.lists(st.lists(entry, min_size=d, max_size=d), min_size=n, max_size=n)
    )
    offset = draw(st.sampled_from([0.0, 1.0, 1e7]))
    return np.array(rows) + offset, draw(st.integers(0, (n - 1) // 2))


def test_numbers_of_the_sentence_are_rounded_outward() -> None:
    """A kappa of 1.00000038 printed as 1 is a bound that nothing proves."""
    for seed in range(20):
        rows = np.random.default_rng(seed).standard_normal((6, 3))
        certificate = robustness_certificate(rows, 2, step=rows.mean(axis=0))
        shown = float(certificate.status.split()[1])
        assert certificate.upper <= shown < 1.01 * certificate.upper
    rows = np.random.default_rng(0).standard_normal((30, 3))
    stopped = robustness_certificate(rows, 9, step=rows.mean(axis=0), work=1)
    assert not stopped.exact
    most = float(stopped.status.partition("at most ")[2].partition(":")[0])
    assert stopped.upper <= most < 1.01 * stopped.upper


@given(rounds(), st.data())
def test_the_interval_holds_the_value_over_all_subsets(
    problem: tuple[Any, int], data: st.DataObject
) -> None:
    rows, f = problem
    n = len(rows)
    parts = st.lists(st.sampled_from([0, 1, 2, 8]), min_size=n, max_size=n)
    counts = data.draw(parts.filter(any))
    share = 1 << (sum(counts) - 1).bit_length()  # so that weights are exact
    counts[0] += share - sum(counts)
    w = np.array(counts) / share
    step = [
        sum(
            Fraction(int(c), share) * Fraction(x)
            for c, x in zip(counts, col, strict=True)
        )
        for col in rows.T
    ]
    expected = exact_kappa(rows, step, f)
    by_weights = robustness_certificate(rows, f, weights=w)
    assert by_weights.lower <= expected <= by_weights.upper
    assert by_weights.exact
    given_step = rows[0] - data.draw(st.sampled_from([0.0, 0.25, 1e4]))
    by_step = robustness_certificate(rows, f, step=given_step)
    assert by_step.lower <= exact_kappa(rows, given_step, f) <= by_step.upper


@given(st.integers(3, 9), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_kappa_does_not_depend_on_order_place_and_unit(
    n: int, d: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows, w = rng.standard_normal((n, d)), rng.dirichlet(np.ones(n))
    f, order, shift = (n - 1) // 2, rng.permutation(n), 100 * rng.standard_normal(d)
    first = robustness_certificate(rows, f, weights=w)
    assert first.lower <= first.kappa <= first.upper <= first.lower * 1.001 + 1e-9
    others = [
        robustness_certificate(rows[order], f, weights=w[order]),
        robustness_certificate(rows + shift, f, weights=w),
        robustness_certificate(rows + shift, f, step=w @ rows + shift),
        robustness_certificate(-3e150 * rows, f, weights=w),
        robustness_certificate(1e-150 * rows, f, step=1e-150 * (w @ rows)),
        robustness_certificate(list(rows), f, step=w @ rows),
    ]
    for other in others:
        assert other.kappa == pytest.approx(first.kappa, rel=1e-8, abs=1e-9)
    assert sorted(order[list(others[0].subset)]) == list(first.subset)


def test_one_far_client_takes_no_digits(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((9, 20))
    step, near = rows[:7].mean(axis=0), rows.copy()
    near[8] *= 1e7
    w = np.r_[np.full(7, 1 / 7), 0, 0]
    for given_ in ({"step": step}, {"weights": w}):
        result = robustness_certificate(near, 1, **given_)
        expected = float(exact_kappa(near.tolist(), step.tolist(), 1))
        assert result.kappa == pytest.approx(expected, rel=INEXACT)
        assert result.upper - result.lower < 1e-6 * result.kappa


def test_an_offset_is_subtracted_first(rng: np.random.Generator) -> None:
    rows = rng.integers(-4, 5, (8, 5)) + 2.0**40
    expected = robustness_certificate(rows - 2.0**40, 2, weights=np.full(8, 0.125))
    result = robustness_certificate(rows, 2, weights=np.full(8, 0.125))
    assert result.kappa == pytest.approx(expected.kappa, rel=1e-12)
    assert result.upper == pytest.approx(expected.kappa, rel=1e-9)
    median = robustness_certificate(rows, 2, step=np.median(rows, axis=0))
    plain = np.median(rows - 2.0**40, axis=0)
    expected = robustness_certificate(rows - 2.0**40, 2, step=plain)
    assert median.kappa == pytest.approx(expected.kappa, rel=1e-12)


def test_updates_that_are_equal() -> None:
    same = np.full((6, 4), 0.3)  # weights that sum to one but for rounding
    for case in ({"weights": np.full(6, 1 / 6)}, {"step": same.mean(axis=0)}):
        result = robustness_certificate(same, 1, **case)
        assert (result.kappa, result.upper, result.exact) == (0.0, 0.0, True)
    off = robustness_certificate(same, 1, weights=[1.0, 0.5, 0, 0, 0, 0])
    assert (off.kappa, off.lower, off.exact) == (inf, inf, True)

    five = same.copy()
    five[5] = 7.0
    inside = robustness_certificate(five, 1, weights=[0.2] * 5 + [0.0])
    assert inside.kappa == pytest.approx(0.25)  # with the sixth in place of one
    outside = robustness_certificate(five, 1, weights=np.full(6, 1 / 6))
    assert (outside.kappa, outside.subset) == (inf, (0, 1, 2, 3, 4))


def test_one_client_and_none_faulty(rng: np.random.Generator) -> None:
    row = rng.standard_normal((1, 3))
    assert robustness_certificate(row, 0, weights=[1.0]).upper == 0
    assert robustness_certificate(row, 0, weights=[0.5]).kappa == inf
    rows = rng.standard_normal((5, 3))
    mean = robustness_certificate(rows, 0, weights=np.full(5, 0.2))
    assert mean.upper < 1e-12
    assert mean.subset == (0, 1, 2, 3, 4)


@pytest.mark.unchecked
@pytest.mark.parametrize("f", [4, 0.5, -1, -0.1, True, "2", None, np.nan, 2.0])
def test_f_that_no_rule_survives(f: Any) -> None:
    with pytest.raises(InvalidInputError, match="`f` must be"):
        robustness_certificate(np.eye(8), f, weights=np.full(8, 0.125))


@pytest.mark.unchecked
def test_a_share_is_rounded_down() -> None:
    cases: list[Any] = [(9, 0.2), (10, 0.2), (100, 0.29), (7, 0.49), (7, np.int64(3))]
    counts = [
        robustness_certificate(np.eye(n), f, weights=np.full(n, 1 / n)).f
        for n, f in cases
    ]
    assert counts == [1, 2, 29, 3, 3]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "case",
    [
        {},
        {"weights": np.ones(3), "step": np.ones(2)},
        {"weights": np.ones(2)},
        {"step": np.ones(3)},
        {"weights": [1, np.nan, 0]},
        {"weights": np.ones(3), "work": -1},
    ],
)
def test_other_arguments_that_are_wrong(case: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        robustness_certificate(np.ones((3, 2)), 1, **case)


@pytest.mark.unchecked
def test_long_vectors_in_ranges(rng: np.random.Generator) -> None:
    d = 3 * RANGE // 2
    rows, w = rng.standard_normal((4, d)), np.array([0.5, 0.25, 0.25, 0.0])
    parts = np.split(rows, [5, 70_000], axis=1)
    chunked = ChunkedDisplacements(
        tuple(tuple(np.ascontiguousarray(row) for row in part) for part in parts)
    )
    expected = robustness_certificate(rows, 1, weights=w)
    for vectors in (rows, list(rows), chunked):
        result = robustness_certificate(vectors, 1, step=w @ rows)
        assert result.kappa == pytest.approx(expected.kappa, rel=INEXACT)
        assert result.lower <= expected.kappa <= result.upper
        again = robustness_certificate(vectors, 1, step=1e-160 * (w @ rows))
        assert again.lower <= again.kappa <= again.upper


# ------------------ theory

BOUNDED: list[tuple[Any, Any]] = [
    ("trimmed-mean", lambda _n, f: TrimmedMean(f=f)),
    ("coordinate-median", lambda _n, _f: CoordinateMedian()),
    ("geometric-median", lambda _n, _f: GeometricMedian()),
    ("krum", lambda _n, f: Krum(f=f)),
    ("multi-krum", lambda n, f: MultiKrum((f + 0.01) / n, (n - f) / n)),
]


@pytest.mark.parametrize(("name", "make"), BOUNDED, ids=[b[0] for b in BOUNDED])
@given(st.integers(3, 12), st.data(), st.integers(0, 2**32 - 1))
def test_no_round_is_above_the_bound_of_its_rule(
    name: Any, make: Any, n: int, data: st.DataObject, seed: int
) -> None:
    f = data.draw(st.integers(0, (n - 3) // 2 if "krum" in name else (n - 1) // 2))
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, data.draw(st.sampled_from([1, 2, 9]))))
    rows[:f] *= data.draw(st.sampled_from([0.01, 1.0, 3.0, 100.0]))
    rows[:f] += data.draw(st.sampled_from([0.0, 1.0, 3.0]))
    decision, _ = make(n, f)(rows)
    result = robustness_certificate(rows, f, step=decision.step)
    assert result.lower <= worst_case_kappa(name, n, f) * (1 + 1e-9) + 1e-9
    n_, kappa = Certified(make(n, f), f=f)(rows)[0].measured, result.kappa
    assert n_["kappa"] == pytest.approx(kappa, rel=1e-6, abs=1e-9)


@given(st.integers(4, 12), st.data(), st.integers(0, 2**32 - 1))
def test_mixing_lowers_the_bound(n: int, data: st.DataObject, seed: int) -> None:
    f = data.draw(st.integers(1, (n - 1) // 2))
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, 3))
    rows[:f] += data.draw(st.sampled_from([0.0, 1.0, 5.0]))
    apart = ((rows[:, None] - rows) ** 2).sum(axis=2)
    near = np.argsort(apart, axis=1)[:, : n - f]
    step, _ = TrimmedMean(f=f)(rows[near].mean(axis=1))
    result = robustness_certificate(rows, f, step=step.step)
    bound = worst_case_kappa("trimmed-mean", n, f, mixed=True)
    assert result.lower <= bound * (1 + 1e-9)
    assert bound == pytest.approx(8 * f / (n - f) * (1 + f / (n - 2 * f)))


def test_the_bound_of_the_trimmed_mean_is_reached() -> None:
    n, f = 10, 3
    rows = np.array([[0.0]] * (n - f) + [[1.0]] * f)
    decision, _ = TrimmedMean(f=f)(rows)
    # of the honest clients f hold 1 and n − 2f hold 0; the faulty ones hold 0
    result = robustness_certificate(rows, f, step=decision.step)
    assert result.kappa == pytest.approx(worst_case_kappa("trimmed-mean", n, f))


@pytest.mark.unchecked
def test_bounds_that_do_not_exist() -> None:
    assert worst_case_kappa("krum", 6, 2) < inf
    assert worst_case_kappa("krum", 5, 2) == inf
    for case in (("trust", 10, 2), ("krum", 10, 5), ("krum", 10, 2.5)):
        with pytest.raises(InvalidInputError):
            worst_case_kappa(*case)


# ------------------ sketches


@pytest.mark.parametrize("size", [256, 4096])
def test_the_interval_from_sketches_covers_what_it_states(
    size: int, rng: np.random.Generator
) -> None:
    n, f, d, trials = 4, 1, 5000, 120
    rows = rng.standard_normal((n, d))
    rows[0] = 0.3 * rows[1] + 2.0  # a constant part and unequal lengths
    w = np.array([0.1, 0.2, 0.3, 0.4])
    true = robustness_certificate(rows, f, weights=w)
    misses, errors = 0, []
    for seed in range(trials):
        sketches = np.stack([CountSketch(size, seed).of([row]) for row in rows])
        stored = sketches.astype(np.float32).astype(np.float64)
        seen = SketchedDisplacements(n, d, stored)
        result = robustness_certificate(seen, f, weights=w)
        assert not result.exact
        assert result.confidence == 0.95
        misses += not result.lower <= true.kappa <= result.upper
        errors.append(result.kappa / true.kappa)
    assert misses <= 0.05 * trials
    assert max(errors) > 1 > min(errors)  # it is an estimate
    epsilon = np.sqrt(n * (5 * n + 4) / (3 * 0.05 * size))
    assert np.isfinite(result.upper) == (epsilon < 1)
    if epsilon < 1:
        factor = (1 + epsilon) / (1 - epsilon)
        assert result.upper + 1 == pytest.approx(factor * (result.kappa + 1), rel=1e-5)


def test_sketches_that_hold_whole_vectors_are_exact(rng: np.random.Generator) -> None:
    rows, w = rng.standard_normal((6, 50)), np.full(6, 1 / 6)
    sketches = np.stack([CountSketch(64, 3).of([row]) for row in rows])
    result = robustness_certificate(
        SketchedDisplacements(6, 50, sketches), 2, weights=w
    )
    assert result.exact
    assert result.confidence == 1
    assert result.kappa == pytest.approx(
        robustness_certificate(rows, 2, weights=w).kappa, rel=INEXACT
    )


# ------------------ the aggregator


@pytest.mark.parametrize(
    "rule",
    [
        Mean(),
        CoordinateMedian(),
        TrimmedMean(),
        CenteredClipping(),
        Pipeline(Clip(), GeometricMedian()),
    ],
    ids=lambda rule: rule.name,
)
def test_any_rule_is_certified(rule: Aggregator, rng: np.random.Generator) -> None:
    rows = rng.standard_normal((9, 40))
    plain, _ = rule(rows)
    decision, _ = Certified(rule, f=2)(rows)
    assert decision.weights.tolist() == plain.weights.tolist()
    assert decision.step.tolist() == plain.step.tolist()
    expected = robustness_certificate(rows, 2, step=plain.step)
    assert decision.measured["kappa"] == pytest.approx(expected.kappa, rel=INEXACT)
    assert decision.measured["kappa_f"] == 2
    assert not decision.rejected


def test_a_rejected_round_keeps_the_state(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((8, 10)) + 1
    rule = Certified(Trust(), f=2, refuse_above=10.0)
    _, state = rule(rows)
    bad = rows.copy()
    bad[:5] = rows[:5].mean(axis=0) + 1e-3 * rng.standard_normal((5, 10))
    bad[5:] *= 1e3
    tight = Certified(Mean(), f=3, refuse_above=10.0)
    decision, _ = tight(bad)
    assert decision.rejected
    assert decision.measured["kappa_lower"] > 10
    assert decision.status.endswith("; it may be above 10")
    worse = Certified(Trust(), f=2, refuse_above=1e-9)
    decision, after = worse(rows, state)
    assert decision.rejected
    assert all(
        np.array_equal(a, b) for a, b in zip(*map(_arrays, (state, after)), strict=True)
    )


def _arrays(state: Any) -> list[Any]:
    return [getattr(state, name) for name in state.__dataclass_fields__]


def test_a_limit_holds_for_the_upper_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subset_search, "ENUMERATED", 0)
    rows = np.random.default_rng(0).standard_normal((16, 3))
    numbers = Certified(Mean(), f=5, work=0)(rows)[0].measured
    low, high = numbers["kappa_lower"], numbers["kappa_upper"]
    assert low < high
    between = Certified(Mean(), f=5, work=0, refuse_above=(low + high) / 2)
    assert between(rows)[0].rejected  # it fails closed
    above = Certified(Mean(), f=5, work=0, refuse_above=1.01 * high)
    assert not above(rows)[0].rejected


def test_too_few_clients_for_f_have_no_certificate() -> None:
    rows, some = np.eye(4), [0, 1, 2, 9]  # four of ten clients take part
    open_, _ = Certified(Mean(), f=2)(rows, clients=some)
    assert dict(open_.measured) == {"kappa_f": 2.0}
    assert not open_.rejected
    assert "2 faulty of 4 clients is not below half" in open_.status
    strict = Certified(Mean(), f=2, refuse_above=100.0)
    assert strict(rows, clients=some)[0].rejected


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "case",
    [
        {"rule": "krum"},
        {"f": 0.5},
        {"f": "2"},
        {"refuse_above": 0.0},
        {"refuse_above": -1},
        {"work": 0.5},
    ],
)
def test_fields_that_are_out_of_range(case: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        Certified(**{"rule": Mean(), **case})
