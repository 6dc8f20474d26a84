"""What a method needs to reach a target: rounds, scalars sent, seconds."""

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array
from hewfl.experiments.axes import Axis, places
from hewfl.experiments.compare import half_width
from hewfl.experiments.results import Results
from hewfl.experiments.standing import Standing
from hewfl.experiments.tune import LARGER_IS_BETTER


def common_target(standing: Standing) -> float | None:
    """A level that about half of the methods reach: the middle one's worst seed.

    None where no method came through every seed.
    """
    kept = [v for v in standing.finals.values() if np.isfinite(v).all()]
    if not kept:
        return None
    middle = kept[(len(kept) - 1) // 2]
    is_up = standing.quantity in LARGER_IS_BETTER
    return float(middle.min() if is_up else middle.max())


def reach(
    results: Results, label: str, quantity: str, target: float, axis: Axis
) -> Float64[Array, " seeds"]:
    """Where each seed of a method first is at a target; infinite where it never is.

    Between two evaluations by a straight line.
    """
    values = results.values(label, results.judged(label, quantity))
    sign = -1.0 if quantity in LARGER_IS_BETTER else 1.0
    found = []
    for at, row in zip(places(results, label, axis), sign * values, strict=True):
        there = np.flatnonzero(row <= sign * target)
        if there.size == 0:
            found.append(np.inf)
            continue
        k = there[0]
        before = row[k - 1] if k else row[k]
        whole = before - row[k]
        part = (before - sign * target) / whole if np.isfinite(whole) and whole else 1.0
        found.append(at[k - 1] + part * (at[k] - at[k - 1]) if k else at[k])
    return np.array(found)


def reach_text(found: Float64[Array, " seeds"]) -> str:
    """Mean with its interval; where seeds never arrive, the median and how many do."""
    arrived = np.isfinite(found)
    if not arrived.any():
        return "not reached"
    if not arrived.all():
        middle = np.sort(found)[(len(found) - 1) // 2]
        half = f", median {short(middle)}" if np.isfinite(middle) else ""
        return f"in {arrived.sum()} of {len(found)} seeds{half}"
    mean = float(found.mean())
    if len(found) == 1:
        return short(mean)
    width = half_width(found)
    return f"{short(mean)} [{short(max(mean - width, 0.0))}, {short(mean + width)}]"


def short(value: float) -> str:
    """Three digits, thousands as k, millions as M."""
    for least, unit, name in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= least:
            return f"{value / unit:.3g} {name}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
