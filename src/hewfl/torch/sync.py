"""A round: rendezvous, decision, sum, new model, report.

1. Ranks exchange their `RankWork` and agree on all else.
2. The algorithm decides the same on every rank. It sees products of the displacements,
   or all entries (`exchange.py`). Where it asks for entries and was given sketches, all
   ranks see that alike; it is given entries at once and from then on.
3. Every rank has the same step, checks that the new model is finite, then moves.
"""

import logging
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from hewfl.core.algorithm import Modelled
from hewfl.core.array_types import Float64, Int64
from hewfl.core.displacements import LinearCombination
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import Array, Ints, invalid
from hewfl.displacements.sketched_displacements import (
    NeedsEntriesError,
    SketchCheck,
    SketchedDisplacements,
    check_sketched_weights,
)
from hewfl.server.state import checked_decision
from hewfl.torch.collectives import RankError, name_ranks
from hewfl.torch.exchange import split_unmoved
from hewfl.torch.job import OVERLAP_RULE, Job
from hewfl.torch.rendezvous import SKETCH_BYTES, Purpose, RankRecords, RankWork
from hewfl.torch.shared_model import is_finite
from hewfl.torch.sync_options import SyncReport

ZERO_WEIGHT_ROUNDS = 8
"""Consecutive rounds with weight zero after which a rank is named."""
_UNCOUNTED = (
    "parameters moved on {} without `optimizer.step()` being seen, so that nothing "
    "would be averaged: is the loop inside `with HewLocalSGD(...)`, and are all steps "
    "those of its optimisers?"
)
_NONE_FINITE = (
    "no rank's model was finite in round {}; the common model is as it was: return to "
    "it (`discard_local_steps`) or load a checkpoint, and lower the learning rate"
)
_DIFFERENT = (
    "ranks had found different weights from the same numbers, on different processors "
    "perhaps; all continue from the model of rank 0, and exchange sums from here on"
)
_log = logging.getLogger("hewfl.torch")


@final
@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """The result of a round."""

    cohort: Cohort  # participating ranks, and their work
    decision: Decision
    state: Any  # of the algorithm; as before where the decision is rejected
    unmoved: Int64[Ints, " u"]  # ranks that did steps and stayed where they were


def sync(job: Job, work: RankWork) -> SyncReport | None:
    """Aggregate what all ranks did since the last round; None if no rank did a step.

    Raises:
        RankError: ranks are missing or disagree, no displacement is finite, the new
            model would not be, or parameters moved though no step was counted; the
            model is then as it was.
    """
    # A lost rank restarts from the new model: its movement is no step.
    is_lost = job.pending is not None and not job.model.is_captured
    uncounted = work.steps == 0 and not is_lost and job.model.has_moved()
    counts = job.shards.sum(np.array([uncounted, work.tokens], dtype=np.float64))
    work = replace(work, uncounted=bool(counts[0]), tokens=int(counts[1]))
    apply_pending(job)
    start, sent_before = time.perf_counter(), job.comm.bytes_sent
    numbers: dict[str, int | float] = {"product": job.product}
    numbers["weights"] = job.weights_digest
    if not job.by_entries:
        numbers["reach"] = job.exchange.write(job.rounds, job.rendezvous.payload())
    with job.rendezvous.gather(Purpose.ROUND, work, job.rounds, numbers) as records:
        wait_seconds = time.perf_counter() - start
        sketch_check = _check_last(job, records)
        job.is_over = bool(records.rows["leaving"].all())
        strays = np.flatnonzero(records.rows["uncounted"]).tolist()
        if strays:
            raise RankError(_UNCOUNTED.format(name_ranks(strays)))
        outcome = None
        if records.purpose is Purpose.FIRST_STEP:  # this rank has left its loop
            _initialise_variates(job, records)
        elif len(records.active) == 0:
            return None
        else:
            outcome = _aggregate(job, records)
    if outcome is None:
        return sync(job, work)
    job.state, job.rounds = outcome.state, job.rounds + 1
    if not outcome.decision.rejected:
        outcome = replace(outcome, decision=_note_zero_weights(job, outcome))
    report = SyncReport(
        bytes_sent=job.comm.bytes_sent - sent_before,
        seconds=time.perf_counter() - start,
        wait_seconds=wait_seconds,
        sketch_check=sketch_check,
        **_describe(job, records, outcome),
    )
    if job.trace is not None:
        job.trace.add(report, outcome.cohort, outcome.decision)
    return report


def start_variates(job: Job) -> None:
    """Set c_i to the present gradients, c to their mean (erratum E-29)."""
    assert job.variates is not None
    work = RankWork(finite=job.variates.take_gradients())
    with job.rendezvous.gather(Purpose.FIRST_STEP, work, job.rounds, {}) as records:
        _initialise_variates(job, records)


def _initialise_variates(job: Job, records: RankRecords) -> None:
    """The first values of control variates; a rank that has left has no gradient."""
    assert job.variates is not None
    finite, leaving = records.rows["finite"], records.rows["leaving"]
    participants = np.flatnonzero((finite != 0) & (leaving == 0))
    job.variates.initialise(participants)
    lost = np.flatnonzero(finite == 0).tolist()
    if lost and job.is_first:
        text = "the first gradient was not finite on %s; it is replaced by the mean"
        _log.warning(text, name_ranks(lost))
    if job.trace is not None:
        job.trace.charge(len(participants) * job.model.layout.parameters)


def _aggregate(job: Job, records: RankRecords) -> RoundOutcome:
    """Decide and move, with as much access to displacements as necessary."""
    if not job.by_entries:
        try:
            return _aggregate_sum(job, records)
        except NeedsEntriesError:
            if job.options.overlap:
                raise invalid("overlap", OVERLAP_RULE, True) from None
            job.by_entries = True
    return _aggregate_entries(job, records)


def _root_gradient(job: Job) -> list[torch.Tensor]:
    """The gradient of the loss on trusted samples at x, bucket by bucket."""
    if job.root is None:
        rule = "set on rank 0 (`HewLocalSGD.set_root`)"
        raise invalid("root", f"{rule} for {job.algorithm.name}", "none")
    model = job.model
    with model.borrow_parameters(model.anchor), torch.enable_grad():
        loss = job.root()
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            raise invalid("root", "a loss with gradients", loss)
        grads = torch.autograd.grad(loss, model.parameters, allow_unused=True)
    wholes = [torch.zeros_like(y) for y in model.parameters]  # in their memory format
    for whole, g in zip(wholes, grads, strict=True):
        if g is not None:
            whole.copy_(g)
    return [torch.cat(bucket.views(wholes)) for bucket in model.layout.buckets]


def _share_root(job: Job) -> Any:
    """Rank 0's root gradient on this rank's entries; a collective call if needed."""
    if not job.needs_root:
        return None
    gradient, error = None, None
    if job.comm.rank == 0:
        try:
            gradient = _root_gradient(job)
        except Exception as reason:  # a function of the user; other ranks wait
            error, wholes = reason, job.model.anchor
            gradient = [torch.full_like(whole, torch.nan) for whole in wholes]
    root = job.exchange.shard_root(gradient)
    if job.comm.sum(np.array([float(not is_finite(root.data))]))[0]:
        text = "the root gradient of rank 0 is not finite, or it has none"
        raise error or RankError(text)
    return root


def _share_model(job: Job) -> None:
    """Give all ranks the common model of rank 0; from here on exchange sums.

    Machines of different kinds may find weights that differ in a last bit. Sums are the
    same on all ranks even then. After a last round nothing is compared.
    """
    if job.is_first:
        _log.warning("round %d: %s", job.rounds, _DIFFERENT)
    job.share([*job.model.anchor, *job.model.memory, *job.model.average])
    job.exchange.is_whole, job.weights_digest = False, 0
    job.rendezvous.make_room(SKETCH_BYTES)


def _aggregate_sum(job: Job, records: RankRecords) -> RoundOutcome:
    """Decide from products; then one sum."""
    exchange, (rows, finite, has_moved) = job.exchange, job.exchange.read(records)
    if (records.rows["weights"] != job.weights_digest).any():
        _share_model(job)
    participants, unmoved = split_unmoved(
        records.active[finite[records.active]], has_moved
    )
    rows = rows if len(participants) == len(rows) else rows[participants]
    sketches = SketchedDisplacements(len(participants), job.shards.total, rows)
    round_ = _make_round(job, (NoAnchor(), sketches), participants, records)
    decision, state = checked_decision(job.algorithm, round_, job.state)
    if decision.step is not None:
        raise NeedsEntriesError
    if _is_rejected(job, decision):
        return _reject(job, round_.cohort, decision, unmoved)
    outcome = RoundOutcome(round_.cohort, decision, state, unmoved)
    if exchange.is_whole:
        weights = decision.weights.astype(np.float32)
        members = np.flatnonzero(weights)
        wide = weights[members].astype(np.float64)
        magnitudes = job.model.advance_whole([rows[i] for i in members], wide)
        if not job.model.is_representable([magnitudes]):
            raise _range_error(job, decision)
        job.weights_digest = zlib.crc32(weights.tobytes())
        job.model.commit(job.rounds)
        return outcome
    own = participants == job.comm.rank
    exchange.start_sum(float(decision.weights[own].sum()))
    if job.options.overlap:
        lost = np.setdiff1d(records.active, [*participants, *unmoved])
        if job.comm.rank not in lost:  # a lost rank restarts from the new x
            job.model.capture()
        job.pending = decision, job.rounds
        return outcome
    model = None
    if decision.value is not None and isinstance(job.algorithm, Modelled):
        model = job.algorithm.model(round_, job.state)
    checks = model is not None and isinstance(model.reference, LinearCombination | None)
    job.product = _advance(job, exchange.receive_sum(), decision, multiplies=checks)
    job.model.commit(job.rounds)
    job.unchecked = (participants, decision.weights, model, rows) if checks else None
    return outcome


def _aggregate_entries(job: Job, records: RankRecords) -> RoundOutcome:
    """Exchange shards, so that the algorithm sees all entries."""
    exchange, variates, root = job.exchange, job.variates, _share_root(job)
    total_steps = records.rows["total_step"]
    exchanged = exchange.exchange_shards(records.active, total_steps)
    participants, unmoved, shards = exchanged
    anchor = np.asarray(exchange.own_part(job.model.anchor))
    round_ = _make_round(job, (anchor, shards), participants, records, root)
    assert shards is not None, "there is a participant"
    decision, state = checked_decision(job.algorithm, round_, job.state)
    if _is_rejected(job, decision):
        return _reject(job, round_.cohort, decision, unmoved)
    shard = decision.step
    shard = shards.combine(decision.weights) if shard is None else shard
    _advance(job, exchange.gather_shards(shard), decision)
    if variates is not None:
        is_this = participants == job.comm.rank
        total_step = float(total_steps[participants[is_this]].sum())
        client, server = variates.next_values(total_step)
        if not all(map(is_finite, server)):
            raise _range_error(job, decision)
        variates.client, variates.server = client, server
    job.model.commit(job.rounds)
    return RoundOutcome(round_.cohort, decision, state, unmoved)


def _is_rejected(job: Job, decision: Decision) -> bool:
    """Whether any rank rejects the round; a collective call of rules that measure.

    Machines of different kinds may compute numbers that differ in the last bit, on the
    two sides of a limit.
    """
    if not (decision.measured or decision.rejected):
        return False
    return bool(job.exchange.sum(np.array([float(decision.rejected)]))[0] > 0)


def _reject(
    job: Job, cohort: Cohort, decision: Decision, unmoved: Int64[Ints, " u"]
) -> RoundOutcome:
    """Every rank starts again from x, and nothing else changes."""
    job.model.set_parameters()
    nothing = np.zeros_like(decision.weights)
    status = f"rejected: {decision.status}"
    decision = replace(decision, weights=nothing, status=status, rejected=True)
    if job.is_first:
        _log.warning("round %d: %s", job.rounds + 1, status)
    return RoundOutcome(cohort, decision, job.state, unmoved)


def _make_round(
    job: Job,
    seen: tuple[Any, Any],
    participants: Int64[Ints, " s"],
    records: RankRecords,
    root: Any = None,
) -> Round:
    """The round of anchor and displacements; at least one rank must take part."""
    if len(participants) == 0:
        raise RankError(_NONE_FINITE.format(job.rounds + 1))
    steps, total_step, tokens = (
        records.rows[name][participants] for name in ("steps", "total_step", "tokens")
    )
    ones = np.ones_like(steps)
    is_counted = tokens.min() > 0
    if not is_counted and "sizes" in job.algorithm.demands.needs:
        rule = f"counted on every rank (`add_tokens`): {job.algorithm.name} needs sizes"
        raise invalid("tokens", rule, tokens.tolist())
    sizes = tokens if is_counted else ones
    cohort = Cohort(participants, steps, ones, sizes, job.comm.ranks, job.rounds)
    plan = LocalPlan(total_step / steps)
    return Round(*seen, cohort, plan, root=root)


def _advance(
    job: Job, steps: Iterable[Any], decision: Decision, *, multiplies: bool = False
) -> float:
    """Make the next model from the step, each bucket while others are on their way.

    Returns ⟨s, Δ⟩ of this rank if `multiplies`. Where the model would not be finite,
    nothing has changed.
    """
    product, magnitudes = 0.0, []  # type: tuple[Any, list[list[Any]]]
    for b, step in enumerate(steps):
        part, reach = job.model.advance(b, step, multiplies=multiplies)
        product, magnitudes = product + part, [*magnitudes, reach]
    is_lost = not job.model.is_representable(magnitudes)
    totals = job.shards.sum(np.array([is_lost, float(product)], dtype=np.float64))
    if totals[0]:
        raise _range_error(job, decision)
    return float(totals[1])


def _range_error(job: Job, decision: Decision) -> RankError:
    """The error where the model would leave the range of its precision."""
    step, weights = job.options.server_step.step, decision.weights.tolist()
    text = f"the model after round {job.rounds + 1}, or a control variate, would not be"
    text += f" finite, though displacements are (server step size {step:g}, weights "
    return RankError(f"{text}{weights}); nothing was changed")


def apply_pending(job: Job) -> None:
    """Wait for a pending sum, and apply it; all ranks must."""
    if job.pending is None:
        return
    (decision, rounds), job.pending = job.pending, None
    with job.rendezvous.watch(f"after round {rounds}"):
        _advance(job, job.exchange.receive_sum(), decision)
    job.model.commit(rounds)


def drop_pending(job: Job) -> None:
    """Wait for a pending sum, and do not apply it: another model takes its place."""
    if job.pending is not None:
        job.pending = None
        for _ in job.exchange.receive_sum():
            pass
    job.model.is_captured, job.unchecked = False, None


@final
class NoAnchor(np.lib.mixins.NDArrayOperatorsMixin):
    """Takes the place of x until the algorithm reads it, which asks for entries."""

    shape = (0,)

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Ask for entries: the algorithm then decides again with them."""
        raise NeedsEntriesError

    __array_ufunc__ = __array__


def _check_last(job: Job, records: RankRecords) -> SketchCheck | None:
    """The weights of the last round, checked on the data."""
    if job.unchecked is None:
        return None
    (participants, weights, model, rows), job.unchecked = job.unchecked, None
    products = records.rows["product"][participants]
    return check_sketched_weights(job.rounds, model, weights, rows, products)


def _note_zero_weights(job: Job, outcome: RoundOutcome) -> Decision:
    """The decision, with the names of ranks without weight in its status.

    The count of a rank without a finite displacement stays: the report names it anyway.
    """
    decision, unmoved = outcome.decision, outcome.unmoved
    ranks = np.concatenate([outcome.cohort.clients, unmoved])
    weights = np.concatenate([decision.weights, np.zeros(len(unmoved))])
    text = name_zero_weights(job.zero_weight, weights, ranks)
    if not text:
        return decision
    if job.is_first:
        hint = "its work has no effect: check its data, or choose another aggregator"
        _log.warning("round %d: %s (%s)", job.rounds, text, hint)
    return replace(decision, status=f"{decision.status}; {text}")


def name_zero_weights(
    counts: NDArray[np.int64], weights: Float64[Array, " s"], ranks: Int64[Ints, " s"]
) -> str:
    """Count rounds with weight zero, in place; name ranks that have had 8 in a row."""
    counts[ranks] = np.where(weights == 0, counts[ranks] + 1, 0)
    named = ranks[counts[ranks] == ZERO_WEIGHT_ROUNDS].tolist()
    text = f"weight zero for {ZERO_WEIGHT_ROUNDS} rounds in a row: {name_ranks(named)}"
    return text if named else ""


def _describe(job: Job, records: RankRecords, outcome: RoundOutcome) -> dict[str, Any]:
    """What a report says of ranks and weights; lost ranks are logged."""
    participants, ranks = outcome.cohort.clients, range(job.comm.ranks)
    active = set(records.active.tolist()) - set(outcome.unmoved.tolist())
    lost = tuple(sorted(active - set(participants.tolist())))
    if lost and job.is_first:
        text = "round %d: weight zero for %s, whose model was not finite"
        _log.warning(text, job.rounds, name_ranks(lost))
    weights = np.zeros(len(ranks))
    weights[participants] = outcome.decision.weights
    return {
        "round": job.rounds,
        "weights": tuple(weights.tolist()),
        "steps": tuple(records.rows["steps"].tolist()),
        "tokens": tuple(records.rows["tokens"].tolist()),
        "idle": tuple(i for i in ranks if i not in active),
        "excluded": lost,
        "finished": tuple(np.flatnonzero(records.rows["leaving"]).tolist()),
        "status": outcome.decision.status,
        "gap": float(outcome.decision.gap),
        "measured": dict(outcome.decision.measured),
        "accepted": not outcome.decision.rejected,
    }
