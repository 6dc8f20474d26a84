"""The simulation: many methods in lockstep on shared draws.

One round reads as in the design:

    cohort          = federation.cohort(t)
    plan            = algorithm.plan(cohort, state)
    draws           = draw(seed, t, cohort)
    displacements   = run_branches(problem, anchor, cohort, plan, draws)
    decision, state = algorithm.decide(round, state)
    anchor, server_step   = apply_server_step(anchor, Σ w_iΔ_i, server_step)
    trace.record(…)
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from hewfl.core.algorithm import Algorithm, Informed, Truth
from hewfl.core.array_types import Float64, Int64
from hewfl.core.round import Cohort
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Ints,
    as_float64,
    invalid,
    shown,
    whole,
)
from hewfl.displacements.backend import to_host
from hewfl.errors import DataError
from hewfl.federation.federation import Federation, Scenario
from hewfl.problems.problem import Probed, Problem
from hewfl.server.checkpoint import Saved, flatten, unflatten
from hewfl.server.initial_state import finite_rows, first_state
from hewfl.server.rule_contract import naming
from hewfl.server.run_log import RunLog
from hewfl.server.state import Entry, ServerState, as_entry, check_algorithm, delivered
from hewfl.server.trace import RoundRecord, Trace
from hewfl.simulation.draws import draw
from hewfl.simulation.rounds import (
    evaluated,
    record_of,
    run_round,
    sends_gradients,
    traffic_of,
)
from hewfl.simulation.setting import Observer, Setting

_START = 2**31
"""The round whose draws give the gradients at the start; no run gets there."""


def simulate(  # noqa: PLR0913 - the public door: all but three are optional
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
        federation: who takes part, with how many steps.
        methods: what is compared: methods, the paper's algorithms, or entries, which
            put any of them under a server step.
        rounds: T.
        seed: all random numbers of round t come from (seed, t).
        start: x_0. By default the problem's own `start` where it has one, as a
            `TorchModule` has; zero otherwise.
        dtype: precision of the local branches; models and weights are float64.
        evaluate_every: rounds between evaluations; start and end are always evaluated.
            None: never, and a entry that diverges is noticed only by its displacements.
        observers: called with every step; what they return goes into the trace.
        checkpoint: a folder to keep the run in; a run found there goes on.
        checkpoint_every: rounds between checkpoints; the end always has one.
        on_round: called with the number of rounds done, for progress bars.

    Returns:
        The trace of all entries.

    Raises:
        InvalidInputError: an argument breaks a rule.
        RuleError: an algorithm breaks its contract, or raises what is no `HewError`.
        DataError: the checkpoint is damaged or belongs to another run.
    """
    entries, rounds = _entries(methods), whole("rounds", rounds, least=0)
    if evaluate_every is not None:
        whole("evaluate_every", evaluate_every, least=1)
    whole("checkpoint_every", checkpoint_every, least=1)
    if not _is_listed(observers):
        raise invalid("observers", "a list of functions", shown(observers))
    setting = _setting(problem, federation, entries, seed, dtype)
    problem = setting.problem  # with the labels that bad clients have
    folder = _folder(checkpoint)
    states, notes = _first_states(setting, _start(problem, start))
    run = _fingerprint(setting, states[0].anchor)
    evaluate = evaluate_every is not None
    first, records = 0, _started(setting, states, notes, evaluate=evaluate)
    log = None if folder is None else RunLog(folder)
    saved = None if log is None else log.load(run)
    if saved is not None and log is not None:
        if rounds < saved.round:
            rule = f"at least the {saved.round} that {folder} holds"
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
        states, news = run_round(setting, states, cohort, observers, evaluate=evaluate)
        records.extend(news)
        if log is not None:
            log.append(news)
            if _is_due(t + 1, rounds, checkpoint_every):
                arrays = _flattened(entries, states, t + 1)
                log.save(Saved(t + 1, run, arrays, log.size))
        if on_round is not None:
            on_round(t + 1)
    return Trace(
        tuple(repr(entry) for entry in entries),
        _distinct([entry.name for entry in entries]),
        tuple(records),
        np.stack([state.anchor for state in states]),
        tuple(traffic_of(setting, entry) for entry in entries),
        problem.n,
        np.stack([delivered(state) for state in states]),
    )


# ------------------ before the rounds


def _flattened(
    entries: Sequence[Entry], states: Sequence[ServerState], t: int
) -> Mapping[str, Any]:
    """The arrays of all states, for a checkpoint.

    Raises:
        RuleError: a rule's state holds what cannot be kept.
    """
    for entry, state in zip(entries, states, strict=True):
        with naming(entry, f"round {t}, its state"):
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


def _started(
    setting: Setting,
    states: Sequence[ServerState],
    notes: Sequence[Mapping[str, Any]],
    *,
    evaluate: bool,
) -> list[RoundRecord]:
    """The records of round 0."""
    if not evaluate:
        return [record_of(0, k, state, notes[k]) for k, state in enumerate(states)]
    return evaluated(setting, states, 0, notes)


def _entries(methods: Sequence[Algorithm[Any] | Entry]) -> list[Entry]:
    if not _is_listed(methods):
        raise invalid("methods", "a list of methods", shown(methods))
    entries = []
    for k, given in enumerate(methods):
        if not isinstance(given, Entry):
            check_algorithm(f"methods[{k}]", given, ", or an entry")
        entries.append(given if isinstance(given, Entry) else as_entry(given))
    if not entries:
        raise invalid("methods", "at least one", "none")
    return entries


def _is_listed(value: object) -> bool:
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
        raise invalid("problem", rule, shown(problem))
    if not isinstance(federation, Federation):
        rule = "a Federation, such as Federation(FixedHorizons(4))"
        raise invalid("federation", rule, shown(federation))
    try:
        precision = np.dtype(dtype)
    except TypeError:
        precision = np.dtype(object)
    if precision.kind != "f":
        raise invalid("dtype", "a type of reals, such as numpy.float32", shown(dtype))
    if any(entry.server_step.measure for entry in entries) and not isinstance(
        problem, Probed
    ):
        rule = "one with `sample_losses`, which a measured step asks for"
        raise invalid("problem", rule, type(problem).__name__)
    setting = Setting(
        problem, federation, entries, whole("seed", seed, least=0), precision
    )
    return replace(setting, problem=setting.roles.relabelled(problem))


def _folder(checkpoint: object) -> Path | None:
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, str | PathLike) or Path(checkpoint).is_file():
        raise invalid("checkpoint", "a folder", shown(checkpoint))
    return Path(checkpoint)


def _start(problem: Problem, start: ArrayLike | None) -> Float64[Array, " d"]:
    """x_0 in memory of its own: as given, else the problem's, else zero."""
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
    """What two runs must share for one to go on where the other stopped.

    Problems are told apart by one sample gradient of every client at the start.
    """
    problem, n = setting.problem, setting.problem.n
    points = np.tile(x.astype(setting.dtype), (1, n, 1))
    firsts = np.asarray(problem.offsets, dtype=np.int64)[:, None]
    with np.errstate(all="ignore"):
        probe = problem.minibatch_gradients(points, firsts, np.ones(n, dtype=np.int64))
        sizes = np.linalg.norm(np.asarray(probe[0], dtype=np.float64), axis=1)
    return {
        "start": hashlib.sha256(x.tobytes()).hexdigest()[:16],
        "problem": [f"{size:.5e}" for size in sizes[:100]],
        "seed": setting.seed,
        "entries": [repr(entry) for entry in setting.entries],
        "federation": _told_apart(setting.federation),
        "dtype": setting.dtype.name,
        "clients": problem.n,
        "parameters": problem.d,
        "samples": int(problem.data_sizes.sum()),
    }


def _told_apart(federation: Federation) -> str:
    """A federation in words; those without a scenario read as before there were any."""
    scenario = federation.scenario
    return repr(federation) + ("" if scenario == Scenario() else f" in {scenario!r}")


def _first_states(
    setting: Setting, x: Float64[Array, " d"]
) -> tuple[list[ServerState], list[dict[str, Any]]]:
    """The states before round 1, and what round 0 says of the start of each.

    Clients without a finite first gradient are named; a entry that cannot start because
    no client has one is stopped.
    """
    n, gradients = setting.problem.n, None
    batches = setting.federation.batches(n)
    silent: tuple[int, ...] = ()
    if any(entry.algorithm.demands.gradients for entry in setting.entries):
        gradients = _start_gradients(setting, x, batches)
        silent = tuple(map(int, np.flatnonzero(~finite_rows(gradients))))
    states: list[ServerState] = []
    notes: list[dict[str, Any]] = []
    for entry in setting.entries:
        demands = entry.algorithm.demands.gradients
        try:
            given = (entry.algorithm, x, n, gradients, batches, entry.server_step)
            with naming(entry, "before the first round, init"):
                states.append(first_state(*given))
            notes.append({"excluded": silent} if demands else {})
        except DataError as error:
            zeros = np.zeros((n, len(x)))
            state = first_state(
                entry.algorithm, x, n, zeros, server_step=entry.server_step
            )
            states.append(replace(state, scalars=0, paper_scalars=0, refused=True))
            notes.append({"excluded": silent, "status": f"refused: {error}"})
    pairs = zip(setting.entries, states, strict=True)
    states = [_in_scenario(setting, entry, state) for entry, state in pairs]
    return states, [note | _scenario_note(setting) for note in notes]


def _in_scenario(setting: Setting, entry: Entry, state: ServerState) -> ServerState:
    """The state with room for stale updates, and a yardstick's rule told the truth."""
    roles, rule = setting.roles, entry.algorithm
    if roles.stale:  # NaN: nothing was sent yet
        rows = len(roles.stale) * (1 + sends_gradients(setting, entry))
        state = replace(state, kept=np.full((rows, len(state.anchor)), np.nan))
    if isinstance(rule, Informed):
        truth = Truth(quality=roles.quality)
        state = replace(state, algorithm=rule.with_truth(state.algorithm, truth))
    return state


def _scenario_note(setting: Setting) -> dict[str, Any]:
    """What the first records say of the scenario."""
    found = setting.roles.note()
    return {"scenario": found} if found else {}


def _start_gradients(
    setting: Setting, x: Float64[Array, " d"], batches: Int64[Ints, " n"]
) -> Float64[Array, "n d"]:
    """One minibatch gradient of every client at x_0 (erratum E-29)."""
    problem, n = setting.problem, setting.problem.n
    ones = np.ones(n, dtype=np.int64)
    told = Cohort(np.arange(n), ones, batches, problem.data_sizes, n)
    everybody = setting.roles.true(told)
    batch = draw(setting.seed, _START, everybody, problem.offsets)
    points = np.tile(x.astype(setting.dtype), (1, n, 1))
    with np.errstate(all="ignore"):
        gradients = problem.minibatch_gradients(points, batch.samples[0], batch.counts)
    # A displacement goes against the gradient: so does what a bad client makes of it.
    sent = setting.roles.sent(-np.array(gradients, dtype=np.float64), everybody)
    return np.asarray(-sent[0])
