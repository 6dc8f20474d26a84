"""What a round costs: numbers sent, gradients computed, orders of the arithmetic.

The paper states one count, that of Algorithm 1 with Δc_i sent along. The other two
algorithms send less, and Δc_i need not travel at all: it equals −c_t − (L/θ_i)Δ_i, and
the server knows the rest (erratum E-17).
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
else:  # run-time type checks let a wrong name through to `communication` and its text
    Algorithm = str


@final
@dataclass(frozen=True, slots=True)
class _Sends:
    """Vectors and scalars of a round; `each` counts per active client."""

    down: int
    up: int
    printed_up: int
    common: int
    each: int


_SENDS = {
    "control": _Sends(down=2, up=1, printed_up=2, common=0, each=1),  # x, c; θ_i
    "het": _Sends(down=2, up=1, printed_up=2, common=1, each=0),  # x, c; ϑ
    "hom": _Sends(down=1, up=1, printed_up=1, common=1, each=0),  # x; ϑ
}


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

    A round in which nobody is contacted costs nothing (erratum E-06); the printed
    count charges its broadcast all the same.

    Args:
        algorithm: control (Algorithm 1), het (Algorithm 2) or hom (Algorithm 3, S = n).
        active: S ≥ 0.
        dimension: d ≥ 1.
        proxies: ν, scalars for variance proxies, which only Algorithm 1 uses: 0 when
            they are known, S when each active client sends its own.
        printed: the paper's count, Δc_i included.

    Returns:
        How many numbers.
    """
    if algorithm not in _SENDS:
        raise invalid("algorithm", f"one of {', '.join(_SENDS)}", repr(algorithm))
    S, d = wholes("active", active), wholes("dimension", dimension, least=1)
    nu = wholes("proxies", proxies)
    if algorithm != "control" and (nu > 0).any():
        raise invalid("proxies", "0 for het and hom", nu[nu > 0].flat[0])
    sends = _SENDS[algorithm]
    up = sends.printed_up if printed else sends.up
    count = sends.down * d + up * d * S + sends.each * S + sends.common + nu
    return np.asarray(count if printed else np.where(S > 0, count, 0.0))


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
