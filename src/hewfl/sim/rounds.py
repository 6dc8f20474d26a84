"""One round of all lanes, from the roster to the records."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float, Float64

from hewfl.aggregate.rows import Rows
from hewfl.core.algorithm import Corrected, Informed, Traffic
from hewfl.core.checks import Array
from hewfl.core.records import UpperState
from hewfl.core.round import LocalPlan, Roster, Round
from hewfl.errors import HewError, RuleError
from hewfl.problems.problem import Adaptive, Probed, Problem
from hewfl.server.conclude import RANGE_ERROR, conclude
from hewfl.server.faulty import check_plan, naming
from hewfl.server.first import finite_rows
from hewfl.server.ledger import charge, with_gradients
from hewfl.server.measure import Ask, measured_traffic, scaled
from hewfl.server.participation import FullParticipation
from hewfl.server.state import Lane, ServerState
from hewfl.server.trace import AVERAGED, RoundRecord, round_note
from hewfl.sim.branches import run_branches
from hewfl.sim.draws import Draws, draw, draw_probes
from hewfl.sim.lanes import Observer, Setting, Step

DIVERGED = 1e12
"""A lane whose objective leaves this range is stopped; so is one that is not finite."""


def run_round(
    setting: Setting,
    states: Sequence[ServerState],
    roster: Roster,
    observers: Sequence[Observer],
    *,
    evaluate: bool,
) -> tuple[list[ServerState], list[RoundRecord]]:
    """One round of all lanes: the round t and the clients of the roster."""
    problem, t = setting.problem, roster.round
    alive = [k for k, state in enumerate(states) if not state.stopped]
    states, notes = list(states), [_stopped(state) for state in states]
    if len(roster.clients) == 0:
        for k in alive:
            notes[k] = {"status": "nobody took part"}
    elif alive:
        with np.errstate(all="ignore"):  # what is not finite is named, and stops a lane
            states = _told(setting, states, alive, notes)
            alive = [k for k in alive if not states[k].stopped]
            plans = _plans(setting, states, alive, roster, notes)
            for k, heard in _branches(setting, states, plans, roster).items():
                decided = _decide(setting, states[k], heard, (t, k), observers)
                states[k], notes[k] = decided
                notes[k]["excluded"] = _excluded(roster, heard.roster)
                traffic = traffic_of(setting, setting.lanes[k])
                bill = charge(traffic, len(roster.clients), problem.d)
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
    roster: Roster,
    notes: list[dict[str, Any]],
) -> dict[int, LocalPlan]:
    """What each lane tells the clients; one that cannot plan stops, and says why."""
    plans = {}
    for k in alive:
        lane = setting.lanes[k]
        try:
            with naming(lane, f"round {roster.round + 1}, plan"):
                plan = lane.algorithm.plan(roster, states[k].algorithm)
            check_plan(lane, roster, plan)
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
    roster: Roster,
) -> dict[int, Round]:
    """Draws and branches of the lanes that planned: what the server hears of each."""
    if not plans:
        return {}
    problem, told = setting.problem, list(plans.values())
    true = setting.roles.true(roster)
    draws = draw(setting.seed, roster.round, true, problem.offsets)
    anchors = np.stack([states[k].anchor for k in plans])
    displacements, gradients = _run(
        problem, anchors.astype(setting.dtype), true, told, draws
    )
    if setting.roles.bad:
        _spoil(setting, states, plans, displacements, gradients, roster)
    losses = _losses(problem, setting.lanes, list(plans), anchors, roster)
    rows = zip(anchors, displacements, told, losses, gradients, strict=True)
    heard = [
        _heard(x, moved, roster, plan, loss, mean)
        for x, moved, plan, loss, mean in rows
    ]
    return dict(zip(plans, heard, strict=True))


def _spoil(
    setting: Setting,
    states: list[ServerState],
    plans: Mapping[int, LocalPlan],
    displacements: Float[Array, "lanes s d"],
    gradients: Sequence[Float[Array, "s d"] | None],
    roster: Roster,
) -> None:
    """What bad clients make of what they send, in place; stale ones keep it."""
    roles, stale = setting.roles, len(setting.roles.stale)
    kept = [np.array(states[k].kept) for k in plans] if stale else []
    moved = np.stack([rows[:stale] for rows in kept]) if stale else None
    displacements[:] = roles.sent(displacements, roster, moved)
    for place, (k, g) in enumerate(zip(plans, gradients, strict=True)):
        if g is not None:  # a gradient points against the displacement
            last = kept[place][stale:][None] if stale else None
            g[:] = -roles.sent(-g[None], roster, last)[0]
        if moved is not None:
            kept[place][:stale] = moved[place]
            states[k] = replace(states[k], kept=kept[place])


def _run(
    problem: Problem,
    anchors: Float[Array, "lanes d"],
    roster: Roster,
    plans: Sequence[LocalPlan],
    draws: Draws,
) -> tuple[Float[Array, "lanes s d"], list[Float[Array, "s d"] | None]]:
    """Displacements, and mean gradients for the lanes whose clients must send them."""
    found: list[Float[Array, "s d"] | None] = [None] * len(plans)
    asking = [k for k, plan in enumerate(plans) if plan.correction is not None]
    if not (asking and _hides_gradients(problem)):
        return run_branches(problem, anchors, roster, plans, draws), found
    assert isinstance(problem, Adaptive)
    moved, means = problem.measured_branches(anchors, roster, plans, draws.samples)
    for k, mean in zip(asking, means, strict=True):
        found[k] = mean
    return moved, found


def _hides_gradients(problem: Problem) -> bool:
    return isinstance(problem, Adaptive) and problem.hides_gradients


def sends_gradients(setting: Setting, lane: Lane) -> bool:
    """Whether a lane's clients send mean gradients beside their displacements."""
    return lane.algorithm.demands.variates and _hides_gradients(setting.problem)


def traffic_of(setting: Setting, lane: Lane) -> Traffic:
    """What a lane's clients send in a round of this run."""
    traffic = lane.algorithm.demands.traffic
    if sends_gradients(setting, lane):
        traffic = with_gradients(traffic)
    everybody = isinstance(setting.federation.participation, FullParticipation)
    return measured_traffic(traffic, lane.outer, everybody=everybody)


def _asked(setting: Setting, heard: Round, lane: Lane) -> Ask | None:
    """How the clients heard are asked for losses along a step; None if they are not.

    A bad client answers with the labels it has; what it makes of displacements it does
    not make of losses.
    """
    problem, count = setting.problem, lane.outer.measure
    if count is None:
        return None
    assert isinstance(problem, Probed), "checked before the rounds"
    samples = draw_probes(setting.seed, heard.roster, problem.offsets, count)

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
    """Audit lanes learn the true state: the gap and the tracking error (E-18, b).

    The error is the largest over all clients, absent ones too: c has them all. A lane
    whose state is not finite has diverged, though no evaluation has seen it yet.
    """
    problem = setting.problem
    for k in alive:
        algorithm, state = setting.lanes[k].algorithm, states[k]
        if not algorithm.demands.oracle:
            continue
        assert isinstance(algorithm, Informed), "an oracle's word needs `told`"
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
    asking = [j for j, k in enumerate(alive) if lanes[k].algorithm.demands.losses]
    found: list[Float64[Array, " s"] | None] = [None] * len(alive)
    if asking:
        table = np.asarray(problem.client_losses(anchors[asking]), dtype=np.float64)
        for j, row in zip(asking, table[:, roster.clients], strict=True):
            found[j] = row
    return found


def _heard(
    anchor: Float64[Array, " d"],
    displacements: Float[Array, "s d"],
    roster: Roster,
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
        displacements, roster, plan = (
            displacements[heard],
            roster.only(heard),
            plan.only(heard),
        )
        losses = None if losses is None else losses[heard]
        gradients = None if gradients is None else gradients[heard]
    rows = Rows(displacements, np, *displacements.shape)
    sent = None if gradients is None else Rows(gradients, np, *gradients.shape)
    return Round(anchor, rows, roster, plan, losses, sent)


def _decide(
    setting: Setting,
    state: ServerState,
    heard: Round,
    where: tuple[int, int],
    observers: Sequence[Observer],
) -> tuple[ServerState, dict[str, Any]]:
    """The rule, the outer step, and what the trace keeps of them.

    A rule that cannot decide the round stops its own lane; the trace says why.
    """
    t, k = where
    lane, problem = setting.lanes[k], setting.problem
    if len(heard.roster.clients) == 0:
        note = {"status": "diverged: no displacement was finite"}
        return replace(state, diverged=True), note
    watched = len(observers) > 0
    ask = _asked(setting, heard, lane)
    with naming(lane, f"round {t + 1}, decide"):
        came = conclude(
            *(lane, state, heard),
            fits=_is_finite,
            ask=ask,
            with_move=watched,
            strict=True,
        )
    decision = came.decision
    if decision is None and came.status == RANGE_ERROR:
        status = "diverged: the step was not finite"
        return replace(state, diverged=True), round_note(heard.roster, None, status)
    if decision is None:
        status = f"refused: {came.status}"
        return replace(state, refused=True), round_note(heard.roster, None, status)
    seen: dict[str, float] = dict(came.measured)
    for observe in observers:
        assert came.move is not None
        seen |= observe(
            Step(
                t,
                k,
                lane.algorithm,
                state.algorithm,
                heard,
                decision,
                came.move,
                problem,
            )
        )
    note = round_note(heard.roster, decision, came.status) | {"observed": seen}
    return came.state, note


def _is_finite(anchor: Float64[Array, " d"]) -> bool:
    return bool(np.isfinite(anchor).all())


def _excluded(asked: Roster, heard: Roster) -> tuple[int, ...]:
    if len(heard.clients) == len(asked.clients):
        return ()
    return tuple(int(i) for i in np.setdiff1d(asked.clients, heard.clients))


# ------------------------------------------------------------------ records


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
        lane=k,
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
    """Records with objectives and metrics; stopped lanes are not evaluated.

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
