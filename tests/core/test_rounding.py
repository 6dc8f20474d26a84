"""Printed bounds: never on the wrong side of the number."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hewfl.core.rounding import format_lower, format_upper

NUMBERS = st.floats(allow_nan=False)
DIGITS = st.integers(1, 17)


@given(NUMBERS, DIGITS)
@example(1.00000038, 6)
@example(0.156459, 3)
@example(9.999, 3)
@example(-9.999, 3)
@example(1.7976931348623157e308, 3)
@example(5e-324, 1)
@example(math.inf, 3)
def test_a_printed_bound_is_a_bound(number: float, digits: int) -> None:
    upper, lower = format_upper(number, digits), format_lower(number, digits)
    assert float(lower) <= number <= float(upper)
    for text in (upper, lower):
        mantissa = text.lower().partition("e")[0]
        shown = mantissa.replace("-", "").replace(".", "").lstrip("0")
        assert len(shown.rstrip("0")) <= digits or "inf" in text


@given(st.floats(1e-300, 1e300), st.integers(2, 9))
def test_no_more_than_one_unit_is_added(number: float, digits: int) -> None:
    unit = number * 10.0 ** (1 - digits)
    assert float(format_upper(number, digits)) <= number + 1.0001 * unit
    assert float(format_lower(number, digits)) >= number - 1.0001 * unit


@pytest.mark.parametrize("number", [0.05, 0.1, 1.0, 2.5e-7, 123.0, 0.0])
def test_a_short_number_is_printed_as_it_is(number: float) -> None:
    assert format_upper(number) == format_lower(number) == f"{number:g}"


def test_nan_is_nan() -> None:
    assert format_upper(math.nan) == format_lower(math.nan) == "nan"
