"""Ranges of fields, written as their types."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from tests.simulation.unchecked import unchecked

from hewfl import HewHom, UpperState
from hewfl.core.validation import (
    BelowOne,
    Converted,
    Count,
    Faulty,
    Nonnegatives,
    Part,
    Positive,
    Positives,
    Share,
    Validated,
)
from hewfl.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Everything(Validated):
    step: Positive = 1.0
    part: Part = 0.0
    share: Share = 1.0
    below: BelowOne = 0.0
    few: Faulty = 0.0
    count: Count = 1
    some: Positives = 1.0
    often: Positive | Callable[[int], float] = 1.0
    maybe: Positive | None = None
    word: Literal["size", "steps"] = "size"
    name: ClassVar[str] = "Everything"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"step": 0.0}, "`step` must be a positive finite number; got 0.0"),
        ({"part": 1.5}, "`part` must be from 0 to 1; got 1.5"),
        ({"share": 1.5}, "`share` must be above 0 and at most 1; got 1.5"),
        ({"share": 0.0}, "`share` must be a positive finite number"),
        ({"below": 1.0}, "`below` must be from 0 to below 1; got 1.0"),
        (
            {"few": 0.5},
            "or a fraction from 0 to below 0.5; got 0.5",
        ),
        ({"count": 0}, "`count` must be at least 1; got 0"),
        ({"some": (1.0, -2.0)}, "`some` must be positive; got -2.0"),
        ({"often": -1.0}, "`often` must be a positive finite number; got -1.0"),
        ({"maybe": -1.0}, "`maybe` must be a positive finite number; got -1.0"),
        ({"step": None}, "`step` must be a positive finite number; got None"),
        ({"maybe": float}, "`maybe` must be a positive finite number"),
        ({"often": None}, "`often` must be a positive finite number; got None"),
        ({"word": "data"}, "`word` must be one of size, steps; got 'data'"),
    ],
)
def test_what_is_out_of_range_is_named(given: Any, text: str) -> None:
    with unchecked(), pytest.raises(InvalidInputError) as caught:
        Everything(**given)
    assert text in str(caught.value)


def test_what_may_be_none_or_a_function_passes_as_such() -> None:
    record = Everything(often=lambda t: -1.0 / (1 + t), maybe=None)
    assert callable(record.often)


@dataclass(frozen=True, slots=True)
class Child(Everything):
    more: Positive = 1.0


def test_a_record_inherits_the_ranges_of_its_parent() -> None:
    with pytest.raises(InvalidInputError, match="`more` must be a positive"):
        Child(more=-1.0)
    with pytest.raises(InvalidInputError, match="`step` must be a positive"):
        Child(step=-1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Numbers(Converted):
    values: Nonnegatives


def test_converted_fields_are_arrays() -> None:
    assert isinstance(Numbers([1, 2]).values, np.ndarray)
    with pytest.raises(InvalidInputError, match="`values` must be nonnegative; got -1"):
        Numbers([1, -1])


def test_a_checked_record_says_that_it_refuses() -> None:
    """Once, and its own words come first."""
    text = inspect.getdoc(UpperState) or ""
    assert text.count("Raises:") == 1
    assert (inspect.getdoc(HewHom) or "").count("Raises:") == 1
