"""Bounds around the median of a round."""

import numpy as np

from hewfl.flower.plausibility import capped_sizes, implausible_lengths, lower_median


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


def test_sizes_count_up_to_five_times_the_median() -> None:
    sizes = np.array([10.0, 12.0, 8.0, 2.0**53])
    np.testing.assert_array_equal(capped_sizes(sizes), [10, 12, 8, 50])
    shares = capped_sizes(np.array([0.5, 0.25, 0.25]))
    np.testing.assert_allclose(shares / shares.sum(), [0.5, 0.25, 0.25])
    assert len(capped_sizes(np.zeros(0))) == 0
