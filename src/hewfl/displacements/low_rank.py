"""Many clients, few parameters: solve from the data, never form the n × n matrix.

    H = Λ C Cᵀ 2^−k,     C: n × d, rows c_i = Δ_i − r,     n ≫ d

Columns are generated a batch at a time; pricing all clients is one pass over the data
and is the certificate. Ties are resolved from d + 1 columns.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.records import SimplexSolution
from hewfl.core.validation import Array, invalid
from hewfl.displacements.backend import as_wide, to_host
from hewfl.displacements.dense import DenseDisplacements
from hewfl.displacements.gram import require_common_scale, slope_at
from hewfl.solver.active_set import Index, error_scale
from hewfl.solver.large import column_generation
from hewfl.solver.least_norm import least_norm_minimiser, row_space_of_factor
from hewfl.solver.simplex import in_given_units, require_optimal

_ROWS = 1024


@final
@dataclass(frozen=True)
class DataColumns:
    """The quadratic of a round, read through its data."""

    data: DenseDisplacements
    origin: Float64[Array, " d"]
    slope: Float64[Array, " d"]  # g + Λ r
    curvature: float
    exponent: int
    """Units: rows are c_i · 2^−exponent."""

    def rows(self, members: Index) -> Float64[Array, "k d"]:
        """Shifted rows in float64."""
        part = self.data.take(members)
        wide = to_host(part.block(0, part.d))
        return np.ldexp(wide - self.origin, -self.exponent)

    def times(self, vector: Float64[Array, " d"]) -> Float64[Array, " n"]:
        """⟨c_i, vector⟩ for all clients, a block of rows at a time."""
        parts = [self.rows(members) @ vector for members in self._row_blocks()]
        return np.concatenate(parts)

    def _row_blocks(self) -> list[Index]:
        every = np.arange(self.data.n)
        return [every[lo : lo + _ROWS] for lo in range(0, self.data.n, _ROWS)]

    @cached_property
    def diagonal(self) -> Float64[Array, " n"]:
        """H_ii."""
        blocks = [self.rows(members) for members in self._row_blocks()]
        return self.curvature * np.concatenate(
            [np.einsum("ij,ij->i", rows, rows) for rows in blocks]
        )

    @cached_property
    def linear(self) -> Float64[Array, " n"]:
        """The linear term, counted from the best single client."""
        q = self.times(self.slope)
        centred: Array = q - q[int(np.argmin(0.5 * self.diagonal + q))]
        return centred

    def block(self, rows: Index, columns: Index) -> Float64[Array, "k m"]:
        """H restricted to rows × columns."""
        product: Array = self.rows(rows) @ self.rows(columns).T
        return self.curvature * product

    def gradient(self, members: Index, weights: Array) -> Float64[Array, " n"]:
        """H w + c for w supported on `members`."""
        x = weights @ self.rows(members)
        return self.times(self.curvature * x) + self.linear

    @property
    def size(self) -> float:
        """Magnitude of the objective over the simplex."""
        return float(self.diagonal.max() + np.ptp(self.linear))

    def reduced_costs(
        self, w: Float64[Array, " n"]
    ) -> tuple[Float64[Array, " n"], Float64[Array, " n"]]:
        """∇_i − ⟨w, ∇⟩ and the error scale e_i."""
        S = np.flatnonzero(w)
        gradient = self.gradient(S, w[S])
        shift = self.linear[np.argmax(w)]
        scale = error_scale(np.sqrt(self.diagonal), self.linear - shift, w)
        return gradient - w @ gradient, scale

    def polish(self, w: Float64[Array, " n"]) -> Float64[Array, " n"]:
        """Left as it is: rows of one size need no more."""
        return w

    def face_basis(self, members: Index) -> Float64[Array, "m r"] | None:
        """Row space of the columns on a face."""
        return row_space_of_factor(np.sqrt(self.curvature) * self.rows(members))


def solve_low_rank(
    data: DenseDisplacements, reference: Any, curvature: float
) -> SimplexSolution:
    """Exact weights for n ≫ d without the Gram matrix."""
    problem = _columns(data, reference, curvature)
    result = column_generation(problem, int(np.clip(data.d // 4, 16, 128)))
    require_optimal(problem, result)
    w, note = least_norm_minimiser(
        problem, result.weights, independent=result.independent
    )
    S = np.flatnonzero(w)
    x = np.ldexp(w[S] @ problem.rows(S), problem.exponent)
    gradient = problem.gradient(S, w[S])
    multipliers = gradient - gradient.min()
    k = problem.exponent
    step = np.ldexp(problem.origin + x, -k)
    g = np.ldexp(to_host(as_wide(data.xp, reference)), -k)
    solution = SimplexSolution(
        weights=w,
        value=np.asarray(g @ step + 0.5 * curvature * (step @ step)),
        gap=np.asarray(w @ multipliers),
        multipliers=multipliers,
        support=w > 0,
        iterations=np.asarray(result.pivots, dtype=np.int64),
        status=note,
    )
    return in_given_units(solution, 2 * k)


def _columns(data: DenseDisplacements, reference: Any, curvature: float) -> DataColumns:
    """Origin at the shortest row; units so that squares neither over- nor underflow."""
    g = to_host(as_wide(data.xp, reference))
    if not np.isfinite(g).all():
        raise invalid("reference", "finite", g[~np.isfinite(g)][0])
    size, shortest, origin = 0.0, np.inf, np.zeros(data.d)
    entries = np.zeros(data.n)
    for lo in range(0, data.n, _ROWS):
        members = np.arange(lo, min(lo + _ROWS, data.n))
        part = data.take(members)
        rows = to_host(part.block(0, data.d))
        peaks = np.abs(rows).max(axis=1)
        if not np.isfinite(peaks).all():
            i = int(np.flatnonzero(~np.isfinite(peaks))[0])
            raise invalid("displacements", "finite", f"{peaks[i]} for client {lo + i}")
        size, entries[members] = max(size, float(peaks.max())), peaks
        unit = rows / np.where(peaks > 0, peaks, 1.0)[:, None]
        lengths = peaks * np.sqrt(np.einsum("ij,ij->i", unit, unit))
        if lengths.min() < shortest:
            shortest = float(lengths.min())
            origin = rows[int(np.argmin(lengths))].copy()
    require_common_scale(entries)
    exponent = int(np.frexp(size)[1]) if size > 0 else 0
    slope = np.ldexp(slope_at(g, curvature, origin), -exponent)
    return DataColumns(data, origin, slope, curvature, exponent)
