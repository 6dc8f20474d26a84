"""Gradients and arithmetic of a round of Algorithm 1 (th:complexity-main)."""

from dataclasses import dataclass
from typing import final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, wholes
from hewfl.theory.systems import System, client_mask


@final
@dataclass(frozen=True, slots=True, eq=False)
class RoundWork:
    """Arithmetic of a round of Algorithm 1; orders come without their constants.

    Attributes:
        minibatch_gradients: H_i, exactly; zero for inactive clients.
        sample_gradients: H_i b_i, exactly.
        client_order: H_i d, vector arithmetic of a branch.
        weight_order: S log S, one solve of the weights by sorting thresholds.
        amplitude_problems: S, scalar convex problems of one sweep, exactly.
        server_order: S d, vector sums on the server.
    """

    minibatch_gradients: Float64[Array, "*c n"]
    sample_gradients: Float64[Array, "*c n"]
    client_order: Float64[Array, "*c n"]
    weight_order: Float64[Array, "*c"]
    amplitude_problems: Float64[Array, "*c"]
    server_order: Float64[Array, "*c"]


@broadcasting
def round_work(
    system: System, dimension: ArrayLike, active: ArrayLike | None = None
) -> RoundWork:
    """Gradients and arithmetic of a round (th:complexity-main, items 1 to 4).

    Args:
        system: H_i and b_i.
        dimension: d ≥ 1, shape (*c).
        active: whether i ∈ S, clients last; all by default.

    Returns:
        Counts and orders, client by client and for the server.
    """
    H, b = np.asarray(system.horizon), np.asarray(system.batch_size)
    d = wholes("dimension", dimension, least=1)
    everybody = np.ones(system.n, dtype=bool)
    mask = client_mask(system, everybody if active is None else active)
    present = mask * np.ones(np.broadcast_shapes(d[..., None].shape, H.shape))
    S = np.asarray(present.sum(axis=-1))
    return RoundWork(
        minibatch_gradients=H * present,
        sample_gradients=H * b * present,
        client_order=H * d[..., None] * present,
        weight_order=np.asarray(S * np.log(np.maximum(S, 1.0))),
        amplitude_problems=S,
        server_order=np.asarray(S * d),
    )
