"""Means of the middle values of every coordinate, and whose values they were."""

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.displacements import Displacements
from hewfl.core.validation import Array, PerClient


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
    found = []
    for value in values:
        vector[0] = value
        found.append(space.dot(first, vector))
    return np.array(found)
