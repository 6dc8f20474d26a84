"""Reference optima: L and the least objectives of a spec's data, kept in the cache."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.atomic import read_json, write_bytes, write_json
from hewfl.core.validation import Array
from hewfl.data.paths import cache_root, warn_cache_not_writable
from hewfl.experiments.build_problem import build_federation, prepared_data, shards_of
from hewfl.experiments.spec import Spec
from hewfl.problems import Softmax, softmax_common_pool

VERSION = 2
"""Of the stored constants; a change of their meaning raises it."""
GAP = 1e-11
"""How far above the least value F* may be, proved: below every digit that a table
shows, and half the work of a gradient at rounding."""


@final
@dataclass(frozen=True, slots=True)
class Constants:
    """Constants of an objective.

    Attributes:
        smoothness: the L that normalises step sizes.
        objective: least value of (1/n) Σ F_i, or None where not asked for.
        pooled: least value of the mean over all samples, likewise.
    """

    smoothness: float
    objective: float | None
    pooled: float | None


def find_smoothness(spec: Spec, seed: int, problem: Any) -> float:
    """The L that normalises step sizes; an estimate is kept in the cache."""
    if spec.problem.is_module:
        return 1 / spec.problem.learning_rate
    if spec.problem.factory is not None:
        estimate = getattr(problem, "smoothness_estimate", None)
        if spec.problem.smoothness == "estimate" and estimate is not None:
            return float(estimate())
        return float(problem.smoothness)
    if spec.problem.smoothness == "bound":
        return float(problem.smoothness)
    key = _key(spec, seed, "smoothness")
    return _cached_value(key, lambda: _pooled(spec, seed).smoothness_estimate())


def find_constants(spec: Spec, seed: int, problem: Any) -> Constants:
    """L and the optima: from the cache, or solved for once and kept there."""
    smoothness = find_smoothness(spec, seed, problem)
    if not spec.problem.solve_optimum or spec.problem.is_module:
        return Constants(smoothness, None, None)
    if spec.problem.factory is not None:
        return _own_constants(spec, problem, smoothness)
    if spec.clients.scenario is not None:
        evaluated = _evaluated_clients(spec, seed, problem)
        pooled, x = _optimum(
            _key(spec, seed, "pooled", evaluated), lambda: evaluated, None
        )
        key = _key(spec, seed, "objective", evaluated)
        objective, _ = _optimum(key, lambda: evaluated, x)
        return Constants(smoothness, objective, pooled)
    key = _key(spec, seed, "pooled")
    pooled, x = _optimum(key, lambda: _pooled(spec, seed), None)
    if spec.clients.partition == "pool":
        return Constants(smoothness, pooled, pooled)
    objective, _ = _optimum(_key(spec, seed, "objective"), lambda: problem, x)
    return Constants(smoothness, objective, pooled)


def _own_constants(spec: Spec, problem: Any, smoothness: float) -> Constants:
    """Optima of a problem of the user's own; the cache knows nothing of its code.

    Where some clients are bad, the optimum of the others is not known.
    """
    if spec.clients.scenario is not None:
        return Constants(smoothness, None, None)
    least = (problem.optimum().objective, problem.pooled_optimum().objective)
    return Constants(smoothness, *map(float, least))


def _evaluated_clients(spec: Spec, seed: int, problem: Softmax) -> Softmax:
    """The clients whose objective is evaluated in a scenario, with their labels."""
    federation = build_federation(spec)
    assignment = federation.scenario.assign(seed, federation.batches(problem.n))
    known: Softmax = assignment.relabel(problem)
    some = assignment.evaluated_clients
    return replace(
        known, offsets=known.offsets[some], data_sizes=known.data_sizes[some]
    )


def _pooled(spec: Spec, seed: int) -> Softmax:
    """All training rows as they were split, on the host.

    What is a mean over them depends neither on the partition nor on the device, not
    even in its last bit: regimes share it.
    """
    prepared, _ = prepared_data(spec.data, seed, spec.dtype)
    X, y, test = prepared.features, prepared.labels, prepared.test
    return softmax_common_pool(X, y, 1, l2=spec.problem.l2, test=test)


def _key(spec: Spec, seed: int, what: str, evaluated: Softmax | None = None) -> str:
    """A name for one constant: everything it depends on, hashed.

    Args:
        spec: of the run.
        seed: of the run.
        what: the constant.
        evaluated: the clients that are evaluated, where these are not all of them.
    """
    _, samples = prepared_data(spec.data, seed, spec.dtype)
    given: dict[str, Any] = asdict(spec.data) | {"l2": spec.problem.l2, "seed": seed}
    given["name"] = Path(spec.data.name).name  # `samples` says what a file holds
    given |= {"samples": samples, "dtype": spec.dtype, "what": [what, VERSION]}
    if evaluated is not None:
        parts = (evaluated.class_labels()[0], evaluated.offsets, evaluated.data_sizes)
        given["judged"] = [hashlib.sha256(p.tobytes()).hexdigest() for p in parts]
    if what == "objective" or evaluated is not None:
        c = spec.clients
        given["clients"] = [c.n, c.partition]
        if c.partition == "dirichlet":
            given["clients"] += [c.alpha, c.min_samples]
        elif c.partition not in ("iid", "pool"):
            given["shards"] = _shards_digest(spec, seed)
    text = json.dumps(given, sort_keys=True)
    return f"{what}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _shards_digest(spec: Spec, seed: int) -> str:
    """Checksum of the rows of each client: user code may change under one name."""
    digest = hashlib.sha256()
    for shard in shards_of(spec, seed):
        digest.update(shard.tobytes())
        digest.update(b"next")
    return digest.hexdigest()


def _cache_file(key: str) -> Path:
    return cache_root() / "constants" / f"{key}.json"


def _read_cache(key: str) -> Mapping[str, Any] | None:
    """What the cache holds of a constant; None also where no cache can be read."""
    try:
        constant: Mapping[str, Any] | None = read_json(_cache_file(key), missing=True)
    except OSError:
        return None
    return constant


def _write_cache(
    key: str, constant: Mapping[str, Any], model: bytes | None = None
) -> None:
    """Put a constant into the cache, if there is one that can be written."""
    place = _cache_file(key)
    try:
        if model is not None:
            write_bytes(place.with_suffix(".f64"), model)
        write_json(place, constant)
    except OSError as error:
        warn_cache_not_writable(error)


def _cached_value(key: str, solve: Callable[[], float]) -> float:
    constant = _read_cache(key)
    if constant is None:
        constant = {"value": float(solve())}
        _write_cache(key, constant)
    return float(constant["value"])


def _optimum(
    key: str, made: Callable[[], Softmax], start: Float64[Array, " d"] | None
) -> tuple[float, Float64[Array, " d"] | None]:
    """The least value, and the minimiser where it was solved for just now or kept."""
    pooled, constant = key.startswith("pooled"), _read_cache(key)
    if constant is None:
        problem = made()
        solve = problem.pooled_optimum if pooled else problem.optimum
        best = solve(start, gap=GAP)
        constant = {"value": best.objective, "residual": best.residual}
        _write_cache(key, constant, best.x.tobytes() if pooled else None)
        return float(constant["value"]), best.x
    model = _cache_file(key).with_suffix(".f64")
    x = np.frombuffer(model.read_bytes()) if model.exists() else None
    return float(constant["value"]), x
