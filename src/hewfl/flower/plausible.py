"""What a client may tell and send: bounded by what the others of the round do.

A server cannot look into its clients. It can compare them: with fewer than half of them
bad, the lower median of a round is at most the largest honest number, so that bounds
around it hold against whatever the others send.

    ‖Δ_i‖ ≤ `longest` · median_j ‖Δ_j‖            else the reply is left out
    ‖Δ_i‖/H_i ≤ 4 · median_j ‖Δ_j‖/H_j            where a rule asks for the steps told
    m_i counts as at most 5 · median_j m_j

Every rule that averages then moves the model by at most `longest` · max ‖Δ‖ over the
honest clients.
"""

from collections.abc import Sequence
from math import inf, sqrt
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from hewfl.core.checks import Array, Ints
from hewfl.flower.replies import Answer, Exclusion

PACE = 4.0
"""Of ‖Δ‖/H, for steps that clients tell. Plain SGD with one step size moves by about
the gradient in each step; who claims fewer steps than it did is above its neighbours."""
LARGEST_SHARE = 5.0
"""Of a client's examples, over the median: they are a claim that nobody can check."""


def plausible(
    answers: Sequence[Answer], longest: float, *, told_steps: bool = False
) -> tuple[list[Answer], list[Exclusion]]:
    """The answers that are of the size of the others, and why the rest is not.

    Ordered work counts: lengths are compared per η_iH_i where the server ordered it.

    Args:
        answers: finite ones.
        longest: largest length over the median; infinite leaves out nobody whose
            length is a number.
        told_steps: whether steps that clients told are used.
    """
    if not answers:
        return [], []
    lengths = np.array([sqrt(a.sq_norm) / _ordered(a) for a in answers])
    found = _outliers(answers, lengths, longest, "its displacement is")
    if told_steps:
        paces = lengths / np.array([a.steps for a in answers])
        found |= _outliers(answers, paces, PACE, "per step told its displacement is")
    return [a for a in answers if a.question.node not in found], list(found.values())


def _ordered(answer: Answer) -> float:
    """η_iH_i, where the server ordered them; else one."""
    steps = answer.question.steps
    return 1.0 if steps is None else steps * answer.question.step_size


def _outliers(
    answers: Sequence[Answer], values: Float64[Array, " s"], most: float, what: str
) -> dict[int, Exclusion]:
    found, middle = {}, lower_median(values)
    for answer, value in zip(answers, values, strict=True):
        if not value <= min(most * middle, np.finfo(np.float64).max):
            node, times = answer.question.node, value / middle if middle else inf
            text = f"{what} {times:.3g} times the median, more than {most:g}"
            found[node] = Exclusion(node, "implausible", text)
    return found


def lower_median(values: Float64[Array, " s"]) -> float:
    """The lower median of those that are not zero; zero if all are.

    Of two numbers it is the smaller: one bad client of two cannot make it large.
    Clients that stood still say nothing about how far the others may go.
    """
    moved = np.sort(values[values > 0])
    return float(moved[(len(moved) - 1) // 2]) if len(moved) else 0.0


def counted(sizes: Any) -> Int64[Ints, " s"]:
    """Sizes as whole numbers that nobody inflates: at most 5 × the median.

    Weights that are not whole (any positive number under `weighted_by_key`) are scaled.
    """
    m = np.asarray(sizes, dtype=np.float64)
    m = np.minimum(m, LARGEST_SHARE * lower_median(m))
    if not (m == np.floor(m)).all() or m.max() > 2**40:
        m = np.maximum(np.rint(m / m.max() * 2**40), 1)
    return m.astype(np.int64)
