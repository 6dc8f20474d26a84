"""What clients may claim: bounded by what the others of a round do.

A server cannot look into its clients, but it can compare them. With fewer than half of
them bad, the lower median of a round is at most the largest honest number, so bounds
around it hold against whatever the others send:

    ‖Δ_i‖ ≤ c · median_j ‖Δ_j‖            else the client is left out of the round
    ‖Δ_i‖/H_i ≤ 4 · median_j ‖Δ_j‖/H_j    likewise, where clients tell their steps
    m_i counts as at most 5 · median_j m_j

Every rule that averages then moves the model by at most c times the longest honest
displacement.
"""

import numpy as np
from jaxtyping import Float64, Int64

from hewfl.core.checks import Array, Ints

PACE = 4.0
"""Of ‖Δ‖/H, over the median. Plain SGD with one step size moves by about a gradient in
each step; who claims fewer steps than it took is above its neighbours."""
LARGEST_SHARE = 5.0
"""Of a client's data size, over the median: it is a claim that nobody can check."""
_SCALE = 2**40
"""What the largest size counts where sizes are not whole numbers."""


def lower_median(values: Float64[Array, " s"]) -> float:
    """The lower median of the values that are not zero; zero if all are.

    Of two numbers it is the smaller: one bad client of two cannot make it large.
    Clients that stood still say nothing about how far the others may go.
    """
    moved = np.sort(values[values > 0])
    return float(moved[(len(moved) - 1) // 2]) if len(moved) else 0.0


def implausible(
    lengths: Float64[Array, " s"],
    longest: float,
    told_steps: Int64[Ints, " s"] | None = None,
) -> dict[int, str]:
    """Whose displacement is far longer than those of the others, and the reason.

    Args:
        lengths: ‖Δ_i‖, infinite where it left all bounds.
        longest: largest length over the median.
        told_steps: H_i, where clients tell them and the rule uses them.
    """
    found = {}
    cases = [(lengths, longest, "its displacement is")]
    if told_steps is not None:
        cases += [(lengths / told_steps, PACE, "per step told its displacement is")]
    for values, most, what in cases:
        middle = lower_median(values)
        top = min(most * middle, float(np.finfo(np.float64).max))
        for k in np.flatnonzero(~(values <= top)):
            found[int(k)] = f"{what} {values[k] / middle:.3g} times the median"
    return found


def counted_sizes(sizes: Float64[Array, " s"]) -> Int64[Ints, " s"]:
    """Data sizes as whole numbers that nobody inflates: at most 5 × the median.

    Args:
        sizes: positive, as clients tell them. Where some are not whole (any positive
            number may weigh a client) all are scaled.
    """
    m = np.minimum(sizes, LARGEST_SHARE * lower_median(sizes))
    if not (m == np.floor(m)).all() or m.max(initial=0) > _SCALE:
        m = np.maximum(np.rint(m / m.max() * _SCALE), 1)
    return m.astype(np.int64)
