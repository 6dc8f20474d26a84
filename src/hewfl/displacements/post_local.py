"""Weights of a round from its displacements, and the step they make.

    w* = argmin over w ∈ Δ(S) of  ⟨g, Σw_iΔ_i⟩ + (Λ/2)‖Σw_iΔ_i‖²
                                                (Alg. 2, l. 16 and Alg. 3, l. 10)

The data is read once for the weights and once, only where the weight is positive, for
the step: the weights depend on all of the data, and the step on the weights. Very many
clients of few parameters are read more often instead of forming their Gram matrix.
"""

import math
from dataclasses import replace
from typing import Any

import array_api_compat as compat
import numpy as np
from numpy.typing import NDArray

from hewfl.core.array_types import Float64, Int64
from hewfl.core.displacements import LinearCombination, Products
from hewfl.core.records import SimplexSolution
from hewfl.core.validation import Array, ArrayLike, Ints, as_float64, invalid, positive
from hewfl.displacements.backend import Readable, as_readable, as_wide, to_host
from hewfl.displacements.count_sketch import CountSketch
from hewfl.displacements.dense import as_dense
from hewfl.displacements.estimated_products import (
    EstimatedProducts,
    GramSource,
    gram_source,
)
from hewfl.displacements.gram import largest_entries, require_common_scale
from hewfl.displacements.low_rank import solve_low_rank
from hewfl.displacements.weighted_sum import slopes_at, weighted_sum
from hewfl.solver.simplex import SMALL, in_given_units, solve_gram

__all__ = ["LinearCombination", "combine", "data_gap", "post_local_weights"]


def _as_displacements(value: Any) -> Any:
    """Displacements or products as they are, arrays of any library as a matrix."""
    if not isinstance(value, np.ndarray | list) and isinstance(value, Products):
        return value
    return as_dense("displacements", value)


@np.errstate(all="ignore")  # what is not finite is an error, not a warning
def post_local_weights(
    displacements: Any,
    reference: Any,
    curvature: float,
    *,
    active: ArrayLike | None = None,
    gram: GramSource = "exact",
) -> SimplexSolution:
    """Exact weights of a post-local round: Gram matrix, slope and solve in one call.

        min over w ∈ Δ_n, w_i = 0 off S, of  ⟨g, d(w)⟩ + (Λ/2)‖d(w)‖²,  d(w) = Σw_iΔ_i

    Works on NumPy arrays, torch tensors and other arrays of the array API standard, on
    their device; float32 and bfloat16 data is accumulated in float64 block by block.

    Args:
        displacements: Δ, shape (n, d), or a sequence of n vectors, or an object with
            the protocol `Displacements`, or `Products` if g is no vector.
        reference: g, shape (d,): the server control variate c_t (Algorithm 2) or the
            mean local gradient (Algorithm 3), best as a `LinearCombination`. None
            stands for zero: the point of least norm.
        curvature: Λ > 0.
        active: S, a mask or a list of indices; all clients by default.
        gram: "sketch" finds the weights from sketches of 2¹⁴ numbers a client, or of
            another `CountSketch`; value, gap and multipliers are then of these weights
            on the data itself, so that the gap says what the sketches cost. It needs
            two passes over the data in place of n²d/2 multiplications.

    Returns:
        Weights over all n clients; zero weight and zero multiplier off S.

    Raises:
        InvalidInputError: an argument breaks a rule above, or S is empty; products are
            beyond the range of float64; or some vectors are longer than 1e70 and others
            so short that their squares are zero in the same units.
    """
    data = _as_displacements(displacements)
    lam = positive("curvature", curvature)
    members = _active(active, data.n)  # Alg. 2, l. 15
    part = data if len(members) == data.n else data.take(members)
    slope = reference_at(reference, data, whole=part is data)
    sketch = gram_source(gram)
    if sketch is not None and sketch.size < data.d:
        return _over_all(_from_sketches(part, slope, lam, sketch), members, data.n)
    if part.n > max(SMALL, 2 * part.d) and as_readable(part) is not None:
        solution = _from_rows(part, slope, lam)
    else:
        products = part.products(slope, lam)
        if products.exponent > 0 and as_readable(part) is not None:
            require_common_scale(largest_entries(part))
        solution = solve_gram(products, lam)  # Alg. 2, l. 16, Alg. 3, l. 10
    return _over_all(solution, members, data.n)


def _from_sketches(
    part: Any, slope: Any, lam: float, sketch: CountSketch
) -> SimplexSolution:
    """Weights from sketches; what they are worth, from the data.

    With d = d(w) and p_i = ⟨g + Λd, Δ_i⟩, Ψ(w) = ⟨w, p⟩ − (Λ/2)‖d‖².
    """
    if as_readable(part) is None:
        rule = "at hand in one process for weights from sketches"
        raise invalid("displacements", rule, type(part).__name__)
    products = EstimatedProducts(part, sketch).products(slope, lam)
    estimate = solve_gram(products, lam)
    w = estimate.weights
    p, square = slopes_at(part, w, slope, lam)
    with np.errstate(over="ignore", invalid="ignore"):
        multipliers = p - p.min()
        value = float(w @ p) - 0.5 * lam * square
    solution = replace(
        estimate,
        value=np.asarray(value),
        gap=np.asarray(float(w @ multipliers)),
        multipliers=multipliers,
        status=f"from sketches of {sketch.size:,} numbers: {estimate.status}",
    )
    return in_given_units(solution, 0)


def _from_rows(part: Any, slope: Any, lam: float) -> SimplexSolution:
    """Very many clients of few parameters: rows are read, no Gram matrix is formed."""
    rows = as_dense("displacements", part.matrix()) if part.data is None else part
    if isinstance(slope, LinearCombination):
        slope = part.combine(slope.weights)
    elif slope is None:
        slope = rows.xp.zeros_like(rows.row(0))
    return solve_low_rank(rows, slope, lam)


def reference_at(reference: Any, data: Any, *, whole: bool = True) -> Any:
    """The reference in the library and on the device of the data.

    Args:
        reference: g, a vector of any array library, a `LinearCombination`, or None for
            zero.
        data: the displacements. If one process cannot read them all, a vector is
            returned as it is.
        whole: whether a sum over all of the data may stay one; else it is formed.

    Raises:
        InvalidInputError: it has another length.
    """
    if isinstance(reference, LinearCombination):
        u = as_float64("reference", reference.weights)
        if u.shape != (data.n,):
            raise invalid("reference", f"a sum of {data.n} displacements", u.shape)
        return LinearCombination(u) if whole else data.combine(u)
    if reference is None or as_readable(data) is None:
        return reference
    vector = as_dense("reference", [reference])
    if vector.d != data.d:
        raise invalid("reference", f"of shape ({data.d},)", f"({vector.d},)")
    row = vector.row(0)
    if vector.xp is not data.xp or data.data is None:
        row = data.xp.asarray(to_host(as_wide(vector.xp, row)))
    return row if data.data is None else compat.to_device(row, _device(data))


def _device(data: Readable) -> Any:
    return compat.device(data.row(0))


def _active(active: ArrayLike | None, n: int) -> Int64[Ints, " k"]:
    if active is None:
        return np.arange(n)
    given = np.asarray(active)
    if given.dtype == np.bool_:
        if given.shape != (n,):
            raise invalid("active", f"a mask of shape ({n},)", f"shape {given.shape}")
        members = np.flatnonzero(given)
    else:
        members = _indices(given, n)
    if len(members) == 0:
        raise invalid("active", "a nonempty set of clients", "an empty one")
    return members


def _indices(given: NDArray[Any], n: int) -> Int64[Ints, " k"]:
    if given.size == 0:
        return np.zeros(0, dtype=np.int64)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise invalid("active", "a mask or a list of indices", f"{given!r}"[:80])
    if given.min() < 0 or given.max() >= n:
        bad = given[(given < 0) | (given >= n)][0]
        raise invalid("active", f"indices from 0 to {n - 1}", bad)
    members = np.unique(given).astype(np.int64)
    if len(members) != len(given):
        raise invalid("active", "indices without repetition", given.tolist())
    return members


def _over_all(
    solution: SimplexSolution, members: Int64[Ints, " k"], n: int
) -> SimplexSolution:
    if len(members) == n:
        return solution

    def scatter(values: NDArray[Any]) -> NDArray[Any]:
        full = np.zeros(n, dtype=values.dtype)
        full[members] = values
        return full

    return SimplexSolution(
        weights=scatter(solution.weights),
        value=solution.value,
        gap=solution.gap,
        multipliers=scatter(solution.multipliers),
        support=scatter(solution.support),
        iterations=solution.iterations,
        status=solution.status,
    )


@np.errstate(all="ignore")
def combine(
    displacements: Any,
    weights: ArrayLike,
    *,
    wide: bool = False,
) -> Any:
    """The aggregated step d(w) = Σ_i w_iΔ_i, summed in float64 and rounded once.

    Args:
        displacements: Δ, shape (n, d), or a sequence of n vectors, or an object with
            the protocol `Displacements`.
        weights: w, shape (n,), or (k, n) for k sums in one pass; clients of weight zero
            are not read.
        wide: leave the sum of arrays in float64.

    Returns:
        A vector of the displacements' library and device, and of their precision; k of
        them as a matrix.

    Raises:
        InvalidInputError: shapes do not fit or a weight is not finite.
    """
    data, w = _as_displacements(displacements), as_float64("weights", weights)
    if w.ndim not in (1, 2) or w.shape[-1] != data.n:
        raise invalid("weights", f"of shape ({data.n},) or (k, {data.n})", w.shape)
    readable = as_readable(data)
    if readable is None:
        return data.combine(w) if w.ndim == 1 else np.stack([*map(data.combine, w)])
    kind = None if wide or readable.data is None else _precision(readable, w)
    return weighted_sum(readable, w, kind=kind)


def _precision(data: Readable, w: Float64[Array, "... n"]) -> Any:
    """That of the vectors with weight; None where they are integers."""
    if isinstance(data.data, list):
        used = np.flatnonzero(w.reshape(-1, data.n).any(axis=0))
        kind = data.xp.result_type(*{data.data[i].dtype for i in [*used] or [0]})
    else:
        kind = data.data.dtype
    return kind if "float" in str(kind) else None


def data_gap(
    displacements: Any, reference: Any, curvature: float, weights: ArrayLike
) -> float:
    """A bound on the gap of any weights, from the data itself, in one pass.

        x = d(w),  h = g + Λx,   gap = max_i ⟨h, x − Δ_i⟩ ≥ Ψ(w) − min Ψ

    No Gram matrix enters, so it also checks the rounding of the Gram matrix. The bound
    includes its own rounding, some hundred units of 2⁻⁵³ of the sizes of the terms. It
    is never negative, and zero only where every Δ_i is zero.

    Args:
        displacements: Δ, shape (n, d), or a sequence of n vectors, or an object with
            the protocol `Displacements`.
        reference: g, shape (d,), or a `LinearCombination`; None for zero.
        curvature: Λ > 0.
        weights: w on the simplex, shape (n,).

    Returns:
        A bound on Ψ(w) − min Ψ; infinite where it is above the range of float64.

    Raises:
        InvalidInputError: shapes do not fit, weights are not on the simplex, or the
            data is not finite.
    """
    data = _as_displacements(displacements)
    slope = reference_at(reference, data)
    lam, w = positive("curvature", curvature), as_float64("weights", weights)
    if w.shape != (data.n,):
        raise invalid("weights", f"of shape ({data.n},)", w.shape)
    if w.min() < 0 or abs(w.sum() - 1) > 1e-9:
        raise invalid("weights", "on the simplex", f"a sum of {w.sum()}")
    parts: list[NDArray[Any]] = []
    sizes, lo, is_moved = np.zeros(data.n), 0, False
    for X in data.blocks():
        hi = lo + X.shape[1]
        if not np.isfinite(X).all():
            raise invalid("displacements", "finite", "NaN or infinite entries")
        is_moved |= bool(X.any())
        g, size = _slope_block(slope, X, slice(lo, hi))
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            x, length = w @ X, w @ np.abs(X) + _LEAST
            products = (x - X) * (g + lam * x)
            parts.append(np.add.reduceat(products, np.arange(0, hi - lo, _PART), 1))
            sizes += (length + np.abs(X)) @ (size + lam * length)
        lo = hi
    if lo != data.d:
        rule = "all in one process"
        raise invalid("displacements", rule, f"{lo} of {data.d} entries")
    if not is_moved:
        return 0.0
    rows = np.concatenate(parts, axis=1)
    if not (np.isfinite(rows).all() and np.isfinite(sizes).all()):
        return np.inf
    terms = np.array([math.fsum(row) for row in rows])
    members = np.count_nonzero(w)
    if isinstance(slope, LinearCombination):
        members += np.count_nonzero(slope.weights)
    bounds = terms + (2 * members + _PART + 16) * _UNIT * sizes + data.d * _LEAST
    return max(float(bounds.max()), 0.0)


_PART = 64
"""Products summed in order; sums of so many are added without rounding."""
_UNIT = 1.01 * 2.0**-53
"""Rounding unit, and what a first-order count of roundings leaves out."""
_LEAST = 2.0**-1000
"""Above what a product that underflows is off by, and far below other numbers."""


def _slope_block(
    slope: Any, X: Float64[Array, "n k"], here: slice
) -> tuple[Float64[Array, " k"], Float64[Array, " k"]]:
    """Entries of the reference g, and the size of the terms that they are sums of."""
    if isinstance(slope, LinearCombination):
        return slope.weights @ X, np.abs(slope.weights) @ np.abs(X)
    if slope is None:
        return np.zeros(X.shape[1]), np.zeros(X.shape[1])
    xp = np if isinstance(slope, np.ndarray) else compat.array_namespace(slope)
    g = to_host(as_wide(xp, slope[here]))
    return g, np.abs(g)
