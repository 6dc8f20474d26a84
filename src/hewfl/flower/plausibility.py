"""Bounds on the claims of clients, by what the other clients of a round do.

A server cannot look into its clients, but it can compare them. With fewer than half of
them Byzantine, the lower median of a round is at most the largest honest number, so
bounds around it hold against whatever the others send:

    ‖Δ_i‖ ≤ c · median_j ‖Δ_j‖            else the client is left out of the round
    ‖Δ_i‖/H_i ≤ 4 · median_j ‖Δ_j‖/H_j    likewise, where clients report their steps
    m_i counts as at most 5 · median_j m_j

Every aggregator that averages then moves the model by at most c times the longest
honest displacement.
"""

import numpy as np

from hewfl.core.array_types import Float64, Int64
from hewfl.core.validation import Array, Ints

MAX_STEP_RATIO = 4.0
"""Of ‖Δ‖/H, over the median. Plain SGD with one step size moves by about a gradient in
each step; a client that claims fewer steps than it took is above its neighbours."""
MAX_SIZE_RATIO = 5.0
"""Of a client's data size, over the median: it is a claim that nothing can verify."""
_SCALE = 2**40
"""What the largest size counts where sizes are not whole numbers."""


def lower_median(values: Float64[Array, " s"]) -> float:
    """The lower median of the values that are not zero; zero if all are.

    Of two numbers it is the smaller: one bad client of two cannot make it large.
    Clients that did not move say nothing about how far the others may go.
    """
    moved = np.sort(values[values > 0])
    return float(moved[(len(moved) - 1) // 2]) if len(moved) else 0.0


def implausible_lengths(
    lengths: Float64[Array, " s"],
    max_norm_ratio: float,
    steps: Int64[Ints, " s"] | None = None,
) -> dict[int, str]:
    """The clients whose displacement is far longer than the others', and the reason.

    Args:
        lengths: ‖Δ_i‖, infinite where it left all bounds.
        max_norm_ratio: largest length over the median.
        steps: H_i, where clients report them and the aggregator uses them.
    """
    reasons = {}
    cases = [(lengths, max_norm_ratio, "its displacement is")]
    if steps is not None:
        per_step = lengths / steps
        cases += [(per_step, MAX_STEP_RATIO, "per reported step its displacement is")]
    for values, ratio, text in cases:
        median = lower_median(values)
        bound = min(ratio * median, float(np.finfo(np.float64).max))
        for k in np.flatnonzero(~(values <= bound)):
            reasons[int(k)] = f"{text} {values[k] / median:.3g} times the median"
    return reasons


def capped_sizes(sizes: Float64[Array, " s"]) -> Int64[Ints, " s"]:
    """Data sizes as whole numbers, each at most 5 times the median.

    Args:
        sizes: positive, as clients report them. Where some are not whole (any positive
            number may weigh a client) all are scaled.
    """
    m = np.minimum(sizes, MAX_SIZE_RATIO * lower_median(sizes))
    if not (m == np.floor(m)).all() or m.max(initial=0) > _SCALE:
        m = np.maximum(np.rint(m / m.max() * _SCALE), 1)
    return m.astype(np.int64)
