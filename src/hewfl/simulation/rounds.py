"""One round of all entries of a comparison: pure functions from states to states.

    cohort          = federation.cohort(t)                                `simulate`
    plan            = algorithm.plan(cohort, state)                       `plan_round`
    draws           = draw(seed, t, cohort)                               `run_clients`
    displacements   = run_branches(problem, anchor, cohort, plan, draws)
    decision, state = algorithm.decide(Round(...), state)                 `finish_entry`
    anchor, memory  = server_step(anchor, decision, memory)
    trace.record(t, anchor, decision, communication)                      `record_round`

All entries use the same cohort and the same draws. An entry that diverges or refuses
stops, and the others continue. Finiteness is checked on displacements (`_arrive`), on
the new model (`hewfl.server.finish_round`) and on the objective
(`hewfl.simulation.evaluation`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, final

import numpy as np

from hewfl.core.algorithm import (
    Algorithm,
    Corrected,
    Demands,
    Informed,
    Traffic,
    Truth,
)
from hewfl.core.array_types import Float, Float64
from hewfl.core.records import UpperState
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import Array
from hewfl.displacements.dense import DenseDisplacements
from hewfl.errors import HewError, RuleError
from hewfl.federation import Federation
from hewfl.federation.adversary import (
    AttackView,
    Remembering,
    checked_rows,
    deciding,
)
from hewfl.federation.federation import RootSample
from hewfl.federation.participation import FullParticipation
from hewfl.federation.scenario import FaultAssignment
from hewfl.problems.array_operations import two_means
from hewfl.problems.problem import Adaptive, Probed, Problem
from hewfl.server.communication import add_mean_gradients, round_communication
from hewfl.server.finish_round import finish_round
from hewfl.server.line_search import LossesAlongStep, add_line_search_traffic
from hewfl.server.state import (
    Entry,
    ServerState,
    checked_decision,
    checked_plan,
    finite_rows,
    rule_errors,
)
from hewfl.simulation.branches import run_branches
from hewfl.simulation.draws import draw, draw_probes

Kind = Literal["ok", "rejected", "diverged", "refused", "stopped", "empty"]


@final
@dataclass(frozen=True, slots=True)
class Step:
    """One entry's round, as observers see it.

    Attributes:
        round_number: rounds done before this one.
        entry: index.
        algorithm: of the entry.
        state: the algorithm's state before the round.
        round: all that the algorithm saw.
        decision: the algorithm's decision.
        move: x_{t+1} − x_t, server step included.
        problem: what is optimised.
        faulty: the faulty clients of the run. Certificates assume that there are none.
    """

    round_number: int
    entry: int
    algorithm: Algorithm[Any]
    state: Any
    round: Round
    decision: Decision
    move: Float64[Array, " d"]
    problem: Problem
    faulty: tuple[int, ...] = ()


Observer = Callable[[Step], Mapping[str, float]]


@final
@dataclass(frozen=True)
class Setting:
    """The constants of a run; `root` where the server owns samples."""

    problem: Problem
    federation: Federation
    entries: Sequence[Entry]
    seed: int
    dtype: np.dtype[Any]
    root: RootSample | None = None

    @cached_property
    def faults(self) -> FaultAssignment:
        """The true quality of the clients, hidden from every algorithm."""
        batches = self.federation.batches(self.problem.n)
        return self.federation.scenario.assign(self.seed, batches)

    @cached_property
    def best(self) -> float:
        """F*, solved for once, for audits."""
        return self.problem.optimum().objective

    def objectives(self, anchors: Float[Any, "entries d"]) -> Float64[Any, "entries 2"]:
        """Both means of the losses, over the clients that the scenario evaluates."""
        problem, members = self.problem, self.faults.evaluated_clients
        if len(members) == problem.n:
            return problem.objectives(anchors)
        losses = problem.client_losses(anchors)[:, members]
        return two_means(losses, problem.data_sizes[members])

    @cached_property
    def demands(self) -> tuple[Demands, ...]:
        """Of each entry's algorithm."""
        return tuple(entry.algorithm.demands for entry in self.entries)

    @cached_property
    def traffic(self) -> tuple[Traffic, ...]:
        """What the clients of each entry send in a round."""
        full_participation = isinstance(
            self.federation.participation, FullParticipation
        )
        rows = []
        for k, entry in enumerate(self.entries):
            sent = self.demands[k].traffic
            sent = add_mean_gradients(sent) if self.sends_gradients(k) else sent
            step = entry.server_step
            rows.append(
                add_line_search_traffic(
                    sent, step, full_participation=full_participation
                )
            )
        return tuple(rows)

    def sends_gradients(self, k: int) -> bool:
        """Whether the clients of entry k send mean gradients beside displacements."""
        problem = self.problem
        hides = isinstance(problem, Adaptive) and problem.hides_gradients
        return self.demands[k].variates and hides


@final
@dataclass(frozen=True, slots=True, eq=False)
class EntryRound:
    """One entry after a round.

    Attributes:
        state: after the round.
        kind: "ok"; "rejected": the algorithm accepts no step in this round; "diverged"
            or "refused": the entry stops in this round; "stopped": it stopped before;
            "empty": no client took part.
        status: one sentence.
        cohort: clients with finite vectors, None without branches.
        decision: the algorithm's, None unless `kind` is "ok".
        excluded: clients whose vectors were not finite.
        observed: values of the algorithm, of the line search and of observers.
    """

    state: ServerState
    kind: Kind
    status: str
    cohort: Cohort | None = None
    decision: Decision | None = None
    excluded: tuple[int, ...] = ()
    observed: Mapping[str, float] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Branch:
    """An entry that runs branches in this round; `round_` once they have run."""

    index: int
    entry: Entry
    state: ServerState
    plan: LocalPlan
    round_: Round | None = None


def run_round(
    setting: Setting,
    states: Sequence[ServerState],
    cohort: Cohort,
    observers: Sequence[Observer],
) -> list[EntryRound]:
    """One round of every entry."""
    with np.errstate(all="ignore"):  # values that are not finite stop an entry
        plans = [plan_round(setting, k, s, cohort) for k, s in enumerate(states)]
        branches = [plan for plan in plans if isinstance(plan, _Branch)]
        results = run_clients(setting, branches, cohort)
        return [
            finish_entry(setting, next(results), cohort, observers)
            if isinstance(plan, _Branch)
            else plan
            for plan in plans
        ]


# ------------------ the plan


def plan_round(
    setting: Setting, k: int, state: ServerState, cohort: Cohort
) -> "_Branch | EntryRound":
    """The plan of an entry; its round is over where it cannot run branches."""
    entry = setting.entries[k]
    if state.stopped:
        why = "diverged" if state.diverged else "refused"
        return EntryRound(state, "stopped", f"{why}, stopped")
    if len(cohort.clients) == 0:
        return EntryRound(state, "empty", "no client took part")
    try:
        if setting.demands[k].oracle:
            upper = _true_state(setting, entry.algorithm, state)
            if upper is None:
                why = "diverged: the objective is not finite"
                return EntryRound(replace(state, diverged=True), "diverged", why)
            assert isinstance(entry.algorithm, Informed), "an oracle needs `with_truth`"
            following = entry.algorithm.with_truth(state.algorithm, Truth(upper=upper))
            state = replace(state, algorithm=following)
        plan = checked_plan(entry, cohort, state.algorithm)
    except RuleError:
        raise
    except HewError as error:
        return EntryRound(replace(state, refused=True), "refused", f"refused: {error}")
    if state.scale is not None:  # of earlier line searches
        plan = replace(plan, step_sizes=state.scale * plan.step_sizes)
    return _Branch(k, entry, state, plan)


def _true_state(
    setting: Setting, algorithm: Algorithm[Any], state: ServerState
) -> UpperState | None:
    """The true gap and tracking error (E-18, b), None if they are not finite.

    The error is the largest over all clients, absent ones too: c is a mean over all.
    """
    problem, x = setting.problem, state.anchor[None]
    gap, tracking = float(problem.objectives(x)[0, 0]) - setting.best, 0.0
    variates = None
    if isinstance(algorithm, Corrected):
        variates = algorithm.variates(state.algorithm)
    if variates is not None:
        errors = variates.clients - problem.full_gradients(x)[0]
        tracking = float((np.asarray(errors, dtype=np.float64) ** 2).sum(1).max())
    if not np.isfinite([gap, tracking]).all():
        return None
    return UpperState(max(gap, 0.0), tracking)


# ------------------ the clients


def run_clients(
    setting: Setting, branches: Sequence[_Branch], cohort: Cohort
) -> Iterator[_Branch]:
    """Draws and branches of all entries together, with what the server receives."""
    if not branches:
        return iter(())
    problem, faults = setting.problem, setting.faults
    plans, true = [branch.plan for branch in branches], faults.true_cohort(cohort)
    draws = draw(setting.seed, cohort.round, true, problem.offsets)
    anchors = np.stack([branch.state.anchor for branch in branches])
    start = anchors.astype(setting.dtype)
    gradients: list[Float[Array, "s d"] | None] = [None] * len(plans)
    corrected = [k for k, plan in enumerate(plans) if plan.correction is not None]
    if corrected and isinstance(problem, Adaptive) and problem.hides_gradients:
        ran = problem.measured_branches(start, true, plans, draws.samples)
        displacements = ran[0]
        means = dict(zip(corrected, ran[1], strict=True))
        gradients = [means.get(k) for k in range(len(plans))]
    else:
        displacements = run_branches(problem, start, true, plans, draws)
    branches, displacements = _add_momentum(setting, branches, displacements, cohort)
    if faults.corrupts:
        branches, displacements, gradients = _corrupt(
            faults, branches, displacements, gradients, cohort
        )
    losses = _client_losses(setting, branches, anchors, cohort)
    roots = _root_gradients(setting, branches, start)
    rows = zip(branches, displacements, losses, gradients, roots, strict=True)
    return (_arrive(setting, branch, cohort, *row) for branch, *row in rows)


def _add_momentum(
    setting: Setting,
    branches: Sequence[_Branch],
    displacements: Float[Array, "entries s d"],
    cohort: Cohort,
) -> tuple[Sequence[_Branch], Float[Array, "entries s d"]]:
    """m_i ← βm_i + (1 − β)Δ_i for the entries with worker momentum; m_i is sent.

    A client whose displacement is not finite keeps its m_i, and sends what it has.
    """
    betas = [setting.demands[branch.index].worker_momentum for branch in branches]
    if not any(betas):
        return branches, displacements
    after, sent = list(branches), displacements.copy()
    for k, (branch, beta) in enumerate(zip(branches, betas, strict=True)):
        if branch.state.worker_momentum is None:
            continue
        momentum = branch.state.worker_momentum.copy()
        finite = finite_rows(displacements[k])
        for i in np.flatnonzero(finite):  # row by row: a large model stays in cache
            row = momentum[cohort.clients[i]]
            row *= beta
            row += (1 - beta) * displacements[k, i]
            sent[k, i] = row
        state = replace(branch.state, worker_momentum=momentum)
        after[k] = replace(branch, state=state)
    return after, sent


def _corrupt(
    faults: FaultAssignment,
    branches: Sequence[_Branch],
    displacements: Float[Array, "entries s d"],
    gradients: Sequence[Float[Array, "s d"] | None],
    cohort: Cohort,
) -> tuple[
    list[_Branch], Float[Array, "entries s d"], list[Float[Array, "s d"] | None]
]:
    """The vectors that faulty clients send; states remember those of stale clients."""
    stale, memory = len(faults.stale), [branch.state.last_sent for branch in branches]
    last = np.stack([m[:stale] for m in memory if m is not None]) if stale else None
    displacements, last = faults.corrupt(displacements, cohort, last)
    sent: list[Float[Array, "s d"] | None] = []
    after: list[_Branch] = []
    for k, (branch, g) in enumerate(zip(branches, gradients, strict=True)):
        held = memory[k]
        below = None if held is None else held[stale:][None]
        if g is None:
            sent.append(None)
        else:  # a gradient has the opposite sign of a displacement
            turned, below = faults.corrupt(-g[None], cohort, below)
            sent.append(-turned[0])
        rows = None
        if last is not None and below is not None:
            rows = np.concatenate([last[k], below[0]])
        after.append(replace(branch, state=replace(branch.state, last_sent=rows)))
    return after, displacements, sent


def _client_losses(
    setting: Setting,
    branches: Sequence[_Branch],
    anchors: Float64[Array, "entries d"],
    cohort: Cohort,
) -> list[Float64[Array, " s"] | None]:
    """F_i(x_t) for the entries that need them."""
    demands = [setting.demands[branch.index] for branch in branches]
    needed = [k for k, demand in enumerate(demands) if "losses" in demand.needs]
    if not needed:
        return [None] * len(branches)
    table = np.asarray(setting.problem.client_losses(anchors[needed]), dtype=np.float64)
    rows = dict(zip(needed, table[:, cohort.clients], strict=True))
    return [rows.get(k) for k in range(len(branches))]


def _root_gradients(
    setting: Setting,
    branches: Sequence[_Branch],
    anchors: Float[Array, "entries d"],
) -> list[Float64[Array, " d"] | None]:
    """The gradients on the server's own samples, for the entries that need them."""
    demands = [setting.demands[branch.index] for branch in branches]
    needed = [k for k, demand in enumerate(demands) if "root" in demand.needs]
    if not needed:
        return [None] * len(branches)
    assert setting.root is not None, "checked before the rounds"
    table = setting.root.gradients(anchors[needed])
    rows = dict(zip(needed, table, strict=True))
    return [rows.get(k) for k in range(len(branches))]


def _arrive(  # noqa: PLR0913, PLR0917 - the parts of a round
    setting: Setting,
    branch: _Branch,
    cohort: Cohort,
    displacements: Float[Array, "s d"],
    losses: Float64[Array, " s"] | None,
    gradients: Float[Array, "s d"] | None,
    root: Float64[Array, " d"] | None,
) -> _Branch:
    """The round of the clients whose vectors are finite, after the attacks."""
    means = None if gradients is None else _dense(gradients)
    anchor, rows = branch.state.anchor, _dense(displacements)
    round_ = Round(anchor, rows, cohort, branch.plan, losses, means, root)
    branch = replace(branch, round_=_finite_round(round_))
    for k in range(len(setting.faults.attacks)):
        branch = _attack(setting, branch, k)
    return branch


def _dense(rows: Float[Array, "s d"]) -> DenseDisplacements:
    return DenseDisplacements(rows, np, *rows.shape)


def _finite_round(round_: Round) -> Round:
    """The part of a round whose displacements and mean gradients are finite."""
    rows, means = np.asarray(round_.displacements), round_.gradients
    finite = finite_rows(rows)
    if means is not None:
        finite &= finite_rows(np.asarray(means))
    if finite.all():
        return round_
    members = np.flatnonzero(finite)
    losses = round_.losses
    return Round(
        round_.anchor,
        _dense(rows[members]),
        round_.cohort.only(members),
        round_.plan.only(members),
        None if losses is None else losses[members],
        None if means is None else _dense(np.asarray(means)[members]),
        round_.root,
    )


def _attack(setting: Setting, branch: _Branch, k: int) -> _Branch:
    """The round after the k-th attack, and the memory of the attack in the state.

    A mean gradient of an attacker is what its displacement shows under plain SGD.
    """
    faults, entry, round_ = setting.faults, branch.entry, branch.round_
    assert round_ is not None
    clients, faulty = round_.cohort.clients, np.array(sorted(faults.faulty))
    index, attack, members = faults.attacks[k]
    places = np.flatnonzero(np.isin(clients, members))
    honest = np.flatnonzero(~np.isin(clients, faulty))
    if len(places) == 0:
        return branch
    when = f"round {round_.cohort.round + 1}, asked by an attack"

    def decide(asked: Round, state: Any) -> Decision | None:
        with rule_errors(entry, when):
            try:
                return checked_decision(entry.algorithm, asked, state)[0]
            except RuleError:
                raise
            except HewError:
                return None

    memory = branch.state.attack_memory
    view = AttackView(
        round_,
        honest if len(honest) else places,
        places,
        entry.algorithm,
        branch.state.algorithm,
        deciding(decide, branch.state.algorithm),
        setting.seed,
        index,
        memory[k],
    )
    sent = checked_rows(attack, view)
    rows = np.array(round_.displacements)
    rows[places] = sent
    means = round_.gradients
    if means is not None:
        gradients = np.array(means)
        gradients[places] = -sent / round_.total_step[places, None]
        means = _dense(gradients)
    if isinstance(attack, Remembering):
        memory = (*memory[:k], attack.remember(view), *memory[k + 1 :])
    return replace(
        branch,
        state=replace(branch.state, attack_memory=memory),
        round_=_finite_round(
            replace(round_, displacements=_dense(rows), gradients=means)
        ),
    )


# ------------------ the server


def finish_entry(
    setting: Setting, branch: _Branch, asked: Cohort, observers: Sequence[Observer]
) -> EntryRound:
    """Decision, server step and communication of an entry."""
    k, entry, state, round_ = branch.index, branch.entry, branch.state, branch.round_
    assert round_ is not None
    traffic, s = setting.traffic[k], len(asked.clients)
    sent = round_communication(traffic, s, setting.problem.d)
    state, cohort = state.add_communication(sent), round_.cohort
    excluded: tuple[int, ...] = ()
    if len(cohort.clients) < s:
        excluded = tuple(map(int, np.setdiff1d(asked.clients, cohort.clients)))
    if len(cohort.clients) == 0:
        why = "diverged: no displacement was finite"
        stopped = replace(state, diverged=True)
        return EntryRound(stopped, "diverged", why, excluded=excluded)
    if round_.root is not None and not np.isfinite(round_.root).all():
        why = "diverged: the root gradient is not finite"
        stopped = replace(state, diverged=True)
        return EntryRound(stopped, "diverged", why, cohort, excluded=excluded)
    with rule_errors(entry, f"round {asked.round + 1}, decide"):
        outcome = finish_round(
            entry,
            state,
            round_,
            losses_along=_losses_along(setting, round_, entry),
            with_move=len(observers) > 0,
            strict=True,
            uncertified=_uncertified(setting, excluded),
        )
    if outcome.kind == "rejected":
        numbers, why = dict(outcome.observed), f"rejected: {outcome.status}"
        return EntryRound(state, "rejected", why, cohort, None, excluded, numbers)
    if outcome.decision is None:
        is_finite = outcome.kind != "diverged"
        stopped = replace(state, diverged=not is_finite, refused=is_finite)
        why = f"{outcome.kind}: {outcome.status}"
        return EntryRound(stopped, outcome.kind, why, cohort, excluded=excluded)
    observed: dict[str, float] = dict(outcome.observed)
    for observe in observers:
        assert outcome.move is not None
        observed |= observe(
            Step(
                asked.round,
                k,
                entry.algorithm,
                state.algorithm,
                round_,
                outcome.decision,
                outcome.move,
                setting.problem,
                tuple(sorted(setting.faults.faulty)),
            )
        )
    return EntryRound(
        outcome.state,
        "ok",
        outcome.status,
        cohort,
        outcome.decision,
        excluded,
        observed,
    )


def _uncertified(setting: Setting, excluded: tuple[int, ...]) -> str:
    """Why this simulation knows that a certificate is not about the round."""
    if setting.faults.uncertified or not excluded:
        return setting.faults.uncertified
    return "who takes part depends on minibatches: some updates were not finite"


def _losses_along(
    setting: Setting, round_: Round, entry: Entry
) -> LossesAlongStep | None:
    """The clients' losses along a step; None where there is no line search.

    A faulty client measures the loss on the labels that it has; only its displacement
    is corrupted.
    """
    problem, count = setting.problem, entry.server_step.line_search_samples
    if count is None:
        return None
    assert isinstance(problem, Probed), "checked before the rounds"
    samples = draw_probes(setting.seed, round_.cohort, problem.offsets, count)

    def losses_along(
        points: tuple[float, ...], step: Float64[Array, " d"]
    ) -> Float64[Array, "s k"]:
        models = round_.anchor + np.array(points)[:, None] * step
        table = problem.sample_losses(models.astype(setting.dtype), samples)
        return np.ascontiguousarray(np.asarray(table, dtype=np.float64).T)

    return losses_along
