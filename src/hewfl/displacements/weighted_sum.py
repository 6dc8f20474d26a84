"""Weighted sums and products with a vector: one pass over the data, in float64."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hewfl.core.array_types import Float64
from hewfl.core.native import PASSES, library
from hewfl.core.validation import Array
from hewfl.displacements.backend import (
    CODES,
    FLOAT32,
    FLOAT64,
    Readable,
    Span,
    as_wide,
    to_host,
)


def weighted_sum(
    data: Readable,
    w: Float64[Array, "... n"],
    *,
    kind: Any = None,
    out: NDArray[Any] | None = None,
) -> Any:
    """Σ_i w_iΔ_i, summed in float64 and rounded once.

    Args:
        data: the displacements.
        w: weights, shape (n,), or (k, n) for k sums in one pass.
        kind: precision of the result in the data's library; float64 if None.
        out: where to put sums in float64, if they are in main memory.

    Returns:
        A vector of the data's library and device; k of them as a matrix.
    """
    native = library(PASSES)
    spans = None if native is None else data.spans()
    lent = None if spans is None else list(spans)
    codes = {code for span in lent or () for code in span.codes}
    wide = kind is None or out is not None
    fits = codes <= {FLOAT32, FLOAT64} and (wide or len(codes) == 1)
    if native is None or lent is None or not fits:
        found = _portable(data, w, None if wide else kind)
        if out is None:
            return found
        out[...] = to_host(found)
        return out
    if out is None:
        narrow = not wide and codes == {FLOAT32}
        out = np.empty((*w.shape[:-1], data.d), np.float32 if narrow else np.float64)
    for span in lent:
        _sum_span(native, span, w, out[..., span.lo : span.hi])
    return data.xp.asarray(out)


def _sum_span(
    native: Any, span: Span, w: Float64[Array, "... n"], out: NDArray[Any]
) -> None:
    """Sums of one span; where several lie apart, by way of a contiguous copy."""
    into = out if out.flags.c_contiguous else np.empty_like(out, order="C")
    code, length = CODES[out.dtype], span.hi - span.lo
    native.combine(span.rows, span.codes, length, w, into, code, *span.lent_base)
    if into is not out:
        out[...] = into


def _portable(data: Readable, w: Float64[Array, "... n"], kind: Any) -> Any:
    """Weighted sums in the array library of the data, block by block."""
    pieces = []
    for lo, hi in data.ranges():
        X = data.block(lo, hi)
        xp = np if isinstance(X, np.ndarray) else data.xp
        like = {} if xp is np else {"device": X.device}
        piece = xp.matmul(xp.asarray(w, **like), X)
        if kind is not None:
            piece = data.xp.astype(data.xp.asarray(piece), kind)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else data.xp.concat(pieces, axis=-1)


def against_sum(
    data: Readable, w: Float64[Array, " n"] | None = None
) -> Float64[Array, " n"]:
    """⟨Δ_i, Σ_j w_jΔ_j⟩ in float64: the Gram matrix times w in one pass, without it.

    Without weights ‖Δ_i‖²; a vector that is not finite spoils its own length only.
    """
    native, total = library(PASSES), np.zeros(data.n)
    spans = None if native is None else data.spans()
    if native is None or spans is None:
        for lo, hi in data.ranges():
            X = to_host(data.block(lo, hi))
            total += np.einsum("ij,ij->i", X, X) if w is None else X @ (w @ X)
        return total
    for span in spans:
        given = (span.rows, span.codes, span.hi - span.lo, w, total)
        native.against_sum(*given, *span.lent_base)
    return total


def products_with(data: Readable, vector: Any) -> Float64[Array, " n"]:
    """⟨Δ_i, v⟩ in float64 for a vector of the data's library."""
    total = np.zeros(data.n)
    for lo, hi in data.ranges():
        block = to_host(data.block(lo, hi))
        total += block @ to_host(as_wide(data.xp, vector[lo:hi]))
    return total
