"""The simulation: many methods in lockstep on shared draws.

One round reads as in the design:

    roster          = federation.roster(t)
    plan            = algorithm.plan(roster, state)
    draws           = draw(seed, t, roster)
    displacements   = run_branches(problem, anchor, roster, plan, draws)
    decision, state = algorithm.decide(round, state)
    anchor, outer   = outer_step(anchor, Σ w_iΔ_i, outer)
    trace.record(…)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float, Float64
from numpy.typing import DTypeLike

from hewfl.controllers.control import HewControl
from hewfl.core.checks import Array, Mask, invalid
from hewfl.core.records import UpperState
from hewfl.core.round import Algorithm, Decision, LocalPlan, Roster, Round
from hewfl.errors import DataError
from hewfl.problems.problem import Problem
from hewfl.sim.branches import run_branches
from hewfl.sim.checkpoint import (
    Saved,
    flatten,
    load_checkpoint,
    save_checkpoint,
    unflatten,
)
from hewfl.sim.draws import draw
from hewfl.sim.federation import Federation
from hewfl.sim.ledger import charge
from hewfl.sim.outer import Outer, outer_step
from hewfl.sim.trace import RoundRecord, Trace, from_lines, to_line

_START = 2**31
"""The round whose draws give the gradients at the start; no run gets there."""
DIVERGED = 1e12
"""A lane whose objective leaves this range is stopped; so is one that is not finite."""


@final
@dataclass(frozen=True, slots=True)
class Lane:
    """One method of a comparison: an algorithm under an outer optimiser."""

    algorithm: Algorithm[Any]
    outer: Outer = field(default_factory=Outer)
    label: str | None = None

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.label is not None:
            return self.label
        momentum = self.outer.momentum
        return self.algorithm.name + (f", momentum {momentum:g}" if momentum else "")


@final
@dataclass(frozen=True, slots=True)
class Step:
    """What an observer is shown: one lane's round and what came of it.

    Attributes:
        round_number: rounds done before this one.
        lane: index.
        algorithm: of the lane.
        state: the algorithm's state before the round.
        round: all the rule saw.
        decision: what it decided.
        move: the step really taken, outer optimiser included.
        problem: what is optimised.
    """

    round_number: int
    lane: int
    algorithm: Algorithm[Any]
    state: Any
    round: Round
    decision: Decision
    move: Float64[Array, " d"]
    problem: Problem


Observer = Callable[[Step], Mapping[str, float]]


@final
@dataclass(frozen=True, slots=True)
class _LaneState:
    """All that a lane carries from round to round."""

    anchor: Float64[Array, " d"]
    memory: Float64[Array, " d"]
    algorithm: Any
    scalars: int
    paper_scalars: int
    diverged: bool


@final
@dataclass(frozen=True)
class _Setting:
    """What stays the same in all rounds of a run."""

    problem: Problem
    federation: Federation
    lanes: Sequence[Lane]
    seed: int
    dtype: np.dtype[Any]

    @cached_property
    def best(self) -> float:
        """F*, solved for once and only if someone asks."""
        return self.problem.optimum().objective


def simulate(  # noqa: PLR0913 - the public door: all but three are optional
    problem: Problem,
    federation: Federation,
    algorithms: Sequence[Algorithm[Any] | Lane],
    *,
    rounds: int,
    seed: int,
    start: Float64[Array, " d"] | None = None,
    dtype: DTypeLike = np.float64,
    evaluate_every: int | None = 1,
    observers: Sequence[Observer] = (),
    checkpoint: Path | None = None,
) -> Trace:
    """Run methods side by side on the same clients, work and minibatches.

    Args:
        problem: what the clients optimise.
        federation: who takes part, with how many steps.
        algorithms: the lanes; plain algorithms get the plain outer step.
        rounds: T.
        seed: all random numbers of round t come from (seed, t).
        start: x_0; zero by default.
        dtype: precision of the local branches; models and weights are float64.
        evaluate_every: rounds between evaluations; start and end are always evaluated.
            None: never, and a lane that diverges is noticed only by its displacements.
        observers: called with every step; what they return goes into the trace.
        checkpoint: a folder to keep the run in; a run found there goes on.

    Returns:
        The trace of all lanes.

    Raises:
        InvalidInputError: an argument breaks a rule.
        DataError: the checkpoint is damaged or belongs to another run.
    """
    lanes = [a if isinstance(a, Lane) else Lane(a) for a in algorithms]
    _check(lanes, rounds, evaluate_every)
    setting = _Setting(problem, federation, lanes, seed, np.dtype(dtype))
    run = _fingerprint(setting)
    states = _first_states(setting, start)
    first, records = 0, _started(setting, states, evaluate=evaluate_every is not None)
    log = _Log(checkpoint)
    saved = None if checkpoint is None else load_checkpoint(checkpoint)
    if saved is not None:
        _same_run(saved.run, run)
        first, records = saved.round, log.cut(saved.trace_bytes)
        states = list(unflatten(tuple(states), saved.arrays))
    else:
        log.append(records)
    for t in range(first, rounds):
        evaluate = _is_due(t + 1, rounds, evaluate_every)
        states, news = _play(setting, states, t, observers, evaluate=evaluate)
        records = [*records, *news]
        log.append(news)
        if checkpoint is not None:
            arrays = flatten(tuple(states))
            save_checkpoint(checkpoint, Saved(t + 1, run, arrays, log.size))
    return Trace(
        tuple(repr(lane) for lane in lanes),
        tuple(lane.name for lane in lanes),
        tuple(records),
        np.stack([state.anchor for state in states]),
    )


# ------------------------------------------------------------------ before the rounds


def _is_due(t: int, rounds: int, every: int | None) -> bool:
    return every is not None and (t % every == 0 or t == rounds)


def _started(
    setting: _Setting, states: Sequence[_LaneState], *, evaluate: bool
) -> list[RoundRecord]:
    if not evaluate:
        return [_record(0, k, state, {}) for k, state in enumerate(states)]
    empty: list[dict[str, Any]] = [{} for _ in states]
    return _evaluated(setting.problem, setting.lanes, states, 0, empty)


def _check(lanes: Sequence[Lane], rounds: int, evaluate_every: int | None) -> None:
    if len(lanes) == 0:
        raise invalid("algorithms", "at least one", "none")
    if rounds < 0:
        raise invalid("rounds", "at least 0", rounds)
    if evaluate_every is not None and evaluate_every < 1:
        raise invalid("evaluate_every", "at least 1", evaluate_every)


def _fingerprint(setting: _Setting) -> Mapping[str, Any]:
    """What two runs must share for one to go on where the other stopped."""
    problem = setting.problem
    return {
        "seed": setting.seed,
        "lanes": [repr(lane) for lane in setting.lanes],
        "federation": repr(setting.federation),
        "dtype": setting.dtype.name,
        "clients": problem.n,
        "parameters": problem.d,
        "samples": int(problem.data_sizes.sum()),
    }


def _same_run(found: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    for key, value in asked.items():
        if found.get(key) != value:
            text = (
                f"the checkpoint belongs to another run: its {key} is "
                f"{found.get(key)!r}, asked for is {value!r}"
            )
            raise DataError(text)


def _first_states(
    setting: _Setting, start: Float64[Array, " d"] | None
) -> list[_LaneState]:
    n, d = setting.problem.n, setting.problem.d
    x = np.zeros(d) if start is None else np.array(start, dtype=np.float64)
    if x.shape != (d,):
        raise invalid("start", f"of shape ({d},)", x.shape)
    gradients = None
    if any(lane.algorithm.needs_gradients for lane in setting.lanes):
        gradients = _start_gradients(setting, x)
    states = []
    for lane in setting.lanes:
        given = gradients if lane.algorithm.needs_gradients else None
        sent = 0 if given is None else n * d  # each client sends one gradient
        first = lane.algorithm.init(n, d, given)
        states.append(_LaneState(x, np.zeros(d), first, sent, sent, diverged=False))
    return states


def _start_gradients(
    setting: _Setting, x: Float64[Array, " d"]
) -> Float64[Array, "n d"]:
    """One minibatch gradient of every client at x_0 (erratum E-29)."""
    problem, n = setting.problem, setting.problem.n
    sizes, given = problem.data_sizes, setting.federation.batch_size
    batches = np.broadcast_to(np.asarray(given, dtype=np.int64), n)
    ones = np.ones(n, dtype=np.int64)
    everybody = Roster(np.arange(n), ones, batches.copy(), sizes, n)
    batch = draw(setting.seed, _START, everybody, problem.offsets)
    points = np.tile(x.astype(setting.dtype), (1, n, 1))
    gradients = problem.minibatch_gradients(points, batch.samples[0], batch.counts)
    return np.asarray(gradients[0], dtype=np.float64)


@final
class _Log:
    """The trace on disk, append-only; nowhere without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / "trace.jsonl"
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def size(self) -> int:
        return 0 if self._path is None else self._path.stat().st_size

    def append(self, records: Sequence[RoundRecord]) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.writelines(to_line(record) for record in records)

    def cut(self, size: int) -> list[RoundRecord]:
        """Drop what came after the checkpoint; the records that remain."""
        assert self._path is not None
        if not self._path.exists() or self._path.stat().st_size < size:
            text = f"the trace {self._path} is shorter than its checkpoint says"
            raise DataError(text)
        with self._path.open("r+b") as file:
            file.truncate(size)
        return from_lines(self._path.read_text().splitlines())


# ------------------------------------------------------------------ one round


def _play(
    setting: _Setting,
    states: Sequence[_LaneState],
    t: int,
    observers: Sequence[Observer],
    *,
    evaluate: bool,
) -> tuple[list[_LaneState], list[RoundRecord]]:
    """One round of all lanes."""
    problem, seed = setting.problem, setting.seed
    roster = setting.federation.roster(seed, t, problem.data_sizes)
    alive = [k for k, state in enumerate(states) if not state.diverged]
    states, notes = list(states), [_stopped(state) for state in states]
    if len(roster.clients) == 0:
        for k in alive:
            notes[k] = {"status": "nobody took part"}
    elif alive:
        states = _told(setting, states, alive)
        rounds = _branches(setting, states, alive, roster, t)
        for k, round_ in zip(alive, rounds, strict=True):
            states[k], notes[k] = _decide(setting, states[k], round_, (t, k), observers)
            missing = np.setdiff1d(roster.clients, round_.roster.clients)
            notes[k]["excluded"] = tuple(int(i) for i in missing)
            states[k] = _charged(setting, k, states[k], len(roster.clients))
    if not evaluate:
        return states, [_record(t + 1, k, s, notes[k]) for k, s in enumerate(states)]
    records = _evaluated(problem, setting.lanes, states, t + 1, notes)
    pairs = zip(states, records, strict=True)
    return [
        replace(s, diverged=s.diverged or _has_diverged(r)) for s, r in pairs
    ], records


def _branches(
    setting: _Setting,
    states: Sequence[_LaneState],
    alive: Sequence[int],
    roster: Roster,
    t: int,
) -> list[Round]:
    """Plans, draws and branches of the lanes alive: what the server hears of each."""
    problem, lanes = setting.problem, setting.lanes
    plans = [lanes[k].algorithm.plan(roster, states[k].algorithm) for k in alive]
    draws = draw(setting.seed, t, roster, problem.offsets)
    anchors = np.stack([states[k].anchor for k in alive])
    with np.errstate(all="ignore"):  # what is not finite is excluded and named
        displacements = run_branches(
            problem, anchors.astype(setting.dtype), roster, plans, draws
        )
    losses = _losses(problem, lanes, alive, anchors, roster)
    return [
        _heard(x, moved, roster, plan, loss)
        for x, moved, plan, loss in zip(
            anchors, displacements, plans, losses, strict=True
        )
    ]


def _charged(setting: _Setting, k: int, state: _LaneState, active: int) -> _LaneState:
    bill = charge(setting.lanes[k].algorithm.traffic, active, setting.problem.d)
    return replace(
        state,
        scalars=state.scalars + bill.scalars,
        paper_scalars=state.paper_scalars + bill.paper_scalars,
    )


def _told(
    setting: _Setting, states: list[_LaneState], alive: Sequence[int]
) -> list[_LaneState]:
    """Audit lanes learn the true state: the gap and the tracking error (E-18, b)."""
    problem = setting.problem
    for k in alive:
        algorithm, state = setting.lanes[k].algorithm, states[k]
        if not (isinstance(algorithm, HewControl) and algorithm.needs_oracle):
            continue
        x = state.anchor[None]
        gap = float(problem.objectives(x)[0, 0]) - setting.best
        errors = state.algorithm.variates.clients - problem.full_gradients(x)[0]
        tracking = float((np.asarray(errors, dtype=np.float64) ** 2).sum(1).max())
        upper = UpperState(max(gap, 0.0), tracking)
        states[k] = replace(state, algorithm=algorithm.told(state.algorithm, upper))
    return states


def _losses(
    problem: Problem,
    lanes: Sequence[Lane],
    alive: Sequence[int],
    anchors: Float64[Array, "lanes d"],
    roster: Roster,
) -> list[Float64[Array, " s"] | None]:
    """F_i(x_t) for the lanes that ask for them."""
    asking = [lanes[k].algorithm.needs_losses for k in alive]
    if not any(asking):
        return [None] * len(alive)
    table = np.asarray(problem.client_losses(anchors), dtype=np.float64)
    rows = table[:, roster.clients]
    return [row if wanted else None for row, wanted in zip(rows, asking, strict=True)]


def _heard(
    anchor: Float64[Array, " d"],
    displacements: Float[Array, "s d"],
    roster: Roster,
    plan: LocalPlan,
    losses: Float64[Array, " s"] | None,
) -> Round:
    """The round without clients whose displacement is not finite."""
    with np.errstate(all="ignore"):
        finite: Bool[Mask, " s"] = np.asarray(np.isfinite(displacements).all(axis=1))
    if finite.all():
        return Round(anchor, displacements, roster, plan, losses)
    part = Roster(
        roster.clients[finite],
        roster.horizons[finite],
        roster.batch_sizes[finite],
        roster.data_sizes[finite],
        roster.population,
    )
    correction = None if plan.correction is None else plan.correction[finite]
    kept = replace(plan, step_sizes=plan.step_sizes[finite], correction=correction)
    less = None if losses is None else losses[finite]
    return Round(anchor, displacements[finite], part, kept, less)


def _decide(
    setting: _Setting,
    state: _LaneState,
    heard: Round,
    where: tuple[int, int],
    observers: Sequence[Observer],
) -> tuple[_LaneState, dict[str, Any]]:
    """The rule, the outer step, and what the trace keeps of them."""
    t, k = where
    lane, problem = setting.lanes[k], setting.problem
    note: dict[str, Any] = {"status": "diverged: no displacement was finite"}
    if len(heard.roster.clients) == 0:
        return replace(state, diverged=True), note
    decision, following = lane.algorithm.decide(heard, state.algorithm)
    step = decision.step
    if step is None:
        step = decision.weights @ heard.displacements  # in float64, in client order
    move, memory = outer_step(lane.outer, step, state.memory)
    seen: dict[str, float] = {}
    for observe in observers:
        seen |= observe(
            Step(t, k, lane.algorithm, state.algorithm, heard, decision, move, problem)
        )
    note = {
        "clients": tuple(int(i) for i in heard.roster.clients),
        "horizons": tuple(int(h) for h in heard.roster.horizons),
        "weights": tuple(float(w) for w in decision.weights),
        "gap": float(decision.gap),
        "status": decision.status,
        "observed": seen,
    }
    anchor = state.anchor + move  # Alg. 1, l. 17, Alg. 2, l. 17, Alg. 3, l. 11
    return replace(state, anchor=anchor, memory=memory, algorithm=following), note


# ------------------------------------------------------------------ records


def _stopped(state: _LaneState) -> dict[str, Any]:
    return {"status": "diverged, stopped"} if state.diverged else {}


def _record(
    t: int, k: int, state: _LaneState, note: Mapping[str, Any], **measured: Any
) -> RoundRecord:
    return RoundRecord(
        round=t,
        lane=k,
        scalars=state.scalars,
        paper_scalars=state.paper_scalars,
        **measured,
        **note,
    )


def _evaluated(
    problem: Problem,
    lanes: Sequence[Lane],
    states: Sequence[_LaneState],
    t: int,
    notes: Sequence[Mapping[str, Any]],
) -> list[RoundRecord]:
    """Records with objectives and metrics; stopped lanes are not evaluated."""
    alive = [k for k, state in enumerate(states) if not state.diverged]
    measured: list[dict[str, Any]] = [{} for _ in lanes]
    if alive:
        anchors = np.stack([states[k].anchor for k in alive])
        with np.errstate(all="ignore"):
            values = np.asarray(problem.objectives(anchors), dtype=np.float64)
            metrics = problem.evaluate(anchors)
        for at, k in enumerate(alive):
            measured[k] = {
                "objective": float(values[at, 0]),
                "pooled": float(values[at, 1]),
                "metrics": {key: float(v[at]) for key, v in metrics.items()},
            }
    return [
        _record(t, k, state, notes[k], **measured[k]) for k, state in enumerate(states)
    ]


def _has_diverged(record: RoundRecord) -> bool:
    value = record.objective
    return value is not None and not abs(value) < DIVERGED
