"""Triton kernels for CUDA tensors: inner products and weighted sums in one read.

A thin matrix of n rows is read at the speed of memory only if every entry is loaded
once and the n² products of a column are formed on the way. `_gram_kernel` lets each
program walk over a range of columns. It subtracts the origin, splits the differences
into three bfloat16 parts, x = h + m + l up to 2⁻²⁴, and multiplies them on the tensor
cores, which add exact products in float32:

    S = hhᵀ + mmᵀ + 2hmᵀ + 2hlᵀ,     XXᵀ ≈ (S + Sᵀ)/2

After each block of columns the float32 sums are added to float64 ones. The twin is
`hewfl.aggregate.gram.vector_products`.
"""

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float64

from hewfl.core.checks import Array
from hewfl.core.displacements import RoundProducts

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

MOST_VECTORS = 63
"""With the origin after them they must fit into a tile of 64 rows."""
BLOCK, WARPS, STAGES, WAVES = 64, 2, 3, 16
"""Columns of a tile, warps of a program, pipeline stages, programs per multiprocessor:
the fastest on an H200 for 20 vectors; benchmarks/gram_gpu.py times others."""
COMBINE_BLOCK = 1024


def is_available() -> bool:
    """Whether Triton is installed."""
    return triton is not None


if triton is not None:

    @triton.jit
    @no_type_check
    def _gram_kernel(  # noqa: PLR0913, PLR0917 - kernels take pointers and sizes
        rows,
        origin,
        reference,
        out,
        n,
        s,
        stride,
        chunk,
        HAS_REFERENCE: tl.constexpr,
        TILE: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        """S for v_i - v_o (i < m) and v_o, over one range of columns, in float64."""
        program = tl.program_id(0)
        i = tl.arange(0, TILE)
        starts = rows + i.to(tl.int64) * stride
        m = n + 1 if HAS_REFERENCE else n
        total = tl.zeros((TILE, TILE), tl.float64)
        first = program * chunk
        last = tl.minimum(first + chunk, s)
        for lo in range(first, last, BLOCK):
            k = lo + tl.arange(0, BLOCK)
            inside = k < last
            held = (i[:, None] < n) & inside[None, :]
            x = tl.load(starts[:, None] + k[None, :], mask=held, other=0.0)
            x = x.to(tl.float32)
            r = tl.load(origin + k, mask=inside, other=0.0).to(tl.float32)
            if HAS_REFERENCE:
                g = tl.load(reference + k, mask=inside, other=0.0).to(tl.float32)
                x = tl.where(i[:, None] == n, g[None, :], x)
            x = tl.where(i[:, None] < m, x - r[None, :], 0.0)
            x = tl.where(i[:, None] == m, r[None, :], x)
            high = x.to(tl.bfloat16)
            rest = x - high.to(tl.float32)
            middle = rest.to(tl.bfloat16)
            low = (2.0 * (rest - middle.to(tl.float32))).to(tl.bfloat16)
            half = (0.5 * middle.to(tl.float32)).to(tl.bfloat16)
            twice = tl.trans((2.0 * middle.to(tl.float32)).to(tl.bfloat16))
            sums = tl.dot(high, tl.trans(high))
            sums = tl.dot(half, twice, sums)
            sums = tl.dot(high, twice, sums)
            sums = tl.dot(high, tl.trans(low), sums)
            total += sums.to(tl.float64)
        place = i[:, None] * TILE + i[None, :]
        tl.store(out + program.to(tl.int64) * TILE * TILE + place, total)

    @triton.jit
    @no_type_check
    def _combine_kernel(  # noqa: PLR0913, PLR0917 - kernels take pointers and sizes
        rows, weights, out, n, s, stride, BLOCK: tl.constexpr
    ):
        """The weighted sum in float64, rounded once; zero weights are not read."""
        k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = k < s
        total = tl.zeros((BLOCK,), tl.float64)
        for i in range(n):
            w = tl.load(weights + i)
            x = tl.load(
                rows + i.to(tl.int64) * stride + k, mask=inside & (w != 0), other=0.0
            )
            total += w * x.to(tl.float64)
        tl.store(out + k, total.to(out.dtype.element_ty), mask=inside)


def gram(
    rows: torch.Tensor, reference: torch.Tensor | None, origin: int, **tuned: int
) -> RoundProducts:
    """What `hewfl.aggregate.gram.vector_products` returns, for CUDA tensors.

    Args:
        rows: shape (n, s), contiguous rows.
        reference: shape (s,), or None.
        origin: row that the others are taken relative to.
        tuned: other values of block, warps, stages and waves, for benchmarks.
    """
    S = program_sums(rows, reference, origin, **tuned).sum(dim=0)
    K = (0.5 * (S + S.T)).cpu().numpy()
    m = len(rows) + (reference is not None)
    return RoundProducts(K[:m, :m].copy(), K[:m, m].copy(), float(K[m, m]), 0)


def program_sums(
    rows: torch.Tensor, reference: torch.Tensor | None, origin: int, **tuned: int
) -> torch.Tensor:
    """S of each program, left on the device: shape (programs, tile, tile)."""
    n, s = rows.shape
    m = n + (reference is not None)
    tile = max(16, triton.next_power_of_2(m + 1))
    block = tuned.get("block", BLOCK)
    processors = torch.cuda.get_device_properties(rows.device).multi_processor_count
    wanted = processors * tuned.get("waves", WAVES)
    chunk = max(1, triton.cdiv(triton.cdiv(s, block), wanted)) * block
    programs = triton.cdiv(s, chunk)
    shape = (programs, tile, tile)
    out = torch.empty(shape, dtype=torch.float64, device=rows.device)
    _gram_kernel[(programs,)](
        rows,
        rows[origin],
        rows if reference is None else reference,
        out,
        n,
        s,
        rows.stride(0),
        chunk,
        HAS_REFERENCE=reference is not None,
        TILE=tile,
        BLOCK=block,
        num_warps=tuned.get("warps", max(WARPS, tile // 16)),
        num_stages=tuned.get("stages", STAGES),
    )
    return out


def combine(rows: torch.Tensor, weights: Float64[Array, " n"]) -> torch.Tensor:
    """What `weighted_sum` returns, for CUDA tensors."""
    n, s = rows.shape
    wide = torch.promote_types(rows.dtype, torch.float32)
    out = torch.empty(s, dtype=wide, device=rows.device)
    given = torch.from_numpy(np.ascontiguousarray(weights)).to(rows.device)
    grid = (triton.cdiv(s, COMBINE_BLOCK),)
    _combine_kernel[grid](rows, given, out, n, s, rows.stride(0), BLOCK=COMBINE_BLOCK)
    return out
