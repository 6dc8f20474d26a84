import numpy as np
import pytest

from hewfl import InvalidInputError
from hewfl.theory.trajectories import by_round, iterated


def test_constants_are_repeated_and_schedules_are_kept() -> None:
    constant, pair = by_round(3, np.asarray(1.0), np.array([1.0, 2.0]))
    assert constant.shape == pair.shape == (3, 2)
    (schedule,) = by_round(None, np.array([1.0, 2.0]))
    assert schedule.tolist() == [1.0, 2.0]
    with pytest.raises(InvalidInputError, match="`rounds` must be given"):
        by_round(None, np.asarray(1.0))


def test_a_step_is_iterated_from_the_start() -> None:
    path = iterated(lambda s: (s[0] / 2, s[1] + s[0]), ([1.0], [0.0, 1.0]), 2, ())
    assert path.gap.tolist() == [[1.0], [0.5], [0.25]]
    assert path.tracking.tolist() == [[0.0, 1.0], [1.0, 2.0], [1.5, 2.5]]
    with pytest.raises(InvalidInputError, match="`start` must be nonnegative"):
        iterated(lambda s: s, (-1.0, 0.0), 2, ())
