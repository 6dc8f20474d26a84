"""One rank's part in a round: displacements out, weights solved for, new model in.

    1. ranks tell each other what they did (`Work`), and agree on all else;
    2. shard j of every displacement goes to rank j, bucket by bucket;
    3. each rank forms the inner products of its shards; they are added up in float64;
    4. every rank solves the same small problem;
    5. each rank moves its shard of the model, and shards are handed out to all.

No rank ever holds all displacements: between 2 and 5 it has as many numbers as the
model. As new models, not steps, are handed out, they are the same bits everywhere.
"""

import itertools
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
from hewfl.torch.faults import Attendance, RankError, named
from hewfl.torch.layout import digest, plan_layout
from hewfl.torch.model import SharedModel, shard_of
from hewfl.torch.options import SyncOptions, SyncReport
from hewfl.torch.products import weighted_sum
from hewfl.torch.rules import Rule, decide
from hewfl.torch.variates import RankVariates
from hewfl.torch.wire import Wire, ring_bytes
from hewfl.torch.work import Arrivals, Work, from_table, to_row

SAME = ("number of parameters", "parameter layout", "rule and options")
_instances = itertools.count()
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
        ranks = dist.get_world_size(group)
        layout = plan_layout(moving, ranks, options.bucket_bytes)
        device = moving[0].device
        self.rule, self.options, self.rounds = rule, options, 0
        self.wire = Wire(group, device, options.timeout)
        self.model = SharedModel(moving, layout, options.outer)
        self.variates = None
        if rule.is_corrected:
            at_gradients = rule.starts_at_gradients
            self.variates = RankVariates(layout, device, at_gradients=at_gradients)
        name = f"hewfl/{group.group_name}/{next(_instances)}"
        self._attendance = Attendance(name, self.wire.rank, ranks)
        self._same = (
            layout.parameters,
            layout.signature,
            digest(rule, options.outer),
        )
        with self._watched():
            self._meet(Work())
            self.model.take()
            for anchor in self.model.anchor:
                self.wire.copied(anchor)
        self.model.follow(self.wire.rank)

    def sync(self, work: Work) -> SyncReport | None:
        """Aggregate what all ranks did since the last round.

        Returns:
            What happened; None if no rank had done a step.

        Raises:
            RankError: ranks are missing or disagree, or none came back finite.
        """
        began, sent = time.perf_counter(), self.wire.bytes_sent
        with self._watched():
            arrivals = self._meet(work)
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
            RankError: on every rank, if one of them is not finite.
        """
        assert self.variates is not None
        self.variates.take_gradients(self.model.parameters)
        with self._watched():
            for server in self.variates.server:
                self.wire.add_up(server)
                server.div_(self.wire.ranks)
                if not bool(torch.isfinite(server).all()):
                    raise RankError("a rank's first gradient was not finite")

    # -------------------------------------------------------------- parts of a round

    def _watched(self) -> Any:
        return self._attendance.watched(self.rounds, self.options.timeout)

    def _meet(self, work: Work) -> Arrivals:
        self._attendance.note(self.rounds)
        row = to_row(self.rounds, work, self._same)
        return from_table(self.wire.table(row), SAME)

    def _hand_out(
        self,
        received: list[torch.Tensor],
        weights: Float64[Array, " n"],
        heard: Int64[Ints, " s"],
        arrivals: Arrivals,
    ) -> None:
        """Move this rank's shards and exchange them; variates along with the model."""
        if self.variates is not None and self.wire.rank in heard:
            self._move_own(self.variates, float(arrivals.travelled[self.wire.rank]))
        works: list[Any] = []
        held: list[torch.Tensor] = []  # alive until sent
        for b, anchor in enumerate(self.model.anchor):
            rows = received.pop(0)
            if self.variates is not None:
                server = self.variates.server[b]
                held.append(self._next_variate(server, rows, heard, arrivals))
                works += self.wire.handed_out(held[-1], server)
            held.append(self.model.moved_shard(b, weighted_sum(rows, weights)))
            works += self.wire.handed_out(held[-1], anchor)
        self.wire.wait(works)

    def _move_own(self, variates: RankVariates, travelled: float) -> None:
        """This rank's variate, while anchor and server's variate are still the old."""
        memory = self.model.scratch()
        for b in range(len(self.model.anchor)):
            variates.move(b, self.model.displacement(b, memory), travelled)

    def _next_variate(
        self,
        server: torch.Tensor,
        rows: torch.Tensor,
        heard: Int64[Ints, " s"],
        arrivals: Arrivals,
    ) -> torch.Tensor:
        """The server's variate on this rank's shard of a bucket."""
        rank, ranks = self.wire.rank, self.wire.ranks
        kept, u = variate_weights(arrivals.travelled[heard], ranks)
        sent = weighted_sum(rows, self._over_ranks(heard, u))
        return sent.add_(shard_of(server, ranks, rank), alpha=kept)

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
        idle = np.setdiff1d(np.arange(self.wire.ranks), arrivals.active)
        lost = np.setdiff1d(arrivals.active, heard)
        if len(lost) > 0 and self.wire.rank == 0:
            text = "round %d: weight zero for ranks %s, whose model was not finite"
            _log.warning(text, self.rounds, named(lost.tolist()))
        sizes = [anchor.nbytes for anchor in self.model.anchor]
        return SyncReport(
            round=self.rounds,
            weights=tuple(self._over_ranks(heard, decision.weights).tolist()),
            steps=tuple(arrivals.steps.tolist()),
            tokens=tuple(arrivals.tokens.tolist()),
            idle=tuple(idle.tolist()),
            excluded=tuple(lost.tolist()),
            status=decision.status,
            gap=float(decision.gap),
            bytes_sent=measured[0],
            ring_bytes=sum(ring_bytes(size, self.wire.ranks) for size in sizes),
            seconds=measured[1],
            waited=measured[2],
        )
