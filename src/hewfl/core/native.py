"""The optional compiled kernels: found at import, never required, same answers.

They are built at installation where a C compiler is at hand. `HEWFL_NATIVE=0` in the
environment, or `with disabled():`, keeps to the NumPy twins.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from types import ModuleType


def load(name: str) -> ModuleType | None:
    """A compiled module, or None where it was not built or is not wanted."""
    if os.environ.get("HEWFL_NATIVE", "1") == "0":
        return None
    try:
        return import_module(name)
    except ImportError:
        return None


_LIBRARY = load("hewfl.core._native")
_enabled: ContextVar[bool] = ContextVar("hewfl_native_enabled", default=True)


def is_enabled() -> bool:
    """Whether compiled kernels may be used here, if there are any."""
    return _enabled.get()


def library() -> ModuleType | None:
    """The compiled module, or None when absent or switched off."""
    return _LIBRARY if _enabled.get() else None


def is_available() -> bool:
    """Whether compiled kernels are in use.

    >>> with disabled():
    ...     is_available()
    False
    """
    return library() is not None


@contextmanager
def disabled() -> Iterator[None]:
    """Use the NumPy twins inside the block (this thread or task only)."""
    token = _enabled.set(False)
    try:
        yield
    finally:
        _enabled.reset(token)
