"""Draws depend on seed, round, step and client alone."""

import numpy as np

from hewfl import Federation, FixedSteps, SampledParticipation
from hewfl.simulation.draws import draw

SIZES = np.array([5, 50, 20, 7, 1])
OFFSETS = np.cumsum(SIZES) - SIZES


def test_draws_depend_on_seed_and_round_alone() -> None:
    cohort = Federation(FixedSteps(3), 4).cohort(1, 2, SIZES)
    first, again = draw(1, 2, cohort, OFFSETS), draw(1, 2, cohort, OFFSETS)
    assert np.array_equal(first.samples, again.samples)
    for other in (draw(2, 2, cohort, OFFSETS), draw(1, 3, cohort, OFFSETS)):
        assert (other.samples != first.samples).any()


def test_a_longer_branch_extends_a_shorter_one() -> None:
    short = draw(1, 2, Federation(FixedSteps(2), 4).cohort(1, 2, SIZES), OFFSETS)
    long = draw(1, 2, Federation(FixedSteps(5), 4).cohort(1, 2, SIZES), OFFSETS)
    assert np.array_equal(long.samples[:2], short.samples)


def test_absent_clients_do_not_move_the_draws_of_others() -> None:
    everybody = Federation(FixedSteps(2), 4).cohort(1, 2, SIZES)
    some = Federation(FixedSteps(2), 4, SampledParticipation(2)).cohort(1, 2, SIZES)
    whole = draw(1, 2, everybody, OFFSETS).samples
    assert np.array_equal(draw(1, 2, some, OFFSETS).samples, whole[:, some.clients])


def test_samples_are_the_client_s_own_and_uniform() -> None:
    cohort = Federation(FixedSteps(1), 4000).cohort(0, 0, SIZES)
    samples = draw(0, 0, cohort, OFFSETS).samples[0]
    for i, size in enumerate(SIZES):
        client_part = samples[i] - OFFSETS[i]
        assert client_part.min() >= 0
        assert client_part.max() < size
        counts = np.bincount(client_part, minlength=size) / 4000
        assert np.abs(counts - 1 / size).max() < 5 * np.sqrt(1 / size / 4000)
