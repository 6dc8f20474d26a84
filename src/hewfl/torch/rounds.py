"""A round, from the meeting of the ranks to the report.

    1. ranks tell each other what they did (`Work`), and agree on all else;
    2. displacements are exchanged: sums alone where the rule can do with them
       (`by_sums.py`), all entries where it cannot (`by_entries.py`);
    3. every rank has the same step, sees that the new model is finite, and moves.

A rule that asks for more than it was given says so on all ranks alike, is given it, and
from then on is given it at once.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from jaxtyping import Float64

from hewfl.aggregate.sketched import NeedsEntriesError, NeedsProductsError
from hewfl.core.checks import Array, invalid
from hewfl.torch.allreduce import checked
from hewfl.torch.by_entries import by_entries
from hewfl.torch.by_sums import by_sums, finish
from hewfl.torch.faults import ranks_named
from hewfl.torch.options import Checked, SyncReport
from hewfl.torch.outcome import Outcome
from hewfl.torch.replica import Replica, Want
from hewfl.torch.trace import JobTrace
from hewfl.torch.wire import ring_bytes
from hewfl.torch.work import Arrivals, Meeting, Work

_log = logging.getLogger("hewfl.torch")


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
    with replica.meetings.met(
        Meeting.ROUND, work, replica.rounds, replica.product, _sketch_of(replica)
    ) as (arrivals, table):
        met, before = time.perf_counter(), _checked(replica, arrivals)
        replica.is_over = bool(arrivals.leaving.all())
        found = None
        if arrivals.meeting is Meeting.FIRST_STEP:  # this rank has left before
            _start(replica, arrivals)
        elif len(arrivals.active) == 0:
            return None
        else:
            found = _concluded(replica, arrivals, table)
            replica.state = found.state
    if found is None:
        return sync(replica, work)
    replica.rounds += 1
    noted = replica.unheeded.noted(found.decision, found.heard, replica.rounds)
    outcome = replace(found, decision=noted)
    seconds = (time.perf_counter() - began, met - began)
    bytes_sent = replica.wire.bytes_sent - sent
    report = _report(replica, arrivals, outcome, (bytes_sent, *seconds), before)
    if replica.trace is not None:
        _trace(replica, replica.trace, outcome, report)
    if outcome.measured is not None:
        replica.scale *= outcome.measured.factor
    return report


def start_variates(replica: Replica) -> None:
    """c_i = the gradients at hand, c their mean (erratum E-29).

    Raises:
        RankError: on every rank, if none has finite gradients or one has not come
            to its first step.
    """
    assert replica.variates is not None
    finite = replica.variates.take_gradients()
    work = Work(finite=finite)
    with replica.meetings.met(Meeting.FIRST_STEP, work, replica.rounds) as (
        arrivals,
        _,
    ):
        _start(replica, arrivals)


def _sketch_of(replica: Replica) -> Callable[[], Float64[Array, " m"]] | None:
    """Makes this rank's sketch, where the rule has asked for products."""
    if replica.want is not Want.PRODUCTS:
        return None
    return lambda: replica.sums.sketched(replica.rounds)


def _concluded(
    replica: Replica, arrivals: Arrivals, table: Float64[Array, "n m"] | None
) -> Outcome:
    """Weigh and move, with no more than the rule asks for."""
    while replica.want < Want.ENTRIES:
        try:
            return by_sums(replica, arrivals, table)
        except NeedsProductsError:
            replica.want = Want.PRODUCTS
        except NeedsEntriesError:
            if replica.options.overlap:
                text = "False for rules that ask for entries of displacements"
                raise invalid("overlap", text, replica.options.overlap) from None
            replica.want = Want.ENTRIES
    return by_entries(replica, arrivals)


def _start(replica: Replica, arrivals: Arrivals) -> None:
    """The first values of control variates; whoever has left has no gradient."""
    assert replica.variates is not None
    heard = np.flatnonzero(arrivals.finite & ~arrivals.leaving)
    replica.variates.start(replica.wire, heard)
    lost = np.flatnonzero(~arrivals.finite).tolist()
    if lost and replica.wire.rank == 0:
        text = "the first gradient was not finite on %s: the others' mean stands in"
        _log.warning(text, ranks_named(lost))
    if replica.trace is not None:
        replica.trace.charge(len(heard) * replica.model.layout.parameters)


def _checked(replica: Replica, arrivals: Arrivals) -> Checked | None:
    """What the data says of the weights of the last round."""
    solved, replica.solved = replica.solved, None
    return None if solved is None else checked(solved, arrivals.products)


def _trace(
    replica: Replica, trace: JobTrace, outcome: Outcome, report: SyncReport
) -> None:
    seen = {"bytes_sent": float(report.bytes_sent), "seconds": report.seconds}
    seen["waited"] = report.waited
    if report.checked is not None:
        seen["last_sketch_error"] = report.checked.error
    if outcome.measured is not None:
        seen |= outcome.measured.note(replica.scale)
    heard = outcome.roster, outcome.decision
    trace.add(replica.rounds, *heard, report.excluded, seen)


def _report(
    replica: Replica,
    arrivals: Arrivals,
    outcome: Outcome,
    used: tuple[int, float, float],
    before: Checked | None,
) -> SyncReport:
    active, found = set(arrivals.active.tolist()), set(outcome.heard.tolist())
    idle = tuple(i for i in range(replica.wire.ranks) if i not in active)
    lost = tuple(sorted(active - found))
    if lost and replica.wire.rank == 0:
        text = "round %d: weight zero for %s, whose model was not finite"
        _log.warning(text, replica.rounds, ranks_named(lost))
    weights = np.zeros(replica.wire.ranks)
    weights[outcome.heard] = outcome.decision.weights
    sizes = [bucket.nbytes for bucket in replica.model.layout.buckets]
    return SyncReport(
        round=replica.rounds,
        weights=tuple(weights.tolist()),
        steps=tuple(arrivals.steps.tolist()),
        tokens=tuple(arrivals.tokens.tolist()),
        idle=idle,
        excluded=lost,
        left=tuple(np.flatnonzero(arrivals.leaving).tolist()),
        status=outcome.decision.status,
        gap=float(outcome.decision.gap),
        checked=before,
        bytes_sent=used[0],
        ring_bytes=sum(ring_bytes(size, replica.wire.ranks) for size in sizes),
        seconds=used[1],
        waited=used[2],
        measured=outcome.measured,
    )
