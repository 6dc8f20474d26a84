"""Medians, trimmed means and their like, of every coordinate."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, final

import numpy as np

from hewfl.aggregators.aggregator import FAULTY, Aggregator, faulty_count
from hewfl.aggregators.distance import (
    distance_error,
    krum_scores,
    lowest,
    sq_distances,
)
from hewfl.core.algorithm import Need
from hewfl.core.array_types import Bool, Float, Float64, Int64
from hewfl.core.displacements import Displacements, StoredBlocks
from hewfl.core.native import PASSES, library
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, Faulty, Ints, Mask, PerClient
from hewfl.displacements.backend import host_rows

PerColumn = Float64[Array, " k"]

ROUNDED = 1e-15
"""Distances to a median that differ by less than this share of it are equal but for
rounding."""
COMPILED = 256
"""Up to so many clients the compiled sorting network is used."""
NETWORK = 32
"""Up to so many clients a sorting network takes about half the time of `np.sort`."""


def blocks_as_stored(displacements: Displacements) -> Iterator[Float[Array, "n k"]]:
    """Columns in their own precision where that is known: half the work for float32."""
    if isinstance(displacements, StoredBlocks):
        return displacements.stored_blocks()
    return displacements.blocks()


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
    n = displacements.n
    return window_means(displacements, n - 2 * trimmed, trimmed)


def window_means(
    displacements: Displacements,
    count: int,
    first: int | Callable[[Float[Array, "n k"]], PerColumn],
) -> tuple[Float64[Array, " k"], PerClient]:
    """Means of `count` neighbours among the sorted values of every coordinate.

    Args:
        displacements: Δ_i, n of them.
        count: values that are averaged.
        first: the place of the first one that is kept; or a function from the sorted
            values of a block to one place for each column. A half between two places
            means that both windows count half.

    Returns:
        The step and the weights, as of `middle_means`.
    """
    steps, shares = [], np.zeros(displacements.n)
    for block in blocks_as_stored(displacements):
        if isinstance(first, int):
            mean, counts = _fixed_window(block, first, count)
            steps.append(mean)
            shares += counts
        else:
            ordered = sort_columns(block)
            place = first(ordered)
            sides = [np.floor(place), np.ceil(place)]
            sides = sides[:1] if (sides[0] == sides[1]).all() else sides
            windows = [
                np.take_along_axis(
                    ordered, side.astype(np.int64) + np.arange(count)[:, None], axis=0
                )
                for side in sides
            ]
            means = [kept.mean(axis=0, dtype=np.float64) for kept in windows]
            steps.append(np.mean(means, axis=0))
            shares += np.mean([_shares(block, ordered, w) for w in windows], axis=0)
    step = np.concatenate(steps)
    counts = sum_over_ranks(displacements, shares)
    total = float(counts.sum())
    if total == 0:
        return step, np.full(displacements.n, 1 / displacements.n)
    return step, counts / total


def _fixed_window(
    block: Float[Array, "n k"], first: int, count: int
) -> tuple[PerColumn, PerClient]:
    """Means of the sorted values first, …, first + count − 1, and who is in them."""
    n, width = block.shape
    # None as well in a checkout whose kernels were built before this one was written
    kernel = getattr(library(PASSES), "window_means", None)
    if kernel is not None and n <= COMPILED and np.isfinite(block.sum()):
        lent = host_rows(list(block))
        if lent is not None:
            mean, counts = np.empty(width), np.zeros(n)
            kernel(*lent, width, _comparisons(n), first, count, mean, counts)
            return mean, counts
    ordered = sort_columns(block)
    kept = ordered[first : first + count]
    return kept.mean(axis=0, dtype=np.float64), _shares(block, ordered, kept)


@cache
def _comparisons(n: int) -> bytes:
    """The network as the kernel reads it."""
    return np.array(_network(n), dtype=np.int32).tobytes()


def sort_columns(block: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """The values of every column in increasing order, NaN last; the block is kept.

    A network is a fixed list of comparisons of whole rows [Batcher1968].
    """
    n = len(block)
    if n > NETWORK or not np.isfinite(block.sum()):
        return np.sort(block, axis=0)
    rows, spare = list(np.array(block)), np.empty_like(block[0])
    for i, j in _network(n):
        np.minimum(rows[i], rows[j], out=spare)
        np.maximum(rows[i], rows[j], out=rows[j])
        rows[i], spare = spare, rows[i]
    return np.stack(rows)


@cache
def _network(n: int) -> tuple[tuple[int, int], ...]:
    """Comparisons that sort n values: Batcher's odd-even merges."""
    pairs, p = [], 1
    while p < n:
        k = p
        while k >= 1:
            pairs += [
                (i + j, i + j + k)
                for j in range(k % p, n - k, 2 * k)
                for i in range(min(k, n - j - k))
                if (i + j) // (2 * p) == (i + j + k) // (2 * p)
            ]
            k //= 2
        p *= 2
    return tuple(pairs)


def _shares(
    block: Float[Array, "n k"],
    ordered: Float[Array, "n k"],
    kept: Float[Array, "m k"],
) -> PerClient:
    """In how many columns in which clients differ each is among the kept values."""
    low, high, differ = kept[0], kept[-1], ordered[0] < ordered[-1]
    counts = _per_row((block >= low) & (block <= high))
    if counts.sum() == kept.size and differ.all():
        return counts  # no value that was left out ties with one kept
    if not differ.all():
        block, kept = block[:, differ], kept[:, differ]
        low, high = kept[0], kept[-1]
    counts = _per_row((block > low) & (block < high))
    for end, is_counted in ((low, low <= high), (high, low < high)):
        # of those that tie some may have been left out: they share. By BLAS.
        ties = (block == end).astype(np.float64)
        places = np.ones(len(kept)) @ (kept == end).astype(np.float64)
        shared = np.maximum(np.ones(len(block)) @ ties, 1)
        counts += ties @ (places / shared * is_counted)
    return np.asarray(counts)


def _per_row(mask: Bool[Mask, "n k"]) -> PerClient:
    """How many are true in each row; one by one they are counted fastest."""
    return np.array([np.count_nonzero(row) for row in mask], dtype=np.float64)


def sum_over_ranks(
    displacements: Displacements, values: Float64[Array, " m"]
) -> Float64[Array, " m"]:
    """Numbers that each rank has for its own columns, added up over ranks.

    The protocol adds up products of vectors only, so each number travels as the entry
    of a vector of length one; at a server nothing is changed.
    """
    return displacements.from_matrix(values[:, None]).inner(np.ones(1))


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
        f, note = faulty_count(self.f, round_, (D.n - 1) // 2)
        step, weights = middle_means(D, f)
        status = f"mean of every coordinate but {f} values at either end{note}"
        return Decision(weights, status, step=step), state


@final
@dataclass(frozen=True, slots=True)
class Meamed(Aggregator):
    """In every coordinate the mean of the values nearest to the median [Xie2018].

        step_k = mean of the n − f values Δ_ik that are nearest to the median over i

    Of two values at one distance from the median, both count half. The step is no
    combination of updates, so it is given as such; `weights` is the share of a client
    in the values that were kept, over the coordinates in which clients differ.

    Attributes:
        f: faulty clients, a count or a fraction below ½ of those present.
    """

    f: Faulty = FAULTY

    name: ClassVar[str] = "Mean around median"
    needs: ClassVar[frozenset[Need]] = frozenset({"entries"})

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """The mean around the median as a step, and whose values it is of."""
        D = round_.displacements
        f, note = faulty_count(self.f, round_, (D.n - 1) // 2)
        step, weights = means_around_median(D, D.n - f)
        status = f"mean of the {D.n - f} values nearest to the median{note}"
        return Decision(weights, status, step=step), state


def means_around_median(
    displacements: Displacements, count: int
) -> tuple[Float64[Array, " k"], PerClient]:
    """Means of the `count` values of every coordinate that are nearest to its median.

    They are neighbours in the sorted values: of the n − count + 1 windows of that
    length the one whose farther end is nearest to the median.
    """

    def first(ordered: Float[Array, "n k"]) -> Float64[Array, " k"]:
        n = len(ordered)
        middle = ordered[[(n - 1) // 2, n // 2]].mean(axis=0, dtype=np.float64)
        place = np.zeros(len(middle))
        best = np.maximum(middle - ordered[0], ordered[count - 1] - middle)
        error = ROUNDED * np.abs(middle)
        for k in range(1, n - count + 1):
            far = np.maximum(middle - ordered[k], ordered[k + count - 1] - middle)
            ahead = best - far
            np.copyto(place, k, where=ahead > error)
            place += 0.5 * (np.abs(ahead) <= error)  # halfway to a window that ties
            np.minimum(best, far, out=best)
        return place

    return window_means(displacements, count, first)


@final
@dataclass(frozen=True, slots=True)
class Bulyan(Aggregator):
    """Krum chooses, then coordinates near their median are averaged [ElMhamdi2018].

        S = n − 2f clients: Krum's choice, taken out, again and again
        step_k = mean of the |S| − 2f values Δ_ik, i ∈ S, nearest to their median

    The paper proves its bound for n ≥ 4f + 3; where fewer clients are present, f is the
    largest that satisfies it, and the status gives f. Krum's last choices are among few
    neighbours and often tie: then the client nearest to all others goes first, and
    those that tie in that too go together.

    Attributes:
        f: faulty clients, a count or a fraction below ½ of those present.
    """

    f: Faulty = FAULTY

    name: ClassVar[str] = "Bulyan"
    needs: ClassVar[frozenset[Need]] = frozenset({"entries"})

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """The step, and in which share of the coordinates it used a client."""
        D = round_.displacements
        f, note = faulty_count(self.f, round_, (D.n - 3) // 4)
        chosen = _chosen_by_krum(D.products().gram, D.n - 2 * f, f)
        selected: Any = D.take(chosen)
        step, shares = means_around_median(selected, len(chosen) - 2 * f)
        weights = np.zeros(D.n)
        weights[chosen] = shares
        status = f"{len(chosen)} clients by Krum, {f} faulty clients assumed{note}"
        return Decision(weights, status, step=step), state


def _chosen_by_krum(
    gram: Float64[Array, "n n"], count: int, f: int
) -> Int64[Ints, " m"]:
    """Clients in increasing order that Krum chooses one after the other."""
    apart, error = sq_distances(gram), distance_error(gram)
    to_all, left = apart.sum(axis=1), np.arange(len(gram))
    while len(gram) - len(left) < count:
        scores = krum_scores(apart[np.ix_(left, left)], f)
        ties = left[lowest(scores, 1, error) > 0]
        ties = ties[lowest(to_all[ties], 1, error) > 0]
        left = np.setdiff1d(left, ties)
    return np.setdiff1d(np.arange(len(gram)), left)
