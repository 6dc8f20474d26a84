"""Tensors on a GPU: products and weighted sums in one read, at the speed of its memory.

`cuda_gram` serves where the GPU multiplies in float64 as fast as it reads, else
`triton_gram`; without either, or for float64, the portable code of the room takes over,
which is their twin. Loaded only when a CUDA tensor is given, so that the room itself
does not need torch.
"""

from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float64

from hewfl.errors import MissingExtraError

try:
    import torch
except ImportError as error:
    text = "hewfl.aggregate.gpu needs PyTorch: install hewfl's extra torch"
    raise MissingExtraError(text) from error

from hewfl.aggregate.gpu import cuda_gram
from hewfl.aggregate.gram import ORIGINS, nearer_origin, weight_problem
from hewfl.core.checks import Array
from hewfl.core.displacements import RoundProducts

_BLOCK = 2**24
"""Entries of one float64 block on the device."""
LONG = 100.0
"""An origin this many times longer (squared) than the shortest vector is exchanged."""


def serves(rows: Any) -> bool:
    """Whether these are vectors that the kernels may read."""
    return (
        isinstance(rows, torch.Tensor)
        and rows.is_cuda
        and rows.dtype in cuda_gram.ELEMENTS
        and (rows.shape[1] <= 1 or rows.stride(1) == 1)
    )


def vector_products(
    rows: torch.Tensor, reference: torch.Tensor | None, origin: int
) -> RoundProducts | None:
    """Products of the rows and the reference after them, around one of the rows.

    Args:
        rows: shape (n, s), on a GPU.
        reference: shape (s,), on the same, or None.
        origin: row that the others are taken relative to.

    Returns:
        What `hewfl.aggregate.gram.vector_products` gives; None where no kernel serves,
        or a product may be beyond float32.
    """
    if cuda_gram.serves(rows, reference):
        return cuda_gram.gram(rows, reference, origin)
    kernels = triton_kernels() if serves(rows) else None
    count = len(rows) + (reference is not None)
    if kernels is None or count > kernels.MOST_VECTORS:
        return None
    found: RoundProducts = kernels.gram(rows, reference, origin)
    return found if np.isfinite(found.gram).all() else None


def round_products(
    rows: torch.Tensor, reference: torch.Tensor | None, curvature: float
) -> RoundProducts | None:
    """The weight problem of displacements on a GPU, in one pass as a rule.

    The first vector is the origin. Its products tell how long all vectors are: only
    where it is a long one does a second pass start from the shortest.

    Returns:
        The problem; None where no kernel serves or a number is not finite.
    """
    apart = None
    if reference is not None and reference.dtype != rows.dtype:
        reference, apart = None, reference  # the kernels take vectors of one precision
    origin, n = 0, len(rows)
    found = None
    for _ in range(ORIGINS):
        found = vector_products(rows, reference, origin)
        if found is None or not np.isfinite(found.gram).all():
            return None
        G, cr, rr = found.gram[:n, :n], found.linear[:n], found.offset
        lengths = np.diagonal(G) + 2 * cr + rr
        shortest = int(np.argmin(lengths))
        outside = nearer_origin(G, origin)
        if rr <= LONG * max(float(lengths[shortest]), 0.0) and outside is None:
            break
        nearer = shortest if outside is None else outside
        if nearer == origin:
            break
        origin = nearer
    assert found is not None
    if not float(np.diagonal(found.gram)[:n].max()) > 1e-200:
        return None
    problem = weight_problem(found, n, curvature)
    if apart is None:
        return problem
    *with_g, with_r = _against(rows, apart, origin)
    linear = problem.linear + np.array(with_g)
    return replace(problem, linear=linear, offset=problem.offset + with_r)


def _against(rows: torch.Tensor, reference: torch.Tensor, origin: int) -> list[float]:
    """⟨Δ_i − r, g⟩ for all rows, then ⟨r, g⟩, in float64 and block by block."""
    n, d = rows.shape
    total = torch.zeros(n + 1, dtype=torch.float64, device=rows.device)
    step = max(1, _BLOCK // n)
    for lo in range(0, d, step):
        block = rows[:, lo : lo + step].double()
        g, r = reference[lo : lo + step].double(), block[origin]
        total[:n] += (block - r) @ g
        total[n] += r @ g
    sums: list[float] = total.tolist()
    return sums


def weighted_sum(
    rows: torch.Tensor, weights: Float64[Array, "... n"]
) -> torch.Tensor | None:
    """Σ w_iΔ_i summed in float64, in float32 at least; None where no kernel serves."""
    kernels = triton_kernels() if serves(rows) else None
    if kernels is None:
        return None
    if weights.ndim == 1:
        found: torch.Tensor = kernels.combine(rows, weights)
        return found
    return torch.stack([kernels.combine(rows, w) for w in weights])


@cache
def triton_kernels() -> ModuleType | None:
    """The Triton kernels, None where Triton is not installed."""
    from hewfl.aggregate.gpu import triton_gram  # noqa: PLC0415 - Triton is slow to load

    return triton_gram if triton_gram.is_available() else None
