"""The subset with the largest ratio: search against all subsets, in exact numbers."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hewfl.solver import subset_search
from hewfl.solver.subset_search import SubsetMaximum, largest_ratio, ratios

Rows = Sequence[Sequence[int]]


def exact_ratio(rows: Rows, step: Sequence[int], members: Sequence[int]) -> Any:
    """Mean squared distance to the step over the variance, as a fraction or inf."""
    m, d = len(members), len(step)
    above = Fraction(
        sum((rows[i][k] - step[k]) ** 2 for i in members for k in range(d)), m
    )
    means = [Fraction(sum(rows[i][k] for i in members), m) for k in range(d)]
    below = sum((rows[i][k] - means[k]) ** 2 for i in members for k in range(d)) / m
    if below == 0:
        return float("inf") if above else Fraction(1)
    return above / below


def exact_maximum(rows: Rows, step: Sequence[int], size: int) -> Any:
    return max(
        exact_ratio(rows, step, members)
        for members in combinations(range(len(rows)), size)
    )


def squares(rows: Rows, step: Sequence[int]) -> tuple[Any, Any]:
    points = np.array(rows, dtype=np.float64)
    to_step = ((points - np.array(step)) ** 2).sum(axis=1)
    return to_step, ((points[:, None] - points) ** 2).sum(axis=2)


def search(rows: Rows, step: Sequence[int], size: int, work: int) -> SubsetMaximum:
    """Branch and bound, whatever the number of subsets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subset_search, "ENUMERATED", 0)
        return largest_ratio(*squares(rows, step), size, work)


@st.composite
def small_problems(draw: Any) -> tuple[Rows, Sequence[int], int]:
    n, d = draw(st.integers(3, 9)), draw(st.integers(1, 3))
    entry = st.integers(-3, 3)
    far = st.sampled_from([-3, -1, 0, 1, 2, 1000])  # many ties, some far away
    rows = draw(st.lists(st.lists(far, min_size=d, max_size=d), min_size=n, max_size=n))
    step = draw(st.lists(entry, min_size=d, max_size=d))
    return rows, step, n - draw(st.integers(1, (n - 1) // 2))


@given(small_problems(), st.sampled_from([0, 200, 10**7]))
def test_branch_and_bound_holds_the_maximum_of_all_subsets(
    problem: tuple[Rows, Sequence[int], int], work: int
) -> None:
    rows, step, size = problem
    expected, result = exact_maximum(rows, step, size), search(rows, step, size, work)
    assert len(set(result.members.tolist())) == size
    assert result.value == pytest.approx(
        float(exact_ratio(rows, step, result.members.tolist())), rel=1e-12
    )
    assert result.upper >= expected  # fractions compare exactly with floats
    assert float(expected) * (1 + 1e-12) >= result.value
    if result.exact:
        assert result.upper <= float(expected) * (1 + 1e-8)
    assert result.exact or work < 10**7


@given(small_problems())
def test_enumeration_is_the_maximum_of_all_subsets(
    problem: tuple[Rows, Sequence[int], int],
) -> None:
    rows, step, size = problem
    expected = exact_maximum(rows, step, size)
    result = largest_ratio(*squares(rows, step), size)
    assert result.exact
    assert result.upper >= expected
    assert result.value == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("center", ["mean", "median", "one"])
def test_both_searches_agree_on_random_vectors(
    center: str, rng: np.random.Generator
) -> None:
    n, f, d = 18, 5, 40
    rows = (
        rng.standard_normal((n, d)) + 2 * rng.standard_normal((3, d))[np.arange(n) % 3]
    )
    rows[:2] *= 100
    at: Any = {"mean": rows.mean(0), "median": np.median(rows, 0), "one": rows[-1]}
    t, apart = squares(rows.tolist(), at[center].tolist())
    expected = largest_ratio(t, apart, n - f)
    result = search(rows.tolist(), at[center].tolist(), n - f, 10**9)
    assert result.exact
    assert expected.exact
    assert result.value == pytest.approx(expected.value, rel=1e-12)
    assert result.members.tolist() == expected.members.tolist()


def test_a_search_that_is_stopped_has_a_bound(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((40, 10))  # equal clients: the hardest for the bound
    t, apart = squares(rows.tolist(), rows.mean(axis=0).tolist())
    bounds = [largest_ratio(t, apart, 30, work) for work in (0, 10**6, 10**7)]
    assert not any(result.exact for result in bounds)
    uppers = [result.upper for result in bounds]
    assert uppers == sorted(uppers, reverse=True)
    several = np.zeros((3000, 40))
    for row in several:
        row[rng.permutation(40)[:30]] = 1.0
    assert ratios(t, apart, several).max() <= bounds[-1].value < uppers[-1]


def test_equal_vectors() -> None:
    zero = np.zeros((4, 4))
    assert largest_ratio(np.zeros(4), zero, 3).upper == 1.0
    assert largest_ratio(np.ones(4), zero, 3).value == float("inf")
    one = search([[1], [1], [1], [1], [5]], [0], 4, 0)
    assert (one.value, one.upper, one.exact) == (float("inf"), float("inf"), True)


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150, 1e300])
def test_the_unit_does_not_matter(scale: float, rng: np.random.Generator) -> None:
    t, apart = squares(rng.standard_normal((8, 4)).tolist(), [0.5] * 4)  # type: ignore[list-item]
    expected = largest_ratio(t, apart, 6)
    result = largest_ratio(scale * t, scale * apart, 6)
    assert result.value == pytest.approx(expected.value, rel=1e-12)
