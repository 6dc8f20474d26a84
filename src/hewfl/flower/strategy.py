"""Flower's FedAvg with another aggregation: what a stock app swaps in.

Nodes are sampled, configured and evaluated by Flower's own code. Overridden is what
happens to the replies: they are sifted, weighed by a rule of hewfl, and stepped by the
server's optimiser. Displacements are measured from the arrays that Flower handed over
in this round, whoever made them: wrappers for differential privacy and subclasses that
edit the model are seen.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from hewfl.aggregate.pieces import Pieces
from hewfl.core.algorithm import Algorithm
from hewfl.core.checks import invalid, positive, whole
from hewfl.core.round import LocalPlan, Roster, Round
from hewfl.flower import report
from hewfl.flower.folder import RunFolder
from hewfl.flower.layout import Layout, flat, layout_of, record_of
from hewfl.flower.plausible import counted, plausible
from hewfl.flower.protocol import DONE, RATE
from hewfl.flower.replies import Answer, Asked, Exclusion, Expected, sift
from hewfl.flower.rules import DEFAULT, reads, rule_of
from hewfl.server.conclude import Outcome, conclude
from hewfl.server.first import first_state
from hewfl.server.ledger import charge
from hewfl.server.outer import Outer
from hewfl.server.state import Lane, ServerState
from hewfl.server.trace import RoundRecord

log = logging.getLogger("flwr")
"""Flower's own, so that reasons are seen where its users look."""
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
OnRound = Callable[[int, Mapping[str, float]], object]


@final
@dataclass(frozen=True, slots=True)
class Opened:
    """A round whose answers are awaited.

    Attributes:
        t: its number, from 1.
        arrays: the model that was sent.
        layout: of the model.
        asked: the questions.
        absent: clients that were drawn and are not connected.
        grid: where a second phase is asked.
    """

    t: int
    arrays: ArrayRecord
    layout: Layout
    asked: Sequence[Asked]
    grid: Grid
    absent: Sequence[Exclusion] = ()


class HewStrategy(FedAvg):  # type: ignore[misc]  # checked without flwr
    """FedAvg whose weights come from a rule: `HewStrategy()` for `FedAvg()`.

    Args:
        *args: FedAvg's, in its order.
        rule: how replies are weighed: a name of `hewfl.flower.rules`, or a method. One
            that divides by step sizes and steps, such as `hewfl.HewHom`, declares plain
            SGD on the clients: they are told `lr` by `train_config` and tell
            `num-steps`.
        outer: what the server does with the aggregated step: momentum, Adam, averages.
        longest: a displacement longer than this times the round's median is left out.
        min_replies: with fewer usable replies a round is rejected.
        folder: where to keep the run; the same app started again goes on there.
        seed: of the run, for its folder.
        on_round: called after every round with its number and plain numbers by name.
        **fedavg: FedAvg's, by name.

    Raises:
        InvalidInputError: there is no such rule, or a number is out of range.
    """

    def __init__(  # noqa: PLR0913 - all have defaults
        self,
        *args: Any,
        rule: str | Algorithm[Any] = DEFAULT,
        outer: Outer | None = None,
        longest: float = 10.0,
        min_replies: int = 1,
        folder: Path | str | None = None,
        seed: int = 0,
        on_round: OnRound | None = None,
        **fedavg: Any,
    ) -> None:
        super().__init__(*args, **fedavg)
        self.lane = Lane(self._accepted(rule), Outer() if outer is None else outer)
        self.longest = positive("longest", longest)
        self.min_replies = whole("min_replies", min_replies, least=1)
        self.folder = None if folder is None else Path(folder)
        self.seed, self.on_round = whole("seed", seed), on_round
        self._needs_steps, self._needs_rate = self._asks()
        self._clients: dict[int, int] = {}
        self._forget()

    def _forget(self) -> None:
        self._state: ServerState | None = None
        self._opened: Opened | None = None
        self._note: dict[str, Any] = {}
        self._measured: dict[str, float] = {}
        self._offset, self._is_running = 0, False

    def _accepted(self, rule: str | Algorithm[Any]) -> Algorithm[Any]:
        return rule_of(rule)

    def _asks(self) -> tuple[bool, bool]:
        """Whether clients must tell their steps, and be told their step size."""
        return reads(self.lane.algorithm)

    @property
    def state(self) -> ServerState:
        """Model and method's state after the last round."""
        if self._state is None:
            raise invalid("the strategy", "started, or a folder read", "neither")
        return self._state

    # -------------------------------------------------------------- the whole run

    def start(  # noqa: PLR0913, PLR0917 - Flower's signature
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run until `num_rounds` rounds are done in all, those found on disk included.

        As Flower's `Strategy.start`; besides, rounds keep their numbers when a run goes
        on, and what `evaluate_fn` measures goes into the trace.
        """
        began, arrays = time.monotonic(), initial_arrays
        self._forget()
        self._is_running = True
        folder = self._opened_folder()
        found = None if folder is None else folder.load(self._blank(arrays))
        if found is None:
            self._state = self._first(grid, arrays, timeout)
        else:
            self._offset, self._state = found
            arrays = record_of(layout_of(arrays), self.state.anchor, arrays)
            log.info("going on after round %d", self._offset)
        if folder is not None:
            folder.describe(max(num_rounds, self._offset), self._facts())

        def after(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            t = server_round + self._offset
            given = None if evaluate_fn is None else evaluate_fn(t, arrays)
            if server_round > 0 or found is None:
                self._finish(t, given, folder, arrays)
            return given

        left = max(num_rounds - self._offset, 0)
        config = (train_config, evaluate_config)
        result = super().start(grid, arrays, left, timeout, *config, after)
        if folder is not None:
            self._closed(folder, time.monotonic() - began)
        result.arrays = result.arrays or arrays
        return report.renumbered(result, self._offset)

    def _opened_folder(self) -> RunFolder | None:
        if self.folder is None:
            return None
        return RunFolder(self.folder, self.lane, self.seed, self._identity())

    def _identity(self) -> dict[str, Any]:
        """What must be the same to go on with a run, besides the method."""
        return {}

    def _facts(self) -> dict[str, Any]:
        """What a report says about the clients."""
        return {"n": max(1, len(self._clients)), "batch_size": 1, "horizons": 1}

    def _closed(self, folder: RunFolder, seconds: float) -> None:
        n = max(1, len(self._clients))
        folder.close((), n, len(self.state.anchor), seconds)

    def _blank(self, arrays: ArrayRecord) -> ServerState:
        """A state of the right shape."""
        anchor = flat(layout_of(arrays), arrays).astype(np.float64)
        return first_state(self.lane.algorithm, anchor, 1, outer=self.lane.outer)

    def _first(self, grid: Grid, arrays: ArrayRecord, timeout: float) -> ServerState:
        """The state before the first round."""
        del grid, timeout
        return self._blank(arrays)

    def _finish(
        self,
        t: int,
        given: MetricRecord | None,
        folder: RunFolder | None,
        arrays: ArrayRecord,
    ) -> None:
        """Put a round on record, once everything about it is known."""
        anchor = flat(layout_of(arrays), arrays).astype(np.float64)
        self._state = replace(self.state, anchor=anchor)
        measured = {**self._measured, **report.numbers(given)}
        if self.on_round is not None and measured:
            self.on_round(t, measured)
        record = RoundRecord(
            round=t,
            lane=0,
            objective=measured.pop("objective", None),
            pooled=measured.pop("pooled", None),
            metrics=measured,
            scalars=self.state.scalars,
            paper_scalars=self.state.paper_scalars,
            **self._note,
        )
        self._note, self._measured = {}, {}
        if folder is not None:
            folder.commit(record, self.state, arrays)

    # -------------------------------------------------------------- one round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """FedAvg's messages; the model they carry is remembered."""
        self._begin(arrays)
        t = server_round + self._offset
        messages = list(super().configure_train(t, arrays, config, grid))
        rate = config.get(RATE)
        if self._needs_rate and not (isinstance(rate, int | float) and rate > 0):
            rule = f"given the step size that clients use, for {self.lane.name}"
            raise invalid(f'train_config["{RATE}"]', rule, repr(rate))
        known, rate = self._clients, float(rate) if self._needs_rate else 1.0
        asked = [
            Asked(m.metadata, known.get(int(m.metadata.dst_node_id)), None, rate)
            for m in messages
        ]
        self._opened = Opened(t, arrays, layout_of(arrays), asked, grid)
        return messages

    def _begin(self, arrays: ArrayRecord) -> None:
        """Be ready for a round, also where a wrapper runs the rounds."""
        if not self._is_running and self.folder is not None:
            rule = "left out inside a wrapper: it would keep what the wrapper hides"
            raise invalid("folder", rule, self.folder)
        if self._state is None:
            self._state = self._blank(arrays)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next model, None where the round is rejected, and all about the round."""
        del server_round
        opened, self._opened = self._opened, None
        if opened is None:
            raise invalid("aggregate_train", "called after configure_train", "not so")
        wanted = Expected(
            opened.arrays, opened.layout, self.weighted_by_key, self._needs_steps
        )
        answers, excluded = sift(opened.asked, replies, wanted)
        self._insist(opened, answers, excluded)
        answers, more = plausible(
            answers, self.longest, told_steps=self._needs_steps
        )
        self._numbered(opened, answers)
        excluded = [*opened.absent, *(self._named(e) for e in [*excluded, *more])]
        for exclusion in excluded:
            log.warning("round %d: %s", opened.t, report.sentence(exclusion))
        roster = self._roster(opened, answers)
        outcome = self._concluded(opened, answers, roster)
        log.info("round %d: %s", opened.t, outcome.status)
        traffic, d = self.lane.algorithm.demands.traffic, opened.layout.d
        self._state = outcome.state.charged(charge(traffic, len(opened.asked), d))
        self._note = report.note(roster, outcome, excluded)
        means = self._means([a.content for a in answers], self.train_metrics_aggr_fn)
        found = report.metrics(opened.t, self._note, excluded, means)
        if self.on_round is not None:
            self.on_round(opened.t, report.numbers(found))
        if outcome.decision is None:
            return None, found
        return record_of(opened.layout, self.state.anchor, opened.arrays), found

    def _insist(
        self, opened: Opened, answers: Sequence[Answer], excluded: Sequence[Exclusion]
    ) -> None:
        """In a first round without any steps told it is the app that lacks them."""
        silent = [e.reason for e in excluded if f'"{DONE}"' in e.reason]
        if opened.t == self._offset + 1 and silent and not answers:
            rule = (
                f"told by the ClientApp for {self.lane.name}: add "
                f'`"{DONE}": <optimiser steps taken>` to the MetricRecord of its train '
                "reply"
            )
            raise invalid(DONE, rule, silent[0])

    def _numbered(self, opened: Opened, answers: Sequence[Answer]) -> None:
        """Give every node that is new a number, those heard first, in their order."""
        heard = [answer.question.node for answer in answers]
        for node in (*heard, *sorted(question.node for question in opened.asked)):
            self._clients.setdefault(node, len(self._clients))

    def _named(self, exclusion: Exclusion) -> Exclusion:
        return replace(exclusion, client=self._clients.get(exclusion.node, -1))

    def _roster(self, opened: Opened, answers: Sequence[Answer]) -> Roster:
        """Those who are heard, by the numbers that the strategy gives them."""
        whom = [self._clients[a.question.node] for a in answers]
        clients, steps, batches = (
            np.array(values, dtype=np.int64)
            for values in (
                whom,
                [a.steps for a in answers],
                [a.question.batch_size for a in answers],
            )
        )
        sizes = counted([a.size for a in answers])
        n = self._population()
        return Roster(clients, steps, batches, sizes, n, opened.t - 1)

    def _population(self) -> int:
        return max(1, len(self._clients))

    def _concluded(
        self, opened: Opened, answers: Sequence[Answer], roster: Roster
    ) -> Outcome:
        """Decide and step; the state as it was where the round is rejected."""
        x = flat(opened.layout, opened.arrays)
        state = replace(self.state, anchor=x.astype(np.float64))
        if len(answers) < self.min_replies:
            text = f"rejected: {len(answers)} usable replies, {self.min_replies} needed"
            return Outcome(state, text)
        parts = tuple(zip(*(a.rows for a in answers), strict=True))
        held = Pieces(tuple(rows for rows in parts if len(rows[0])), x)
        plan = LocalPlan(np.array([a.question.step_size for a in answers]))
        round_ = Round(state.anchor, held, roster, plan)
        came = conclude(
            self.lane,
            state,
            round_,
            fits=opened.layout.fits,
            with_terms=True,
            whole_state=True,
        )
        if came.decision is None:
            return replace(came, status=f"rejected: {came.status}")
        return came

    # -------------------------------------------------------------- evaluation

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """FedAvg's means, without nodes that measured nothing or NaN."""
        del server_round
        good = []
        for reply in replies:
            if reply.has_error():
                node, why = reply.metadata.src_node_id, reply.error.reason
                log.warning("node %d did not evaluate: %s", node, why)
            else:
                good.append(reply)
        good.sort(key=lambda r: self._clients.get(r.metadata.src_node_id, -1))
        found = self._means([r.content for r in good], self.evaluate_metrics_aggr_fn)
        self._measured = report.numbers(found)
        return found if len(found) else None

    def _means(
        self, contents: Sequence[Any], aggregate: report.Aggregate
    ) -> MetricRecord:
        means, left_out = report.means_of(contents, self.weighted_by_key, aggregate)
        for reason in left_out:
            log.warning("a client is not in the mean of the measures: %s", reason)
        return means

    def summary(self) -> None:
        """Log what runs here."""
        log.info("\t├──> %r", self.lane)
        super().summary()
