"""One round of all entries, from the cohort to the records."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hewfl.core.algorithm import Corrected, Informed, Traffic, Truth
from hewfl.core.array_types import Float, Float64
from hewfl.core.records import UpperState
from hewfl.core.round import Cohort, LocalPlan, Round
from hewfl.core.validation import Array
from hewfl.displacements.dense import Rows
from hewfl.errors import HewError, RuleError
from hewfl.federation.participation import FullParticipation
from hewfl.problems.problem import Adaptive, Probed, Problem
from hewfl.server.communication import charge, with_gradients
from hewfl.server.finish_round import RANGE_ERROR, conclude
from hewfl.server.initial_state import finite_rows
from hewfl.server.line_search import Ask, measured_traffic, scaled
from hewfl.server.rule_contract import check_plan, naming
from hewfl.server.state import Entry, ServerState
from hewfl.server.trace import AVERAGED, RoundRecord, round_note
from hewfl.simulation.branches import run_branches
from hewfl.simulation.draws import Draws, draw, draw_probes
from hewfl.simulation.setting import Observer, Setting, Step

DIVERGED = 1e12
"""A entry whose objective leaves this range is stopped; so is one that is not finite."""


def run_round(
    setting: Setting,
    states: Sequence[ServerState],
    cohort: Cohort,
    observers: Sequence[Observer],
    *,
    evaluate: bool,
) -> tuple[list[ServerState], list[RoundRecord]]:
    """One round of all entries: the round t and the clients of the cohort."""
    problem, t = setting.problem, cohort.round
    alive = [k for k, state in enumerate(states) if not state.stopped]
    states, notes = list(states), [_stopped(state) for state in states]
    if len(cohort.clients) == 0:
        for k in alive:
            notes[k] = {"status": "nobody took part"}
    elif alive:
        with np.errstate(
            all="ignore"
        ):  # what is not finite is named, and stops a entry
            states = _told(setting, states, alive, notes)
            alive = [k for k in alive if not states[k].stopped]
            plans = _plans(setting, states, alive, cohort, notes)
            for k, heard in _branches(setting, states, plans, cohort).items():
                decided = _decide(setting, states[k], heard, (t, k), observers)
                states[k], notes[k] = decided
                notes[k]["excluded"] = _excluded(cohort, heard.cohort)
                traffic = traffic_of(setting, setting.entries[k])
                bill = charge(traffic, len(cohort.clients), problem.d)
                states[k] = states[k].charged(bill)
    if not evaluate:
        return states, [record_of(t + 1, k, s, notes[k]) for k, s in enumerate(states)]
    records = evaluated(setting, states, t + 1, notes)
    pairs = zip(states, records, strict=True)
    return [
        replace(s, diverged=s.diverged or _has_diverged(r)) for s, r in pairs
    ], records


def _plans(
    setting: Setting,
    states: list[ServerState],
    alive: Sequence[int],
    cohort: Cohort,
    notes: list[dict[str, Any]],
) -> dict[int, LocalPlan]:
    """What each entry tells the clients; one that cannot plan stops, and says why."""
    plans = {}
    for k in alive:
        entry = setting.entries[k]
        try:
            with naming(entry, f"round {cohort.round + 1}, plan"):
                plan = entry.algorithm.plan(cohort, states[k].algorithm)
            check_plan(entry, cohort, plan)
            plans[k] = scaled(plan, states[k])
        except RuleError:
            raise
        except HewError as error:
            states[k] = replace(states[k], refused=True)
            notes[k] = {"status": f"refused: {error}"}
    return plans


def _branches(
    setting: Setting,
    states: list[ServerState],
    plans: Mapping[int, LocalPlan],
    cohort: Cohort,
) -> dict[int, Round]:
    """Draws and branches of the entries that planned: what the server hears of each."""
    if not plans:
        return {}
    problem, told = setting.problem, list(plans.values())
    true = setting.roles.true(cohort)
    draws = draw(setting.seed, cohort.round, true, problem.offsets)
    anchors = np.stack([states[k].anchor for k in plans])
    displacements, gradients = _run(
        problem, anchors.astype(setting.dtype), true, told, draws
    )
    if setting.roles.bad:
        _spoil(setting, states, plans, displacements, gradients, cohort)
    losses = _losses(problem, setting.entries, list(plans), anchors, cohort)
    rows = zip(anchors, displacements, told, losses, gradients, strict=True)
    heard = [
        _heard(x, moved, cohort, plan, loss, mean)
        for x, moved, plan, loss, mean in rows
    ]
    return dict(zip(plans, heard, strict=True))


def _spoil(
    setting: Setting,
    states: list[ServerState],
    plans: Mapping[int, LocalPlan],
    displacements: Float[Array, "entries s d"],
    gradients: Sequence[Float[Array, "s d"] | None],
    cohort: Cohort,
) -> None:
    """What bad clients make of what they send, in place; stale ones keep it."""
    roles, stale = setting.roles, len(setting.roles.stale)
    kept = [np.array(states[k].kept) for k in plans] if stale else []
    moved = np.stack([rows[:stale] for rows in kept]) if stale else None
    displacements[:] = roles.sent(displacements, cohort, moved)
    for place, (k, g) in enumerate(zip(plans, gradients, strict=True)):
        if g is not None:  # a gradient points against the displacement
            last = kept[place][stale:][None] if stale else None
            g[:] = -roles.sent(-g[None], cohort, last)[0]
        if moved is not None:
            kept[place][:stale] = moved[place]
            states[k] = replace(states[k], kept=kept[place])


def _run(
    problem: Problem,
    anchors: Float[Array, "entries d"],
    cohort: Cohort,
    plans: Sequence[LocalPlan],
    draws: Draws,
) -> tuple[Float[Array, "entries s d"], list[Float[Array, "s d"] | None]]:
    """Displacements, and mean gradients for the entries whose clients must send them."""
    found: list[Float[Array, "s d"] | None] = [None] * len(plans)
    asking = [k for k, plan in enumerate(plans) if plan.correction is not None]
    if not (asking and _hides_gradients(problem)):
        return run_branches(problem, anchors, cohort, plans, draws), found
    assert isinstance(problem, Adaptive)
    moved, means = problem.measured_branches(anchors, cohort, plans, draws.samples)
    for k, mean in zip(asking, means, strict=True):
        found[k] = mean
    return moved, found


def _hides_gradients(problem: Problem) -> bool:
    return isinstance(problem, Adaptive) and problem.hides_gradients


def sends_gradients(setting: Setting, entry: Entry) -> bool:
    """Whether a entry's clients send mean gradients beside their displacements."""
    return entry.algorithm.demands.variates and _hides_gradients(setting.problem)


def traffic_of(setting: Setting, entry: Entry) -> Traffic:
    """What a entry's clients send in a round of this run."""
    traffic = entry.algorithm.demands.traffic
    if sends_gradients(setting, entry):
        traffic = with_gradients(traffic)
    everybody = isinstance(setting.federation.participation, FullParticipation)
    return measured_traffic(traffic, entry.server_step, everybody=everybody)


def _asked(setting: Setting, heard: Round, entry: Entry) -> Ask | None:
    """How the clients heard are asked for losses along a step; None if they are not.

    A bad client answers with the labels it has; what it makes of displacements it does
    not make of losses.
    """
    problem, count = setting.problem, entry.server_step.measure
    if count is None:
        return None
    assert isinstance(problem, Probed), "checked before the rounds"
    samples = draw_probes(setting.seed, heard.cohort, problem.offsets, count)

    def ask(
        points: tuple[float, ...], step: Float64[Array, " d"]
    ) -> Float64[Array, "s k"]:
        models = heard.anchor + np.array(points)[:, None] * step
        found = problem.sample_losses(models.astype(setting.dtype), samples)
        return np.ascontiguousarray(np.asarray(found, dtype=np.float64).T)

    return ask


def _told(
    setting: Setting,
    states: list[ServerState],
    alive: Sequence[int],
    notes: list[dict[str, Any]],
) -> list[ServerState]:
    """Audit entries learn the true state: the gap and the tracking error (E-18, b).

    The error is the largest over all clients, absent ones too: c has them all. A entry
    whose state is not finite has diverged, though no evaluation has seen it yet.
    """
    problem = setting.problem
    for k in alive:
        algorithm, state = setting.entries[k].algorithm, states[k]
        if not algorithm.demands.oracle:
            continue
        assert isinstance(algorithm, Informed), "an oracle needs `with_truth`"
        x = state.anchor[None]
        gap = float(problem.objectives(x)[0, 0]) - setting.best
        tracking = 0.0
        variates = None
        if isinstance(algorithm, Corrected):
            variates = algorithm.variates(state.algorithm)
        if variates is not None:
            errors = variates.clients - problem.full_gradients(x)[0]
            tracking = float((np.asarray(errors, dtype=np.float64) ** 2).sum(1).max())
        if not np.isfinite([gap, tracking]).all():
            states[k] = replace(state, diverged=True)
            notes[k] = {"status": "diverged: the objective is not finite"}
            continue
        upper = UpperState(max(gap, 0.0), tracking)
        informed = algorithm.with_truth(state.algorithm, Truth(upper=upper))
        states[k] = replace(state, algorithm=informed)
    return states


def _losses(
    problem: Problem,
    entries: Sequence[Entry],
    alive: Sequence[int],
    anchors: Float64[Array, "entries d"],
    cohort: Cohort,
) -> list[Float64[Array, " s"] | None]:
    """F_i(x_t) for the entries that ask for them."""
    needs = [entries[k].algorithm.demands.needs for k in alive]
    asking = [j for j, need in enumerate(needs) if "losses" in need]
    found: list[Float64[Array, " s"] | None] = [None] * len(alive)
    if asking:
        table = np.asarray(problem.client_losses(anchors[asking]), dtype=np.float64)
        for j, row in zip(asking, table[:, cohort.clients], strict=True):
            found[j] = row
    return found


def _heard(
    anchor: Float64[Array, " d"],
    displacements: Float[Array, "s d"],
    cohort: Cohort,
    plan: LocalPlan,
    losses: Float64[Array, " s"] | None,
    gradients: Float[Array, "s d"] | None,
) -> Round:
    """The round without clients whose vectors are not finite."""
    finite = finite_rows(displacements)
    if gradients is not None:
        finite &= finite_rows(gradients)
    if not finite.all():
        heard = np.flatnonzero(finite)
        displacements, cohort, plan = (
            displacements[heard],
            cohort.only(heard),
            plan.only(heard),
        )
        losses = None if losses is None else losses[heard]
        gradients = None if gradients is None else gradients[heard]
    rows = Rows(displacements, np, *displacements.shape)
    sent = None if gradients is None else Rows(gradients, np, *gradients.shape)
    return Round(anchor, rows, cohort, plan, losses, sent)


def _decide(
    setting: Setting,
    state: ServerState,
    heard: Round,
    where: tuple[int, int],
    observers: Sequence[Observer],
) -> tuple[ServerState, dict[str, Any]]:
    """The rule, the server step, and what the trace keeps of them.

    A rule that cannot decide the round stops its own entry; the trace says why.
    """
    t, k = where
    entry, problem = setting.entries[k], setting.problem
    if len(heard.cohort.clients) == 0:
        note = {"status": "diverged: no displacement was finite"}
        return replace(state, diverged=True), note
    watched = len(observers) > 0
    ask = _asked(setting, heard, entry)
    with naming(entry, f"round {t + 1}, decide"):
        came = conclude(
            *(entry, state, heard),
            fits=_is_finite,
            ask=ask,
            with_move=watched,
            strict=True,
        )
    decision = came.decision
    if decision is None and came.status == RANGE_ERROR:
        status = "diverged: the step was not finite"
        return replace(state, diverged=True), round_note(heard.cohort, None, status)
    if decision is None:
        status = f"refused: {came.status}"
        return replace(state, refused=True), round_note(heard.cohort, None, status)
    seen: dict[str, float] = dict(came.measured)
    for observe in observers:
        assert came.move is not None
        seen |= observe(
            Step(
                t,
                k,
                entry.algorithm,
                state.algorithm,
                heard,
                decision,
                came.move,
                problem,
            )
        )
    note = round_note(heard.cohort, decision, came.status) | {"observed": seen}
    return came.state, note


def _is_finite(anchor: Float64[Array, " d"]) -> bool:
    return bool(np.isfinite(anchor).all())


def _excluded(asked: Cohort, heard: Cohort) -> tuple[int, ...]:
    if len(heard.clients) == len(asked.clients):
        return ()
    return tuple(int(i) for i in np.setdiff1d(asked.clients, heard.clients))


# ------------------ records


def _stopped(state: ServerState) -> dict[str, Any]:
    if not state.stopped:
        return {}
    return {"status": "diverged, stopped" if state.diverged else "refused, stopped"}


def record_of(
    t: int, k: int, state: ServerState, note: Mapping[str, Any], **measured: Any
) -> RoundRecord:
    """A record from a state and what is known of the round."""
    return RoundRecord(
        round=t,
        entry=k,
        scalars=state.scalars,
        paper_scalars=state.paper_scalars,
        **measured,
        **note,
    )


def evaluated(
    setting: Setting,
    states: Sequence[ServerState],
    t: int,
    notes: Sequence[Mapping[str, Any]],
) -> list[RoundRecord]:
    """Records with objectives and metrics; stopped entries are not evaluated.

    Scores are products in the run's precision; losses are summed in float64. Averages
    are evaluated by themselves, so that iterates are in the same batch with them and
    without: the rounding of a product may depend on what stands beside it.
    """
    alive = [k for k, state in enumerate(states) if not state.stopped]
    measured: list[dict[str, Any]] = [{} for _ in states]
    if alive:
        found = _measured(setting, [states[k].anchor for k in alive])
        for k, values in zip(alive, found, strict=True):
            measured[k] = values
    means = {k: average.model for k in alive if (average := states[k].average)}
    if means:
        found = _measured(setting, list(means.values()))
        for k, values in zip(means, found, strict=True):
            more = values.pop("metrics") | values
            own = {f"{AVERAGED}{name}": value for name, value in more.items()}
            measured[k]["metrics"] |= own
    return [
        record_of(t, k, state, notes[k], **measured[k])
        for k, state in enumerate(states)
    ]


def _measured(
    setting: Setting, models: Sequence[Float64[Array, " d"]]
) -> list[dict[str, Any]]:
    """Objectives and metrics of some models."""
    stack = np.stack(models).astype(setting.dtype)
    if (stack == stack[0]).all():  # all start at one point
        stack = stack[:1]
    with np.errstate(all="ignore"):
        values = np.asarray(setting.objectives(stack), dtype=np.float64)
        metrics = setting.problem.evaluate(stack)
    rows = [min(row, len(stack) - 1) for row in range(len(models))]
    return [
        {
            "objective": float(values[at, 0]),
            "pooled": float(values[at, 1]),
            "metrics": {key: float(v[at]) for key, v in metrics.items()},
        }
        for at in rows
    ]


def _has_diverged(record: RoundRecord) -> bool:
    value = record.objective
    return value is not None and not abs(value) < DIVERGED
