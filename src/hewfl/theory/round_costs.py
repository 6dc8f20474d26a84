"""Costs of a round: numbers sent, gradients and arithmetic (th:complexity-main).

The paper states one count of numbers, that of Algorithm 1 with Δc_i sent along. The
other two algorithms send less, and Δc_i need not be sent: it equals −c_t − (L/θ_i)Δ_i,
which the server can compute (erratum E-17).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, Reals, invalid, wholes
from hewfl.theory.systems import System, client_mask

if TYPE_CHECKING:
    Algorithm = Literal["control", "het", "hom"]
else:  # run-time type checks pass a wrong name on to `communication` and its error
    Algorithm = str
_SENDS = {"control": (2, 2, 0, 1), "het": (2, 2, 1, 0), "hom": (1, 1, 1, 0)}
"""Vectors down; vectors up as printed; scalars down; scalars for each active client."""


@broadcasting
def communication(
    algorithm: Algorithm,
    active: ArrayLike,
    dimension: ArrayLike,
    *,
    proxies: ArrayLike = 0,
    printed: bool = False,
) -> Reals:
    """Numbers sent in a round, a broadcast counted once (th:complexity-main).

                       as needed              with Δc_i (printed)
        control        2d + dS + S + ν        2d + 2dS + S + ν       (eq:comm-main)
        het            2d + dS + 1            2d + 2dS + 1
        hom            d + dS + 1             d + dS + 1

    for Algorithms 1, 2 and 3 with S active clients and d parameters. ν counts variance
    proxies, which only Algorithm 1 uses: 0 where they are known. A round without
    clients costs nothing (E-06); the printed count charges its broadcast.
    """
    if algorithm not in _SENDS:
        raise invalid("algorithm", f"one of {', '.join(_SENDS)}", repr(algorithm))
    S, d = wholes("active", active), wholes("dimension", dimension, least=1)
    nu = wholes("proxies", proxies)
    if algorithm != "control" and (nu > 0).any():
        raise invalid("proxies", "0 for het and hom", nu[nu > 0].flat[0])
    down, printed_up, common, each = _SENDS[algorithm]
    up = printed_up if printed else 1
    count = down * d + up * d * S + each * S + common + nu
    return np.asarray(count if printed else np.where(S > 0, count, 0.0))


@final
@dataclass(frozen=True, slots=True, eq=False)
class RoundWork:
    """Arithmetic of a round of Algorithm 1; orders come without their constants."""

    minibatch_gradients: Float64[Array, "*c n"]  # H_i exactly, zero for inactive ones
    sample_gradients: Float64[Array, "*c n"]  # H_i b_i, exactly
    client_order: Float64[Array, "*c n"]  # H_i d, vector arithmetic of a branch
    weight_order: Float64[Array, "*c"]  # S log S, the weights by sorting thresholds
    amplitude_problems: Float64[Array, "*c"]  # S scalar problems of a sweep, exactly
    server_order: Float64[Array, "*c"]  # S d, vector sums on the server


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
