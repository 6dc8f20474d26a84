"""Communication of a round: the numbers that server and clients send.

The paper states one count, that of Algorithm 1 with Δc_i sent along. The other two
algorithms send less, and Δc_i need not be sent: it equals −c_t − (L/θ_i)Δ_i, which the
server can compute (erratum E-17).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import ArrayLike, Reals, invalid, wholes

if TYPE_CHECKING:
    Algorithm = Literal["control", "het", "hom"]
else:  # run-time type checks pass a wrong name on to `communication` and its error
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

    A round without clients costs nothing (erratum E-06); the printed count charges its
    broadcast.

    Args:
        algorithm: control (Algorithm 1), het (Algorithm 2) or hom (Algorithm 3, S = n).
        active: S ≥ 0.
        dimension: d ≥ 1.
        proxies: ν, scalars for variance proxies, which only Algorithm 1 uses: 0 when
            they are known, S when each active client sends one.
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
