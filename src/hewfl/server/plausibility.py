"""Bounds on the claims of clients, by what the other clients of a round do.

A server cannot look into its clients, but it can compare them. With fewer than half of
them Byzantine, the lower median of a round is at most the largest honest number, so
bounds around it hold against whatever the others send:

    ‖Δ_i‖ ≤ c · median_j ‖Δ_j‖            else the client is left out of the round
    ‖Δ_i‖/H_i ≤ 4 · median_j ‖Δ_j‖/H_j    likewise, where clients report their steps
    |v_i| ≤ max(1, median_j |v_j|) · 1,000    else out of the mean of a metric

Every aggregator that averages then moves the model by at most c times the longest
honest displacement. A data size is a claim that nothing can verify: it may be half of
the truth or a lie. So its effect is bounded by a share of the whole,

    m_i ≤ max_share · Σ_j m_j             larger sizes are lowered to this share
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from hewfl.core.algorithm import Demands
from hewfl.core.array_types import Bool, Float, Float64, Int64
from hewfl.core.validation import Array, Ints, Mask, format_value, invalid, positive

MAX_NORM_RATIO, MAX_CLIPPED_RATIO = 10.0, 100.0
"""Of ‖Δ‖, over the median: by default, and where the rule itself shortens what is long.
There a client that is left out would be an honest one of ten times the speed."""
MAX_STEP_RATIO = 4.0
"""Of ‖Δ‖/H, over the median. Plain SGD with one step size moves by about a gradient in
each step; a client that claims fewer steps than it took is above its neighbours."""
MAX_METRIC_RATIO = 1000.0
"""Of a reported metric, over the median of the round, and over one."""
MAX_COUNT = 2**53
"""Of what a client may report: beyond, floating-point numbers need not be whole."""
_SCALE = 2**40
"""What the largest size counts where sizes are not whole numbers."""


def lower_median(values: Float64[Array, " s"]) -> float:
    """The lower median of the values that are not zero; zero if all are.

    Of two numbers it is the smaller: one bad client of two cannot make it large.
    Clients that did not move say nothing about how far the others may go.
    """
    moved = np.sort(values[values > 0])
    return float(moved[(len(moved) - 1) // 2]) if len(moved) else 0.0


def norm_ratio(given: float | None, demands: Demands) -> float:
    """The largest length over the median; None for the default of a rule."""
    if given is not None:
        return positive("max_norm_ratio", given)
    return MAX_CLIPPED_RATIO if demands.clips else MAX_NORM_RATIO


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


def unusable_updates(
    updates: Sequence[tuple[Float[Array, " d"], Float[Array, " k"]]],
    max_norm_ratio: float,
    steps: Int64[Ints, " s"] | None = None,
) -> dict[int, tuple[str, str]]:
    """The displacements that cannot be aggregated: the kind of fault, and the reason.

    Args:
        updates: Δ_i, where clients choose their work: one that did not move is idle;
            and what else the client sent, which must be finite.
        max_norm_ratio: largest length over the median.
        steps: H_i, where clients report them and the aggregator uses them.

    >>> unusable_updates([(np.ones(2), np.ones(0)), (np.zeros(2), np.ones(0))], 10.0)
    {1: ('idle', 'it returned the model that was sent')}
    """
    reasons = {}
    for i, parts in enumerate(updates):
        bad = sum(int((~np.isfinite(part)).sum()) for part in parts)
        if bad:
            reasons[i] = ("not-finite", f"{bad} entries are not finite")
    usable = np.array(
        [i for i in range(len(updates)) if i not in reasons], dtype=np.int64
    )
    with np.errstate(all="ignore"):  # finite entries may have squares that are not
        wide = (updates[i][0].astype(np.float64) for i in usable)
        lengths = np.array([np.sqrt(row @ row) for row in wide])
    if lengths.any():
        text = "it returned the model that was sent"
        reasons |= {
            int(usable[k]): ("idle", text) for k in np.flatnonzero(lengths == 0)
        }
    known = None if steps is None else steps[usable]
    for k, reason in implausible_lengths(lengths, max_norm_ratio, known).items():
        reasons[int(usable[k])] = ("implausible", reason)
    return reasons


def finite_numbers(record: Mapping[str, Any] | None) -> dict[str, float]:
    """The finite numbers of a record by name.

    >>> finite_numbers({"loss": 1, "acc": float("nan"), "by class": [0.5, 0.7]})
    {'loss': 1.0}
    """
    return {
        str(name): float(value)
        for name, value in (record or {}).items()
        if isinstance(value, int | float) and isfinite(value)
    }


def implausible_metrics(values: Float64[Array, " s"]) -> Bool[Mask, " s"]:
    """Which values of one metric are far above those of the other clients.

    Args:
        values: finite, one for each client.
    """
    sizes = np.abs(values)
    return sizes > MAX_METRIC_RATIO * max(1.0, lower_median(sizes))


def plausible_means(
    reported: Sequence[Mapping[str, float]], sizes: Float64[Array, " s"]
) -> dict[str, float]:
    """Means of the metrics that most clients report, without implausible values.

    Args:
        reported: finite numbers by name, of each client.
        sizes: what each client counts as.

    >>> plausible_means([{"loss": 1.0}, {"loss": 3.0}, {"loss": 1e9}], np.ones(3))
    {'loss': 2.0}
    """
    means = {}
    for key in dict.fromkeys(key for metrics in reported for key in metrics):
        held = [k for k, metrics in enumerate(reported) if key in metrics]
        values = np.array([reported[k][key] for k in held])
        usable = ~implausible_metrics(values)
        weights = sizes[held][usable]
        if 2 * len(held) > len(reported) and weights.size:
            means[key] = float(weights @ values[usable] / weights.sum())
    return means


def require_weighting(weighting: object, max_share: float) -> None:
    """Require a known way to count clients.

    Raises:
        InvalidInputError: neither "equal" nor "size", or a share outside (0, 1].
    """
    if weighting not in ("equal", "size"):
        raise invalid("weighting", '"equal" or "size"', format_value(weighting))
    if positive("max_share", max_share) > 1:
        raise invalid("max_share", "above 0 and at most 1", max_share)


def cap_shares(sizes: Float64[Array, " s"], max_share: float) -> Float64[Array, " s"]:
    """Sizes of which none is more than `max_share` of their sum: min(m_i, c).

        c = max_share · Σ_j min(m_j, c)

    Where max_share < 1/n there is no such c above zero, and all sizes are equal.

    >>> cap_shares(np.array([10.0, 10.0, 1000.0]), 0.5).tolist()
    [10.0, 10.0, 20.0]
    """
    n, largest = len(sizes), np.sort(sizes)[::-1]
    if n == 0 or largest[0] <= max_share * largest.sum():
        return sizes
    for k in range(1, n):  # the k largest are lowered to c
        room = 1 - k * max_share
        if room <= 0:
            break
        c = max_share * float(largest[k:].sum()) / room
        if c >= largest[k]:
            return np.minimum(sizes, c)
    return np.full(n, largest[-1])


def whole_sizes(sizes: Float64[Array, " s"]) -> Int64[Ints, " s"]:
    """Sizes as whole numbers of at least 1; scaled where some are not whole.

    Args:
        sizes: positive: any positive number may weigh a client.
    """
    if not (sizes == np.floor(sizes)).all() or sizes.max(initial=0) > _SCALE:
        sizes = np.maximum(np.rint(sizes / sizes.max() * _SCALE), 1)
    return sizes.astype(np.int64)
