"""Records refuse what breaks their rules, and say which field it was."""

from typing import Any

import numpy as np
import pytest

from hewfl import ClientProfile, InvalidInputError, ProblemBounds, UpperState


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ClientProfile(0, 1, 1.0), "`horizon` must be a whole number of at"),
        (lambda: ClientProfile(1.5, 1, 1.0), "`horizon` must be a whole number of at"),
        (lambda: ClientProfile(1, 0, 1.0), "`batch_size` must be a whole number of at"),
        (lambda: ClientProfile(1, 1, -1.0), "`variance` must be nonnegative; got -1.0"),
        (lambda: ClientProfile(1, 1, np.nan), "`variance` must be finite; got nan"),
        (lambda: ClientProfile([1, 2], [1, 2, 3], 1.0), "must be numbers or arrays of"),
        (lambda: ClientProfile(np.ones((2, 2)), 1, 1.0), "nonempty one-dimensional"),
        (lambda: ProblemBounds(0.0, 1.0, 0.1, 0.2), "`smoothness` must be a positive"),
        (lambda: ProblemBounds(1.0, np.inf, 0.1, 0.2), "`radius` must be a positive"),
        (
            lambda: ProblemBounds(1.0, 1.0, 0.0, 0.2),
            "`amplitude_min` must be a positive",
        ),
        (
            lambda: ProblemBounds(1.0, 1.0, 0.1, 1.5),
            "`amplitude_max` must be at most 1",
        ),
        (lambda: ProblemBounds(1.0, 1.0, 0.3, 0.2), "`amplitude_min` must be at most"),
        (lambda: UpperState(-1.0, 0.0), "`gap` must be a nonnegative finite number"),
        (lambda: UpperState(1.0, np.nan), "`tracking` must be a nonnegative finite"),
    ],
)
def test_bad_records_are_named(make: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        make()
