"""The weight problem of a round from the data, in one pass and in float64.

The formulas are those of `hewfl.core.displacements.RoundProducts`: products around r,
one of the shortest vectors. The shift by r keeps the digits that a common part of
all displacements, or one very long one, would take from the Gram matrix.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hewfl.core.array_types import Float64
from hewfl.core.displacements import LinearCombination, RoundProducts
from hewfl.core.median import median
from hewfl.core.validation import Array, invalid
from hewfl.displacements.backend import (
    ZEROS,
    Readable,
    Span,
    as_wide,
    compiled_kernels,
    gpu_kernels,
    host_rows,
    to_host,
)
from hewfl.displacements.weighted_sum import weighted_sum

FEW_CLIENTS = 300
"""Up to so many clients the compiled kernel is faster than BLAS: three times for
twenty, 1.1 times for 300 (AVX2). A chunk of 500 rows leaves the cache of a core.
`benchmarks/aggregate.py --routes` has both on any processor."""
STACK = 2**17
"""Entries of the float64 block that BLAS is given: 1 MiB, which stays in cache."""
OUTLYING = 1e-4
"""Squared distances below this share show an origin far outside."""
ORIGINS = 3
"""Passes spent on a better origin; one is enough unless several rows are long."""
_SAFE = (1e-70, 1e70)
"""Sizes whose squares and products stay well inside the range of float64."""
UNEQUAL = 1e140
"""Ratio of two lengths whose squares keep all digits in the same units."""


def round_products(data: Readable, reference: Any, curvature: float) -> RoundProducts:
    """The weight problem of a reference and Λ: on a GPU by its kernel.

    Args:
        data: the displacements.
        reference: g, a vector in the library and on the device of the data, a
            `LinearCombination`, which is not formed, or None for zero.
        curvature: Λ.

    Raises:
        InvalidInputError: a displacement or the reference is not finite.
    """
    u = reference.weights if isinstance(reference, LinearCombination) else None
    gpu = gpu_kernels(data.data)
    products: RoundProducts | None = None
    if gpu is not None:
        given = (reference, curvature) if u is None else (None, 1.0)
        products = gpu.round_products(data.data, *given)
    if products is not None:
        return products if u is None else products.with_reference(u, curvature)
    if u is None:
        return _vector_problem(data, reference, curvature)
    with np.errstate(all="ignore"):
        sizes = sampled_sizes(data)
        products, _ = _from_best_origin(data, None, 1.0, sizes, 0.0)
        products = products.with_reference(u, curvature)
    if _is_trusted(products, sizes):
        return products
    return _vector_problem(data, weighted_sum(data, u), curvature)  # scaled there


def _vector_problem(data: Readable, reference: Any, curvature: float) -> RoundProducts:
    """Read the data once; a second time only where squares would overflow."""
    with np.errstate(all="ignore"):
        sampled, slope = sampled_sizes(data), 0.0
        if reference is not None:
            begin = as_wide(data.xp, reference[: min(2048, data.d)])
            slope = float(np.abs(to_host(begin)).max())
        products, origin = _from_best_origin(data, reference, curvature, sampled, slope)
    if _is_trusted(products, sampled):
        return products
    sizes = _true_sizes(data, reference)
    if sizes[0] == 0:
        return products
    with np.errstate(all="ignore"):
        return _products(data, reference, curvature, origin, sizes)


def vector_products(data: Readable, origin: int) -> RoundProducts:
    """Inner products of some vectors, or of one part of their entries, in one pass.

        gram_ij = ⟨v_i − v_o, v_j − v_o⟩,   linear_i = ⟨v_i − v_o, v_o⟩,
        offset = ⟨v_o, v_o⟩

    Those of several parts add up to those of the whole. A vector that is not finite
    spoils its own row and column only, unless it is v_o. `part_products` prefers the
    kernel of a GPU.

    Args:
        data: the vectors; numbers of float32 cannot overflow these products.
        origin: o, best one of the shortest.
    """
    with np.errstate(all="ignore"):
        return _products(data, data.row(origin), 0.0, origin, (1.0, 1.0))


def part_products(data: Any, reference: Any, origin: int) -> RoundProducts:
    """`vector_products` of displacements and of a reference after them, if any.

    Args:
        data: `DenseDisplacements`, all vectors on some of their entries.
        reference: the reference on these entries, None for no such row.
        origin: as there.
    """
    gpu = gpu_kernels(data.data)
    if gpu is not None:
        products: RoundProducts | None
        products = gpu.vector_products(data.data, reference, origin)
        if products is not None:
            return products
    vectors = data if reference is None else data.append(reference)
    return vector_products(vectors, origin)


def weight_problem(products: RoundProducts, n: int, curvature: float) -> RoundProducts:
    """The weight problem from plain products of n vectors, and of g after them if any.

    With r = v_o the origin, ⟨c_i, g⟩ = ⟨c_i, g − r⟩ + ⟨c_i, r⟩ and likewise for ⟨g, r⟩;
    without g it is zero.

    Args:
        products: from `vector_products`.
        n: displacements among the vectors; one more vector is the reference g.
        curvature: Λ.
    """
    G, cr, rr = products.gram[:n, :n], products.linear[:n], products.offset
    linear, offset = curvature * cr, 0.5 * curvature * rr
    if len(products.linear) > n:
        linear = linear + (products.gram[:n, n] + cr)
        offset += float(products.linear[n]) + rr
    return RoundProducts(G, linear, offset, products.exponent)


def sampled_sizes(data: Readable) -> tuple[float, Float64[Array, " n"]]:
    """Of up to 2048 columns spread over the data: the largest entry, and Σ_l Δ_il².

    The squares are those of Δ_il 2^−a, a of `_exponent`.
    """
    starts, width = [0], data.d
    if data.d > 2048:
        starts, width = [(data.d - 512) * k // 3 for k in range(4)], 512
    compiled = compiled_kernels(data)
    if compiled is not None and len(compiled[1]) == 1:
        kernels, (span,) = compiled
        squares = np.zeros(data.n)
        where = data.d, np.array(starts), width, squares
        largest = kernels.sampled(span.rows, span.codes, *where, *span.lent_base)
        if not _exponent(largest):
            return largest, squares
    blocks = [to_host(data.block(lo, lo + width)) for lo in starts]
    size = float(np.max([np.abs(block).max() for block in blocks]))
    if exponent := _exponent(size):
        blocks = [block * 2.0**-exponent for block in blocks]
    return size, np.sum([np.einsum("ij,ij->i", X, X) for X in blocks], axis=0)


def _is_trusted(
    products: RoundProducts, sizes: tuple[float, Float64[Array, " n"]]
) -> bool:
    """Whether nothing is out of range, and no product was lost to underflow.

    One client, or equal ones, have no differences at all: there a sample of moderate
    size shows that zeros are true zeros.
    """
    total = float(products.gram.sum() + products.linear.sum()) + products.offset
    if not math.isfinite(total):
        return False
    if sizes[0] > _SAFE[0] or products.exponent != 0:
        return True
    return float(np.diagonal(products.gram).max()) > 1e-200


def _from_best_origin(
    data: Readable,
    reference: Any,
    curvature: float,
    sampled: tuple[float, Float64[Array, " n"]],
    slope: float,
) -> tuple[RoundProducts, int]:
    """Products around a short row, and which one it is."""
    size, origin = sampled[0], int(np.argmin(sampled[1]))
    products = _products(data, reference, curvature, origin, (size, slope))
    for _ in range(ORIGINS):
        nearer = nearer_origin(products.gram, origin)
        if nearer is None:
            break
        origin = nearer
        products = _products(data, reference, curvature, origin, (size, slope))
    return products, origin


def nearer_origin(G: Float64[Array, "n n"], origin: int) -> int | None:
    """Another origin where this one lies far outside the others, None where not.

    The sample may have missed what makes a row long. Then all differences to it are
    long and nearly equal: the row nearest to it is much nearer to the rest.
    """
    lengths = np.diagonal(G)
    if len(G) < 3 or not math.isfinite(float(G.sum())):
        return None
    others = np.arange(len(G)) != origin
    nearest = int(np.where(others, lengths, np.inf).argmin())
    others[nearest] = False
    rest = lengths[others]
    apart = rest + lengths[nearest] - 2 * G[others, nearest]
    return nearest if median(apart) < OUTLYING * median(rest) else None


def slope_at(g: Any, curvature: float, r: Any) -> Any:
    """The slope g + Λr, Λr's rounding error added back for when the two cancel.

    Dekker's product: both factors are split in halves whose products are exact.
    """
    product = curvature * r
    top = _halves(curvature)
    high = r * 134217729.0
    high = high - (high - r)
    low = r - high
    error = ((top[0] * high - product) + top[0] * low + top[1] * high) + top[1] * low
    return (g + product) + error


def _halves(number: float) -> tuple[float, float]:
    high = number * 134217729.0  # 2²⁷ + 1
    high = high - (high - number)
    return high, number - high


def _exponent(size: float) -> int:
    """Power of two to divide by; zero where no harm can come."""
    if size == 0 or not np.isfinite(size) or _SAFE[0] < size < _SAFE[1]:
        return 0
    return int(np.clip(np.frexp(size)[1], -1000, 1000))


def _true_sizes(data: Readable, reference: Any) -> tuple[float, float]:
    """Largest entries of the data and the reference.

    Raises:
        InvalidInputError: an entry is not finite.
    """
    for i in range(data.n):
        row = to_host(as_wide(data.xp, data.row(i)))
        if not np.isfinite(row).all():
            bad = row[~np.isfinite(row)][0]
            raise invalid("displacements", "finite", f"{bad} for client {i}")
    slope = np.zeros(1)
    if reference is not None:
        slope = np.abs(to_host(as_wide(data.xp, reference)))
    if not np.isfinite(slope).all():
        bad = slope[~np.isfinite(slope)][0]
        raise invalid("reference", "finite", bad)
    largest = max(
        float(np.abs(to_host(data.block(lo, hi))).max()) for lo, hi in data.ranges()
    )
    return largest, float(slope.max())


def largest_entries(data: Readable) -> Float64[Array, " n"]:
    """The largest entry of each vector, by its size."""
    parts = [np.abs(to_host(data.block(lo, hi))) for lo, hi in data.ranges()]
    largest: Float64[Array, " n"] = np.max([x.max(axis=1) for x in parts], axis=0)
    return largest


def require_common_scale(entries: Float64[Array, " n"]) -> None:
    """Refuse vectors of which some are so long that squares of the others vanish.

    All are divided by one power of two, so that the squares of the longest stay in
    range. Those of vectors `UNEQUAL` times as short are then zero, and so would be the
    value and the gap of any weights on them.

    Args:
        entries: the largest entry of each vector.

    Raises:
        InvalidInputError: they are such vectors.
    """
    most, least = entries.max(), entries[entries > 0].min(initial=np.inf)
    if most > _SAFE[1] and most / UNEQUAL > least:
        rule = f"of lengths within a factor of {UNEQUAL:g}, if some are above 1e70"
        got = f"largest entries from {least:.2g} to {most:.2g}"
        raise invalid("displacements", rule, got)


def _products(
    data: Readable,
    reference: Any,
    curvature: float,
    origin: int,
    sizes: tuple[float, float],
) -> RoundProducts:
    """Products of c_i 2^−a and h 2^−b, brought to the common factor 2^−2a.

    A reference of None counts as zero.
    """
    a = _exponent(sizes[0])
    b = _exponent(max(sizes[1], curvature * sizes[0]))
    n, compiled = data.n, compiled_kernels(data)
    zeros: tuple[list[NDArray[Any]], bytes] = ([np.empty(0)], bytes([ZEROS]))
    g = zeros if reference is None else host_rows([reference])
    if compiled is None or g is None:
        products, gr, rr = _gram_portable(data, reference, curvature, origin, (a, b))
    else:
        code = _gram_compiled if n <= FEW_CLIENTS else _gram_by_blas
        lent = (g[0][0], g[1])
        products, gr, rr = code(*compiled, lent, curvature, origin, (a, b))
    with np.errstate(over="ignore"):
        linear = np.ldexp(products[:n, n], b - a)
        offset = float(np.ldexp(gr, b - a) + 0.5 * curvature * rr)
    return RoundProducts(products[:n, :n], linear, offset, 2 * a)


def _gram_compiled(
    kernels: Any,
    spans: list[Span],
    reference: tuple[NDArray[Any], bytes],
    curvature: float,
    origin: int,
    scales: tuple[int, int],
) -> tuple[Float64[Array, "m m"], float, float]:
    """Products by the compiled kernel, and the zero row of the origin."""
    g, code = reference
    n = len(spans[0].rows)
    products, offset = np.zeros((n + 1, n + 1)), np.zeros(2)
    given = (curvature, 2.0 ** -scales[0], 2.0 ** -scales[1], origin, products, offset)
    for span in spans:
        rows = [*span.rows, g[span.lo : span.hi]]
        length = span.hi - span.lo
        kernels.gram(rows, span.codes + code, length, *given, *span.lent_base)
    return products, float(offset[0]), float(offset[1])


def _gram_by_blas(
    kernels: Any,
    spans: list[Span],
    reference: tuple[NDArray[Any], bytes],
    curvature: float,
    origin: int,
    scales: tuple[int, int],
) -> tuple[Float64[Array, "m m"], float, float]:
    """Products by BLAS, block by block onto one triangle; blocks go across spans."""
    from scipy.linalg.blas import dsyrk  # noqa: PLC0415 - slow to import

    n, d, gr, rr = len(spans[0].rows), spans[-1].hi, 0.0, 0.0
    width = -(-d // -(-d * n // STACK))  # of blocks of one size
    stack, products = np.zeros((n + 1, width)), np.zeros((n + 1, n + 1), order="F")
    g_all = Span(0, d, [reference[0]], reference[1], None)
    factor, slope_factor = 2.0 ** -scales[0], 2.0 ** -scales[1]
    for span in spans:
        lo = span.lo
        while lo < span.hi:
            at = lo % width
            hi = min(span.hi, lo - at + width)
            where = (lo - span.lo, hi - lo, origin, factor, width)
            kernels.shifted(span.rows, span.codes, *where, stack.ravel()[at:])
            r = span.wide(origin, lo - span.lo, hi - span.lo)
            scaled = r * factor
            rr += float(np.dot(scaled, scaled))
            h = curvature * r  # all of the slope where g = 0: nothing cancels
            if len(reference[0]):
                g = g_all.wide(0, lo, hi)
                h = slope_at(g, curvature, r)
                gr += float(np.dot(g * slope_factor, scaled))
            stack[n, at : at + hi - lo] = h * slope_factor
            if hi == d:
                stack[:, at + hi - lo :] = 0.0
            if hi == d or hi % width == 0:
                products = dsyrk(1.0, stack.T, 1.0, products, trans=1, overwrite_c=1)
            lo = hi
    return np.triu(products) + np.triu(products, 1).T, gr, rr


def _gram_portable(
    data: Readable,
    reference: Any,
    curvature: float,
    origin: int,
    scales: tuple[int, int],
) -> tuple[Float64[Array, "m m"], float, float]:
    """Inner products of c_1, …, c_n, h in the array library of the data."""
    xp, n = data.xp, data.n
    products = np.zeros((n + 1, n + 1))
    gr = rr = 0.0
    for lo, hi in data.ranges():
        X = data.block(lo, hi)
        if isinstance(X, np.ndarray):
            xp = np
        r = X[origin, :]
        g = xp.zeros_like(r)
        if reference is not None:
            g = xp.asarray(as_wide(data.xp, reference[lo:hi]))
        c = (X - r[None, :]) * 2.0 ** -scales[0]
        h = slope_at(g, curvature, r) * 2.0 ** -scales[1]
        stack = xp.concat([c, h[None, :]], axis=0)
        products += to_host(xp.matmul(stack, xp.matrix_transpose(stack)))
        r = r * 2.0 ** -scales[0]
        gr += float(xp.vecdot(g * 2.0 ** -scales[1], r))
        rr += float(xp.vecdot(r, r))
    return products, gr, rr
