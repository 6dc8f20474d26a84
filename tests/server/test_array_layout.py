"""A model as one vector, and back."""

from typing import Any

import numpy as np
import pytest

from hewfl.errors import InvalidInputError
from hewfl.server.array_layout import PARAMETERS, split_arrays

MODEL: dict[str, Any] = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scale": np.float64(2.0) * np.ones(()),
    "running_mean": np.ones(2, dtype=np.float16),
    "count": np.array([3]),
}


def test_a_vector_and_back() -> None:
    judged, other = split_arrays(MODEL, PARAMETERS, "*")
    assert judged.names == ("w", "scale")
    assert other.names == ("running_mean",)
    vector = judged.vector(MODEL)
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 2]
    arrays = judged.arrays(vector + 1, MODEL)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, MODEL[name] + 1)
        assert array.dtype == MODEL[name].dtype
        array.flat[0] = 7  # arrays are their own
    assert vector[0] == 0


@pytest.mark.parametrize(
    "bad", [None, np.ones((3, 2)), np.ones((2, 3), int), np.full((2, 3), "a")]
)
def test_arrays_that_do_not_fit_are_named(bad: Any) -> None:
    judged, _ = split_arrays(MODEL, PARAMETERS, "*")
    arrays = {k: v for k, v in (MODEL | {"w": bad}).items() if v is not None}
    with pytest.raises(InvalidInputError, match='array "w"'):
        judged.vector(arrays)
