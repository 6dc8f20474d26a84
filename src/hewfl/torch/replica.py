"""One rank's part in a round: ranks meet, a rule weighs them, the model moves.

    1. ranks tell each other what they did (`Work`), and agree on all else;
    2. displacements are exchanged: sums alone where the rule can do with them
       (`allreduce.py`), all entries where it cannot (`spread.py`);
    3. every rank has the same step, sees that the new model is finite, and moves.

A rule that asks for more than it was given says so on all ranks alike, is given it, and
from then on is given it at once.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float64, Int64

from hewfl.aggregate.sketched import NeedsEntriesError, NeedsProductsError, Sketches
from hewfl.core.algorithm import Modelled
from hewfl.core.checks import Array, Ints, invalid
from hewfl.core.round import Decision, LocalPlan, Roster, Round
from hewfl.server.conclude import decided
from hewfl.server.measure import Measured
from hewfl.torch.allreduce import AllReduce, Solved, checked
from hewfl.torch.faults import RankError, ranks_named
from hewfl.torch.layout import Layout, digest, plan_layout
from hewfl.torch.meetings import Meetings, Shared
from hewfl.torch.members import Members, form_of
from hewfl.torch.model import SharedModel
from hewfl.torch.options import Checked, SyncOptions, SyncReport
from hewfl.torch.probing import Probe, measured_step
from hewfl.torch.rules import Rule
from hewfl.torch.spread import Spread
from hewfl.torch.trace import JobTrace
from hewfl.torch.unheeded import Unheeded
from hewfl.torch.variates import RankVariates, SpreadVector
from hewfl.torch.wire import Wire, check_group, ring_bytes
from hewfl.torch.work import Arrivals, Meeting, Work

_log = logging.getLogger("hewfl.torch")


@final
class _Want(IntEnum):
    """What a rule has asked for so far; more and more of it travels."""

    WEIGHTS = 0
    PRODUCTS = 1
    ENTRIES = 2


@final
@dataclass(frozen=True, slots=True)
class _Outcome:
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

    @property
    def heard(self) -> Int64[Ints, " s"]:
        """Ranks that count."""
        return self.roster.clients


@final
class Replica:
    """The common model, and the way to the other ranks.

    Construction gives all ranks the parameters of rank 0, frozen ones too.

    Attributes:
        members: which parameters are shared.
        rule: how ranks are weighted.
        options: what all ranks share.
        wire: the way to the others.
        model: x and y.
        variates: control variates, None for rules without.
        server: c as rules see it, None for rules without.
        sums: the exchange of sums.
        state: the rule's own; vectors in it are this rank's entries.
        trace: on the first rank of a job that keeps one.
        rounds: rounds done.
        is_over: whether the loops of all ranks have ended.
        probe: how this rank measures its loss, for measured steps; None until told.
        scale: that measured steps have put on the learning rates.
    """

    def __init__(
        self,
        members: Members,
        group: Any,
        rule: Rule,
        options: SyncOptions,
        *,
        is_plain: bool = True,
    ) -> None:
        moving, frozen = list(members.shared.values()), members.frozen
        device = moving[0].device if moving else torch.device("cpu")
        check_group(group, device)
        rule.check_plan(group.size())
        layout = plan_layout(moving, options.bucket_bytes)
        self.members, self.rule, self.options = members, rule, options
        self.rounds, self.is_over = 0, False
        self.probe: Probe | None = None
        self.scale = 1.0
        self._solved: Solved | None = None
        self._product = 0.0
        self.wire = Wire(group, device, options.limit)
        self.model = SharedModel(
            moving, layout, options.outer, on_host=options.anchor_on_host
        )
        self.variates, self.server, besides = None, None, None
        self._want = _Want.ENTRIES if options.exact == "full" else _Want.WEIGHTS
        if rule.demands.variates:
            at_gradients = rule.demands.gradients
            self.variates = RankVariates(
                self.model, at_gradients=at_gradients, is_plain=is_plain
            )
            self._want, besides = _Want.ENTRIES, self.variates.server
        self._spread = Spread(self.model, self.wire, besides)
        self.sums = AllReduce(self.model, self.wire, options.send)
        self._flying: tuple[Decision, int] | None = None
        if options.overlap:
            if self._want is _Want.ENTRIES:
                text = "False for rules with control variates, and with exact = full"
                raise invalid("overlap", text, options.overlap)
            self._want = _Want.PRODUCTS  # who is not finite must be known in time
        if self.variates is not None:
            self.server = SpreadVector(self.variates, self._spread)
        self.state = self.first_state()
        self._unheeded = Unheeded(self.wire.ranks, logs=self.wire.rank == 0)
        told: Any = rule, options.outer, options.exact, options.overlap, options.send
        self._meetings = Meetings(
            group, self.wire, _shared(members, layout, (told, is_plain))
        )
        self._construct(frozen)
        self.trace = None
        if options.folder is not None and self.wire.rank == 0:
            sends = self.variates is not None and not is_plain
            of = rule.algorithm, self.wire.ranks, layout.parameters, options.outer
            self.trace = JobTrace(Path(options.folder), *of, sends_gradients=sends)

    def _construct(self, frozen: list[torch.Tensor]) -> None:
        """Agree on everything, and take what rank 0 has."""
        with self._meetings.construction():
            self.model.take()
            for whole in self.model.anchor:
                at_hand = whole.to(self.wire.device)
                self.wire.copied(at_hand)
                whole.copy_(at_hand)
            for parameter in frozen:
                whole = parameter.detach().to(self.wire.device).contiguous()
                self.wire.copied(whole.view(-1).view(torch.uint8))  # any precision
                parameter.detach().copy_(whole)
        self.model.follow()

    def first_state(self) -> Any:
        """The rule's state before the first round."""
        entries = self._spread.entries
        return self.rule.first_state(self.wire.ranks, entries, self.server)

    def sync(self, work: Work) -> SyncReport | None:
        """Aggregate what all ranks did since the last round.

        Returns:
            What happened; None if no rank had done a step.

        Raises:
            RankError: ranks are missing or disagree, none came back finite, or the new
                model would not be; the model is then as it was.
        """
        if self.options.outer.measure is not None and self.probe is None:
            rule = "told how to measure a loss (`HewLocalSGD.probe_with`)"
            raise invalid("the job", rule, "an outer step with `measure` alone")
        self.finish()
        self.sums.away = []  # of the round before
        began, sent = time.perf_counter(), self.wire.bytes_sent
        with self._meetings.met(
            Meeting.ROUND, work, self.rounds, self._product, self._sketch
        ) as (arrivals, table):
            met, before = time.perf_counter(), self._checked(arrivals)
            self.is_over = bool(arrivals.leaving.all())
            found = None
            if arrivals.meeting is Meeting.FIRST_STEP:  # this rank has left before
                self._start(arrivals)
            elif len(arrivals.active) == 0:
                return None
            else:
                found = self._concluded(arrivals, table)
                self.state = found.state
        if found is None:
            return self.sync(work)
        self.rounds += 1
        noted = self._unheeded.noted(found.decision, found.heard, self.rounds)
        outcome = replace(found, decision=noted)
        seconds = (time.perf_counter() - began, met - began)
        bytes_sent = self.wire.bytes_sent - sent
        report = self._report(arrivals, outcome, (bytes_sent, *seconds), before)
        if self.trace is not None:
            self._trace(self.trace, outcome, report)
        if outcome.measured is not None:
            self.scale *= outcome.measured.factor
        return report

    def _trace(self, trace: JobTrace, outcome: _Outcome, report: SyncReport) -> None:
        seen = {"bytes_sent": float(report.bytes_sent), "seconds": report.seconds}
        seen["waited"] = report.waited
        if report.checked is not None:
            seen["last_sketch_error"] = report.checked.error
        if outcome.measured is not None:
            seen |= outcome.measured.note(self.scale)
        heard = outcome.roster, outcome.decision
        trace.add(self.rounds, *heard, report.excluded, seen)

    def _checked(self, arrivals: Arrivals) -> Checked | None:
        """What the data says of the weights of the last round."""
        solved, self._solved = self._solved, None
        return None if solved is None else checked(solved, arrivals.products)

    def start_variates(self) -> None:
        """c_i = the gradients at hand, c their mean (erratum E-29).

        Raises:
            RankError: on every rank, if none has finite gradients or one has not come
                to its first step.
        """
        assert self.variates is not None
        finite = self.variates.take_gradients()
        work = Work(finite=finite)
        with self._meetings.met(Meeting.FIRST_STEP, work, self.rounds) as (arrivals, _):
            self._start(arrivals)

    @property
    def _sketch(self) -> Callable[[], Float64[Array, " m"]] | None:
        """Makes this rank's sketch, where the rule has asked for products."""
        if self._want is not _Want.PRODUCTS:
            return None
        return lambda: self.sums.sketched(self.rounds)

    # -------------------------------------------------------------- parts of a round

    def _start(self, arrivals: Arrivals) -> None:
        """The first values of control variates; whoever has left has no gradient."""
        assert self.variates is not None
        heard = np.flatnonzero(arrivals.finite & ~arrivals.leaving)
        self.variates.start(self.wire, heard)
        lost = np.flatnonzero(~arrivals.finite).tolist()
        if lost and self.wire.rank == 0:
            text = "the first gradient was not finite on %s: the others' mean stands in"
            _log.warning(text, ranks_named(lost))
        if self.trace is not None:
            self.trace.charge(len(heard) * self.model.layout.parameters)

    def _concluded(
        self, arrivals: Arrivals, table: Float64[Array, "n m"] | None
    ) -> _Outcome:
        """Weigh and move, with no more than the rule asks for."""
        while self._want < _Want.ENTRIES:
            try:
                return self._by_sums(arrivals, table)
            except NeedsProductsError:
                self._want = _Want.PRODUCTS
            except NeedsEntriesError:
                if self.options.overlap:
                    text = "False for rules that ask for entries of displacements"
                    raise invalid("overlap", text, self.options.overlap) from None
                self._want = _Want.ENTRIES
        return self._by_entries(arrivals)

    def _by_sums(
        self, arrivals: Arrivals, table: Float64[Array, "n m"] | None
    ) -> _Outcome:
        """Sketch, solve, send.

        Args:
            arrivals: what ranks did.
            table: their sketches, where they came along with that.
        """
        heard, rows = arrivals.active, None
        if self._want is _Want.PRODUCTS:
            if table is None:
                table = self.wire.table(self.sums.sketched(self.rounds))
            rows = self.sums.unpacked(table)
            heard = heard[np.isfinite(rows[heard]).all(axis=1)]
        while True:
            if len(heard) == 0:
                raise RankError("no rank's model was finite")
            given = None if rows is None else rows[heard]
            data = Sketches(len(heard), self.model.layout.parameters, given)
            round_ = self._round(_NoAnchor(), data, heard, arrivals)
            algorithm = self.rule.algorithm
            decision, following = decided(algorithm, round_, self.state)
            if decision.step is not None:
                raise NeedsEntriesError
            own = float(decision.weights[heard == self.wire.rank].sum())
            self.sums.start(own)
            if self.options.overlap:
                return self._launched(round_, decision, following)
            steps = self.sums.finish()
            if self.model.fits(steps):
                break
            heard = self._finite(heard, decision)
        self.sums.settle()
        if isinstance(algorithm, Modelled) and decision.value is not None:
            model = algorithm.model(round_, self.state)
            if given is not None:
                of = decision.weights, model, given
                self._solved = Solved(self.rounds + 1, heard, *of)
        measured = self._measured(steps, decision, heard)
        against = self._solved is not None and measured is None
        away = self.sums.away if against else ()
        self._product = self.model.move(steps, self.rounds, away)
        self._solved = self._solved if against else None
        return _Outcome(round_.roster, decision, following, measured)

    def _launched(self, round_: Round, decision: Decision, following: Any) -> _Outcome:
        """A round whose sum is under way: steps go on from here, and are kept."""
        if self.model.is_displacement_finite():  # else start again from the new x
            self.model.capture()
        self._flying = decision, self.rounds
        return _Outcome(round_.roster, decision, following)

    def finish(self) -> None:
        """Wait for a sum that is under way, and apply it; all ranks must.

        Raises:
            RankError: ranks are missing, or the model would not be finite.
        """
        if self._flying is None:
            return
        (decision, rounds), self._flying = self._flying, None
        with self._meetings.watched(f"after round {rounds}"):
            steps = self.sums.finish()
        if not self.model.fits(steps):
            raise self._beyond(decision)
        self.sums.settle()
        self.model.move(steps, rounds)

    def _measured(
        self,
        steps: list[torch.Tensor],
        decision: Decision,
        heard: Int64[Ints, " s"],
    ) -> Measured | None:
        """How far the ranks' losses say to go, and the steps made so long.

        Raises:
            RankError: the model would leave its range there.
        """
        if self.probe is None or self.options.outer.measure is None:
            return None
        voters = heard, decision.weights
        found = measured_step(self.model, self.wire, self.probe, steps, voters)
        for step in steps:
            step.mul_(found.length)
        if not self.model.fits(steps):
            raise self._beyond(decision)
        return found

    def _finite(
        self, heard: Int64[Ints, " s"], decision: Decision
    ) -> Int64[Ints, " k"]:
        """Those whose displacements are finite, where a sum of them is not.

        Raises:
            RankError: all are, and the model is about to leave its range.
        """
        fine = self.model.is_displacement_finite()
        table = self.wire.table(np.array([float(fine)]))
        left: Ints = heard[table[heard, 0] != 0]
        if len(left) == len(heard):
            raise self._beyond(decision)
        return left

    def _by_entries(self, arrivals: Arrivals) -> _Outcome:
        """Exchange shards, so that the rule sees all entries."""
        shards = self._spread.collected(arrivals, self.server)
        heard, received = shards.members, list(shards.buckets)
        anchor: Array = np.empty(0)  # none of the rules known by name looks at it
        if not isinstance(self.rule.choice, str):
            anchor = self._spread.own_part(self.model.anchor)
        round_ = self._round(anchor, shards, heard, arrivals)
        decision, following = decided(self.rule.algorithm, round_, self.state)
        roster = round_.roster
        del shards, round_  # the rows of a bucket go once it is combined
        n, variates = self.wire.ranks, self.variates
        weights: Array = np.zeros((1, n))
        weights[0, heard] = decision.weights
        far = float(arrivals.travelled[heard[heard == self.wire.rank]].sum())
        if variates is not None:
            weights = variates.weights(heard, decision.weights, arrivals.travelled)
        steps, *others = self._spread.sums(received, weights, decision.step)
        fine = self.model.fits(steps)
        if variates is not None:  # each rank knows of its own alone
            fine = fine and variates.stay_finite(others, far)
            fine = bool(self.wire.summed(np.array([float(not fine)]))[0] == 0)
        if not fine:
            raise self._beyond(decision)
        measured = self._measured(steps, decision, heard)
        if variates is not None:
            variates.move(self.wire, others, far)
        self.model.move(steps, self.rounds)
        return _Outcome(roster, decision, following, measured)

    def _round(
        self, anchor: Any, data: Any, heard: Int64[Ints, " s"], arrivals: Arrivals
    ) -> Round:
        """All that the rule may look at.

        Raises:
            InvalidInputError: tokens are asked for and were not counted.
        """
        H, tokens = arrivals.steps[heard], arrivals.tokens[heard]
        if self.rule.choice == "tokens" and tokens.min() < 1:
            raise invalid("tokens", "counted on every rank", tokens.tolist())
        asks = self.rule.choice == "tokens" or not isinstance(self.rule.choice, str)
        sizes = np.where(asks and tokens.min() > 0, tokens, 1)
        n, t = self.wire.ranks, self.rounds
        roster = Roster(heard, H, np.ones_like(H), sizes, n, t)
        return Round(anchor, data, roster, LocalPlan(arrivals.travelled[heard] / H))

    def _beyond(self, decision: Decision) -> RankError:
        text = (
            f"the model after round {self.rounds + 1}, or a control variate, would not "
            f"be finite, though displacements are (outer step size "
            f"{self.options.outer.step:g}, weights {decision.weights.tolist()}): all "
            "is left as it was"
        )
        return RankError(text)

    def _report(
        self,
        arrivals: Arrivals,
        outcome: _Outcome,
        used: tuple[int, float, float],
        before: Checked | None,
    ) -> SyncReport:
        active, found = set(arrivals.active.tolist()), set(outcome.heard.tolist())
        idle = tuple(i for i in range(self.wire.ranks) if i not in active)
        lost = tuple(sorted(active - found))
        if lost and self.wire.rank == 0:
            text = "round %d: weight zero for %s, whose model was not finite"
            _log.warning(text, self.rounds, ranks_named(lost))
        weights = np.zeros(self.wire.ranks)
        weights[outcome.heard] = outcome.decision.weights
        buckets = self.model.layout.buckets
        sizes = [bucket.size * bucket.dtype.itemsize for bucket in buckets]
        return SyncReport(
            round=self.rounds,
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
            ring_bytes=sum(ring_bytes(size, self.wire.ranks) for size in sizes),
            seconds=used[1],
            waited=used[2],
            measured=outcome.measured,
        )


def _shared(members: Members, layout: Layout, chosen: Any) -> tuple[Shared, ...]:
    """What all ranks must have alike: the model, and what is done with it."""
    shapes = [f"{k} {form_of(p)[:2]}" for k, p in members.shared.items()]
    forms = [form_of(p)[:2] for p in members.frozen]
    d, signature = layout.parameters, digest(layout.signature, forms)
    return (
        Shared("number of parameters", d, str(d)),
        Shared("parameters", signature, ", ".join(shapes)),
        Shared("rule and options", digest(chosen), repr(chosen)),
    )


@final
class _NoAnchor:
    """Stands for x where a rule is asked without entries."""

    shape = (0,)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Not there: the rule is asked again, with entries."""
        raise NeedsEntriesError
