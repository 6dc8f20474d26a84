"""A round, from the meeting of the ranks to the report.

    1. ranks tell each other what they did (`Work`), and agree on all else;
    2. the rule sees of the displacements what it asks for (`exchange.py`): nothing,
       their sketches, or all entries; it decides the same on every rank;
    3. the step travels, every rank sees that the new model is finite, and moves.

A rule that asks for more than it was given says so on all ranks alike, is given it, and
from then on is given it at once.
"""

import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray

from hewfl.aggregate.sketched import (
    Checked,
    NeedsEntriesError,
    NeedsProductsError,
    Sketches,
    checked,
)
from hewfl.core.algorithm import Modelled
from hewfl.core.checks import Ints, invalid
from hewfl.core.round import Decision, LocalPlan, Roster, Round
from hewfl.server.conclude import decided
from hewfl.server.measure import Measured
from hewfl.torch.faults import RankError, ranks_named
from hewfl.torch.meetings import Arrivals, Meeting, Work
from hewfl.torch.model import is_finite
from hewfl.torch.options import SyncReport
from hewfl.torch.probing import measured_step
from hewfl.torch.replica import Replica, Want
from hewfl.torch.wire import ring_bytes

_log = logging.getLogger("hewfl.torch")


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a round.

    Attributes:
        roster: ranks heard, and their work.
        decision: the rule's.
        state: of the rule after it.
        measured: along the step, where losses are.
    """

    roster: Roster
    decision: Decision
    state: Any
    measured: Measured | None = None


def sync(replica: Replica, work: Work) -> SyncReport | None:
    """Aggregate what all ranks did since the last round.

    Returns:
        What happened; None if no rank had done a step.

    Raises:
        RankError: ranks are missing or disagree, none came back finite, or the new
            model would not be; the model is then as it was.
    """
    if replica.options.outer.measure is not None and replica.probe is None:
        rule = "told how to measure a loss (`HewLocalSGD.probe_with`)"
        raise invalid("the job", rule, "an outer step with `measure` alone")
    finish(replica)
    began, sent = time.perf_counter(), replica.wire.bytes_sent
    sketch = partial(_sketch, replica) if replica.want is Want.PRODUCTS else None
    given = Meeting.ROUND, work, replica.rounds, replica.product, sketch
    with replica.meetings.met(*given) as arrivals:
        met, before = time.perf_counter(), _checked(replica, arrivals)
        replica.is_over = bool(arrivals.rows["leaving"].all())
        found = None
        if arrivals.meeting is Meeting.FIRST_STEP:  # this rank has left before
            _start(replica, arrivals)
        elif len(arrivals.active) == 0:
            replica.exchange.drop()
            return None
        else:
            found = _concluded(replica, arrivals)
    if found is None:
        return sync(replica, work)
    replica.state, replica.rounds = found.state, replica.rounds + 1
    clients = found.roster.clients
    noted = replica.unheeded.noted(found.decision, clients, replica.rounds)
    used = replica.wire.bytes_sent - sent, time.perf_counter() - began, met - began
    found = replace(found, decision=noted)
    report = _report(replica, arrivals, found, used, before)
    replica.note(np.array(report.weights))
    if replica.trace is not None:
        replica.trace.add(report, found.roster, noted, replica.scale)
    if found.measured is not None:
        replica.scale *= found.measured.factor
    return report


def _sketch(replica: Replica) -> NDArray[np.uint8]:
    """This rank's sketch; where weights are steady the sum travels meanwhile."""
    if replica.steady is not None:
        replica.exchange.start(float(replica.steady[replica.wire.rank]))
    return replica.exchange.sketch(replica.rounds)


def start_variates(replica: Replica) -> None:
    """c_i = the gradients at hand, c their mean (erratum E-29).

    Raises:
        RankError: on every rank, if none has finite gradients or one has not come
            to its first step.
    """
    assert replica.variates is not None
    work = Work(finite=replica.variates.take_gradients())
    with replica.meetings.met(Meeting.FIRST_STEP, work, replica.rounds) as arrivals:
        _start(replica, arrivals)


def finish(replica: Replica) -> None:
    """Wait for a sum that is under way, and apply it; all ranks must.

    Raises:
        RankError: ranks are missing, or the model would not be finite.
    """
    if replica.flying is None:
        return
    (decision, rounds), replica.flying = replica.flying, None
    with replica.meetings.watched(f"after round {rounds}"):
        _moved(replica, replica.exchange.arriving(), decision)
    _accept(replica, rounds)


def _start(replica: Replica, arrivals: Arrivals) -> None:
    """The first values of control variates; whoever has left has no gradient."""
    assert replica.variates is not None
    finite, leaving = arrivals.rows["finite"], arrivals.rows["leaving"]
    heard = np.flatnonzero((finite != 0) & (leaving == 0))
    replica.variates.start(heard)
    lost = np.flatnonzero(finite == 0).tolist()
    if lost and replica.wire.rank == 0:
        text = "the first gradient was not finite on %s: the others' mean stands in"
        _log.warning(text, ranks_named(lost))
    if replica.trace is not None:
        replica.trace.charge(len(heard) * replica.model.layout.parameters)


def _concluded(replica: Replica, arrivals: Arrivals) -> Outcome:
    """Weigh and move, with no more than the rule asks for."""
    while replica.want < Want.ENTRIES:
        try:
            return _by_sums(replica, arrivals)
        except NeedsProductsError:
            replica.want = Want.PRODUCTS
        except NeedsEntriesError:
            if replica.options.overlap:
                text = "False for rules that ask for entries of displacements"
                raise invalid("overlap", text, replica.options.overlap) from None
            replica.want = Want.ENTRIES
    return _by_entries(replica, arrivals)


def _by_sums(replica: Replica, arrivals: Arrivals) -> Outcome:
    """Sketch, solve, send."""
    heard, rows, exchange = arrivals.active, None, replica.exchange
    if replica.want is Want.PRODUCTS:
        table = arrivals.sketches
        if table is None:
            table = replica.wire.table(exchange.sketch(replica.rounds))
        rows = exchange.sketches(table)
        heard = heard[np.isfinite(rows[heard]).all(axis=1)]
        rows = rows[heard]
    sketches = Sketches(len(heard), replica.model.layout.parameters, rows)
    round_ = _round_of(replica, NoAnchor(), sketches, heard, arrivals)
    decision, following = decided(replica.algorithm, round_, replica.state)
    if decision.step is not None:
        raise NeedsEntriesError
    weights = np.zeros(replica.wire.ranks)
    weights[heard] = decision.weights
    is_guessed = arrivals.sketches is not None and replica.steady is not None
    if not (is_guessed and np.array_equal(weights, replica.steady)):
        exchange.start(float(weights[replica.wire.rank]))
    if replica.options.overlap:
        if replica.wire.rank in heard:  # else start again from the new x
            replica.model.capture()
        replica.flying = decision, replica.rounds
        return Outcome(round_.roster, decision, following)
    solved = None
    if decision.value is not None and isinstance(replica.algorithm, Modelled):
        model = replica.algorithm.model(round_, replica.state)
        solved = heard, decision, model, sketches
    steps, found = _measured(replica, exchange.arriving(), decision, heard)
    multiplies = solved is not None and found is None
    try:
        replica.product = _moved(replica, steps, decision, multiplies=multiplies)
    except RankError:
        if rows is not None:
            raise
        replica.want = Want.PRODUCTS  # for once: sketches tell whose is not finite
        try:
            return _by_sums(replica, arrivals)
        finally:
            replica.want = Want.WEIGHTS
    _accept(replica, replica.rounds)
    replica.solved = solved if multiplies else None
    return Outcome(round_.roster, decision, following, found)


def _by_entries(replica: Replica, arrivals: Arrivals) -> Outcome:
    """Exchange shards, so that the rule sees all entries."""
    exchange, variates = replica.exchange, replica.variates
    travelled = arrivals.rows["travelled"]
    heard, shards = exchange.spread(arrivals.active, travelled)
    anchor: Any = np.empty(0)  # none of the rules known by name looks at it
    if not isinstance(replica.rule.choice, str):
        anchor = np.asarray(exchange.own_part(replica.model.anchor))
    round_ = _round_of(replica, anchor, shards, heard, arrivals)
    decision, following = decided(replica.algorithm, round_, replica.state)
    step = decision.step
    step = exchange.wholes(shards.combine(decision.weights) if step is None else step)
    roster = round_.roster
    del shards, round_  # their memory
    steps, found = _measured(replica, step, decision, heard)
    _moved(replica, steps, decision)
    if variates is not None:
        far = float(travelled[heard[heard == replica.wire.rank]].sum())
        own, server = variates.following(far)
        if not all(map(is_finite, server)):
            raise _beyond(replica, decision)
        variates.accept(own, server)
    _accept(replica, replica.rounds)
    return Outcome(roster, decision, following, found)


def _round_of(
    replica: Replica,
    anchor: Any,
    data: Any,
    heard: Int64[Ints, " s"],
    arrivals: Arrivals,
) -> Round:
    """All that the rule may look at.

    Raises:
        RankError: there is nothing.
        InvalidInputError: tokens are asked for and were not counted.
    """
    if len(heard) == 0:
        raise RankError("no rank's model was finite")
    H, tokens = arrivals.rows["steps"][heard], arrivals.rows["tokens"][heard]
    if replica.rule.choice == "tokens" and tokens.min() < 1:
        raise invalid("tokens", "counted on every rank", tokens.tolist())
    counts = tokens.min() > 0 and replica.rule.choice != "sieve"  # equal by that name
    sizes = np.where(counts, tokens, 1)
    roster = Roster(
        heard, H, np.ones_like(H), sizes, replica.wire.ranks, replica.rounds
    )
    plan = LocalPlan(arrivals.rows["travelled"][heard] / H)
    return Round(anchor, data, roster, plan)


def _measured(
    replica: Replica,
    steps: Iterable[torch.Tensor],
    decision: Decision,
    heard: Int64[Ints, " s"],
) -> tuple[Iterable[torch.Tensor], Measured | None]:
    """The step as long as the ranks' losses say, where they are asked."""
    if replica.probe is None or replica.options.outer.measure is None:
        return steps, None
    steps, voters = list(steps), (heard, decision.weights)
    found = measured_step(replica.model, replica.wire, replica.probe, steps, voters)
    return [step.mul_(found.length) for step in steps], found


def _moved(
    replica: Replica,
    steps: Iterable[torch.Tensor],
    decision: Decision,
    *,
    multiplies: bool = False,
) -> float:
    """Make the next model from the step, each bucket while others travel.

    Returns:
        ⟨s, Δ⟩ of this rank where it is wanted.

    Raises:
        RankError: it would not be finite; nothing has changed.
    """
    product, fits = 0.0, True
    for b, step in enumerate(steps):
        part, reach = replica.model.advance(b, step, multiplies=multiplies)
        product, fits = product + part, fits and math.isfinite(reach)
    if not fits:
        raise _beyond(replica, decision)
    return product


def _accept(replica: Replica, rounds: int) -> None:
    """Let the next model be the model, once all of it is known to be finite."""
    if replica.exchange.narrow is not None:
        replica.exchange.narrow.settle()
    replica.model.accept(rounds)


def _beyond(replica: Replica, decision: Decision) -> RankError:
    """That the model would leave its range."""
    text = (
        f"the model after round {replica.rounds + 1}, or a control variate, would not "
        f"be finite, though displacements are (outer step size "
        f"{replica.options.outer.step:g}, weights {decision.weights.tolist()}): all "
        "is left as it was"
    )
    return RankError(text)


def _checked(replica: Replica, arrivals: Arrivals) -> Checked | None:
    """What the data says of the weights of the last round."""
    solved, replica.solved = replica.solved, None
    if solved is None:
        return None
    heard, decision, model, sketches = solved
    products = arrivals.rows["product"][heard]
    return checked(replica.rounds, model, decision.weights, sketches.rows, products)


def _report(
    replica: Replica,
    arrivals: Arrivals,
    outcome: Outcome,
    used: tuple[int, float, float],
    before: Checked | None,
) -> SyncReport:
    heard, ranks = outcome.roster.clients, range(replica.wire.ranks)
    active, found = set(arrivals.active.tolist()), set(heard.tolist())
    lost = tuple(sorted(active - found))
    if lost and replica.wire.rank == 0:
        text = "round %d: weight zero for %s, whose model was not finite"
        _log.warning(text, replica.rounds, ranks_named(lost))
    weights = np.zeros(len(ranks))
    weights[heard] = outcome.decision.weights
    sizes = [bucket.nbytes for bucket in replica.model.layout.buckets]
    return SyncReport(
        round=replica.rounds,
        weights=tuple(weights.tolist()),
        steps=tuple(arrivals.rows["steps"].tolist()),
        tokens=tuple(arrivals.rows["tokens"].tolist()),
        idle=tuple(i for i in ranks if i not in active),
        excluded=lost,
        left=tuple(np.flatnonzero(arrivals.rows["leaving"]).tolist()),
        status=outcome.decision.status,
        gap=float(outcome.decision.gap),
        checked=before,
        bytes_sent=used[0],
        ring_bytes=sum(ring_bytes(size, len(ranks)) for size in sizes),
        seconds=used[1],
        waited=used[2],
        measured=outcome.measured,
    )


@final
class NoAnchor:
    """Stands for x where a rule is asked without entries."""

    shape = (0,)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Not there: the rule is asked again, with entries."""
        raise NeedsEntriesError
