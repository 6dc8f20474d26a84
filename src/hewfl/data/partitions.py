"""Partitions of samples among clients: IID shards and forms of non-IID skew.

Every sample goes to exactly one client. A partition depends on its arguments alone,
the seed among them. `partition` chooses one by its name in specs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

import numpy as np

from hewfl.core.array_types import Float64, Int64, Num
from hewfl.core.plugins import check_name, is_user_code, load, make, short_name
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Ints,
    format_value,
    invalid,
    positive,
    whole,
)
from hewfl.data.dataset import Numbers

Partition = tuple[Int64[Ints, " _"], ...]
"""TrainingRows of each client, ascending."""

_STREAMS = {"split": 0, "iid": 1, "dirichlet": 2, "classes": 3, "shards": 4}

_GROUPS = 10
"""Slices of the data along their first principal component, for `feature_partition`."""
_ROWS = 4096
"""TrainingRows converted at a time: a float64 copy of the whole table need not fit."""
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
    _check_sizes(m, n, 1)
    order = stream(seed, "iid").permutation(m)
    return tuple(np.sort(shard) for shard in np.array_split(order, n))


def dirichlet_partition(
    labels: ArrayLike, n: int, alpha: float, seed: int, *, min_samples: int = 1
) -> Partition:
    """Class-wise Dirichlet label skew with a minimum shard size.

    For each class c, shares p_c ~ Dirichlet(α, …, α) over the n clients cut the class,
    shuffled, at the rounded cumulative shares. Then each client below the minimum
    is filled up, with the classes of its largest shares first, each time from the
    client that can spare the most of that class.

    Filling up ends for every feasible input and moves as few samples as possible; all
    others stay where the draw put them. Drawing again until every client has enough,
    as is common, may never end, and replaces the Dirichlet law by a conditional one.

    Args:
        labels: class of each sample, whole numbers from 0.
        n: clients.
        alpha: α > 0; small is skewed, large is even.
        seed: of shares and shuffles.
        min_samples: fewest samples of a client; n · min_samples may not exceed the
            samples.

    Returns:
        The rows of each client, ascending.

    Raises:
        InvalidInputError: an argument breaks a rule above.

    Examples:
        >>> shards = dirichlet_partition([0, 0, 0, 1, 1, 1], 3, alpha=0.1, seed=0)
        >>> [shard.tolist() for shard in shards]
        [[1], [2], [0, 3, 4, 5]]
    """
    y = _check_labels(labels)
    _check_sizes(len(y), n, min_samples)
    concentration = np.full(n, min(positive("alpha", alpha), _EVEN))
    rng = stream(seed, "dirichlet")
    classes = np.unique(y)
    shares = rng.dirichlet(concentration, size=len(classes))
    members = [rng.permutation(np.flatnonzero(y == c)) for c in classes]
    pieces = [
        np.split(rows, _cuts(p, len(rows)))
        for rows, p in zip(members, shares, strict=True)
    ]
    _fill_up(pieces, shares, min_samples)
    return tuple(np.sort(np.concatenate(shard)) for shard in zip(*pieces, strict=True))


def class_partition(
    labels: ArrayLike, n: int, classes_per_client: int, seed: int
) -> Partition:
    """Each client holds samples of k classes only (the pathological partition).

    Clients choose in turn, in random order, the k classes with the fewest clients so
    far, ties at random. The samples of a class are dealt evenly among its clients.

    Args:
        labels: class of each sample, whole numbers from 0.
        n: clients.
        classes_per_client: k, at most the number of classes; n · k at least that
            number, or some class would have no client.
        seed: of choices and shuffles.

    Returns:
        The rows of each client, ascending.

    Raises:
        InvalidInputError: an argument breaks a rule above, or a client gets nothing.

    Examples:
        >>> labels = [0, 0, 1, 1, 2, 2]
        >>> shards = class_partition(labels, 3, classes_per_client=1, seed=0)
        >>> [shard.tolist() for shard in shards]
        [[0, 1], [2, 3], [4, 5]]
    """
    y = _check_labels(labels)
    _check_sizes(len(y), n, 1)
    classes = np.unique(y)
    c = len(classes)
    k = whole("classes_per_client", classes_per_client, least=1)
    if k > c or n * k < c:
        rule = f"at most the {c} classes, and enough for {n} clients to hold them all"
        raise invalid("classes_per_client", rule, k)
    rng = stream(seed, "classes")
    owners: list[list[int]] = [[] for _ in classes]
    for client in rng.permutation(n):
        counts = np.array([len(clients) for clients in owners])
        for j in np.lexsort((rng.permutation(c), counts))[:k]:
            owners[j].append(int(client))
    held: list[list[Int64[Ints, " _"]]] = [[] for _ in range(n)]
    for value, clients in zip(classes, owners, strict=True):
        rows = rng.permutation(np.flatnonzero(y == value))
        parts = np.array_split(rows, len(clients))
        for client, part in zip(clients, parts, strict=True):
            held[client].append(part)
    return _sorted_shards(held, "classes_per_client", k)


def shard_partition(
    labels: ArrayLike, n: int, shards_per_client: int, seed: int
) -> Partition:
    """Sort by label, cut into n · s shards of equal size, deal s to each client.

    Most clients then hold about s classes [McMahan2017].

    Args:
        labels: class of each sample, whole numbers from 0.
        n: clients.
        shards_per_client: s; n · s may not exceed the samples.
        seed: of the shuffle within classes and of the deal.

    Returns:
        The rows of each client, ascending.

    Raises:
        InvalidInputError: an argument breaks a rule above.
    """
    y = _check_labels(labels)
    s = whole("shards_per_client", shards_per_client, least=1)
    _check_sizes(len(y), n, s)
    rng = stream(seed, "shards")
    mixed = rng.permutation(len(y))
    shards = np.array_split(mixed[np.argsort(y[mixed], kind="stable")], n * s)
    dealt = rng.permutation(n * s).reshape(n, s)
    held = [[shards[j] for j in row] for row in dealt]
    return _sorted_shards(held, "shards_per_client", s)


def quantity_partition(
    m: int, n: int, alpha: float, seed: int, *, min_samples: int = 1
) -> Partition:
    """Shares of all samples from one Dirichlet(α, …, α): sizes differ, classes do not.

    Args:
        m: samples.
        n: clients.
        alpha: α > 0; small makes sizes very unequal.
        seed: of shares and shuffle.
        min_samples: fewest samples of a client.

    Returns:
        The rows of each client, ascending.

    Raises:
        InvalidInputError: an argument breaks a rule above.
    """
    one_class = np.zeros(m, dtype=np.int64)
    return dirichlet_partition(one_class, n, alpha, seed, min_samples=min_samples)


def feature_partition(
    features: ArrayLike, n: int, alpha: float, seed: int, *, min_samples: int = 1
) -> Partition:
    """Feature skew: clients hold different regions of feature space.

    Samples are sorted along their first principal component and cut into ten groups of
    equal size; `dirichlet_partition` splits each group as if it were a class.

    Args:
        features: one row per sample.
        n: clients.
        alpha: α > 0; small is skewed, large is even.
        seed: of shares and shuffles.
        min_samples: fewest samples of a client.

    Returns:
        The rows of each client, ascending.

    Raises:
        InvalidInputError: an argument breaks a rule above.
    """
    X = np.asarray(features)
    place = np.empty(len(X), dtype=np.int64)
    place[np.argsort(_principal_coordinates(X), kind="stable")] = np.arange(len(X))
    groups = place * min(_GROUPS, len(X)) // max(len(X), 1)
    return dirichlet_partition(groups, n, alpha, seed, min_samples=min_samples)


def natural_partition(clients: ArrayLike, n: int) -> Partition:
    """The partition that the data give: a client identifier for each row.

    Args:
        clients: client of each sample, whole numbers from 0 to n − 1.
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


GROUP = "hewfl.partitions"
"""Entry point group in which installed packages offer partitions."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class TrainingRows:
    """The training part, as far as a partition may use it.

    Attributes:
        labels: class of each row.
        features: one row per sample, as the model gets them.
        clients: client of each row; None if the data have no clients.
    """

    labels: Int64[Ints, " m"]
    features: Num[Numbers, "m p"]
    clients: Int64[Ints, " m"] | None = None


@final
@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A partition by name, with its parameters.

    Attributes:
        kind: one of `KINDS`, or a user's function as "file:name". It is called with
            those of `labels`, `features`, `clients`, `n` and `seed` that it names and
            with the `options`, and returns the rows of each client.
        n: clients.
        alpha: concentration of `dirichlet`, `quantity` and `features`.
        min_samples: fewest samples of a client under these.
        classes_per_client: classes of a client under `classes`, shards of a client
            under `shards`.
        options: arguments of a user's function.
    """

    kind: str = "iid"
    n: int = 20
    alpha: float = 0.2
    min_samples: int = 1
    classes_per_client: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """The partition in words, for reports and plots."""
        if self.kind not in KINDS:
            rest = ", ".join(f"{k} = {v}" for k, v in self.options.items())
            return (
                f"{short_name(self.kind)} ({rest})" if rest else short_name(self.kind)
            )
        return _DESCRIPTIONS[self.kind].format(
            alpha=self.alpha, k=self.classes_per_client
        )


def _natural(rows: TrainingRows, spec: PartitionSpec, seed: int) -> Partition:  # noqa: ARG001 - no draw
    if rows.clients is None:
        rule = "left out: the data have no clients; name their column"
        raise invalid("partition", rule, "'natural'")
    return natural_partition(rows.clients, spec.n)


KINDS: dict[str, Callable[[TrainingRows, PartitionSpec, int], Partition]] = {
    "iid": lambda rows, spec, seed: iid_partition(len(rows.labels), spec.n, seed),
    "dirichlet": lambda rows, spec, seed: dirichlet_partition(
        rows.labels, spec.n, spec.alpha, seed, min_samples=spec.min_samples
    ),
    "classes": lambda rows, spec, seed: class_partition(
        rows.labels, spec.n, spec.classes_per_client, seed
    ),
    "shards": lambda rows, spec, seed: shard_partition(
        rows.labels, spec.n, spec.classes_per_client, seed
    ),
    "quantity": lambda rows, spec, seed: quantity_partition(
        len(rows.labels), spec.n, spec.alpha, seed, min_samples=spec.min_samples
    ),
    "features": lambda rows, spec, seed: feature_partition(
        rows.features, spec.n, spec.alpha, seed, min_samples=spec.min_samples
    ),
    "natural": _natural,
}
"""Partitions by name."""
_DESCRIPTIONS = {
    "iid": "IID, equal sizes",
    "dirichlet": "Dirichlet partition with α = {alpha:g}",
    "classes": "{k} classes per client",
    "shards": "{k} shards per client, sorted by label",
    "quantity": "Dirichlet sizes with α = {alpha:g}",
    "features": "Dirichlet skew of features with α = {alpha:g}",
    "natural": "natural partition",
}
DIRICHLET_KINDS = ("dirichlet", "quantity", "features")
"""Kinds with `alpha` and `min_samples`."""
PER_CLIENT_KINDS = ("classes", "shards")
"""Kinds with `classes_per_client`."""


def partition(rows: TrainingRows, spec: PartitionSpec, seed: int) -> Partition:
    """The partition that a spec names.

    Args:
        rows: the training part.
        spec: the kind and its parameters.
        seed: of all draws.

    Returns:
        The rows of each client, ascending.

    Raises:
        InvalidInputError: a parameter breaks a rule of the kind, or a user's function
            does not return a partition.

    Examples:
        >>> rows = TrainingRows(np.array([0, 0, 1, 1]), np.eye(4))
        >>> spec = PartitionSpec("classes", n=2, classes_per_client=1)
        >>> shards = partition(rows, spec, seed=0)
        >>> [shard.tolist() for shard in shards]
        [[0, 1], [2, 3]]
    """
    check_name(spec.kind, tuple(KINDS), GROUP, "partition")
    if not is_user_code(spec.kind, GROUP):
        return KINDS[spec.kind](rows, spec, seed)
    offered = {
        "labels": rows.labels,
        "features": rows.features,
        "clients": rows.clients,
        "n": spec.n,
        "seed": seed,
    }
    call = load(spec.kind, GROUP, "partition")
    return _check_partition(make(call, spec.options, offered, "options"), rows, spec)


def _check_partition(result: Any, rows: TrainingRows, spec: PartitionSpec) -> Partition:
    """The result of a user's function, which must hold each row once."""
    m, name = len(rows.labels), f"the result of {short_name(spec.kind)}"
    try:
        shards = [np.asarray(shard) for shard in result]
    except (TypeError, ValueError) as error:
        raise invalid(
            name, "a list with the rows of each client", format_value(result)
        ) from error
    if len(shards) != spec.n or not all(len(np.atleast_1d(s)) for s in shards):
        sizes = f"{len(shards)} lists of {[s.size for s in shards][:8]} rows"
        raise invalid(name, f"{spec.n} lists that are not empty", sizes)
    if any(s.ndim != 1 or s.dtype.kind not in "iu" for s in shards):
        raise invalid(name, "lists of whole numbers", format_value(result))
    every = np.sort(np.concatenate(shards))
    if len(every) != m or (every != np.arange(m)).any():
        raise invalid(name, f"each of the {m} rows once", f"{len(every)} rows")
    return tuple(np.sort(shard.astype(np.int64)) for shard in shards)


def _check_labels(labels: ArrayLike) -> Int64[Ints, " m"]:
    """Require a vector of whole numbers from 0."""
    y = np.asarray(labels)
    if y.ndim != 1 or y.dtype.kind not in "iu" or (len(y) and y.min() < 0):
        raise invalid("labels", "a vector of whole numbers from 0", repr(labels)[:80])
    return y.astype(np.int64, copy=False)


def _check_sizes(m: int, n: int, min_samples: int) -> None:
    """Require that m samples suffice for n clients."""
    if n < 1:
        raise invalid("n", "at least 1", n)
    if min_samples < 0:
        raise invalid("min_samples", "at least 0", min_samples)
    if m < 1:
        raise invalid("samples", "at least one", m)
    if n * min_samples > m:
        rule = f"at most the {m} samples divided by `min_samples` = {min_samples}"
        raise invalid("n", rule, n)


def _cuts(shares: Float64[Array, " n"], m: int) -> Int64[Ints, " k"]:
    """Where to cut m samples so that pieces are near m · shares."""
    return np.rint(m * np.cumsum(shares)[:-1]).astype(np.int64)


def _fill_up(
    pieces: list[list[Int64[Ints, " _"]]],
    shares: Float64[Array, "c n"],
    min_samples: int,
) -> None:
    """Give samples, in place, to every client below the minimum.

    While a client is short, another holds more than the minimum, as n · minimum ≤ m;
    each move ends the shortage or uses up what a donor can spare of a class.
    """
    counts = np.array([[len(piece) for piece in row] for row in pieces])
    sizes = counts.sum(axis=0)
    for client in np.flatnonzero(sizes < min_samples):
        for c in np.argsort(-shares[:, client], kind="stable"):
            while (short := min_samples - sizes[client]) > 0:
                spare = np.minimum(counts[c], sizes - min_samples)
                donor = np.argmax(spare)
                moved = min(short, spare[donor])
                if moved <= 0:
                    break
                kept, given = np.split(pieces[c][donor], [counts[c, donor] - moved])
                pieces[c][donor] = kept
                pieces[c][client] = np.concatenate([pieces[c][client], given])
                counts[c, [client, donor]] += [moved, -moved]
                sizes[[client, donor]] += [moved, -moved]


def _principal_coordinates(X: Array) -> Float64[Array, " m"]:
    """Coordinates of the rows along their first principal component.

    Its sign is set by its largest entry: both signs are eigenvectors, and the choice of
    a library would change the partition.
    """
    blocks = [slice(k, k + _ROWS) for k in range(0, len(X), _ROWS)]
    mean = X.mean(axis=0, dtype=np.float64)
    scatter = np.zeros((X.shape[1], X.shape[1]))
    for here in blocks:
        rows = X[here].astype(np.float64) - mean
        scatter += rows.T @ rows
    first = np.linalg.eigh(scatter).eigenvectors[:, -1]
    first = first * np.sign(first[np.argmax(np.abs(first))])
    parts = [(X[here].astype(np.float64) - mean) @ first for here in blocks]
    return np.concatenate([np.zeros(0), *parts])


def _sorted_shards(
    held: list[list[Int64[Ints, " _"]]], name: str, given: int
) -> Partition:
    shards = tuple(np.sort(np.concatenate(parts)) for parts in held)
    if not all(len(shard) for shard in shards):
        raise invalid(name, "small enough that every client gets samples", given)
    return shards
