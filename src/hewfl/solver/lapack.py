"""Routines of LAPACK and BLAS by name, such as `lapack.dpotrf`.

`scipy.linalg` takes most of the time of `import hewfl`: it is loaded when a routine is
used for the first time.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    from scipy.linalg import blas, lapack  # noqa: PLC0415 - slow to import

    routine = getattr(lapack, name, None) or getattr(blas, name)
    globals()[name] = routine  # without this function from now on
    return routine
