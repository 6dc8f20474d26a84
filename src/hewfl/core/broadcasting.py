"""Functions whose arguments broadcast, with errors that name the arguments.

NumPy raises in the middle of a formula and names operands. `@broadcasting` names the
arguments and their shapes.
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
    """Arguments do not broadcast; an outer function replaces the names."""


def broadcasting(function: Callable[P, T]) -> Callable[P, T]:
    """Require nonempty arguments, and name them where their shapes do not fit.

    `flow([1, 2], [1, 2, 3])` then says: «`a, u` must be arrays that broadcast; got
    shapes a (2,), u (3,)». A docstring without errors gets those of all these
    functions.
    """
    names = tuple(signature(function).parameters)

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        given = dict(zip(names, args, strict=False)) | kwargs
        for name, value in given.items():
            _require_some(name, value)
        try:
            return function(*args, **kwargs)
        except ShapeError as error:
            raise _shape_error(given) from error.__cause__
        except InvalidInputError:
            raise
        except ValueError as error:
            if "broadcast" in str(error) or "mismatch" in str(error):
                raise _shape_error(given) from error
            raise

    if wrapper.__doc__ and "Raises:" not in wrapper.__doc__:
        wrapper.__doc__ = f"{wrapper.__doc__.rstrip()}{_RAISES}"
    return wrapper


def _require_some(name: str, value: Any) -> None:
    if isinstance(value, np.ndarray | list) and np.size(value) == 0:
        raise invalid(name, "nonempty", f"shape {np.shape(value)}")
    if isinstance(value, tuple):
        for k, part in enumerate(value):
            _require_some(f"{name}[{k}]", part)


def _shape_error(given: Mapping[str, Any]) -> ShapeError:
    shapes = {name: sorted(set(_shapes(value))) for name, value in given.items()}
    arrays = {name: known for name, known in shapes.items() if known}
    text = ", ".join(
        f"{name} {' and '.join(map(str, known))}" for name, known in arrays.items()
    )
    error = invalid(", ".join(arrays), "arrays that broadcast", f"shapes {text}")
    return ShapeError(str(error))


def _shapes(value: Any) -> Iterator[tuple[int, ...]]:
    """Shapes of all arrays in a value or record; numbers are left out."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _shapes(getattr(value, field.name))
    elif isinstance(value, tuple):
        for part in value:
            yield from _shapes(part)
    elif isinstance(value, np.ndarray | list) and np.ndim(value):
        yield np.shape(value)
