"""The problem and the federation of a spec and a seed."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float, Float64, Int64
from hewfl.core.plugins import check_parts, describe_error, make, passes_user_code
from hewfl.core.plugins import load as load_code
from hewfl.core.toml_records import rename_errors
from hewfl.core.validation import Array, Ints, invalid
from hewfl.data import (
    Partition,
    Prepared,
    TrainingRows,
    class_counts,
    load,
    partition,
    prepare,
)
from hewfl.errors import HewError, MissingExtraError, RuleError
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.spec import Spec
from hewfl.experiments.spec_sections import (
    PROBLEMS_GROUP,
    DataSpec,
    make_local_steps,
    make_participation,
    make_root,
    make_scenario,
)
from hewfl.experiments.user_code import user_code_names
from hewfl.federation import Federation
from hewfl.problems import Problem, Softmax, softmax_common_pool, softmax_from_arrays
from hewfl.problems.problem import LocalTests
from hewfl.server.state import Entry

NAMES = {
    "name": "data.name",
    "split": "data.split",
    "subsample": "data.subsample",
    "test_fraction": "data.test_fraction",
    "n": "clients.n",
    "alpha": "clients.alpha",
    "min_samples": "clients.min_samples",
    "classes_per_client": "clients.classes_per_client",
    "shards_per_client": "clients.classes_per_client",
    "partition": "clients.partition",
}
"""What loaders and partitions call the fields of a spec."""
BY_CLASS = ("iid", "dirichlet", "classes", "shards", "quantity")
"""Partitions under which clients differ in nothing but their classes and sizes."""


def build_federation(spec: Spec) -> Federation:
    """The federation of a spec: work, batch size, participation, scenario, root set."""
    clients = spec.clients
    return Federation(
        make_local_steps(clients.local_steps),
        clients.batch_size,
        make_participation(clients.participation),
        make_scenario(clients.scenario),
        make_root(clients.root),
    )


def build_problem(spec: Spec, seed: int) -> Any:
    """The problem on the data of the spec, split and shared out by the seed."""
    if spec.is_record:
        rule = "one that can be simulated"
        raise invalid("clients.partition", rule, '"nodes", the record of a federation')
    with rename_errors(NAMES):
        if spec.problem.is_module:
            return import_module("hewfl.experiments.build_torch_problem").build_module(
                spec, seed
            )
        return (
            _softmax(spec, seed) if spec.problem.factory is None else _own(spec, seed)
        )


def entries_of(
    spec: Spec,
    methods: Sequence[MethodSpec],
    smoothness: float,
    rounds: int | None = None,
) -> list[Entry]:
    """The entries of methods under a spec; a trial has its own number of `rounds`."""
    steps, T = spec.problem.reference_steps, spec.rounds if rounds is None else rounds
    return [method.entry(smoothness, steps, T) for method in methods]


@contextmanager
def naming_run(spec: Spec, seed: int) -> Iterator[None]:
    """Let errors of the user's own code name the run and the seed.

    Raises:
        RuleError: of a rule, with its entry and round; or any other error of such code
            in a law or a problem.
    """
    try:
        yield
    except RuleError as error:
        raise RuleError(f"{spec.name}, seed {seed}, {error}") from error
    except HewError:
        raise
    except (Exception, SystemExit) as error:
        is_ours = not user_code_names(spec)  # a bug of ours keeps its traceback
        is_systems = isinstance(error, OSError | MemoryError)  # a full disk, say
        if is_ours or (is_systems and not passes_user_code(error)):
            raise
        text = f"code of your own failed: {describe_error(error)}"
        raise RuleError(f"{spec.name}, seed {seed}: {text}") from error


def start_of(problem: Any) -> Float64[Array, " d"] | None:
    """Where a run starts: at a module's own parameters, else at zero."""
    start: Float64[Array, " d"] | None = getattr(problem, "start", None)
    return start


@final
@dataclass(frozen=True, slots=True, eq=False)
class ProblemData:
    """What a problem of the user's own is made from.

    Attributes:
        features: one row per training sample, prepared as `data` of the spec says.
        labels: their classes, whole numbers from 0.
        shards: rows of each client.
        test: features and labels of the test part.
        classes: names of the classes.
        seed: of the run.
    """

    features: Float[Array, "m p"]
    labels: Int64[Ints, " m"]
    shards: Partition
    test: tuple[Float[Array, "k p"], Int64[Ints, " k"]]
    classes: tuple[str, ...]
    seed: int


def _softmax(spec: Spec, seed: int) -> Softmax:
    """The last problem if it was the same: regimes with other horizons share it."""
    if user_code_names(spec):  # code may have changed under its name
        return _new_softmax(spec, seed)
    sharing = (spec.problem.l2, spec.clients.sharing, spec.device)
    key = f"{samples_of(spec, seed)} {sharing!r}"
    if key not in _built:
        _built.clear()  # before another one takes as much memory
        _built[key] = _new_softmax(spec, seed)
    return _built[key]


_built: dict[str, Softmax] = {}


def _new_softmax(spec: Spec, seed: int) -> Softmax:
    prepared, _ = prepared_data(spec.data, seed, spec.dtype)
    clients, l2 = spec.clients, spec.problem.l2
    X, y = _on_device(spec, prepared.features), _on_device(spec, prepared.labels)
    test = tuple(_on_device(spec, part) for part in prepared.test)
    if clients.partition == "pool":
        return softmax_common_pool(X, y, clients.n, l2=l2, test=test)
    shards = shards_of(spec, seed)
    problem = softmax_from_arrays(X, y, shards, l2=l2, test=test)
    mixes = class_counts(prepared.labels, shards, problem.classes)
    tests = local_tests(spec, mixes, prepared.test_labels, prepared.test_clients)
    return replace(problem, local_tests=tests)


def local_tests(
    spec: Spec,
    mixes: Int64[Ints, "n c"],
    test_labels: Int64[Ints, " k"],
    test_clients: Int64[Ints, " k"] | None,
) -> LocalTests | None:
    """What each client is judged by: its own test samples, else its mix of classes.

    A mix of classes describes a client only where the partition goes by classes, or by
    nothing: None for other partitions.

    Args:
        spec: of the run.
        mixes: training samples of each client and class.
        test_labels: classes of the test samples.
        test_clients: their clients, if the data have any.
    """
    if spec.clients.partition == "natural":
        assert test_clients is not None  # as the training part has clients
        return LocalTests(test_clients, len(mixes))
    if spec.clients.partition not in BY_CLASS:
        return None
    shares = mixes / mixes.sum(axis=1, keepdims=True)
    return LocalTests(test_labels, mixes.shape[1], shares)


def shards_of(spec: Spec, seed: int) -> Partition:
    """TrainingRows of the prepared training part that each client holds."""
    prepared, _ = prepared_data(spec.data, seed, spec.dtype)
    rows = TrainingRows(prepared.labels, prepared.features, prepared.clients)
    return partition(rows, spec.clients.sharing, seed)


def _own(spec: Spec, seed: int) -> Problem:
    """A problem of the user's own, on the prepared data."""
    asked = spec.problem
    assert asked.factory is not None
    if spec.clients.partition == "pool":
        rule = "one with shards: a problem of your own has no common pool"
        raise invalid("clients.partition", rule, "pool")
    prepared, _ = prepared_data(spec.data, seed, spec.dtype)
    data = ProblemData(
        prepared.features,
        prepared.labels,
        shards_of(spec, seed),
        (prepared.test_features, prepared.test_labels),
        prepared.classes,
        seed,
    )
    call = load_code(asked.factory, PROBLEMS_GROUP, "problem.factory")
    problem = make(call, asked.options, {"data": data}, "problem.options")
    rule = "code that makes a hewfl.problems.Problem"
    check_parts(problem, [Problem], "problem.factory", rule)
    if problem.n != spec.clients.n:
        rule = f"one that makes a problem of n = {spec.clients.n} clients"
        raise invalid("problem.factory", rule, f"n = {problem.n}")
    made: Problem = problem
    return made


def _on_device(spec: Spec, array: Any) -> Any:
    """Move an array to where the spec wants it."""
    if spec.device == "numpy":
        return array
    try:
        torch = import_module("torch")
    except ImportError as error:
        text = f"device = '{spec.device}' needs PyTorch: install hewfl's extra torch"
        raise MissingExtraError(text) from error
    if spec.device == "cuda" and not torch.cuda.is_available():
        raise invalid("device", "available; PyTorch finds no GPU", '"cuda"')
    return torch.as_tensor(array, device=spec.device)


def samples_of(spec: Spec, seed: int) -> str:
    """A name for the samples of a seed, the same for runs that share them."""
    return f"{spec.data!r} {spec.dtype} {seed:09d}"


@lru_cache(maxsize=1)  # the regimes of a comparison share their data, seed by seed
def prepared_data(data: DataSpec, seed: int, dtype: Any) -> tuple[Prepared, str]:
    """The prepared samples and a digest of the bytes they were made from."""
    dataset = load(
        data.name, label_column=data.label_column, client_column=data.client_column
    )
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
