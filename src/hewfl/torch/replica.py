"""One rank's part in a round: displacements out, weights solved for, new model in.

    1. ranks tell each other what they did (`Work`), and agree on all else;
    2. shard j of every displacement goes to rank j, bucket by bucket;
    3. each rank forms the inner products of its shards; they are added up in float64;
    4. every rank solves the same small problem;
    5. each rank moves its shard of the model, and shards are handed out to all.

No rank ever holds all displacements: between 2 and 5 it has as many numbers as the
model. As new models, not steps, are handed out, they are the same bits everywhere.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float64, Int64

from hewfl.core.checks import Array, Ints
from hewfl.core.from_products import variate_weights
from hewfl.core.round import Decision
from hewfl.torch.collect import Collector
from hewfl.torch.faults import Attendance, RankError, ranks_named
from hewfl.torch.layout import digest, plan_layout
from hewfl.torch.model import SharedModel, is_finite, shard_of
from hewfl.torch.options import SyncOptions, SyncReport
from hewfl.torch.products import weighted_sum, weighted_sums
from hewfl.torch.rules import Rule, decide
from hewfl.torch.variates import RankVariates
from hewfl.torch.wire import Wire, check_group, ring_bytes
from hewfl.torch.work import Arrivals, Meeting, Work, from_table, to_row

SAME = ("number of parameters", "parameter layout", "rule and options")
_log = logging.getLogger("hewfl.torch")


@final
class Replica:
    """The common model, this rank's shards of it, and the way to the other ranks.

    Construction gives all ranks the parameters of rank 0.

    Attributes:
        rule: how ranks are weighted.
        options: what all ranks share.
        wire: the way to the others.
        model: x and y.
        variates: control variates, None for rules without.
        rounds: rounds done.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        group: Any,
        rule: Rule,
        options: SyncOptions,
    ) -> None:
        moving = [p for p in parameters if p.requires_grad]
        device = moving[0].device if moving else torch.device("cpu")
        check_group(group, device)
        ranks = dist.get_world_size(group)
        layout = plan_layout(moving, ranks, options.bucket_bytes)
        self.rule, self.options, self.rounds = rule, options, 0
        self.wire = Wire(group, device, options.timeout)
        self.model = SharedModel(moving, layout, options.outer)
        self.variates = None
        if rule.is_corrected:
            at_gradients = rule.starts_at_gradients
            self.variates = RankVariates(layout, device, at_gradients=at_gradients)
        self._attendance = Attendance(group.group_name, self.wire.rank, ranks)
        self._same = (
            layout.parameters,
            layout.signature,
            digest(rule, options.outer),
        )
        with self._watched():
            self._meet(Meeting.CONSTRUCTION, Work())
            self.model.take()
            for anchor in self.model.anchor:
                self.wire.copied(anchor)
        self.model.follow(self.wire.rank)

    def sync(self, work: Work) -> SyncReport | None:
        """Aggregate what all ranks did since the last round.

        Returns:
            What happened; None if no rank had done a step.

        Raises:
            RankError: ranks are missing or disagree, none came back finite, or the new
                model would not be; unless ranks were lost while that was handed out,
                the model is as it was.
        """
        began, sent = time.perf_counter(), self.wire.bytes_sent
        with self._watched():
            arrivals = self._meet(Meeting.ROUND, work)
            met = time.perf_counter()
            if len(arrivals.active) == 0:
                return None
            collector = Collector(self.model, self.variates, self.wire)
            received, products, heard = collector.collected(arrivals)
            decision = decide(self.rule, products, heard, arrivals)
            weights = self._over_ranks(heard, decision.weights)
            self._hand_out(received, weights, heard, arrivals)
        self.model.give()
        self.rounds += 1
        seconds = (time.perf_counter() - began, met - began)
        bytes_sent = self.wire.bytes_sent - sent
        return self._report(arrivals, heard, decision, (bytes_sent, *seconds))

    def start_variates(self) -> None:
        """c_i = the gradients at hand, c their mean (erratum E-29).

        Raises:
            RankError: on every rank, if one of them is not finite or has not come to
                its first step.
        """
        assert self.variates is not None
        self.variates.take_gradients(self.model.parameters)
        finite = all(is_finite(own) for own in self.variates.own)
        with self._watched():
            arrivals = self._meet(Meeting.FIRST_STEP, Work(finite=finite))
            lost = np.flatnonzero(~arrivals.finite).tolist()
            if lost:
                text = f"the first gradient was not finite on {ranks_named(lost)}"
                raise RankError(text)
            for server in self.variates.server:
                self.wire.add_up(server)
                server.div_(self.wire.ranks)
        self.variates.started = True

    # -------------------------------------------------------------- parts of a round

    def _watched(self) -> Any:
        return self._attendance.watched(self.rounds, self.options.timeout)

    def _meet(self, meeting: Meeting, work: Work) -> Arrivals:
        self._attendance.note(self.rounds)
        row = to_row(meeting, self.rounds, work, self._same)
        return from_table(self._table(row), SAME)

    def _table(self, row: Float64[Array, " k"]) -> Float64[Array, "n k"]:
        """One row of numbers from each rank, in `timeout` on any backend."""
        if self.wire.keeps_time:
            return self.wire.table(row)
        return self._attendance.table(row, self.options.timeout)

    def _hand_out(
        self,
        received: list[torch.Tensor],
        weights: Float64[Array, " n"],
        heard: Int64[Ints, " s"],
        arrivals: Arrivals,
    ) -> None:
        """Move this rank's shards and exchange them; variates along with the model.

        Every rank moves its own variate where anchor and server's variate are still
        the old ones, while the bucket before travels.
        """
        shards = self._moved(received, weights, heard, arrivals)
        works: list[Any] = []
        memory = self.model.scratch() if self.variates is not None else None
        for b, (moved, next_) in enumerate(shards):
            if self.variates is not None and memory is not None and next_ is not None:
                if self.wire.rank in heard:
                    displacement = self.model.displacement(b, memory)
                    far = float(arrivals.travelled[self.wire.rank])
                    self.variates.move(b, displacement, far)
                works += self.wire.handed_out(next_, self.variates.server[b])
            works += self.wire.handed_out(moved, self.model.anchor[b])
        self.wire.wait(works)

    def _moved(
        self,
        received: list[torch.Tensor],
        weights: Float64[Array, " n"],
        heard: Int64[Ints, " s"],
        arrivals: Arrivals,
    ) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """This rank's shards of the new model and of the server's next variate.

        Finite displacements may take the model beyond its precision: ranks tell each
        other before they hand anything out. Uses up `received`.

        Raises:
            RankError: on every rank, if a shard is not finite; nothing has changed.
        """
        shards: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        kept, lost = [], 0
        for b in range(len(self.model.anchor)):
            rows = received.pop(0)
            kept.append(self.model.kept(b))
            next_ = None
            if self.variates is None:
                step = weighted_sum(rows, weights)
            else:
                server = self.variates.server[b]
                step, next_ = self._two_sums(server, rows, weights, heard, arrivals)
                lost += not is_finite(next_)
            moved = self.model.moved_shard(b, step)
            lost += not is_finite(moved)
            shards.append((moved, next_))
        if self.wire.summed(np.array([float(lost)]))[0] > 0:
            for b, before in enumerate(kept):
                self.model.put_back(b, before)
            text = (
                f"the model after round {self.rounds + 1} would not be finite, though "
                f"displacements are (outer step size {self.options.outer.step:g}, "
                f"weights {weights.tolist()}): the model is left as it was"
            )
            raise RankError(text)
        return shards

    def _two_sums(
        self,
        server: torch.Tensor,
        rows: torch.Tensor,
        weights: Float64[Array, " n"],
        heard: Int64[Ints, " s"],
        arrivals: Arrivals,
    ) -> list[torch.Tensor]:
        """The step and the server's next variate, on this rank's shard of a bucket."""
        rank, ranks = self.wire.rank, self.wire.ranks
        kept, u = variate_weights(arrivals.travelled[heard], ranks)
        both = np.zeros((2, ranks + 1))
        both[0, :ranks], both[1, heard], both[1, ranks] = weights, u, kept
        return weighted_sums(rows, shard_of(server, ranks, rank), both)

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
