"""What clients may claim: bounded by what the others of a round do.

A server cannot look into its clients, but it can compare them. With fewer than half of
them bad, the lower median of a round is at most the largest honest number, so bounds
around it hold against whatever the others send:

    ‖Δ_i‖ ≤ c · median_j ‖Δ_j‖          else the client is left out of the round
    m_i counts as at most 5 · median_j m_j

Every rule that averages then moves the model by at most c times the longest honest
displacement.
"""

import numpy as np
from jaxtyping import Bool, Float64, Int64

from hewfl.core.checks import Array, Ints, Mask

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


def within(values: Float64[Array, " s"], most: float) -> Bool[Mask, " s"]:
    """Which values are finite and at most `most` times their lower median.

    Args:
        values: nonnegative, such as lengths; infinite where they left all bounds.
        most: largest ratio.
    """
    top = min(most * lower_median(values), float(np.finfo(np.float64).max))
    return np.asarray(values <= top)


def counted_sizes(sizes: Float64[Array, " s"]) -> Int64[Ints, " s"]:
    """Data sizes as whole numbers that nobody inflates: at most 5 × the median.

    Args:
        sizes: positive, as clients tell them. Where some are not whole (any positive
            number may weigh a client) all are scaled.
    """
    if len(sizes) == 0:
        return np.zeros(0, dtype=np.int64)
    m = np.minimum(sizes, LARGEST_SHARE * lower_median(sizes))
    if not (m == np.floor(m)).all() or m.max() > _SCALE:
        m = np.maximum(np.rint(m / m.max() * _SCALE), 1)
    return m.astype(np.int64)
