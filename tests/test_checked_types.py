"""Wrong types fail tests, be they given in a first call or in one of many."""

from collections.abc import Callable

import numpy as np
import pytest
from beartype import beartype
from jaxtyping import TypeCheckError

from hewfl.displacements.gram import nearer_origin
from hewfl.plotting import plain_text
from tests import checked_types
from tests.checked_types import FIRST, ONE_OF, begin_test, checked_at_times


@pytest.fixture(autouse=True)
def _as_in_make_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_types, "every_call", False)


def half(number: int) -> int:
    """Wrong for all numbers."""
    return number / 2  # type: ignore[return-value]  # what the checks are to find


def refused(function: Callable[[int], int], calls: int) -> list[int]:
    """Which of so many calls failed."""
    found = []
    for call in range(1, calls + 1):
        try:
            function(call)
        except TypeCheckError:
            found.append(call)
    return found


def test_functions_of_hewfl_are_checked() -> None:
    with pytest.raises(TypeCheckError, match="plain_text"):
        plain_text(3)  # type: ignore[arg-type]


def test_shapes_of_arrays_are_checked() -> None:
    nearer_origin(np.eye(3), 0)
    with pytest.raises(TypeCheckError, match="nearer_origin"):
        nearer_origin(np.zeros((3, 2)), 0)


def test_the_first_calls_and_then_one_of_many() -> None:
    function = checked_at_times(half, beartype)
    first = list(range(1, FIRST + 1))
    assert refused(function, 2 * ONE_OF) == [*first, ONE_OF, 2 * ONE_OF]
    begin_test()
    assert refused(function, ONE_OF - 1) == first


def test_every_call_in_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_types, "every_call", True)
    assert len(refused(checked_at_times(half, beartype), 3 * FIRST)) == 3 * FIRST


def test_functions_inside_others_are_counted_together() -> None:
    def made() -> Callable[[int], int]:
        def inner(number: int) -> int:
            return number / 2  # type: ignore[return-value]

        return checked_at_times(inner, beartype)  # type: ignore[no-any-return]

    failed = [refused(made(), 1) for _ in range(2 * FIRST)]
    assert failed == [[1]] * FIRST + [[]] * FIRST
