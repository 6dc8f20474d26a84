"""Column generation: solve on few columns, price all, add the most violated ones.

Serves problems with many clients whose Gram matrix is singular, huge or never formed:
the caller provides columns by index and one product with all of them.
"""

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int64

from hewfl.core.checks import Array, Ints
from hewfl.core.native import SOLVER, library
from hewfl.solver.active_set import (
    INDEPENDENT,
    OPTIMALITY,
    Found,
    active_set,
    error_scale,
)

Index = Int64[Ints, " _"]


@runtime_checkable
class Columns(Protocol):
    """A quadratic ⟨c, w⟩ + ½ wᵀHw that is met a few columns at a time."""

    @property
    def diagonal(self) -> Float64[Array, " n"]:
        """H_ii."""

    @property
    def linear(self) -> Float64[Array, " n"]:
        """The linear term c."""

    def block(self, rows: Index, columns: Index) -> Float64[Array, "k m"]:
        """H restricted to rows × columns."""

    def gradient(
        self, members: Index, weights: Float64[Array, " k"]
    ) -> Float64[Array, " n"]:
        """H w + c for w supported on `members`."""


def corral(
    H: Float64[Array, "n n"],
    c: Float64[Array, " n"],
    start: Float64[Array, " n"] | None = None,
    max_pivots: int | None = None,
) -> Found:
    """Minimise ⟨c, w⟩ + ½ wᵀHw by the active set, compiled where possible.

    Args:
        H: symmetric positive semidefinite, largest entry near one.
        c: linear term on the same scale.
        start: weights whose support is the first face.
        max_pivots: give up after so many exchanges.

    Returns:
        What `active_set` returns, to rounding.
    """
    native = library(SOLVER)
    if native is None:
        return active_set(H, c, start, max_pivots)
    n = len(c)
    w = np.zeros(n) if start is None else np.array(start)
    limit = 20 * n + 100 if max_pivots is None else max_pivots
    H, c = np.ascontiguousarray(H), np.ascontiguousarray(c)
    pivots, least = native.corral(H, c, w, n, start is not None, limit)
    solved = pivots >= 0
    return Found(w, pivots if solved else limit, solved, least > INDEPENDENT)


def column_generation(problem: Columns, batch: int) -> Found:
    """Minimise over the simplex, meeting columns in batches.

    Args:
        problem: the quadratic.
        batch: columns added at a time.

    Returns:
        What was found; solved means that no column is violated any more.
    """
    diagonal, c = problem.diagonal, problem.linear
    root = np.sqrt(diagonal)
    members = np.argsort(0.5 * diagonal + c, kind="stable")[:batch]
    H = problem.block(members, members)
    w, pivots = np.zeros(len(c)), 0
    start: Array | None = None
    while True:
        found = corral(H, c[members] - c[members[0]], start)
        pivots += found.pivots
        w[:] = 0.0
        w[members] = found.weights
        held = members[found.weights > 0]
        gradient = problem.gradient(held, w[held])
        violation = w[held] @ gradient[held] - gradient
        violation /= error_scale(root, c - c[members[0]], w)
        fresh = np.flatnonzero(violation > OPTIMALITY)
        fresh = fresh[~np.isin(fresh, members)]
        if len(fresh) == 0:
            solved = bool((violation <= OPTIMALITY).all())
            return Found(w, pivots, solved, found.independent)
        order = np.argsort(-violation[fresh], kind="stable")[:batch]
        fresh = fresh[order]
        # Members never leave: a column dropped and met again could cycle without end.
        cross = problem.block(members, fresh)
        H = np.block([[H, cross], [cross.T, problem.block(fresh, fresh)]])
        members = np.concatenate([members, fresh])
        start = w[members]
