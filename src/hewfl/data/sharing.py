"""Every way to share samples out among clients, by the name that specs have for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from jaxtyping import Int64, Num

from hewfl.core.checks import Ints, invalid, shown
from hewfl.core.own_code import checked_name, is_own, load, make, short_name
from hewfl.data.dataset import Numbers
from hewfl.data.partition import Partition, dirichlet_partition, iid_partition
from hewfl.data.skews import (
    class_partition,
    feature_partition,
    natural_partition,
    quantity_partition,
    shard_partition,
)

GROUP = "hewfl.partitions"
"""Entry points by which installed packages offer partitions of their own."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """All that a partition may look at of the training part.

    Attributes:
        labels: class of each row.
        features: one row per sample, as the model gets them.
        clients: whose each row is; None where the data do not say.
    """

    labels: Int64[Ints, " m"]
    features: Num[Numbers, "m p"]
    clients: Int64[Ints, " m"] | None = None


@final
@dataclass(frozen=True, slots=True)
class Sharing:
    """How samples are shared out.

    Attributes:
        kind: one of `KINDS`, or a function of the user's own: it is called with those
            of `labels`, `features`, `clients`, `n` and `seed` that it names, and with
            the `options`, and returns the rows of each client.
        n: clients.
        alpha: concentration of `dirichlet`, `quantity` and `features`.
        minimum: least samples of a client under these.
        per_client: classes of a client under `classes`, shards under `shards`.
        options: of a partition of the user's own.
    """

    kind: str = "iid"
    n: int = 20
    alpha: float = 0.2
    minimum: int = 1
    per_client: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """What pages and pictures call it."""
        if self.kind not in KINDS:
            rest = ", ".join(f"{k} = {v}" for k, v in self.options.items())
            return (
                f"{short_name(self.kind)} ({rest})" if rest else short_name(self.kind)
            )
        return WORDS[self.kind].format(alpha=self.alpha, k=self.per_client)


def _natural(rows: Rows, how: Sharing, seed: int) -> Partition:  # noqa: ARG001 - no draw
    if rows.clients is None:
        rule = "left out: the data do not say whose rows are; name the column"
        raise invalid("partition", rule, "'natural'")
    return natural_partition(rows.clients, how.n)


KINDS: dict[str, Callable[[Rows, Sharing, int], Partition]] = {
    "iid": lambda rows, how, seed: iid_partition(len(rows.labels), how.n, seed),
    "dirichlet": lambda rows, how, seed: dirichlet_partition(
        rows.labels, how.n, how.alpha, seed, minimum=how.minimum
    ),
    "classes": lambda rows, how, seed: class_partition(
        rows.labels, how.n, how.per_client, seed
    ),
    "shards": lambda rows, how, seed: shard_partition(
        rows.labels, how.n, how.per_client, seed
    ),
    "quantity": lambda rows, how, seed: quantity_partition(
        len(rows.labels), how.n, how.alpha, seed, minimum=how.minimum
    ),
    "features": lambda rows, how, seed: feature_partition(
        rows.features, how.n, how.alpha, seed, minimum=how.minimum
    ),
    "natural": _natural,
}
"""Partitions by name."""
WORDS = {
    "iid": "shuffled even shards",
    "dirichlet": "Dirichlet partition with α = {alpha:g}",
    "classes": "{k} classes a client",
    "shards": "{k} shards a client, sorted by label",
    "quantity": "Dirichlet sizes with α = {alpha:g}",
    "features": "Dirichlet skew of features with α = {alpha:g}",
    "natural": "each client's own rows",
}
SKEWED = ("dirichlet", "quantity", "features")
"""Those with a concentration and a least number of samples."""
FEW = ("classes", "shards")
"""Those with a number for each client."""


def share_out(rows: Rows, how: Sharing, seed: int) -> Partition:
    """Rows of each client.

    Args:
        rows: the training part.
        how: the kind and its numbers.
        seed: of all draws.

    Returns:
        The rows of each client, ascending.

    Raises:
        InvalidInputError: a number breaks a rule of the kind, or a partition of the
            user's own is none.
    """
    checked_name(how.kind, tuple(KINDS), GROUP, "partition")
    if not is_own(how.kind, GROUP):
        return KINDS[how.kind](rows, how, seed)
    offered = {
        "labels": rows.labels,
        "features": rows.features,
        "clients": rows.clients,
        "n": how.n,
        "seed": seed,
    }
    call = load(how.kind, GROUP, "partition")
    return _checked(make(call, how.options, offered, "options"), rows, how)


def _checked(found: Any, rows: Rows, how: Sharing) -> Partition:
    """What a partition of the user's own returned, each row exactly once."""
    m, name = len(rows.labels), f"what {short_name(how.kind)} returns"
    try:
        shards = [np.asarray(shard) for shard in found]
    except (TypeError, ValueError) as error:
        raise invalid(
            name, "a list with the rows of each client", shown(found)
        ) from error
    if len(shards) != how.n or not all(len(np.atleast_1d(s)) for s in shards):
        sizes = f"{len(shards)} lists of {[s.size for s in shards][:8]} rows"
        raise invalid(name, f"{how.n} lists that are not empty", sizes)
    if any(s.ndim != 1 or s.dtype.kind not in "iu" for s in shards):
        raise invalid(name, "lists of whole numbers", shown(found))
    every = np.sort(np.concatenate(shards))
    if len(every) != m or (every != np.arange(m)).any():
        raise invalid(name, f"each of the {m} rows once", f"{len(every)} rows")
    return tuple(np.sort(shard.astype(np.int64)) for shard in shards)
