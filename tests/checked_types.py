"""The types of arguments and results are checked in tests, at a price tests can pay.

Every call of a function of `hewfl` could be checked, but a check takes longer than most
functions do, and a loop repeats the same call. So in each test the first calls of a
function are checked, then one of many. The sweeps check every call (HEWFL_TEST_CHECKS).
"""

import dataclasses
import inspect
import os
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jaxtyping

FIRST = 8
"""Calls of each function that a test checks before it begins to leave some out."""

ONE_OF = 61
"""Of the calls after that one in so many is checked; a prime, so that no loop hides."""

every_call = os.environ.get("HEWFL_TEST_CHECKS") == "all"
tests_begun = 0
counts: dict[tuple[str, str, int], list[int]] = {}
original = jaxtyping.jaxtyped


def begin_test() -> None:
    """Check the first calls of every function anew."""
    global tests_begun  # noqa: PLW0603 - read at each call, must be quick
    tests_begun += 1


def jaxtyped(known: Any = None, *, typechecker: Any = None) -> Any:
    """What the import hook puts on each function and class, for jaxtyping's own."""
    if known is None:
        return partial(jaxtyped, typechecker=typechecker)
    if inspect.isclass(known):
        if dataclasses.is_dataclass(known) and "__init__" in vars(known):
            made = checked_at_times(known.__init__, typechecker)
            known.__init__ = made  # type: ignore[method-assign]
        return known
    if inspect.isfunction(known):
        return checked_at_times(known, typechecker)
    return original(known, typechecker=typechecker)


def checked_at_times(function: Callable[..., Any], typechecker: Any) -> Any:
    """The function, with a check that is made at its first call: most are never called.

    A function inside another is made again and again: all of them are counted as one.
    """
    place = function.__module__, function.__qualname__, function.__code__.co_firstlineno
    counted = counts.setdefault(place, [0, 0])
    checked = None
    config = jaxtyping.config

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal checked
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        if counted[0] != tests_begun:
            counted[:] = tests_begun, 0
        counted[1] = calls = counted[1] + 1
        if calls > FIRST and calls % ONE_OF and not every_call:
            return function(*args, **kwargs)
        if checked is None:
            checked = original(function, typechecker=typechecker)
        return checked(*args, **kwargs)

    return called


jaxtyping.jaxtyped = jaxtyped  # type: ignore[assignment]  # as its hook calls it
