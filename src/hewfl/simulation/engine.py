"""The simulation: many methods in lockstep on shared draws.

`simulate` checks its arguments, makes the initial states and runs the rounds
(`hewfl.simulation.rounds`), with a trace and checkpoints where a folder is given.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from hewfl.aggregators.aggregator import require_minority
from hewfl.core.algorithm import Algorithm, Informed, Truth
from hewfl.core.array_types import Float64, Int64
from hewfl.core.round import Cohort
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Ints,
    as_float64,
    format_value,
    invalid,
    whole,
)
from hewfl.displacements.backend import to_host
from hewfl.errors import DataError
from hewfl.federation import Federation
from hewfl.problems.problem import Probed, Problem
from hewfl.server.checkpoint import Checkpoint, flatten, unflatten
from hewfl.server.run_log import RunLog
from hewfl.server.state import (
    Entry,
    ServerState,
    as_entry,
    finite_rows,
    initial_state,
    rule_errors,
)
from hewfl.server.trace import RoundRecord, Trace
from hewfl.simulation.draws import draw
from hewfl.simulation.evaluation import record_round
from hewfl.simulation.rounds import EntryRound, Kind, Observer, Setting, run_round

COMPARED = 100
"""Clients by whose gradients a checkpoint knows its problem."""
_START = 2**31
"""The round whose draws give the gradients at the start; no run gets there."""


def simulate(  # noqa: PLR0913 - public; all but three are optional
    problem: Problem,
    federation: Federation,
    methods: Sequence[Algorithm[Any] | Entry],
    *,
    rounds: int,
    seed: int,
    start: ArrayLike | None = None,
    dtype: DTypeLike = np.float64,
    evaluate_every: int | None = 1,
    observers: Sequence[Observer] = (),
    checkpoint: Path | str | None = None,
    checkpoint_every: int = 1,
    on_round: Callable[[int], None] | None = None,
) -> Trace:
    """Run methods side by side on the same clients, work and minibatches.

    Args:
        problem: what the clients optimise.
        federation: the clients of each round, and their local steps.
        methods: methods, the paper's algorithms, or an `Entry`, which gives any of them
            a server step and a label.
        rounds: T.
        seed: all random numbers of round t come from (seed, t).
        start: x_0. By default the problem's own `start` where it has one, as a
            `TorchModule` has; zero otherwise.
        dtype: precision of the local branches; models and weights are float64.
        evaluate_every: rounds between evaluations; start and end are always evaluated.
            None: never; then only displacements show that an entry diverges.
        observers: called with every step; their values go into the trace.
        checkpoint: a folder for the run; a run in it is resumed.
        checkpoint_every: rounds between checkpoints; the end always has one.
        on_round: called with the number of rounds done, for progress bars.

    Returns:
        The trace of all entries.

    Raises:
        InvalidInputError: an argument breaks a rule.
        RuleError: an algorithm breaks its contract, or raises another exception than a
            `HewError`.
        DataError: the checkpoint is damaged or belongs to another run.

    Examples:
        >>> from hewfl import FedAvg, FixedSteps, HewHom
        >>> from hewfl.problems import random_quadratic
        >>> problem = random_quadratic(seed=0, n=4, d=3)
        >>> methods = [FedAvg(0.1), HewHom(problem.smoothness, 0.8)]
        >>> federation = Federation(FixedSteps(2), batch_size=8)
        >>> trace = simulate(problem, federation, methods, rounds=3, seed=0)
        >>> trace.names, trace.anchors.shape
        (('FedAvg', 'HEW (plain)'), (2, 3))
    """
    entries, rounds = _entries(methods), whole("rounds", rounds, least=0)
    if evaluate_every is not None:
        whole("evaluate_every", evaluate_every, least=1)
    whole("checkpoint_every", checkpoint_every, least=1)
    if not _is_list(observers):
        raise invalid("observers", "a list of functions", format_value(observers))
    setting = _setting(problem, federation, entries, seed, dtype)
    problem = setting.problem  # with the labels of faulty clients
    folder = _folder(checkpoint)
    starts = _initial_rounds(setting, _start(problem, start))
    run = _fingerprint(setting, starts[0].state.anchor)
    states, records = _first_records(setting, starts, evaluate_every is not None)
    first = 0
    log = None if folder is None else RunLog(folder)
    saved = None if log is None else log.load(run)
    if saved is not None and log is not None:
        if rounds < saved.round:
            rule = f"at least the {saved.round} in {folder}"
            raise invalid("rounds", rule, rounds)
        first, records = saved.round, log.records()
        states = list(unflatten(tuple(states), saved.arrays))
    elif log is not None:
        log.append(records)
    history = federation.past(setting.seed, first, problem.n)
    for t in range(first, rounds):
        evaluate = _is_due(t + 1, rounds, evaluate_every)
        cohort = federation.cohort(setting.seed, t, problem.data_sizes, history)
        history = history.after(cohort.clients)
        outcomes = run_round(setting, states, cohort, observers)
        states, news = record_round(setting, outcomes, t + 1, evaluate=evaluate)
        records.extend(news)
        if log is not None:
            log.append(news)
            if _is_due(t + 1, rounds, checkpoint_every):
                arrays = _arrays(entries, states, t + 1)
                log.save(Checkpoint(t + 1, run, arrays, log.size))
        if on_round is not None:
            on_round(t + 1)
    return Trace(
        tuple(repr(entry) for entry in entries),
        _distinct([entry.name for entry in entries]),
        tuple(records),
        np.stack([state.anchor for state in states]),
        setting.traffic,
        problem.n,
        np.stack([state.output_model for state in states]),
    )


def _arrays(
    entries: Sequence[Entry], states: Sequence[ServerState], t: int
) -> Mapping[str, Any]:
    """The arrays of all states, for a checkpoint.

    Raises:
        RuleError: a state has a part that cannot be saved.
    """
    for entry, state in zip(entries, states, strict=True):
        with rule_errors(entry, f"round {t}, its state"):
            flatten(state.algorithm)
    return flatten(tuple(states))


def _is_due(t: int, rounds: int, every: int | None) -> bool:
    return every is not None and (t % every == 0 or t == rounds)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Names of entries, with numbers where one is used again."""
    return tuple(
        name if names.count(name) == 1 else f"{name} #{names[: k + 1].count(name)}"
        for k, name in enumerate(names)
    )


def _first_records(
    setting: Setting, starts: Sequence[EntryRound], evaluate: bool
) -> tuple[list[ServerState], list[RoundRecord]]:
    """The initial states, and the records of round 0, with the scenario."""
    _, records = record_round(setting, starts, 0, evaluate=evaluate)
    scenario = setting.faults.trace_fields()
    states = [start.state for start in starts]
    return states, [replace(record, scenario=scenario) for record in records]


def _entries(methods: Sequence[Algorithm[Any] | Entry]) -> list[Entry]:
    if not _is_list(methods):
        raise invalid("methods", "a list of methods", format_value(methods))
    entries = [as_entry(value, f"methods[{k}]") for k, value in enumerate(methods)]
    if not entries:
        raise invalid("methods", "at least one", "none")
    for k, entry in enumerate(entries):
        _check_simulated(f"methods[{k}]", entry)
    return entries


def _check_simulated(name: str, entry: Entry) -> None:
    """Require a method whose local work is planned."""
    local = getattr(entry.algorithm, "local", None)
    if local is not None and not local.is_planned:
        rule = "one with local work to simulate, such as LocalSGD(0.1)"
        raise invalid(name, rule, entry.name)


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


def _setting(
    problem: Problem,
    federation: Federation,
    entries: Sequence[Entry],
    seed: int,
    dtype: DTypeLike,
) -> Setting:
    if not hasattr(problem, "minibatch_gradients"):
        rule = "a federated problem, such as hewfl.problems.Softmax"
        raise invalid("problem", rule, format_value(problem))
    if not isinstance(federation, Federation):
        rule = "a Federation, such as Federation(FixedSteps(4))"
        raise invalid("federation", rule, format_value(federation))
    try:
        precision = np.dtype(dtype)
    except TypeError:
        precision = np.dtype(object)
    if precision.kind != "f":
        raise invalid(
            "dtype", "a type of reals, such as numpy.float32", format_value(dtype)
        )
    for k, entry in enumerate(entries):
        if "root" in entry.algorithm.demands.needs and federation.root is None:
            rule = "one that needs no root gradient, or the federation given a RootSet"
            raise invalid(f"methods[{k}]", rule, entry.name)
        require_minority(f"methods[{k}]", entry.algorithm, problem.n)
    searches = any(entry.server_step.has_search for entry in entries)
    if searches and not isinstance(problem, Probed):
        rule = "one with `sample_losses`, for the line search"
        raise invalid("problem", rule, type(problem).__name__)
    seed, root = whole("seed", seed, least=0), None
    if federation.root is not None:  # its labels are true
        root = federation.root.draw(seed, problem)
    setting = Setting(problem, federation, entries, seed, precision, root)
    return replace(setting, problem=setting.faults.relabel(problem))


def _folder(checkpoint: object) -> Path | None:
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, str | PathLike) or Path(checkpoint).is_file():
        raise invalid("checkpoint", "a folder", format_value(checkpoint))
    return Path(checkpoint)


def _start(problem: Problem, start: ArrayLike | None) -> Float64[Array, " d"]:
    """A copy of x_0: as given, else the problem's, else zero."""
    name, given = "start", start
    if given is None:
        name, given = "problem.start", getattr(problem, "start", None)
    if given is None:
        return np.zeros(problem.d)
    is_array = hasattr(given, "__dlpack__")  # a tensor may be on a GPU
    x = np.array(as_float64(name, to_host(given) if is_array else given))
    if x.shape != (problem.d,):
        raise invalid(name, f"of shape ({problem.d},)", x.shape)
    return x


def _fingerprint(setting: Setting, x: Float64[Array, " d"]) -> Mapping[str, Any]:
    """What must be equal for a run to resume from a checkpoint.

    Problems are compared by one sample gradient of the first clients at the start.
    """
    problem, n = setting.problem, min(setting.problem.n, COMPARED)
    points = np.tile(x.astype(setting.dtype), (1, n, 1))
    firsts = np.asarray(problem.offsets[:n], dtype=np.int64)[:, None]
    with np.errstate(all="ignore"):
        probe = problem.minibatch_gradients(points, firsts, np.ones(n, dtype=np.int64))
        sizes = np.linalg.norm(np.asarray(probe[0], dtype=np.float64), axis=1)
    return {
        "start": hashlib.sha256(x.tobytes()).hexdigest()[:16],
        "problem": [f"{size:.5e}" for size in sizes],
        "seed": setting.seed,
        "entries": [repr(entry) for entry in setting.entries],
        "federation": repr(setting.federation),
        "dtype": setting.dtype.name,
        "clients": problem.n,
        "parameters": problem.d,
        "samples": int(problem.data_sizes.sum()),
    }


def _initial_rounds(setting: Setting, x: Float64[Array, " d"]) -> list[EntryRound]:
    """The states before round 1, and the status of the start of each entry.

    Clients without a finite first gradient are named. An entry that cannot start
    because no client has one is stopped.
    """
    n, d, gradients = setting.problem.n, len(x), None
    batches, faults = setting.federation.batches(n), setting.faults
    silent: tuple[int, ...] = ()
    if any(demands.gradients for demands in setting.demands):
        gradients = _start_gradients(setting, x, batches)
        silent = tuple(map(int, np.flatnonzero(~finite_rows(gradients))))
    starts = []
    for k, entry in enumerate(setting.entries):
        rule, server_step = entry.algorithm, entry.server_step
        excluded = silent if setting.demands[k].gradients else ()
        status = "start"
        try:
            with rule_errors(entry, "before the first round, init"):
                state = initial_state(rule, x, n, gradients, batches, server_step)
        except DataError as error:
            state = initial_state(rule, x, n, np.zeros((n, d)), server_step=server_step)
            state = replace(state, scalars=0, paper_scalars=0, refused=True)
            status = f"refused: {error}"
        if faults.stale:  # NaN: no vector was sent yet
            rows = len(faults.stale) * (1 + setting.sends_gradients(k))
            state = replace(state, last_sent=np.full((rows, d), np.nan))
        if setting.demands[k].worker_momentum > 0:
            state = replace(state, worker_momentum=np.zeros((n, d)))
        if faults.attacks:
            state = replace(state, attack_memory=faults.first_memory(d))
        if isinstance(rule, Informed):
            following = rule.with_truth(state.algorithm, Truth(quality=faults.quality))
            state = replace(state, algorithm=following)
        kind: Kind = "refused" if state.refused else "ok"
        starts.append(EntryRound(state, kind, status, excluded=excluded))
    return starts


def _start_gradients(
    setting: Setting, x: Float64[Array, " d"], batches: Int64[Ints, " n"]
) -> Float64[Array, "n d"]:
    """One minibatch gradient of every client at x_0 (erratum E-29)."""
    problem, n = setting.problem, setting.problem.n
    ones = np.ones(n, dtype=np.int64)
    nominal = Cohort(np.arange(n), ones, batches, problem.data_sizes, n)
    cohort = setting.faults.true_cohort(nominal)
    batch = draw(setting.seed, _START, cohort, problem.offsets)
    points = np.tile(x.astype(setting.dtype), (1, n, 1))
    with np.errstate(all="ignore"):
        gradients = problem.minibatch_gradients(points, batch.samples[0], batch.counts)
    # faults are defined on displacements, which have the opposite sign
    displacements = -np.array(gradients, dtype=np.float64)
    sent, _ = setting.faults.corrupt(displacements, cohort)
    return np.asarray(-sent[0])
