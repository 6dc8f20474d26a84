"""Flower's FedAvg with another aggregation: the class that a stock app swaps in.

Nodes are sampled, configured and evaluated by Flower's own code. `HewStrategy` replaces
what happens to the replies: they are validated, weighed by an aggregator of hewfl, and
applied by the server step. Displacements are measured from the arrays that Flower hands
over in this round. So wrappers for differential privacy, and subclasses that edit the
model, keep working.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from hewfl.core.algorithm import Algorithm
from hewfl.core.round import Cohort
from hewfl.core.validation import invalid, positive, shown, whole
from hewfl.errors import InvalidInputError
from hewfl.flower import client as say
from hewfl.flower.arrays import layout_of, record_of, wide
from hewfl.flower.metrics import described, numbers, unicast_communication, usable
from hewfl.flower.replies import (
    Answer,
    Asked,
    Exclusion,
    Opened,
    cohort_of,
    log,
    round_of,
    sift,
    too_long,
)
from hewfl.flower.saved_run import SavedRun, model_arrays
from hewfl.flower.secure_aggregation import (
    WIDTH,
    SecondPhase,
    conclude_in_phases,
    opening,
)
from hewfl.methods.registry import as_algorithm
from hewfl.server.finish_round import Outcome, finish_round
from hewfl.server.server_step import ServerStep, next_average
from hewfl.server.state import Entry, ServerState, initial_state
from hewfl.server.trace import RoundRecord

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
OnRound = Callable[[int, Mapping[str, float]], object]
DEFAULT = "sieve"
"""The best safe rule on three stock apps: the table in docs/flower.md."""


class HewStrategy(FedAvg):  # type: ignore[misc]  # checked without flwr
    """FedAvg whose weights come from a rule: `HewStrategy()` for `FedAvg()`.

    Args:
        *args: FedAvg's, in its order.
        rule: how replies are weighed: a name of `hewfl.methods.registry`, or a method. One
            that divides by step sizes and steps, such as `hewfl.HewHom`, declares plain
            SGD on the clients: they are told `lr` by `train_config` and tell
            `num-steps`.
        server_step: what the server does with the aggregated step: momentum, Adam, averages.
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
        server_step: ServerStep | None = None,
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
        self.server_step = ServerStep() if server_step is None else server_step
        # averages are of what is handed over after a round, not of what a round gives
        method, asks = self._taken(rule)
        self.entry = Entry(method, self.server_step.without_average())
        if self.server_step.has_search:
            why = "left out: clients are not asked for losses along the step"
            raise invalid(
                "server_step.line_search_samples",
                why,
                self.server_step.line_search_samples,
            )
        self.longest = positive("longest", longest)
        self.min_replies = whole("min_replies", min_replies, least=1)
        self.phases, self.secure, self.certify = phases, secure, certify
        self.folder = None if folder is None else Path(folder)
        self.seed, self.on_round = whole("seed", seed), on_round
        self._needs_steps, self._needs_rate, by_entry = asks
        if phases not in (1, 2) or ((secure or certify) and phases == 1):
            raise invalid("phases", "1, or 2 as `secure` and `certify` need", phases)
        if phases == 2 and by_entry:
            raise invalid("rule", "one that looks at products only", self.entry.name)
        self._forget()

    def _taken(self, rule: Any) -> tuple[Algorithm[Any], tuple[bool, bool, bool]]:
        """The method, and whether it asks for told steps, step sizes, every entry."""
        method = as_algorithm(rule)
        wants, needs = method.demands, method.demands.needs
        if "losses" in needs or "root" in needs or wants.oracle:
            text = "a method that needs neither losses nor a root gradient"
            raise invalid("rule", text, method.name)
        if wants.variates or wants.gradients or "clients" in needs:
            text = "a method that knows no client by name"
            raise invalid("rule", text, method.name)
        return method, ("steps" in needs, "step_sizes" in needs, "entries" in needs)

    def _forget(self) -> None:
        self._clients: dict[int, int] = {}
        self._state: ServerState | None = None
        self._opened: Opened | None = None
        self._note, self._measured = dict[str, Any](), dict[str, float]()
        self._offset, self._timeout = 0, 3600.0
        self._is_running = self._moved = False
        self._kept: SavedRun | None = None

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
        found = None
        if self.folder is not None:
            told = (num_rounds, self._identity(), arrays)
            self._kept = SavedRun(self.folder, self.seed, *told)
            found = self._kept.load(self._blank(arrays))
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
                self._finish(t, given, best)
            return given

        left = max(num_rounds - self._offset, 0)
        configs = (train_config, evaluate_config)
        result = super().start(grid, arrays, left, timeout, *configs, after)
        last = record_of(layout, self.state.anchor, arrays)
        result.arrays = self._handed_over(last)
        for name, by_round in vars(result).items():
            if isinstance(by_round, dict):  # count from the beginning of the run
                moved = {t + self._offset: found for t, found in by_round.items()}
                setattr(result, name, moved)
        return result

    def _identity(self) -> dict[str, Any]:
        """What must be the same to go on with a run."""
        return {"algorithm": self.entry.algorithm, "server_step": self.server_step}

    def _blank(self, arrays: ArrayRecord) -> ServerState:
        """A state of the right shape."""
        return initial_state(
            self.entry.algorithm, wide(arrays), 1, server_step=self.server_step
        )

    def _first(self, grid: Grid, arrays: ArrayRecord) -> ServerState:  # noqa: ARG002 - nobody is asked
        """The state before the first round."""
        return self._blank(arrays)

    def _handed_over(self, arrays: ArrayRecord) -> ArrayRecord:
        """Take what Flower hands over for the model; what is to be evaluated.

        That is the average, where one is kept: it goes on once in a round that moved.
        """
        anchor, before = wide(arrays), self.state.average
        if before is not None and self._moved:
            before = next_average(self.server_step, before, anchor)
        self._moved = False
        self._state = replace(self.state, anchor=anchor, average=before)
        own = None if before is None else before.model
        return arrays if own is None else record_of(layout_of(arrays), own, arrays)

    def _finish(self, t: int, given: MetricRecord | None, model: ArrayRecord) -> None:
        """Put a round on record, once everything about it is known."""
        measured = {**self._measured, **numbers(given)}
        if self.on_round is not None and measured:
            self.on_round(t, measured)
        state, note, self._note, self._measured = self.state, self._note, {}, {}
        if self._kept is not None:
            goals: Any = [measured.pop(key, None) for key in ("objective", "pooled")]
            goals += [measured, state.scalars, state.paper_scalars]
            record = RoundRecord(t, 0, *goals, **note)
            self._kept.commit(record, state, model_arrays(model))

    # -------------------------------------------------------------- one round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """FedAvg's messages; the model they carry is remembered."""
        self._begin(grid, arrays)
        t, rate = server_round + self._offset, config.get(say.RATE)
        if self._needs_rate and not (isinstance(rate, int | float) and rate > 0):
            rule = f"given the step size that clients use, for {self.entry.name}"
            raise invalid(f'train_config["{say.RATE}"]', rule, shown(rate))
        messages = list(super().configure_train(t, arrays, config, grid))
        if self.phases == 2:
            messages = opening(messages, t, self.configrecord_key)
        eta = float(rate) if self._needs_rate else 1.0
        asked = [Asked(m.metadata, None, eta) for m in messages]
        self._opened = Opened(t, arrays, layout_of(arrays), grid, asked)
        return messages

    def _begin(self, grid: Grid, arrays: ArrayRecord) -> None:
        """Be ready for a round, also where a wrapper runs the rounds."""
        hidden = {
            "folder": self.folder,
            "server_step.average": self.server_step.average,
        }
        for name, value in hidden.items():
            if value is not None and not self._is_running:
                rule = "left out inside a wrapper: it would keep what the wrapper hides"
                raise invalid(name, rule, value)
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
        read, wanted = opened, (self.weighted_by_key, self._needs_steps)
        if self.phases == 2:
            zero = ArrayRecord([np.zeros(WIDTH)])
            read = replace(opened, arrays=zero, layout=layout_of(zero))
        answers, excluded = sift(read, replies, wanted, self._clients)
        silent = [e.reason for e in excluded if f'"{say.DONE}"' in e.reason]
        if opened.t == self._offset + 1 and silent and not answers:
            rule = f'in the MetricRecord of train replies for {self.entry.name}: add "'
            rule += f'{say.DONE}": <optimiser steps taken>'
            raise invalid(say.DONE, rule, silent[0])
        answers, more = self._plausible(answers)
        self._heard(opened, answers)
        excluded = [
            replace(e, client=self._clients.get(e.node, e.client))
            for e in (*opened.absent, *excluded, *more)
        ]
        for exclusion in excluded:
            log.warning("round %d: %s", opened.t, exclusion)
        clients = [self._clients[answer.question.node] for answer in answers]
        cohort = cohort_of(answers, clients, self._population(), opened.t - 1)
        outcome = self._concluded(opened, answers, cohort, read)
        log.info("round %d: %s", opened.t, outcome.status)
        extra = WIDTH if self.phases == 2 else 0
        means = any(answer.means is not None for answer in answers)
        wants, sent = self.entry.algorithm.demands, (len(opened.asked), opened.layout.d)
        bill = unicast_communication(wants, *sent, means=means, more=extra)
        self._state = outcome.state.add_communication(*bill)
        self._moved = outcome.decision is not None
        taken = [answer.content for answer in usable(answers, self.weighted_by_key)]
        own = self.train_metrics_aggr_fn(taken, self.weighted_by_key) if taken else {}
        self._note, found = described(cohort, outcome, excluded, own)
        if self.on_round is not None:
            self.on_round(opened.t, numbers(found))
        if not self._moved:
            return None, found
        return record_of(opened.layout, self.state.anchor, opened.arrays), found

    def _plausible(self, answers: list[Answer]) -> tuple[list[Answer], list[Exclusion]]:
        """Answers of the size of the others, by the work that was ordered or told."""
        bad = too_long(answers, self.longest, told=self._needs_steps)
        nodes = [answer.question.node for answer in answers]
        out = [Exclusion(nodes[k], "implausible", v) for k, v in bad.items()]
        return [answer for k, answer in enumerate(answers) if k not in bad], out

    def _heard(self, opened: Opened, answers: Sequence[Answer]) -> None:
        """Give every node that is new a number, those heard first, in their order."""
        first = [answer.question.node for answer in answers]
        for node in (*first, *sorted(question.node for question in opened.asked)):
            self._clients.setdefault(node, len(self._clients))

    def _population(self) -> int:
        return max(1, len(self._clients))

    def _concluded(
        self, opened: Opened, answers: Sequence[Answer], cohort: Cohort, read: Opened
    ) -> Outcome:
        """Decide and step; the state as it was where the round is rejected."""
        anchor, fits = opened.x.astype(np.float64), opened.layout.fits
        state = replace(self.state, anchor=anchor)
        if len(answers) < self.min_replies:
            text = f"rejected: {len(answers)} usable replies, {self.min_replies} needed"
            return Outcome(state, "refused", text)
        wants = self.entry.algorithm.demands
        try:
            round_ = round_of(anchor, answers, cohort, read.x, variates=wants.variates)
        except InvalidInputError as error:
            return Outcome(state, "refused", f"rejected: {error}")
        alone = replace(state, average=None)
        if self.phases == 1:
            told: Any = {"with_terms": True, "whole_state": True}
            came = finish_round(self.entry, alone, round_, fits=fits, **told)
        else:
            where = (opened.grid, opened.layout, opened.t, answers, self._timeout)
            told = {"fits": fits, "certify": self.certify}
            second = SecondPhase(*where, self.secure)
            came = conclude_in_phases(self.entry, alone, round_, second, **told)
        said = came.status if came.decision else f"rejected: {came.status}"
        return replace(
            came, state=replace(came.state, average=state.average), status=said
        )

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
        order = lambda r: self._clients.get(r.metadata.src_node_id, -1)  # noqa: E731 - short
        kept = usable(sorted(replies, key=order), self.weighted_by_key)
        found = super().aggregate_evaluate(server_round, kept)
        self._measured = numbers(found)
        return found
