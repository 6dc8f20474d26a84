import numpy as np
import pytest

from hewfl import InvalidInputError
from hewfl.theory.trajectories import by_round


def test_constants_are_repeated_and_schedules_are_kept() -> None:
    constant, pair = by_round(3, np.asarray(1.0), np.array([1.0, 2.0]))
    assert constant.shape == pair.shape == (3, 2)
    (schedule,) = by_round(None, np.array([1.0, 2.0]))
    assert schedule.tolist() == [1.0, 2.0]
    with pytest.raises(InvalidInputError, match="`rounds` must be given"):
        by_round(None, np.asarray(1.0))
