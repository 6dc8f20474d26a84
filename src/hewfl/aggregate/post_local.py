"""Weights of a round from its displacements, and the step they make.

    w* = argmin over w ∈ Δ(S) of  ⟨g, Σw_iΔ_i⟩ + (Λ/2)‖Σw_iΔ_i‖²
                                                (Alg. 2, l. 16 and Alg. 3, l. 10)

The data is read once for the weights and once, only where the weight is positive, for
the step: the weights depend on all of the data, and the step on the weights. Very many
clients of few parameters are read more often instead of forming their Gram matrix.
"""

from dataclasses import dataclass
from typing import Any, final

import array_api_compat as compat
import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from hewfl.aggregate.gram import own_products, round_products
from hewfl.aggregate.low_rank import solve_low_rank
from hewfl.aggregate.pieces import Pieces, as_vectors
from hewfl.core.checks import Array, ArrayLike, Ints, as_float64, invalid, positive
from hewfl.core.displacements import (
    CODES,
    FLOAT32,
    FLOAT64,
    Displacements,
    Span,
    as_displacements,
    as_wide,
    to_host,
)
from hewfl.core.native import PASSES, library
from hewfl.core.records import SimplexSolution
from hewfl.solver.simplex import SMALL, solve_gram


@final
@dataclass(frozen=True, slots=True, eq=False)
class OwnSum:
    """A reference that is itself a sum of the displacements, g = Σ u_iΔ_i.

    Given as such it is never formed: the data is read once instead of twice.

    Attributes:
        weights: u, one for each displacement.
    """

    weights: Float64[Array, " n"]


def post_local_weights(
    displacements: Any,
    reference: Any,
    curvature: float,
    *,
    active: ArrayLike | None = None,
) -> SimplexSolution:
    """Exact weights of a post-local round: Gram matrix, slope and solve in one call.

        min over w ∈ Δ_n, w_i = 0 off S, of  ⟨g, d(w)⟩ + (Λ/2)‖d(w)‖²,  d(w) = Σw_iΔ_i

    Works on NumPy arrays, torch tensors and other arrays of the array API standard, on
    their device; float32 and bfloat16 data is accumulated in float64 block by block.

    Args:
        displacements: Δ, shape (n, d), or a sequence of n vectors, or `Pieces`.
        reference: g, shape (d,): the server control variate c_t (Algorithm 2) or the
            mean local gradient (Algorithm 3); the latter better as `OwnSum`.
        curvature: Λ > 0.
        active: S, a mask or a list of indices; all clients by default.

    Returns:
        Weights over all n clients; zero weight and zero multiplier off S.

    Raises:
        InvalidInputError: an argument breaks a rule above, or S is empty.
    """
    data = as_vectors("displacements", displacements)
    lam = positive("curvature", curvature)
    members = _active(active, data.n)  # Alg. 2, l. 15
    part = data.take(members)
    found = None
    is_low_rank = part.n > max(SMALL, 2 * part.d)
    if isinstance(reference, OwnSum) and len(members) == data.n and not is_low_rank:
        found = own_products(part, _sum_weights(reference, data), lam)
    if found is None:
        slope = _reference(reference, data)
        if is_low_rank:
            matrix = part.gathered() if isinstance(part, Pieces) else part
            solution = solve_low_rank(matrix, slope, lam)
            return _spread(solution, members, data.n)
        found = round_products(part, slope, lam)
    given = (found.gram, found.linear, lam)
    solution = solve_gram(  # Alg. 2, l. 16, Alg. 3, l. 10
        *given, offset=found.offset, exponent=found.exponent
    )
    return _spread(solution, members, data.n)


def _sum_weights(reference: OwnSum, data: Displacements | Pieces) -> Array:
    u = as_float64("reference", reference.weights)
    if u.shape != (data.n,):
        raise invalid("reference", f"a sum of {data.n} displacements", u.shape)
    return u


def _reference(reference: Any, data: Displacements | Pieces) -> Any:
    if isinstance(reference, OwnSum):
        given = data if isinstance(data, Pieces) else data.data
        return combine(given, _sum_weights(reference, data), wide=True)
    vector = as_displacements("reference", [reference])
    if vector.d != data.d:
        raise invalid("reference", f"of shape ({data.d},)", f"({vector.d},)")
    row = vector.row(0)
    if isinstance(data, Pieces):
        return to_host(as_wide(vector.xp, row))
    if vector.xp is not data.xp:
        row = data.xp.asarray(to_host(as_wide(vector.xp, row)))
    return compat.to_device(row, compat.device(data.row(0)))


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


def _spread(
    solution: SimplexSolution, members: Int64[Ints, " k"], n: int
) -> SimplexSolution:
    if len(members) == n:
        return solution

    def over_all(values: NDArray[Any]) -> NDArray[Any]:
        full = np.zeros(n, dtype=values.dtype)
        full[members] = values
        return full

    return SimplexSolution(
        weights=over_all(solution.weights),
        value=solution.value,
        gap=solution.gap,
        multipliers=over_all(solution.multipliers),
        support=over_all(solution.support),
        iterations=solution.iterations,
        status=solution.status,
    )


def combine(
    displacements: Any,
    weights: ArrayLike,
    *,
    wide: bool = False,
    out: Float64[Array, "..."] | None = None,
) -> Any:
    """The aggregated step d(w) = Σ_i w_iΔ_i, summed in float64 and rounded once.

    Args:
        displacements: Δ, shape (n, d), or a sequence of n vectors, or `Pieces`.
        weights: w, shape (n,), or (k, n) for k sums in one pass; clients of weight zero
            are not read.
        wide: leave the sum in float64; that of `Pieces` always is.
        out: where to put sums in float64, if they are in main memory.

    Returns:
        A vector of the displacements' library and device, and of their precision; k of
        them as a matrix.

    Raises:
        InvalidInputError: shapes do not fit or a weight is not finite.
    """
    data = as_vectors("displacements", displacements)
    w = as_float64("weights", weights)
    if w.ndim not in (1, 2) or w.shape[-1] != data.n:
        raise invalid("weights", f"of shape ({data.n},) or (k, {data.n})", w.shape)
    members = np.flatnonzero(w if w.ndim == 1 else w.any(axis=0))
    if len(members) == 0:
        members = np.arange(1)
    part, w = data.take(members), np.ascontiguousarray(w[..., members])
    native = library(PASSES)
    spans = None if native is None else part.spans()
    lent = None if spans is None else list(spans)
    wide = wide or out is not None or isinstance(part, Pieces)
    kinds = {code for span in lent or () for code in span.codes}
    if native is None or lent is None or not kinds <= {FLOAT32, FLOAT64}:
        return _put(_combine_portable(part, w, wide=wide), out)
    if len(kinds) > 1 and isinstance(part, Displacements):
        return _put(_combine_portable(part, w, wide=wide), out)
    if out is None:
        narrow = kinds == {FLOAT32} and not wide
        kind = np.float32 if narrow else np.float64
        out = np.empty((*w.shape[:-1], data.d), kind)
    for span in lent:
        _combine_span(native, span, w, out[..., span.lo : span.hi])
    return data.xp.asarray(out)


def _put(found: Any, out: Float64[Array, "..."] | None) -> Any:
    if out is None:
        return found
    out[...] = to_host(found)
    return out


def _combine_span(
    native: Any, span: Span, w: Float64[Array, "... n"], out: NDArray[Any]
) -> None:
    """Sums of one span; where several lie apart, by way of a contiguous copy."""
    into = out if out.flags.c_contiguous else np.empty_like(out, order="C")
    code, length = CODES[out.dtype], span.hi - span.lo
    native.combine(span.rows, span.codes, length, w, into, code, *span.lent_base)
    if into is not out:
        out[...] = into


def _combine_portable(
    part: Displacements | Pieces, w: Float64[Array, "... n"], *, wide: bool
) -> Any:
    kind = part.xp.float64
    if isinstance(part, Displacements):
        kind = part.xp.result_type(*{part.row(i).dtype for i in range(part.n)})
    floating = "float" in str(kind) and not wide
    pieces = []
    for lo, hi in part.blocks():
        X = part.block(lo, hi)
        xp = np if isinstance(X, np.ndarray) else part.xp
        like = {} if xp is np else {"device": X.device}
        piece = xp.matmul(xp.asarray(w, **like), X)
        pieces.append(
            part.xp.astype(part.xp.asarray(piece), kind) if floating else piece
        )
    return pieces[0] if len(pieces) == 1 else part.xp.concat(pieces, axis=-1)


def data_gap(
    displacements: Any, reference: Any, curvature: float, weights: ArrayLike
) -> float:
    """The certificate of any weights, from the data itself, in one pass.

        x = d(w),  h = g + Λx,   gap = max_i ⟨h, x − Δ_i⟩ ≥ Ψ(w) − min Ψ

    It owes nothing to a Gram matrix, so it also audits the Gram matrix's rounding.
    """
    data = as_vectors("displacements", displacements)
    slope = _reference(reference, data)
    lam, w = positive("curvature", curvature), as_float64("weights", weights)
    if w.shape != (data.n,):
        raise invalid("weights", f"of shape ({data.n},)", w.shape)
    if w.min() < 0 or abs(w.sum() - 1) > 1e-9:
        raise invalid("weights", "on the simplex", f"a sum of {w.sum()}")
    terms = np.zeros(data.n)
    for lo, hi in data.blocks():
        X = to_host(data.block(lo, hi))
        x = w @ X
        h = to_host(as_wide(data.xp, slope[lo:hi])) + lam * x
        with np.errstate(invalid="ignore"):
            terms += (x - X) @ h
    if not np.isfinite(terms).all():
        raise invalid("displacements", "finite", "NaN or infinite entries")
    return float(terms.max())
