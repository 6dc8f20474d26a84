"""The problem, the clients and the constants that a spec and a seed stand for."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array, invalid
from hewfl.data import Prepared, dirichlet_partition, iid_partition, load, prepare
from hewfl.data.places import cache_root, warn_of_cache
from hewfl.errors import MissingExtraError
from hewfl.experiments.files import read_json, write_bytes, write_json
from hewfl.experiments.laws import check_horizons, check_participation
from hewfl.experiments.methods import MethodSpec
from hewfl.experiments.spec import DataSpec, Spec
from hewfl.experiments.tables import called
from hewfl.problems import Softmax, softmax_common_pool, softmax_from_arrays
from hewfl.server.federation import Federation
from hewfl.server.state import Lane

VERSION = 2
"""Of the stored constants; a change of their meaning raises it."""

NAMES = {
    "name": "data.name",
    "split": "data.split",
    "subsample": "data.subsample",
    "test_fraction": "data.test_fraction",
    "n": "clients.n",
    "alpha": "clients.alpha",
    "minimum": "clients.minimum",
}
"""What loaders and partitions call the fields of a spec."""


@final
@dataclass(frozen=True, slots=True)
class Constants:
    """What is known of an objective beforehand.

    Attributes:
        smoothness: the L that normalises step sizes.
        objective: least value of (1/n) Σ F_i, or None where not asked for.
        pooled: least value of the mean over all samples, likewise.
    """

    smoothness: float
    objective: float | None
    pooled: float | None


def build_federation(spec: Spec) -> Federation:
    """Who takes part, with how many steps of which size."""
    clients = spec.clients
    return Federation(
        check_horizons(clients.horizons),
        clients.batch_size,
        check_participation(clients.participation),
    )


def build_problem(spec: Spec, seed: int) -> Any:
    """The problem on the data of the spec, split and shared out by the seed."""
    with called(NAMES):
        if spec.problem.is_module:
            return import_module("hewfl.experiments.modules").build_module(spec, seed)
        return _softmax(spec, seed)


def lanes_of(
    spec: Spec, methods: Sequence[MethodSpec], smoothness: float
) -> list[Lane]:
    """The lanes that methods run in under a spec."""
    steps = spec.problem.reference_steps
    return [method.lane(smoothness, steps) for method in methods]


def start_of(problem: Any) -> Float64[Array, " d"] | None:
    """Where a run starts: at a module's own parameters, else at zero."""
    found: Float64[Array, " d"] | None = getattr(problem, "start", None)
    return found


def _softmax(spec: Spec, seed: int) -> Softmax:
    prepared, _ = _prepared(spec.data, seed, spec.dtype)
    clients, l2 = spec.clients, spec.problem.l2
    X, y = _there(spec, prepared.features), _there(spec, prepared.labels)
    test = tuple(_there(spec, part) for part in prepared.test)
    if clients.partition == "nodes":
        rule = "one that can be simulated"
        raise invalid("clients.partition", rule, '"nodes", the record of a federation')
    if clients.partition == "pool":
        return softmax_common_pool(X, y, clients.n, l2=l2, test=test)
    if clients.partition == "iid":
        shards = iid_partition(len(y), clients.n, seed)
    else:
        labels = prepared.labels
        shards = dirichlet_partition(
            labels, clients.n, clients.alpha, seed, minimum=clients.minimum
        )
    return softmax_from_arrays(X, y, shards, l2=l2, test=test)


def find_smoothness(spec: Spec, seed: int, problem: Any) -> float:
    """The L that normalises step sizes; an estimate is kept in the cache."""
    if spec.problem.is_module:
        return 1 / spec.problem.learning_rate
    if spec.problem.smoothness == "bound":
        return float(problem.smoothness)
    key = _key(spec, seed, "smoothness")
    return _kept(key, lambda: _pooled(spec, seed).smoothness_estimate())


def find_constants(spec: Spec, seed: int, problem: Any) -> Constants:
    """L and the optima: from the cache, or solved for once and kept there."""
    smoothness = find_smoothness(spec, seed, problem)
    if not spec.problem.optimum or spec.problem.is_module:
        return Constants(smoothness, None, None)
    key = _key(spec, seed, "pooled")
    pooled, x = _optimum(key, _pooled(spec, seed), None)
    if spec.clients.partition == "pool":
        return Constants(smoothness, pooled, pooled)
    start = x if spec.clients.partition == "iid" else None  # a skewed one is far away
    objective, _ = _optimum(_key(spec, seed, "objective"), problem, start)
    return Constants(smoothness, objective, pooled)


def _pooled(spec: Spec, seed: int) -> Softmax:
    """All training rows as they were split, on the host.

    What is a mean over them depends neither on the partition nor on the device, not
    even in its last bit: regimes share it.
    """
    prepared, _ = _prepared(spec.data, seed, spec.dtype)
    X, y, test = prepared.features, prepared.labels, prepared.test
    return softmax_common_pool(X, y, 1, l2=spec.problem.l2, test=test)


def _there(spec: Spec, array: Any) -> Any:
    """An array where the spec wants it."""
    if spec.device == "numpy":
        return array
    try:
        torch = import_module("torch")
    except ImportError as error:
        text = f'device = "{spec.device}" needs PyTorch: pip install "hewfl[torch]"'
        raise MissingExtraError(text) from error
    if spec.device == "cuda" and not torch.cuda.is_available():
        raise invalid("device", "one that is there; PyTorch sees no GPU", '"cuda"')
    return torch.as_tensor(array, device=spec.device)


@lru_cache(maxsize=1)  # the regimes of a comparison share their data, seed by seed
def _prepared(data: DataSpec, seed: int, dtype: Any) -> tuple[Prepared, str]:
    """The prepared samples and a digest of the bytes they were made from."""
    dataset = load(data.name, label=data.label)
    digest = hashlib.blake2b(digest_size=16)
    parts = [
        (dataset.features, dataset.labels),
        *([dataset.test] if dataset.test else []),
    ]
    for features, labels in parts:
        digest.update(np.ascontiguousarray(features).data)
        digest.update(np.ascontiguousarray(labels).data)
    prepared = prepare(
        dataset,
        seed,
        test_fraction=data.test_fraction,
        split=data.split,
        subsample=data.subsample,
        standardise=data.standardise,
        bias=data.bias,
        dtype=dtype,
    )
    return prepared, digest.hexdigest()


def _key(spec: Spec, seed: int, what: str) -> str:
    """A name for one constant: everything it depends on, hashed."""
    _, samples = _prepared(spec.data, seed, spec.dtype)
    given: dict[str, Any] = asdict(spec.data) | {"l2": spec.problem.l2, "seed": seed}
    given |= {"samples": samples, "dtype": spec.dtype, "what": [what, VERSION]}
    if what == "objective":
        c = spec.clients
        given["clients"] = [c.n, c.partition]
        if c.partition == "dirichlet":
            given["clients"] += [c.alpha, c.minimum]
    text = json.dumps(given, sort_keys=True)
    return f"{what}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _place(key: str) -> Path:
    return cache_root() / "constants" / f"{key}.json"


def _known(key: str) -> Mapping[str, Any] | None:
    """What the cache holds of a constant; None also where no cache can be read."""
    try:
        found: Mapping[str, Any] | None = read_json(_place(key), missing=True)
    except OSError:
        return None
    return found


def _keep(key: str, found: Mapping[str, Any], model: bytes | None = None) -> None:
    """Put a constant into the cache, if there is one that can be written."""
    place = _place(key)
    try:
        if model is not None:
            write_bytes(place.with_suffix(".f64"), model)
        write_json(place, found)
    except OSError as error:
        warn_of_cache(error)


def _kept(key: str, solve: Callable[[], float]) -> float:
    found = _known(key)
    if found is None:
        found = {"value": float(solve())}
        _keep(key, found)
    return float(found["value"])


def _optimum(
    key: str, problem: Softmax, start: Float64[Array, " d"] | None
) -> tuple[float, Float64[Array, " d"] | None]:
    """The least value, and the minimiser where it was solved for just now or kept."""
    pooled, found = key.startswith("pooled"), _known(key)
    if found is None:
        solve = problem.pooled_optimum if pooled else problem.optimum
        best = solve(start)
        found = {"value": best.objective, "residual": best.residual}
        _keep(key, found, best.x.tobytes() if pooled else None)
        return float(found["value"]), best.x
    model = _place(key).with_suffix(".f64")
    x = np.frombuffer(model.read_bytes()) if model.exists() else None
    return float(found["value"]), x
