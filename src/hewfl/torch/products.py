"""The arithmetic on a shard: inner products and weighted sums, where the data lies.

On the host hewfl.core does both, with its compiled kernels where they were built. On
CUDA tensors a kernel reads the data once: `cuda_gram` where the GPU multiplies in
float64 as fast as it reads, else `triton_gram`. hewfl.core on the same tensors is their
portable twin and takes over where both are missing.
"""

from functools import cache
from types import ModuleType

import numpy as np
import torch
from jaxtyping import Float64

from hewfl.aggregate.from_products import vector_products
from hewfl.aggregate.post_local import combine
from hewfl.core.checks import Array
from hewfl.core.displacements import RoundProducts
from hewfl.torch import cuda_gram


def shard_products(
    rows: torch.Tensor, reference: torch.Tensor | None, origin: int
) -> RoundProducts:
    """Products of the rows and the reference after them, if any.

    Args:
        rows: displacements of all ranks on one shard, shape (n, s).
        reference: c_t on the same shard, shape (s,).
        origin: row that the others are taken relative to.
    """
    if cuda_gram.serves(rows, reference):
        return cuda_gram.gram(rows, reference, origin)
    narrow = rows.is_cuda and rows.dtype != torch.float64
    kernels = _kernels() if narrow else None
    count = len(rows) + (reference is not None)
    if kernels is not None and count <= kernels.MOST_VECTORS:
        found: RoundProducts = kernels.gram(rows, reference, origin)
        if np.isfinite(found.gram).all():  # else a product may be beyond float32
            return found
    return portable_products(rows, reference, origin)


def portable_products(
    rows: torch.Tensor, reference: torch.Tensor | None, origin: int
) -> RoundProducts:
    """The same by hewfl.core, in float64 throughout."""
    if reference is None:
        return vector_products(rows, origin)
    return vector_products([*rows, reference], origin)


def weighted_sum(rows: torch.Tensor, weights: Float64[Array, " n"]) -> torch.Tensor:
    """Σ w_iΔ_i summed in float64, in float32 at least; zero weights are not read."""
    return weighted_sums(rows, None, weights[None])[0]


def weighted_sums(
    rows: torch.Tensor, reference: torch.Tensor | None, weights: Float64[Array, "k m"]
) -> list[torch.Tensor]:
    """Several sums of the rows and the reference after them, in one pass on the host.

    Each is as by `weighted_sum`; a vector of weight zero in all of them is not read.
    """
    kernels = _kernels() if rows.is_cuda else None
    if kernels is not None:
        sums = [kernels.combine(rows, w[: len(rows)]) for w in weights]
        if reference is not None:
            for total, part in zip(sums, weights[:, -1], strict=True):
                total.add_(reference, alpha=float(part))
        return sums
    wide = torch.promote_types(rows.dtype, torch.float32)
    vectors = [*rows] if reference is None else [*rows, reference]
    used = np.flatnonzero(weights.any(axis=0))
    if len(used) == 0:
        shape = len(weights), rows.shape[1]
        return list(torch.zeros(shape, dtype=wide, device=rows.device))
    chosen = [vectors[i].to(wide) for i in used]
    return list(combine(chosen, np.ascontiguousarray(weights[:, used])))


def packed(products: RoundProducts) -> Float64[Array, " k"]:
    """All numbers in one vector, to be added over ranks."""
    return np.concatenate([products.gram.ravel(), products.linear, [products.offset]])


def unpacked(numbers: Float64[Array, " k"], m: int) -> RoundProducts:
    """The products of m vectors from `packed`."""
    G, linear = numbers[: m * m].reshape(m, m), numbers[m * m : -1]
    return RoundProducts(G, linear, float(numbers[-1]), 0)


@cache
def _kernels() -> ModuleType | None:
    """The Triton kernels, None where Triton is not installed."""
    from hewfl.torch import triton_gram  # noqa: PLC0415 - only for CUDA tensors

    return triton_gram if triton_gram.is_available() else None
