"""Functions whose arguments broadcast: what does not fit is told by name.

NumPy notices a misfit in the middle of a formula and speaks of operands. The user gave
arguments, so `@broadcasting` says which of them have which shapes.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar, final

import numpy as np

from hewfl.core.validation import invalid
from hewfl.errors import InvalidInputError

P = ParamSpec("P")
T = TypeVar("T")
_RAISES = """

    Raises:
        InvalidInputError: an argument is out of range or does not broadcast.
    """


@final
class ShapeError(InvalidInputError):
    """Arguments do not broadcast; an outer function puts its own names to it."""


def broadcasting(function: Callable[P, T]) -> Callable[P, T]:
    """Require nonempty arguments, and name them where their shapes do not fit.

    `flow([1, 2], [1, 2, 3])` then says: «`a, u` must be arrays that broadcast; got
    shapes a (2,), u (3,)». A docstring that tells no errors gains what all these
    functions raise.
    """
    names = tuple(signature(function).parameters)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        given = dict(zip(names, args, strict=False)) | kwargs
        for name, value in given.items():
            _require_some(name, value)
        try:
            return function(*args, **kwargs)
        except ShapeError as error:
            raise _misfit(given) from error.__cause__
        except InvalidInputError:
            raise
        except ValueError as error:
            if "broadcast" in str(error) or "mismatch" in str(error):
                raise _misfit(given) from error
            raise

    if checked.__doc__ and "Raises:" not in checked.__doc__:
        checked.__doc__ = f"{checked.__doc__.rstrip()}{_RAISES}"
    return checked


def _require_some(name: str, value: Any) -> None:
    if isinstance(value, np.ndarray | list) and np.size(value) == 0:
        raise invalid(name, "nonempty", f"shape {np.shape(value)}")
    if isinstance(value, tuple):
        for k, part in enumerate(value):
            _require_some(f"{name}[{k}]", part)


def _misfit(given: Mapping[str, Any]) -> ShapeError:
    shapes = {name: sorted(set(_shapes(value))) for name, value in given.items()}
    arrays = {name: found for name, found in shapes.items() if found}
    text = ", ".join(
        f"{name} {' and '.join(map(str, found))}" for name, found in arrays.items()
    )
    told = invalid(", ".join(arrays), "arrays that broadcast", f"shapes {text}")
    return ShapeError(str(told))


def _shapes(value: Any) -> Iterator[tuple[int, ...]]:
    """Shapes of all arrays in a value or record; numbers have none worth telling."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _shapes(getattr(value, field.name))
    elif isinstance(value, tuple):
        for part in value:
            yield from _shapes(part)
    elif isinstance(value, np.ndarray | list) and np.ndim(value):
        yield np.shape(value)
