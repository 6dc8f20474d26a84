"""Digits for the tests against exact formulas."""

from collections.abc import Iterator

import mpmath
import pytest


@pytest.fixture
def digits() -> Iterator[None]:
    """40 digits are left after u − T_A(u) has cancelled up to 80."""
    with mpmath.workdps(120):
        yield
