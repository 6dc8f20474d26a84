"""A round, from the meeting of the ranks to the report.

1. ranks tell each other what they did (`Work`), and agree on all else;
2. the rule decides the same on every rank, and all move (`conclude.py`);
3. what came of it is reported, and traced.
"""

import logging
import time
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hewfl.core.validation import invalid
from hewfl.displacements.sketched_displacements import (
    SketchCheck,
    check_sketched_weights,
)
from hewfl.torch.aggregate_step import Outcome, concluded, finish
from hewfl.torch.collectives import ring_bytes
from hewfl.torch.job import Replica, Want
from hewfl.torch.options import SyncReport
from hewfl.torch.rank_errors import ranks_named
from hewfl.torch.rendezvous import Arrivals, Meeting, Work

_log = logging.getLogger("hewfl.torch")


def sync(replica: Replica, work: Work) -> SyncReport | None:
    """Aggregate what all ranks did since the last round.

    Returns:
        What happened; None if no rank had done a step.

    Raises:
        RankError: ranks are missing or disagree, none came back finite, or the new
            model would not be; the model is then as it was.
    """
    if (
        replica.options.server_step.line_search_samples is not None
        and replica.probe is None
    ):
        rule = "told how to measure a loss (`HewLocalSGD.probe_with`)"
        raise invalid(
            "the job", rule, "an server step with `line_search_samples` alone"
        )
    finish(replica)
    began, sent = time.perf_counter(), replica.wire.bytes_sent
    last, meanwhile = (replica.product, replica.told), partial(_meanwhile, replica)
    given = Meeting.ROUND, work, replica.rounds, last, meanwhile
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
            found = concluded(replica, arrivals)
    if found is None:
        return sync(replica, work)
    replica.state, replica.rounds = found.state, replica.rounds + 1
    clients = found.cohort.clients
    noted = replica.unheeded.noted(found.decision, clients, replica.rounds)
    used = replica.wire.bytes_sent - sent, time.perf_counter() - began, met - began
    found = replace(found, decision=noted)
    report = _report(replica, arrivals, found, used, before)
    replica.note(np.array(report.weights), arrivals.rows["weights"].tolist())
    if replica.trace is not None:
        replica.trace.add(report, found.cohort, noted, replica.scale)
    if found.measured is not None:
        replica.scale *= found.measured.step_size_factor
    return report


def _meanwhile(replica: Replica) -> NDArray[np.uint8] | None:
    """Let a sum travel by steady weights, and make this rank's sketch if it is sent."""
    if replica.steady is not None:
        replica.exchange.start(float(replica.steady[replica.wire.rank]))
    if replica.want is not Want.PRODUCTS:
        return None
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


def _checked(replica: Replica, arrivals: Arrivals) -> SketchCheck | None:
    """What the data says of the weights of the last round."""
    solved, replica.solved = replica.solved, None
    if solved is None:
        return None
    heard, weights, model, rows = solved
    products = arrivals.rows["product"][heard]
    return check_sketched_weights(replica.rounds, model, weights, rows, products)


def _report(
    replica: Replica,
    arrivals: Arrivals,
    outcome: Outcome,
    used: tuple[int, float, float],
    before: SketchCheck | None,
) -> SyncReport:
    heard, ranks = outcome.cohort.clients, range(replica.wire.ranks)
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
