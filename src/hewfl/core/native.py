"""The optional compiled kernels: loaded at first use, with the results of NumPy code.

The installation builds them where there is a C compiler. `HEWFL_NATIVE=0` in the
environment, or `with disabled():`, selects the NumPy code; `HEWFL_NATIVE=avx2` the
kernels of processors without AVX-512.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from types import ModuleType

SOLVER = "hewfl.solver._solver"
"""Active set and block pivoting of small weight problems; geometric medians."""
PASSES = "hewfl.displacements._passes"
"""Gram matrices, weighted sums and control variates from the data."""
_enabled: ContextVar[bool] = ContextVar("hewfl_native_enabled", default=True)


@cache
def load(name: str) -> ModuleType | None:
    """Import a compiled module, inside `disabled` as well.

    Args:
        name: full name of the module.

    Returns:
        The module, or None where it was not built or is switched off.
    """
    if os.environ.get("HEWFL_NATIVE", "1") == "0":
        return None
    try:
        return import_module(name)
    except ImportError:
        return None


def is_enabled() -> bool:
    """Whether compiled kernels may be used here."""
    return _enabled.get()


def library(name: str) -> ModuleType | None:
    """The compiled module, or None where the NumPy code is to be used."""
    return load(name) if _enabled.get() else None


def is_available() -> bool:
    """Whether the compiled kernels of solver and displacements are in use.

    >>> with disabled():
    ...     is_available()
    False
    """
    return library(SOLVER) is not None and library(PASSES) is not None


@contextmanager
def disabled() -> Iterator[None]:
    """Use the NumPy code inside the block (this thread or task only)."""
    token = _enabled.set(False)
    try:
        yield
    finally:
        _enabled.reset(token)
