"""Bounds around the median of a round."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hewfl.server.plausibility import (
    cap_shares,
    implausible_lengths,
    implausible_metrics,
    lower_median,
    whole_sizes,
)


def test_the_lower_median_is_of_those_that_moved() -> None:
    assert lower_median(np.array([0.0, 3.0, 1.0, 2.0, 9.0])) == 2.0
    assert lower_median(np.array([1e200, 1.0])) == 1.0  # one bad of two
    assert lower_median(np.zeros(3)) == 0.0


def test_who_is_far_longer_than_the_others_is_named() -> None:
    lengths = np.array([1.0, 2.0, 1.5, 0.0, np.inf, 32.0])
    found = implausible_lengths(lengths, 10.0)
    assert set(found) == {4, 5}
    assert found[5] == "its displacement is 16 times the median"
    assert implausible_lengths(np.zeros(4), 10.0) == {}
    assert implausible_lengths(np.zeros(0), 10.0) == {}


def test_told_steps_are_judged_by_the_length_of_a_step() -> None:
    lengths, steps = np.array([1.0, 1.0, 1.2]), np.array([20, 1, 18])
    assert implausible_lengths(lengths, 10.0) == {}
    assert set(implausible_lengths(lengths, 10.0, steps)) == {1}


@pytest.mark.parametrize(("n", "liar"), [(3, 1 / 3), (5, 0.2), (10, 0.2), (20, 0.2)])
def test_one_lie_about_the_size_gets_the_share_at_most(n: int, liar: float) -> None:
    sizes = np.full(n, 100.0)
    sizes[1] = 2.0**53
    shares = cap_shares(sizes, 0.2) / cap_shares(sizes, 0.2).sum()
    np.testing.assert_allclose(
        shares, np.where(np.arange(n) == 1, liar, (1 - liar) / (n - 1))
    )


@given(
    sizes=arrays(np.float64, st.integers(1, 12), elements=st.floats(1e-3, 1e9)),
    share=st.floats(0.01, 1.0),
)
def test_capped_shares(sizes: Any, share: float) -> None:
    capped = cap_shares(sizes, share)
    assert (capped <= sizes).all()
    most = max(share, 1 / len(sizes)) * capped.sum()
    assert capped.max() <= most * (1 + 1e-9)
    lowered = capped < sizes
    if share * len(sizes) > 1 + 1e-9:  # else all are equal
        np.testing.assert_allclose(capped[lowered], most)
    order = np.argsort(sizes)
    assert (np.diff(capped[order]) >= 0).all()


def test_sizes_become_whole_numbers() -> None:
    np.testing.assert_array_equal(whole_sizes(np.array([10.0, 12.0])), [10, 12])
    shares = whole_sizes(np.array([0.5, 0.25, 0.25]))
    np.testing.assert_allclose(shares / shares.sum(), [0.5, 0.25, 0.25])
    assert len(whole_sizes(np.zeros(0))) == 0
    assert len(cap_shares(np.zeros(0), 0.2)) == 0


def test_metrics_far_above_those_of_the_others() -> None:
    losses = np.array([0.5, 2.0, 1e300, 0.1])
    assert implausible_metrics(losses).tolist() == [False, False, True, False]
    late = np.array([1e-9, 1e-9, 1e-9, 5.0])  # the others have fitted their data
    assert not implausible_metrics(late).any()
    assert implausible_metrics(np.array([-1e300, 1.0])).tolist() == [True, False]
