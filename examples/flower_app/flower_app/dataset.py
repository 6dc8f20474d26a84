"""Real data, shared out unevenly: who holds what follows from the run's config."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from hewfl.data import dirichlet_partition, load, prepare
from hewfl.problems import Softmax, softmax_from_arrays


def federated(config: Mapping[str, Any]) -> Softmax:
    """The softmax regression of all clients; a node uses its own rows only."""
    return _built(
        str(config["data"]),
        int(config["clients"]),
        float(config["alpha"]),
        float(config["l2"]),
        int(config["seed"]),
    )


@lru_cache(maxsize=1)
def _built(name: str, n: int, alpha: float, l2: float, seed: int) -> Softmax:
    prepared = prepare(load(name), seed)
    shards = dirichlet_partition(prepared.labels, n, alpha, seed, min_samples=8)
    X, y = prepared.features, prepared.labels
    return softmax_from_arrays(X, y, shards, l2=l2, test=prepared.test)
