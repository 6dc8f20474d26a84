"""Generators of every kind, and how tests compare with exact values."""

from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from numpy.typing import NDArray

from hewfl.theory.appendix.generators import (
    ConvexGenerator,
    ExponentialGenerator,
    Generator,
    PowerGenerator,
    QuadraticGenerator,
)
from hewfl.theory.appendix.master import Terms

Array = NDArray[np.floating[Any]]

mp.mp.dps = 50
CLOSED = 1e-12
"""Relative error the closed forms promise."""
NUMERIC = 1e-12
"""Relative error the quadrature guarantees where φ keeps to the range of floats."""


def agree(got: Any, want: list[Any], tolerance: float = CLOSED) -> None:
    """Relative agreement where the exact value is a normal float; limits elsewhere."""
    for x, exact in zip(np.ravel(got), want, strict=True):
        if abs(exact) >= mp.mpf("1.8e308"):
            assert np.isinf(x)
        elif abs(exact) <= mp.mpf("1e-300"):
            assert abs(x) <= 1e-299
        else:
            assert abs(mp.mpf(float(x)) - exact) <= tolerance * abs(exact)


def inputs(rng: np.random.Generator, span: float, count: int = 200) -> list[Array]:
    return [10 ** rng.uniform(-span, span, count) for _ in range(4)]


def exact(formula: Callable[..., Any], *columns: Array) -> list[Any]:
    rows = zip(*(map(mp.mpf, map(float, c)) for c in columns), strict=True)
    return [formula(*row) for row in rows]


def close(got: Any, want: Any, tolerance: float = CLOSED) -> None:
    assert abs(mp.mpf(float(got)) - want) <= tolerance * abs(want)


GENERATORS: list[Generator] = [
    QuadraticGenerator(0.7),
    PowerGenerator(0.7, 0.5),
    PowerGenerator(1.3, 4.0),
    ExponentialGenerator(0.9),
    ConvexGenerator(lambda s: s + s**2, 1.0),
    ConvexGenerator(np.expm1, 1.0),
]
every_generator = pytest.mark.parametrize(
    "g", GENERATORS, ids=lambda g: type(g).__name__
)


def schedule(rng: np.random.Generator, rounds: int = 30, c: int = 4) -> Terms:
    shape = (rounds, c)
    return Terms(
        rng.uniform(0.3, 1.0, shape),
        rng.uniform(0.0, 0.02, shape),
        rng.uniform(0.0, 0.01, shape),
        rng.uniform(0.0, 0.001, shape),
    )
