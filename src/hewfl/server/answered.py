"""From the answers of a round's clients, whatever carried them, to a `Round`."""

from collections.abc import Sequence
from math import sqrt
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64

from hewfl.aggregate.pieces import Pieces
from hewfl.core.checks import Array, invalid
from hewfl.core.round import LocalPlan, Roster, Round
from hewfl.server.plausible import counted_sizes, implausible


@runtime_checkable
class Answered(Protocol):
    """One usable answer."""

    @property
    def size(self) -> float:
        """m_i, as told."""

    @property
    def steps(self) -> int:
        """H_i, as ordered, else as told, else one."""

    @property
    def ordered(self) -> tuple[int | None, float, int]:
        """H_i where the server ordered it, η_i and b_i; ones where nobody asks."""

    @property
    def rows(self) -> Sequence[Any]:
        """The arrays of the endpoint y_i, each as a vector."""

    @property
    def sq_norm(self) -> float:
        """‖Δ_i‖²."""

    @property
    def means(self) -> Sequence[Any] | None:
        """The arrays of the mean gradient, where it was sent."""


Answers = Sequence[Answered]
_SAFE = 1e-100
"""Squared lengths within this and its inverse; others are left to the Gram matrix."""


def too_long(answers: Answers, longest: float, *, told: bool) -> dict[int, str]:
    """Whose displacement is far longer than those of the others, and the reason.

    Args:
        answers: of the round.
        longest: largest length over the median, for the work that was ordered.
        told: whether the rule uses the steps that clients tell.
    """
    grounds = np.array([(H or 1.0) * eta for H, eta, _ in (a.ordered for a in answers)])
    lengths = np.array([sqrt(a.sq_norm) for a in answers]) / grounds
    steps = np.array([a.steps for a in answers]) if told else None
    return implausible(lengths, longest, steps)


def roster_of(answers: Answers, clients: Sequence[int], n: int, t: int) -> Roster:
    """Those who are heard, out of n clients, t rounds being done before."""
    batches = np.array([a.ordered[2] for a in answers], dtype=np.int64)
    steps = np.array([a.steps for a in answers], dtype=np.int64)
    sizes = counted_sizes(np.array([a.size for a in answers], dtype=np.float64))
    return Roster(np.array(clients, dtype=np.int64), steps, batches, sizes, n, t)


def round_of(
    anchor: Float64[Array, " d"],
    answers: Answers,
    roster: Roster,
    base: Any,
    *,
    variates: bool,
) -> Round:
    """The round; arrays stay where they are.

    Args:
        anchor: x in float64.
        answers: of the round, at least one.
        roster: those who are heard, in the same order.
        base: x in the precision it was sent in, which displacements are measured from.
        variates: whether the rule keeps control variates.
    """
    sent = [a.means for a in answers if variates and a.means is not None]
    if 0 < len(sent) < len(answers):
        rule = "sent by all clients of a federation with control variates, or none"
        raise invalid("mean-gradient", rule, f"{len(sent)} of {len(answers)}")
    plan = LocalPlan(np.array([a.ordered[1] for a in answers]))
    squares = np.array([a.sq_norm for a in answers])
    moved = squares[squares > 0]  # inverse lengths of these can be multiplied
    known = bool((moved > _SAFE).all() and (moved < 1 / _SAFE).all())
    held = pieces([a.rows for a in answers], base, squares if known else None)
    means = pieces(sent) if sent else None
    return Round(anchor, held, roster, plan, gradients=means)


def pieces(
    vectors: Sequence[Sequence[Any]], base: Any = None, squares: Any = None
) -> Pieces:
    """The arrays of several clients as vectors, where they lie; less the base."""
    parts = zip(*vectors, strict=True)
    return Pieces(tuple(rows for rows in parts if len(rows[0])), base, squares)
