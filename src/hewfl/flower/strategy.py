"""Flower's FedAvg with another aggregation: what a stock app swaps in.

Nodes are sampled, configured and evaluated by Flower's own code. Overridden is what
happens to the replies: they are sifted, weighed by a rule of hewfl, and stepped by the
server's optimiser. Displacements are measured from the arrays that Flower handed over
in this round, whoever made them: wrappers for differential privacy and subclasses that
edit the model are seen.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from hewfl.aggregate.pieces import Pieces
from hewfl.core.algorithm import Algorithm
from hewfl.core.checks import invalid, positive, shown, whole
from hewfl.core.round import LocalPlan, Roster, Round
from hewfl.errors import InvalidInputError
from hewfl.flower import protocol as say
from hewfl.flower import report
from hewfl.flower.folder import RunFolder
from hewfl.flower.layout import flat, layout_of, record_of
from hewfl.flower.phases import WIDTH, SecondPhase, opening
from hewfl.flower.replies import Answer, Asked, Exclusion, Opened, log, sift
from hewfl.server.average import Average, average_weight, averaged
from hewfl.server.conclude import Outcome, conclude
from hewfl.server.first import first_state
from hewfl.server.ledger import charge, with_gradients
from hewfl.server.outer import Outer
from hewfl.server.plausible import counted_sizes, implausible
from hewfl.server.rules import reads, rule_of
from hewfl.server.state import Lane, ServerState
from hewfl.server.trace import RoundRecord
from hewfl.server.two_phases import conclude_in_phases

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
OnRound = Callable[[int, Mapping[str, float]], object]
DEFAULT = "sieve"
"""The best safe rule on three stock apps: the table in docs/flower.md."""


class HewStrategy(FedAvg):  # type: ignore[misc]  # checked without flwr
    """FedAvg whose weights come from a rule: `HewStrategy()` for `FedAvg()`.

    Args:
        *args: FedAvg's, in its order.
        rule: how replies are weighed: a name of `hewfl.server.rules`, or a method. One
            that divides by step sizes and steps, such as `hewfl.HewHom`, declares plain
            SGD on the clients: they are told `lr` by `train_config` and tell
            `num-steps`.
        outer: what the server does with the aggregated step: momentum, Adam, averages.
        longest: a displacement longer than this times the round's median is left out.
        min_replies: with fewer usable replies a round is rejected.
        phases: 2 for weights from sketches, with `sketched` on the clients.
        secure: whether the second phase is masked by Flower's SecAgg+.
        certify: whether clients are asked for the gap of the weights of two phases.
        folder: where to keep the run; the same app started again goes on there.
        seed: of the run: its folder, and the draws of `AlgorithmStrategy`.
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
        phases: int = 1,
        secure: bool = False,
        certify: bool = False,
        folder: Path | str | None = None,
        seed: int = 0,
        on_round: OnRound | None = None,
        **fedavg: Any,
    ) -> None:
        super().__init__(*args, **fedavg)
        self.lane = Lane(self._accepted(rule), Outer() if outer is None else outer)
        if self.lane.outer.measure is not None:
            why = "left out: clients are not asked for losses along the step"
            raise invalid("outer.measure", why, self.lane.outer.measure)
        self.longest = positive("longest", longest)
        self.min_replies = whole("min_replies", min_replies, least=1)
        self.phases, self.secure, self.certify = phases, secure, certify
        self.folder = None if folder is None else Path(folder)
        self.seed, self.on_round = whole("seed", seed), on_round
        self._needs_steps, self._needs_rate, by_entry = self._asks()
        if phases not in (1, 2) or ((secure or certify) and phases == 1):
            raise invalid("phases", "1, or 2 as `secure` and `certify` need", phases)
        if self.lane.outer.measure is not None:
            rule = "left out: Flower clients are not asked for their losses"
            raise invalid("outer.measure", rule, self.lane.outer.measure)
        if phases == 2 and by_entry:
            raise invalid("rule", "one that looks at products only", self.lane.name)
        self._forget()

    def _forget(self) -> None:
        self._clients: dict[int, int] = {}
        self._state: ServerState | None = None
        self._opened: Opened | None = None
        self._note: dict[str, Any] = {}
        self._measured: dict[str, float] = {}
        self._offset, self._timeout = 0, 3600.0
        self._is_running = self._moved = False

    def _accepted(self, rule: str | Algorithm[Any]) -> Algorithm[Any]:
        return rule_of(rule)

    def _asks(self) -> tuple[bool, bool, bool]:
        """Whether the rule asks for told steps, step sizes, every coordinate."""
        return reads(self.lane.algorithm)

    @property
    def state(self) -> ServerState:
        """Model and method's state after the last round."""
        if self._state is None:
            raise invalid("the strategy", "started", "one without a round")
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
        on, and what `evaluate_fn` measures goes into the trace. With an averaged model,
        evaluation and the result are of the average.
        """
        self._forget()
        self._is_running, self._timeout = True, timeout
        arrays, layout = initial_arrays, layout_of(initial_arrays)
        folder = found = None
        if self.folder is not None:
            folder = RunFolder(
                self.folder, self.seed, num_rounds, arrays, self._identity()
            )
            found = folder.load(self._blank(arrays))
        if found is None:
            self._state = self._first(grid, arrays)
        else:
            self._offset, self._state = found
            arrays = record_of(layout, self.state.anchor, arrays)
            log.info("going on after round %d", self._offset)

        def after(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            t, best = server_round + self._offset, self._handed_over(arrays)
            given = None if evaluate_fn is None else evaluate_fn(t, best)
            if server_round > 0 or found is None:
                self._finish(t, given, folder, best)
            return given

        left = max(num_rounds - self._offset, 0)
        configs = (train_config, evaluate_config)
        result = super().start(grid, arrays, left, timeout, *configs, after)
        last = record_of(layout, self.state.anchor, arrays)
        result.arrays = self._handed_over(last)
        for by_round in vars(result).values():
            if isinstance(by_round, dict):  # count from the beginning of the run
                moved = {t + self._offset: found for t, found in by_round.items()}
                by_round.clear()
                by_round.update(moved)
        return result

    def _identity(self) -> dict[str, Any]:
        """What must be the same to go on with a run."""
        return {"algorithm": self.lane.algorithm, "outer": self.lane.outer}

    def _blank(self, arrays: ArrayRecord) -> ServerState:
        """A state of the right shape."""
        anchor = flat(layout_of(arrays), arrays).astype(np.float64)
        return first_state(self.lane.algorithm, anchor, 1, outer=self.lane.outer)

    def _first(self, grid: Grid, arrays: ArrayRecord) -> ServerState:
        """The state before the first round."""
        del grid
        return self._blank(arrays)

    def _handed_over(self, arrays: ArrayRecord) -> ArrayRecord:
        """Take what Flower hands over for the model; what is to be evaluated.

        That is the average, where one is kept: it goes on once in a round that moved.
        """
        layout, before = layout_of(arrays), self.state.average
        anchor = flat(layout, arrays).astype(np.float64)
        if before is not None and self._moved:
            share = average_weight(self.lane.outer, before.rounds)
            model = averaged(share, before.model, anchor)
            before = Average(model, before.rounds + 1)
        self._moved = False
        self._state = replace(self.state, anchor=anchor, average=before)
        return arrays if before is None else record_of(layout, before.model, arrays)

    def _finish(
        self,
        t: int,
        given: MetricRecord | None,
        folder: RunFolder | None,
        arrays: ArrayRecord,
    ) -> None:
        """Put a round on record, once everything about it is known."""
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
        self._begin(grid, arrays)
        t, rate = server_round + self._offset, config.get(say.RATE)
        if self._needs_rate and not (isinstance(rate, int | float) and rate > 0):
            rule = f"given the step size that clients use, for {self.lane.name}"
            raise invalid(f'train_config["{say.RATE}"]', rule, shown(rate))
        messages = list(super().configure_train(t, arrays, config, grid))
        if self.phases == 2:
            messages = opening(messages, t, self.configrecord_key)
        eta, known = float(rate) if self._needs_rate else 1.0, self._clients
        asked = [
            Asked(m.metadata, known.get(int(m.metadata.dst_node_id)), None, eta)
            for m in messages
        ]
        self._opened = Opened(t, arrays, layout_of(arrays), grid, asked)
        return messages

    def _begin(self, grid: Grid, arrays: ArrayRecord) -> None:
        """Be ready for a round, also where a wrapper runs the rounds."""
        if not self._is_running:
            rule = "left out inside a wrapper: it would keep what the wrapper hides"
            if self.folder is not None:
                raise invalid("folder", rule, self.folder)
            if self.lane.outer.average is not None:
                raise invalid("outer.average", rule, self.lane.outer.average)
        if self._state is None:
            self._state = self._first(grid, arrays)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next model, None where the round is rejected, and all about the round."""
        del server_round
        opened, self._opened = self._opened, None
        if opened is None:
            raise invalid("aggregate_train", "called after configure_train", "no round")
        read = opened
        if self.phases == 2:
            zero = ArrayRecord([np.zeros(WIDTH)])
            read = replace(opened, arrays=zero, layout=layout_of(zero))
        needs = self._needs_steps
        answers, excluded = sift(read, replies, self.weighted_by_key, steps=needs)
        silent = [e.reason for e in excluded if f'"{say.DONE}"' in e.reason]
        if opened.t == self._offset + 1 and silent and not answers:
            rule = (
                f'for {self.lane.name} in the MetricRecord of train replies: add "'
                f'{say.DONE}": <optimiser steps taken>'
            )
            raise invalid(say.DONE, rule, silent[0])
        answers, more = self._plausible(answers)
        self._heard(opened, answers)
        excluded = [
            replace(e, client=self._clients.get(e.node, e.client))
            for e in (*opened.absent, *excluded, *more)
        ]
        for exclusion in excluded:
            log.warning("round %d: %s", opened.t, exclusion)
        roster = self._roster(opened, answers)
        outcome = self._concluded(
            opened, answers, roster, flat(read.layout, read.arrays)
        )
        log.info("round %d: %s", opened.t, outcome.status)
        sent = opened.layout.d, len(opened.asked)
        has_means = any(answer.means is not None for answer in answers)
        self._state = self._charged(outcome.state, *sent, more=has_means)
        self._moved = outcome.decision is not None
        self._note = report.note(roster, outcome, excluded)
        means = report.means_of(
            [a.content for a in answers],
            self.weighted_by_key,
            self.train_metrics_aggr_fn,
        )
        found = report.metrics(opened.t, self._note, excluded, means)
        if self.on_round is not None:
            self.on_round(opened.t, report.numbers(found))
        if not self._moved:
            return None, found
        return record_of(opened.layout, self.state.anchor, opened.arrays), found

    def _plausible(
        self, answers: Sequence[Answer]
    ) -> tuple[list[Answer], list[Exclusion]]:
        """Answers of the size of the others, by the work that was ordered or told."""
        asked = [a.question for a in answers]
        grounds = np.array([(q.steps or 1.0) * q.step_size for q in asked])
        lengths = np.array([sqrt(a.sq_norm) for a in answers]) / grounds
        told = np.array([a.steps for a in answers]) if self._needs_steps else None
        bad = implausible(lengths, self.longest, told)
        good = [answer for k, answer in enumerate(answers) if k not in bad]
        return good, [
            Exclusion(asked[k].node, "implausible", v) for k, v in bad.items()
        ]

    def _heard(self, opened: Opened, answers: Sequence[Answer]) -> None:
        """Give every node that is new a number, those heard first, in their order."""
        heard = [answer.question.node for answer in answers]
        for node in (*heard, *sorted(question.node for question in opened.asked)):
            self._clients.setdefault(node, len(self._clients))

    def _roster(self, opened: Opened, answers: Sequence[Answer]) -> Roster:
        """Those who are heard, by the numbers that the strategy gives them."""
        found = [
            (self._clients[a.question.node], a.steps, a.question.batch_size)
            for a in answers
        ]
        clients, steps, batches = np.array(found, dtype=np.int64).reshape(-1, 3).T
        sizes = counted_sizes(np.array([a.size for a in answers], dtype=np.float64))
        n = self._population()
        return Roster(clients, steps, batches, sizes, n, opened.t - 1)

    def _population(self) -> int:
        return max(1, len(self._clients))

    def _charged(
        self, state: ServerState, d: int, active: int, *, more: bool
    ) -> ServerState:
        """The state with a round's numbers on its account.

        Corrections travel to each client by itself, not as one broadcast vector.
        """
        wants = self.lane.algorithm.demands
        here = with_gradients(wants.traffic) if more else wants.traffic
        if wants.variates:
            here = replace(here, down=1, down_scalars=here.down_scalars + d)
        if self.phases == 2:
            here = replace(here, up_scalars=here.up_scalars + WIDTH)
        return state.charged(charge(here, active, d), charge(wants.traffic, active, d))

    def _mean_gradients(self, answers: Sequence[Answer]) -> Pieces | None:
        """Mean gradients of the branches, left where they came; None under plain SGD.

        Raises:
            InvalidInputError: some clients sent theirs and some did not.
        """
        sent = [a.means for a in answers if a.means is not None]
        if not self.lane.algorithm.demands.variates or not sent:
            return None
        if len(sent) < len(answers):
            rule = "sent by all clients of a federation with control variates, or none"
            raise invalid(say.MEAN, rule, f"{len(sent)} of {len(answers)}")
        parts = zip(*sent, strict=True)
        return Pieces(tuple(rows for rows in parts if len(rows[0])))

    def _concluded(
        self, opened: Opened, answers: Sequence[Answer], roster: Roster, base: Any
    ) -> Outcome:
        """Decide and step; the state as it was where the round is rejected."""
        anchor = flat(opened.layout, opened.arrays).astype(np.float64)
        state = replace(self.state, anchor=anchor)
        alone = replace(state, average=None)  # of what is handed over, not of this
        if len(answers) < self.min_replies:
            text = f"rejected: {len(answers)} usable replies, {self.min_replies} needed"
            return Outcome(state, text)
        parts = zip(*(a.rows for a in answers), strict=True)
        held = Pieces(tuple(rows for rows in parts if len(rows[0])), base)
        plan = LocalPlan(np.array([a.question.step_size for a in answers]))
        try:
            means = self._mean_gradients(answers)
        except InvalidInputError as error:
            return Outcome(state, f"rejected: {error}")
        round_ = Round(anchor, held, roster, plan, gradients=means)
        fits = opened.layout.fits
        plain: Any = {"average": None, "average_decay": None, "average_from": None}
        lane = replace(self.lane, outer=replace(self.lane.outer, **plain))
        if self.phases == 1:
            told: Any = {"with_terms": True, "whole_state": True}
            came = conclude(lane, alone, round_, fits=fits, **told)
        else:
            where = (opened.grid, opened.layout, opened.t, answers, self._timeout)
            second, certify = SecondPhase(*where, self.secure), self.certify
            came = conclude_in_phases(
                lane, alone, round_, second, fits=fits, certify=certify
            )
        came = replace(came, state=replace(came.state, average=state.average))
        if came.decision is None:
            return replace(came, status=f"rejected: {came.status}")
        return came

    # -------------------------------------------------------------- evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """FedAvg's messages, with the averaged model where one is kept."""
        best = self._handed_over(arrays) if self._is_running else arrays
        t = server_round + self._offset
        return list(super().configure_evaluate(t, best, config, grid))

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
        found = report.means_of(
            [r.content for r in good],
            self.weighted_by_key,
            self.evaluate_metrics_aggr_fn,
        )
        self._measured = report.numbers(found)
        return found if len(found) else None

    def summary(self) -> None:
        """Log what runs here."""
        log.info("\t├──> %r", self.lane)
        super().summary()
