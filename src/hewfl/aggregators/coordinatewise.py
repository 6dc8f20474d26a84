"""Medians and trimmed means of every coordinate."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.aggregator import FAULTY, Aggregator, faulty_count
from hewfl.core.algorithm import Need
from hewfl.core.array_types import Float64
from hewfl.core.displacements import Displacements
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, Faulty, PerClient


def middle_means(
    displacements: Displacements, trimmed: int
) -> tuple[Float64[Array, " k"], PerClient]:
    """Leave out the largest and smallest values of every coordinate, average the rest.

    Args:
        displacements: Δ_i, n of them.
        trimmed: b, values left out at either end; 2b < n.

    Returns:
        The step, a vector of the round's space, and weights: the share of each client
        in the values that were kept. Values that tie for the last place share it.
        Coordinates in which all agree say nothing and do not count; where all are such,
        weights are equal.
    """
    steps, shares = [], np.zeros(displacements.n)
    for block in displacements.blocks():
        ordered = np.sort(block, axis=0)
        kept = ordered[trimmed : displacements.n - trimmed]
        steps.append(kept.mean(axis=0))
        differ = ordered[0] < ordered[-1]
        shares += _shares(block[:, differ], kept[:, differ])
    step = np.concatenate(steps)
    counts = _over_all_ranks(displacements, shares, step)
    total = float(counts.sum())
    if total == 0:
        return step, np.full(displacements.n, 1 / displacements.n)
    return step, counts / total


def _shares(block: Float64[Array, "n k"], kept: Float64[Array, "m k"]) -> PerClient:
    """In how many columns the value of each client is among the middle ones."""
    low, high = kept[0], kept[-1]
    inside = ((block > low) & (block < high)).sum(axis=1).astype(np.float64)
    for end, counts in ((low, low <= high), (high, low < high)):
        ties = block == end  # of which some may have been left out: they share
        share = (kept == end).sum(axis=0) / np.maximum(ties.sum(axis=0), 1)
        inside += ties @ (share * counts)
    return np.asarray(inside)


def _over_all_ranks(
    displacements: Displacements, values: PerClient, step: Float64[Array, " k"]
) -> PerClient:
    """Numbers that each rank has for its own columns, added up over ranks.

    The protocol adds up products of vectors only, so each number travels as the first
    entry of a vector that is zero elsewhere; at a server nothing is changed.
    """
    first, vector = np.zeros_like(step), np.zeros_like(step)
    first[0] = 1.0
    space = displacements.from_matrix(
        first[None, :]
    )  # NumPy vectors, wherever the data lie
    totals = []
    for value in values:
        vector[0] = value
        totals.append(space.dot(first, vector))
    return np.array(totals)


@final
@dataclass(frozen=True, slots=True)
class CoordinateMedian(Aggregator):
    """Every coordinate of the step is the median of the clients' [Yin2018].

        step_k = median over i of Δ_ik

    With an even number of clients it is the mean of the two middle values. The step is
    no combination of displacements, so it is given as such; `weights` says in which
    share of the coordinates a client was the median (two middle clients share, and so
    do ties), over the coordinates in which clients differ.

    """

    name: ClassVar[str] = "Coordinate median"
    needs: ClassVar[frozenset[Need]] = frozenset({"entries"})

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """The median as a step, and how often each client was it."""
        D = round_.displacements
        step, weights = middle_means(D, (D.n - 1) // 2)
        return Decision(weights, "median of every coordinate", step=step), state


@final
@dataclass(frozen=True, slots=True)
class TrimmedMean(Aggregator):
    """In every coordinate the mean of the values between the extremes [Yin2018].

        step_k = mean of Δ_ik over all i but the f largest and the f smallest

    With few clients f may be zero: the rule is then the plain mean, and the status
    gives f. The step is no combination of updates, so it is given as such; `weights` is
    the share of a client in the values that were kept, over the coordinates in which
    clients differ.

    Attributes:
        f: faulty clients, a count or a fraction below ½ of those present.
    """

    f: Faulty = FAULTY

    name: ClassVar[str] = "Trimmed mean"
    needs: ClassVar[frozenset[Need]] = frozenset({"entries"})

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """The trimmed mean as a step, and whose values it kept how often."""
        D = round_.displacements
        f = faulty_count(self.f, round_, (D.n - 1) // 2)
        step, weights = middle_means(D, f)
        status = f"mean of every coordinate but {f} values at either end"
        return Decision(weights, status, step=step), state
