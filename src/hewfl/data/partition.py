"""Who holds which samples: even shards, or class-wise Dirichlet label skew.

Every sample goes to exactly one client, and a partition depends on its arguments alone,
the seed among them.
"""

from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64

from hewfl.core.checks import Array, ArrayLike, Ints, invalid, positive

Partition = tuple[Int64[Ints, " _"], ...]
"""Rows of each client, ascending."""

_STREAMS = {"split": 0, "iid": 1, "dirichlet": 2, "classes": 3, "shards": 4}

_EVEN = 1e32
"""Beyond this concentration shares are equal to rounding; far beyond, they overflow."""


def stream(
    seed: int, purpose: Literal["split", "iid", "dirichlet", "classes", "shards"]
) -> np.random.Generator:
    """The generator of one purpose, independent of those of the others."""
    if seed < 0:
        raise invalid("seed", "a whole number from 0", seed)
    sequence = np.random.SeedSequence(seed, spawn_key=(_STREAMS[purpose],))
    return np.random.default_rng(sequence)


def iid_partition(m: int, n: int, seed: int) -> Partition:
    """Shuffle m samples and deal them evenly: shard sizes differ by at most one.

    Args:
        m: samples.
        n: clients, from 1 to m.
        seed: of the shuffle.

    Returns:
        The rows of each client, ascending.

    Raises:
        InvalidInputError: an argument breaks a rule above.

    Examples:
        >>> [len(shard) for shard in iid_partition(10, 3, seed=0)]
        [4, 3, 3]
    """
    check_sizes(m, n, 1)
    order = stream(seed, "iid").permutation(m)
    return tuple(np.sort(shard) for shard in np.array_split(order, n))


def dirichlet_partition(
    labels: ArrayLike, n: int, alpha: float, seed: int, *, minimum: int = 1
) -> Partition:
    """Class-wise Dirichlet label skew with a minimum shard size.

    For each class c, shares p_c ~ Dirichlet(α, …, α) over the n clients cut the class,
    shuffled, at the rounded cumulative shares. Then each client short of the minimum
    is filled up, with the classes it drew the largest shares of first, each time from
    the client that can spare the most of that class.

    Filling up ends for every feasible input and moves as few samples as possible; all
    others stay where the draw put them. Drawing again until every client has enough,
    as is common, may never end, and replaces the Dirichlet law by a conditional one.

    Args:
        labels: class of each sample, whole numbers from 0.
        n: clients.
        alpha: α > 0; small is skewed, large is even.
        seed: of shares and shuffles.
        minimum: least samples of a client; n · minimum may not exceed the samples.

    Returns:
        The rows of each client, ascending.

    Raises:
        InvalidInputError: an argument breaks a rule above.

    Examples:
        >>> shards = dirichlet_partition([0, 0, 0, 1, 1, 1], 3, alpha=0.1, seed=0)
        >>> [shard.tolist() for shard in shards]
        [[1], [2], [0, 3, 4, 5]]
    """
    y = check_labels(labels)
    check_sizes(len(y), n, minimum)
    concentration = np.full(n, min(positive("alpha", alpha), _EVEN))
    rng = stream(seed, "dirichlet")
    classes = np.unique(y)
    shares = rng.dirichlet(concentration, size=len(classes))
    members = [rng.permutation(np.flatnonzero(y == c)) for c in classes]
    pieces = [
        np.split(rows, _cuts(p, len(rows)))
        for rows, p in zip(members, shares, strict=True)
    ]
    _fill_up(pieces, shares, minimum)
    return tuple(np.sort(np.concatenate(shard)) for shard in zip(*pieces, strict=True))


def class_counts(
    labels: ArrayLike, partition: Partition, classes: int
) -> Int64[Ints, "n c"]:
    """Samples of each class that each client holds.

    Args:
        labels: class of each sample, whole numbers from 0.
        partition: rows of each client.
        classes: c, columns of the result.

    Returns:
        Samples of each class, one row for each client.
    """
    y = np.asarray(labels)
    held = [np.bincount(y[shard], minlength=classes) for shard in partition]
    return np.stack(held).astype(np.int64)


def check_labels(labels: ArrayLike) -> Int64[Ints, " m"]:
    """Require a vector of whole numbers from 0."""
    y = np.asarray(labels)
    if y.ndim != 1 or y.dtype.kind not in "iu" or (len(y) and y.min() < 0):
        raise invalid("labels", "a vector of whole numbers from 0", repr(labels)[:80])
    return y.astype(np.int64, copy=False)


def check_sizes(m: int, n: int, minimum: int) -> None:
    """Require that m samples give n clients the minimum each."""
    if n < 1:
        raise invalid("n", "at least 1", n)
    if minimum < 0:
        raise invalid("minimum", "at least 0", minimum)
    if m < 1:
        raise invalid("samples", "at least one", m)
    if n * minimum > m:
        rule = f"at most the {m} samples divided by `minimum` = {minimum}"
        raise invalid("n", rule, n)


def _cuts(shares: Float64[Array, " n"], m: int) -> Int64[Ints, " k"]:
    """Where to cut m samples so that pieces are near m · shares."""
    return np.rint(m * np.cumsum(shares)[:-1]).astype(np.int64)


def _fill_up(
    pieces: list[list[Int64[Ints, " _"]]], shares: Float64[Array, "c n"], minimum: int
) -> None:
    """Give samples, in place, to every client short of the minimum.

    While a client is short, another holds more than the minimum, as n · minimum ≤ m;
    each move ends the shortage or uses up what a donor can spare of a class.
    """
    counts = np.array([[len(piece) for piece in row] for row in pieces])
    sizes = counts.sum(axis=0)
    for client in np.flatnonzero(sizes < minimum):
        for c in np.argsort(-shares[:, client], kind="stable"):
            while (short := minimum - sizes[client]) > 0:
                spare = np.minimum(counts[c], sizes - minimum)
                donor = np.argmax(spare)
                moved = min(short, spare[donor])
                if moved <= 0:
                    break
                kept, given = np.split(pieces[c][donor], [counts[c, donor] - moved])
                pieces[c][donor] = kept
                pieces[c][client] = np.concatenate([pieces[c][client], given])
                counts[c, [client, donor]] += [moved, -moved]
                sizes[[client, donor]] += [moved, -moved]
