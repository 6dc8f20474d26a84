"""One rank's part in a round: displacements out, weights solved for, new model in.

    1. ranks tell each other what they did (`Work`), and agree on all else;
    2. shard j of every displacement goes to rank j, bucket by bucket;
    3. each rank forms the inner products of its shards; they are added up in float64;
    4. every rank solves the same small problem;
    5. once all know that the new model is finite, each rank moves its shard of it, and
       shards are sent to all.

No rank ever holds all displacements: between 2 and 5 it has as many numbers as the
model. As new models, not steps, are distributed, they are the same bits everywhere.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float64, Int64

from hewfl.core.checks import Array, Ints, invalid
from hewfl.core.round import Decision, LocalPlan, Roster, Round
from hewfl.server.conclude import decided
from hewfl.server.measure import Measured, lengthened
from hewfl.torch.collect import Collector
from hewfl.torch.distribute import Combination, Distributor
from hewfl.torch.faults import Attendance, RankError, ranks_named
from hewfl.torch.layout import digest, plan_layout
from hewfl.torch.members import Members, form_of
from hewfl.torch.model import SharedModel, is_finite
from hewfl.torch.options import SyncOptions, SyncReport
from hewfl.torch.probing import Probe, measured_step
from hewfl.torch.rules import Rule
from hewfl.torch.shards import Shards
from hewfl.torch.trace import JobTrace
from hewfl.torch.unheeded import Unheeded
from hewfl.torch.variates import RankVariates, SpreadVector
from hewfl.torch.wire import Wire, check_group, ring_bytes
from hewfl.torch.work import Arrivals, Meeting, Work, from_table, to_row

SAME = ("number of parameters", "parameter layout", "rule and options")
_log = logging.getLogger("hewfl.torch")


@final
class Replica:
    """The common model, this rank's shards of it, and the way to the other ranks.

    Construction gives all ranks the parameters of rank 0, frozen ones too.

    Attributes:
        members: which parameters are shared.
        rule: how ranks are weighted.
        options: what all ranks share.
        wire: the way to the others.
        model: x and y.
        variates: control variates, None for rules without.
        server: c as rules see it, None for rules without.
        state: the rule's own; vectors in it are this rank's entries.
        trace: on the first rank of a job that keeps one.
        rounds: rounds done.
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
        ranks = dist.get_world_size(group)
        rule.check_plan(ranks)
        layout = plan_layout(moving, ranks, options.bucket_bytes)
        self.members, self.rule, self.options, self.rounds = members, rule, options, 0
        self.wire = Wire(group, device, options.timeout)
        self.probe: Probe | None = None
        self.scale = 1.0
        self.model = SharedModel(moving, layout, options.outer)
        self.variates = None
        if rule.demands.variates:
            at_gradients = rule.demands.gradients
            self.variates = RankVariates(
                layout, device, at_gradients=at_gradients, is_plain=is_plain
            )
        entries = sum(bucket.shard for bucket in layout.buckets)
        server = None if self.variates is None else SpreadVector(self.variates, group)
        self.state = rule.first_state(ranks, entries, server)
        self.server = server
        self._unheeded = Unheeded(ranks, logs=self.wire.rank == 0)
        self._attendance = Attendance(group.group_name, self.wire.rank, ranks)
        self._same = (
            layout.parameters,
            digest(layout.signature, [form_of(p)[:2] for p in frozen]),
            digest(rule, options.outer, *(() if is_plain else ("mean gradients",))),
        )
        with self.met(Meeting.CONSTRUCTION, Work()):
            self.model.take()
            for anchor in self.model.anchor:
                self.wire.copied(anchor)
            for parameter in frozen:
                whole = parameter.detach().to(device).contiguous()
                self.wire.copied(whole.view(-1).view(torch.uint8))  # any precision
                parameter.detach().copy_(whole)
        self.model.follow(self.wire.rank)
        self.trace = None
        if options.folder is not None and self.wire.rank == 0:
            at = Path(options.folder)
            sends = self.variates is not None and not self.variates.is_plain
            given = (at, rule.algorithm, ranks, layout.parameters, options.outer)
            self.trace = JobTrace(*given, sends_gradients=sends)

    def sync(self, work: Work) -> SyncReport | None:
        """Aggregate what all ranks did since the last round.

        Returns:
            What happened; None if no rank had done a step.

        Raises:
            RankError: ranks are missing or disagree, none came back finite, or the new
                model would not be; unless ranks were lost while that was handed out,
                the model is as it was.
        """
        if self.options.outer.measure is not None and self.probe is None:
            rule = "told how to measure a loss (`HewLocalSGD.probe_with`)"
            raise invalid("the job", rule, "an outer step with `measure` alone")
        began, sent = time.perf_counter(), self.wire.bytes_sent
        with self.met(Meeting.ROUND, work) as arrivals:
            met = time.perf_counter()
            if len(arrivals.active) == 0:
                return None
            collector = Collector(self.model, self.variates, self.server, self.wire)
            shards, products = collector.collected(arrivals)
            heard, received = shards.members, list(shards.buckets)
            roster = self._roster(heard, arrivals)
            decision, following = self._decided(shards, roster, arrivals)
            far = arrivals.travelled[heard]
            how = Combination(heard, decision.weights, far, products, decision.step)
            distributor = Distributor(self.model, self.variates, self.wire)
            found = self._measured(distributor, received, how)
            if found is not None:
                taken = lengthened(decision, found.length)
                how = replace(how, weights=taken.weights, step=taken.step)
            if not distributor.is_safe(received, how):
                raise self._beyond(decision)
            del shards  # the rows of a bucket go once it is combined
            distributor.distribute(received, how, self.rounds)
            self.state = following
            scale = self.scale
            if found is not None:
                self.scale *= found.factor
        self.model.give()
        self.rounds += 1
        seconds = (time.perf_counter() - began, met - began)
        bytes_sent = self.wire.bytes_sent - sent
        report = self._report(arrivals, heard, decision, (bytes_sent, *seconds))
        report = replace(report, measured=found)
        if self.trace is not None:
            seen = {"bytes_sent": float(bytes_sent), "seconds": seconds[0]}
            seen["waited"] = seconds[1]
            seen |= {} if found is None else found.note(scale)
            self.trace.add(self.rounds, roster, decision, report.excluded, seen)
        return report

    def start_variates(self) -> None:
        """c_i = the gradients at hand, c their mean (erratum E-29).

        A rank whose gradients are not finite starts at the mean of the others', as
        everywhere in hewfl (`hewfl.server.first`); its log names it.

        Raises:
            RankError: on every rank, if none has finite gradients or one has not come
                to its first step.
        """
        variates = self.variates
        assert variates is not None
        variates.take_gradients(self.model.parameters)
        finite = all(is_finite(own) for own in variates.own)
        with self.met(Meeting.FIRST_STEP, Work(finite=finite)) as arrivals:
            lost = np.flatnonzero(~arrivals.finite).tolist()
            count = self.wire.ranks - len(lost)
            if count == 0:
                raise RankError("no rank has a finite first gradient")
            for own, server in zip(variates.own, variates.server, strict=True):
                if not finite:
                    server.zero_()
                self.wire.add_up(server)
                server.div_(count)
                if not finite:
                    own.copy_(server)
        if lost and self.wire.rank == 0:
            text = "the first gradient was not finite on %s: the others' mean stands in"
            _log.warning(text, ranks_named(lost))
        if self.trace is not None:
            self.trace.charge(count * self.model.layout.parameters)
        variates.started = True

    # -------------------------------------------------------------- parts of a round

    @contextmanager
    def met(self, meeting: Meeting, work: Work) -> Iterator[Arrivals]:
        """The work of all ranks; failures from here on name who is missing."""
        place = meeting.place
        if meeting is Meeting.ROUND:
            place = f"in round {self.rounds}"
        with self._attendance.watched(place):
            number = self._attendance.instance
            row = to_row(meeting, number, self.rounds, work, self._same)
            yield from_table(self._table(row), SAME)

    def _table(self, row: Float64[Array, " k"]) -> Float64[Array, "n k"]:
        """One row of numbers from each rank, in `timeout` on any backend."""
        if self.wire.keeps_time:
            return self.wire.table(row)
        return self._attendance.table(row, self.options.timeout)

    def _roster(self, heard: Int64[Ints, " s"], arrivals: Arrivals) -> Roster:
        """The ranks heard and their work.

        Raises:
            InvalidInputError: tokens are asked for and were not counted.
        """
        H, tokens = arrivals.steps[heard], arrivals.tokens[heard]
        if self.rule.choice == "tokens" and tokens.min() < 1:
            raise invalid("tokens", "counted on every rank", tokens.tolist())
        sizes = np.where(tokens.min() > 0, tokens, 1)
        return Roster(heard, H, np.ones_like(H), sizes, self.wire.ranks, self.rounds)

    def _decided(
        self, shards: Shards, roster: Roster, arrivals: Arrivals
    ) -> tuple[Decision, Any]:
        """The rule's decision on the ranks heard, and its next state."""
        travelled = arrivals.travelled[shards.members]
        anchor = np.empty(0)  # none of the rules known by name looks at it
        if not isinstance(self.rule.choice, str):
            masters = [master.double().cpu().numpy() for master in self.model.masters]
            anchor = np.concatenate(masters)
        plan = LocalPlan(travelled / roster.horizons)
        round_ = Round(anchor, shards, roster, plan)
        decision, following = decided(self.rule.algorithm, round_, self.state)
        noted = self._unheeded.noted(decision, shards.members, self.rounds + 1)
        return noted, following

    def _measured(
        self, distributor: Distributor, received: list[torch.Tensor], how: Combination
    ) -> Measured | None:
        """How far the ranks' losses say to go; None where they are not asked."""
        if self.probe is None or self.options.outer.measure is None:
            return None
        steps, voters = distributor.direction(received, how), (how.heard, how.weights)
        return measured_step(self.model, self.wire, self.probe, steps, voters)

    def _beyond(self, decision: Decision) -> RankError:
        text = (
            f"the model after round {self.rounds + 1}, or a control variate, would not "
            f"be finite, though displacements are (outer step size "
            f"{self.options.outer.step:g}, weights {decision.weights.tolist()}): all "
            "is left as it was"
        )
        return RankError(text)

    def _over_ranks(
        self, heard: Int64[Ints, " s"], values: Float64[Array, " s"]
    ) -> Float64[Array, " n"]:
        spread = np.zeros(self.wire.ranks)
        spread[heard] = values
        return spread

    def _report(
        self,
        arrivals: Arrivals,
        heard: Int64[Ints, " s"],
        decision: Decision,
        measured: tuple[int, float, float],
    ) -> SyncReport:
        active, found = set(arrivals.active.tolist()), set(heard.tolist())
        idle = tuple(i for i in range(self.wire.ranks) if i not in active)
        lost = tuple(sorted(active - found))
        if lost and self.wire.rank == 0:
            text = "round %d: weight zero for %s, whose model was not finite"
            _log.warning(text, self.rounds, ranks_named(lost))
        sizes = [anchor.nbytes for anchor in self.model.anchor]
        return SyncReport(
            round=self.rounds,
            weights=tuple(self._over_ranks(heard, decision.weights).tolist()),
            steps=tuple(arrivals.steps.tolist()),
            tokens=tuple(arrivals.tokens.tolist()),
            idle=idle,
            excluded=lost,
            status=decision.status,
            gap=float(decision.gap),
            bytes_sent=measured[0],
            ring_bytes=sum(ring_bytes(size, self.wire.ranks) for size in sizes),
            seconds=measured[1],
            waited=measured[2],
        )
