"""More ways to share samples out: few classes, shards, unequal sizes, unlike features.

Every sample goes to exactly one client, and a partition depends on its arguments alone,
the seed among them, as in `hewfl.data.partition`.
"""

import numpy as np
from jaxtyping import Float64, Int64

from hewfl.core.checks import Array, ArrayLike, Ints, invalid, whole
from hewfl.data.partition import (
    Partition,
    check_labels,
    check_sizes,
    dirichlet_partition,
    stream,
)

GROUPS = 10
"""Slices of the data along their first principal component, for `feature_partition`."""
_ROWS = 4096
"""Rows converted at a time: a float64 copy of the whole table need not fit."""


def class_partition(labels: ArrayLike, n: int, per_client: int, seed: int) -> Partition:
    """Each client holds samples of k classes only (the pathological partition).

    Clients choose in turn, in random order, the k classes that fewest have chosen so
    far, ties at random; the samples of a class are then dealt evenly among those who
    chose it.

    Args:
        labels: class of each sample, whole numbers from 0.
        n: clients.
        per_client: k, at most the number of classes; n · k at least that number, or
            some class would go to nobody.
        seed: of choices and shuffles.

    Returns:
        The rows of each client, ascending.

    Raises:
        InvalidInputError: an argument breaks a rule above, or a client gets nothing.

    Examples:
        >>> shards = class_partition([0, 0, 1, 1, 2, 2], 3, per_client=1, seed=0)
        >>> [shard.tolist() for shard in shards]
        [[0, 1], [2, 3], [4, 5]]
    """
    y = check_labels(labels)
    check_sizes(len(y), n, 1)
    classes = np.unique(y)
    c, k = len(classes), whole("per_client", per_client, least=1)
    if k > c or n * k < c:
        rule = f"at most the {c} classes, and enough for {n} clients to hold them all"
        raise invalid("per_client", rule, k)
    rng = stream(seed, "classes")
    owners: list[list[int]] = [[] for _ in classes]
    for client in rng.permutation(n):
        crowd = np.array([len(own) for own in owners])
        for j in np.lexsort((rng.permutation(c), crowd))[:k]:
            owners[j].append(int(client))
    held: list[list[Int64[Ints, " _"]]] = [[] for _ in range(n)]
    for value, own in zip(classes, owners, strict=True):
        parts = np.array_split(rng.permutation(np.flatnonzero(y == value)), len(own))
        for client, part in zip(own, parts, strict=True):
            held[client].append(part)
    return _sorted(held, "per_client", k)


def shard_partition(labels: ArrayLike, n: int, per_client: int, seed: int) -> Partition:
    """Sort by label, cut into n · s shards of equal size, deal s to each client.

    Most clients then hold about s classes [McMahan2017].

    Args:
        labels: class of each sample, whole numbers from 0.
        n: clients.
        per_client: s; n · s may not exceed the samples.
        seed: of the shuffle within classes and of the deal.

    Returns:
        The rows of each client, ascending.

    Raises:
        InvalidInputError: an argument breaks a rule above.
    """
    y = check_labels(labels)
    s = whole("per_client", per_client, least=1)
    check_sizes(len(y), n, s)
    rng = stream(seed, "shards")
    mixed = rng.permutation(len(y))
    shards = np.array_split(mixed[np.argsort(y[mixed], kind="stable")], n * s)
    dealt = rng.permutation(n * s).reshape(n, s)
    return _sorted([[shards[j] for j in row] for row in dealt], "per_client", s)


def quantity_partition(
    m: int, n: int, alpha: float, seed: int, *, minimum: int = 1
) -> Partition:
    """Shares of all samples from one Dirichlet(α, …, α): sizes differ, classes do not.

    Args:
        m: samples.
        n: clients.
        alpha: α > 0; small makes sizes very unequal.
        seed: of shares and shuffle.
        minimum: least samples of a client.

    Returns:
        The rows of each client, ascending.

    Raises:
        InvalidInputError: an argument breaks a rule above.
    """
    one_class = np.zeros(m, dtype=np.int64)
    return dirichlet_partition(one_class, n, alpha, seed, minimum=minimum)


def feature_partition(
    features: ArrayLike, n: int, alpha: float, seed: int, *, minimum: int = 1
) -> Partition:
    """Clients see different parts of feature space: Dirichlet skew of feature groups.

    Samples are sorted along their first principal component and cut into ten groups of
    equal size; each group is shared out as `dirichlet_partition` shares out a class.

    Args:
        features: one row per sample.
        n: clients.
        alpha: α > 0; small is skewed, large is even.
        seed: of shares and shuffles.
        minimum: least samples of a client.

    Returns:
        The rows of each client, ascending.

    Raises:
        InvalidInputError: an argument breaks a rule above.
    """
    X = np.asarray(features)
    place = np.empty(len(X), dtype=np.int64)
    place[np.argsort(_along(X), kind="stable")] = np.arange(len(X))
    groups = place * min(GROUPS, len(X)) // max(len(X), 1)
    return dirichlet_partition(groups, n, alpha, seed, minimum=minimum)


def natural_partition(clients: ArrayLike, n: int) -> Partition:
    """Each client holds the rows that are its own.

    Args:
        clients: whose each sample is, whole numbers from 0 to n − 1.
        n: clients.

    Returns:
        The rows of each client, ascending.

    Raises:
        InvalidInputError: a client has no rows.
    """
    whose = np.asarray(clients)
    counts = np.bincount(whose, minlength=n)
    if len(counts) > n or not counts.all():
        empty = np.flatnonzero(counts == 0).tolist()[:5]
        rule = f"the number of clients with rows ({int((counts > 0).sum())})"
        raise invalid("n", rule, f"{n}" + (f", without rows: {empty}" if empty else ""))
    return tuple(np.flatnonzero(whose == i) for i in range(n))


def _along(X: Array) -> Float64[Array, " m"]:
    """Coordinates of the rows along their first principal component.

    Its sign is set by its largest entry: either is an eigenvector, and which one a
    library returns would change who gets what.
    """
    blocks = [slice(k, k + _ROWS) for k in range(0, len(X), _ROWS)]
    mean = X.mean(axis=0, dtype=np.float64)
    scatter = np.zeros((X.shape[1], X.shape[1]))
    for here in blocks:
        rows = X[here].astype(np.float64) - mean
        scatter += rows.T @ rows
    first = np.linalg.eigh(scatter).eigenvectors[:, -1]
    first = first * np.sign(first[np.argmax(np.abs(first))])
    found = [(X[here].astype(np.float64) - mean) @ first for here in blocks]
    return np.concatenate([np.zeros(0), *found])


def _sorted(held: list[list[Int64[Ints, " _"]]], name: str, given: int) -> Partition:
    shards = tuple(np.sort(np.concatenate(parts)) for parts in held)
    if not all(len(shard) for shard in shards):
        raise invalid(name, "small enough that everybody gets samples", given)
    return shards
