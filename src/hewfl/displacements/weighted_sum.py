"""Weighted sums and products with a vector: one pass over the data, in float64."""

from typing import Any

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.displacements import LinearCombination
from hewfl.core.validation import Array
from hewfl.displacements.backend import (
    CODES,
    FLOAT32,
    FLOAT64,
    ZEROS,
    Readable,
    as_wide,
    compiled_kernels,
    gpu_kernels,
    host_rows,
    to_host,
)


def weighted_sum(
    data: Readable, w: Float64[Array, "... n"], *, kind: Any = None
) -> Any:
    """Σ_i w_iΔ_i, summed in float64 and rounded once.

    A matrix on a GPU is summed by its kernel unless float64 is asked for, rows in main
    memory by the compiled kernel, all else by portable code. Vectors of weight zero are
    not read.

    Args:
        data: the displacements.
        w: weights, shape (n,), or (k, n) for k sums in one pass.
        kind: precision of the result in the data's library; float64 if None.

    Returns:
        A vector of the data's library and device; k of them as a matrix.
    """
    gpu = None if kind is None else gpu_kernels(data.data)
    if gpu is not None:
        return data.xp.astype(gpu.weighted_sum(data.data, w), kind, copy=False)
    members = np.flatnonzero(w if w.ndim == 1 else w.any(axis=0))
    if len(members) < data.n:
        members = members if len(members) else np.arange(1)
        data, w = data.take(members), w[..., members]
    w, compiled = np.ascontiguousarray(w), compiled_kernels(data)
    codes = {code for span in compiled[1] for code in span.codes} if compiled else set()
    fits = codes <= {FLOAT32, FLOAT64} and (kind is None or len(codes) == 1)
    if compiled is None or not fits:
        return _portable_sum(data, w, kind)
    kernels, spans = compiled
    narrow = kind is not None and codes == {FLOAT32}
    out = np.empty((*w.shape[:-1], data.d), np.float32 if narrow else np.float64)
    for span in spans:
        # sums of several spans are not contiguous in `out`: by way of a copy
        here = out[..., span.lo : span.hi]
        into = here if here.flags.c_contiguous else np.empty_like(here, order="C")
        given = (span.rows, span.codes, span.hi - span.lo, w, into, CODES[out.dtype])
        kernels.combine(*given, *span.lent_base)
        if into is not here:
            here[...] = into
    return data.xp.asarray(out)


def _portable_sum(data: Readable, w: Float64[Array, "... n"], kind: Any) -> Any:
    """The sums in the array library of the data, block by block."""
    pieces = []
    for lo, hi in data.ranges():
        X = data.block(lo, hi)
        xp = np if isinstance(X, np.ndarray) else data.xp
        device = {} if xp is np else {"device": X.device}
        piece = xp.matmul(xp.asarray(w, **device), X)
        if kind is not None:
            piece = data.xp.astype(data.xp.asarray(piece), kind)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else data.xp.concat(pieces, axis=-1)


def inner_with_sum(
    data: Readable, w: Float64[Array, " n"] | None = None
) -> Float64[Array, " n"]:
    """⟨Δ_i, Σ_j w_jΔ_j⟩ in float64: the Gram matrix times w in one pass, without it.

    Without weights ‖Δ_i‖²; a vector that is not finite spoils its own length only.
    """
    compiled, total = compiled_kernels(data), np.zeros(data.n)
    if compiled is None:
        for lo, hi in data.ranges():
            X = to_host(data.block(lo, hi))
            total += np.einsum("ij,ij->i", X, X) if w is None else X @ (w @ X)
        return total
    kernels, spans = compiled
    for span in spans:
        given = (span.rows, span.codes, span.hi - span.lo, w, total)
        kernels.against_sum(*given, *span.lent_base)
    return total


def slopes_at(
    data: Readable,
    w: Float64[Array, " n"],
    reference: Any,
    curvature: float,
) -> tuple[Float64[Array, " n"], float]:
    """p_i = ⟨Δ_i, g + Λd⟩ and ‖d‖² for d = Σ_j w_jΔ_j: one pass over the data.

    Args:
        data: the displacements.
        w: weights.
        reference: g, a vector of the data's library, a `LinearCombination`, or None for
            zero.
        curvature: Λ.
    """
    u = reference.weights if isinstance(reference, LinearCombination) else None
    v = None if u is None else u + curvature * w
    compiled, p, square = compiled_kernels(data), np.zeros(data.n), 0.0
    is_vector = u is None and reference is not None
    g = host_rows([reference]) if is_vector else ([None], bytes([ZEROS]))
    if compiled is not None and g is not None:
        kernels, spans = compiled
        ((vector,), (code,)) = g
        w = np.ascontiguousarray(w)
        for span in spans:
            here = None if vector is None else vector[span.lo : span.hi]
            given = span.rows, span.codes, span.hi - span.lo, w, v, p, here, code
            square += kernels.slopes(*given, curvature, *span.lent_base)
        return p, square
    for lo, hi in data.ranges():
        X = data.block(lo, hi)
        xp = np if isinstance(X, np.ndarray) else data.xp
        device = {} if xp is np else {"device": X.device}
        step = xp.matmul(xp.asarray(w, **device), X)
        if v is not None:
            h = xp.matmul(xp.asarray(v, **device), X)
        else:
            h = curvature * step
            if is_vector:
                h = h + xp.asarray(as_wide(data.xp, reference[lo:hi]))
        p += to_host(xp.matmul(X, h))
        square += float(xp.vecdot(step, step))
    return p, square


def inner_with_vector(data: Readable, vector: Any) -> Float64[Array, " n"]:
    """⟨Δ_i, v⟩ in float64 for a vector of the data's library."""
    total = np.zeros(data.n)
    for lo, hi in data.ranges():
        block = to_host(data.block(lo, hi))
        total += block @ to_host(as_wide(data.xp, vector[lo:hi]))
    return total
