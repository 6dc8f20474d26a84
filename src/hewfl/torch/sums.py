"""Weighted sums on a shard, where the data lies."""

import numpy as np
import torch
from jaxtyping import Float64

from hewfl.aggregate.memory import on_gpu
from hewfl.aggregate.post_local import combine
from hewfl.core.checks import Array


def weighted_sum(rows: torch.Tensor, weights: Float64[Array, " n"]) -> torch.Tensor:
    """Σ w_iΔ_i summed in float64, in float32 at least; zero weights are not read."""
    return weighted_sums(rows, None, weights[None])[0]


def weighted_sums(
    rows: torch.Tensor, reference: torch.Tensor | None, weights: Float64[Array, "k m"]
) -> list[torch.Tensor]:
    """Several sums of the rows and the reference after them, in one pass on the host.

    Each is what `weighted_sum` gives; a vector of weight zero in all of them is not
    read.
    """
    gpu = on_gpu(rows)
    sums = None if gpu is None else gpu.weighted_sum(rows, weights[:, : len(rows)])
    if sums is not None:
        if reference is not None:
            for total, part in zip(sums, weights[:, -1], strict=True):
                total.add_(reference, alpha=float(part))
        return list(sums)
    wide = torch.promote_types(rows.dtype, torch.float32)
    vectors = [*rows] if reference is None else [*rows, reference]
    used = np.flatnonzero(weights.any(axis=0))
    if len(used) == 0:
        shape = len(weights), rows.shape[1]
        return list(torch.zeros(shape, dtype=wide, device=rows.device))
    chosen = [vectors[i].to(wide) for i in used]
    return list(combine(chosen, np.ascontiguousarray(weights[:, used])))
