"""Any method of hewfl as a strategy of Flower: transport, and no arithmetic.

Flower calls the methods below in turn. State is a value that goes through
`hewfl.flower.rounds` and comes out; everything happens in client order, whatever the
order of arrival.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from jaxtyping import Float, Float64

from hewfl.core.algorithm import Algorithm, Corrected, Modelled
from hewfl.core.checks import Array
from hewfl.errors import DataError
from hewfl.flower import evaluation, report
from hewfl.flower.contacts import Registry, log, meet
from hewfl.flower.folder import Kept, RunFolder, rebuilt
from hewfl.flower.layout import flat, layout_of, others_of, record_of, sent
from hewfl.flower.options import Options, check_method
from hewfl.flower.orders import Draft, gradient_orders, orders
from hewfl.flower.replies import Asked, Exclusion, Heard, clear_arrays, sift
from hewfl.flower.rounds import charged, concluded, draw_roster, started
from hewfl.server.conclude import Outcome
from hewfl.server.state import ServerState
from hewfl.server.trace import RoundRecord

Own = TypeVar("Own", bound="AlgorithmStrategy")
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


@final
@dataclass(frozen=True, slots=True)
class _Open:
    """A round whose answers are awaited."""

    t: int
    asked: list[Asked]
    absent: list[Exclusion]
    begin: Float[Array, " d"]


class AlgorithmStrategy(Strategy):  # type: ignore[misc]  # checked without flwr
    """A strategy that runs a method of hewfl.

    Args:
        algorithm: the method, such as `hewfl.HewHom(smoothness=1.0, amplitude=0.5)`.
        options: how the federation is conducted.

    Raises:
        InvalidInputError: the method cannot run on Flower, or lacks an option.
    """

    methods: tuple[str, ...] = ()
    """Names of the algorithms that `resume` accepts; any by default."""

    def __init__(
        self, algorithm: Algorithm[Any], options: Options | None = None
    ) -> None:
        self.algorithm = algorithm
        self.options = Options() if options is None else options
        check_method(algorithm, self.options)
        self._registry = Registry()
        self._holders: dict[int, tuple[int, int]] = {}
        self._kept: Kept | None = None
        self._open: _Open | None = None
        self._note: dict[str, Any] = {}
        self._measured: dict[str, float] = {}
        self._offset = 0
        self._limit = self.options.wait_seconds

    @classmethod
    def resume(cls: type[Own], path: Path | str) -> Own:
        """The strategy of a run kept in a folder, with all its options.

        `start` then goes on after the last round that was finished.

        Raises:
            DataError: there is no run, it is damaged, or of another strategy.
        """
        algorithm, options = rebuilt(Path(path))
        kind = type(algorithm).__name__
        if cls.methods and kind not in cls.methods:
            raise DataError(f"{path} holds a run of {kind}, not of {cls.__name__}")
        strategy = cls.__new__(cls)
        AlgorithmStrategy.__init__(strategy, algorithm, options)
        return strategy

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

        As in Flower, and besides: what `evaluate_fn` measures goes into the trace, and
        rounds keep their numbers when a run is resumed.
        """
        began, folder = time.monotonic(), self._folder()
        found = self._prepare(grid, initial_arrays, folder, timeout)
        total = max(num_rounds, self._offset)
        if folder is not None:
            folder.describe(total, self._registry)

        def after(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            t = server_round + self._offset
            given = None if evaluate_fn is None else evaluate_fn(t, arrays)
            if server_round > 0 or not found:
                self._finish(t, given, folder)
            return given

        result = super().start(
            grid,
            self.model(),
            total - self._offset,
            timeout,
            train_config,
            evaluate_config,
            after,
        )
        if folder is not None:
            seconds = time.monotonic() - began
            folder.close(self._registry, len(self.state.anchor), seconds)
        result.arrays = self.model()
        return report.renumbered(result, self._offset)

    def _folder(self) -> RunFolder | None:
        path = self.options.folder
        return None if path is None else RunFolder(path, self.algorithm, self.options)

    def _prepare(
        self, grid: Grid, arrays: ArrayRecord, folder: RunFolder | None, timeout: float
    ) -> bool:
        """The state to begin with; whether it was found on disk."""
        layout, method, options = layout_of(arrays), self.algorithm, self.options
        anchor = flat(layout, arrays).astype(np.float64)
        self._kept, self._offset, self._holders = None, 0, {}
        self._limit = min(options.wait_seconds, timeout)
        if folder is not None:
            zeros = {i: np.zeros(layout.d) for i in range(options.population or 0)}
            like = started(method, options, anchor, zeros)
            self._kept = folder.load(like, layout)
        self._meet(grid, options.first_nodes)
        if self._kept is not None:
            self._offset = self._kept.round
            log.info("going on after round %d", self._offset)
            return True
        gradients = {}
        if method.demands.gradients:
            messages, asked = gradient_orders(arrays, self._registry.present())
            replies = grid.send_and_receive(messages, timeout=timeout)
            heard = sift(asked, replies, layout, flat(layout, arrays))
            gradients = _gradients(heard)
        state = started(method, options, anchor, gradients)
        self._kept = Kept(0, state, layout, others_of(layout, arrays))
        return False

    def _meet(self, grid: Grid, needed: int) -> None:
        n, limit = self.options.population, self._limit
        self._registry = meet(grid, self._registry, n, needed=needed, seconds=limit)

    @property
    def state(self) -> ServerState:
        """Model and method's state after the last round.

        The next round changes control variates in their place: copy what is to stay.
        """
        return self._known.state

    @property
    def _known(self) -> Kept:
        assert self._kept is not None, "`start` makes the first state"
        return self._kept

    def model(self) -> ArrayRecord:
        """The model after the last round, as Flower sends it."""
        layout, others = self._known.layout, self._known.others
        return record_of(layout, self.state.anchor, others)

    # -------------------------------------------------------------- one round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One order for each client of the round."""
        if self._kept is None:
            self._prepare(grid, arrays, None, self.options.wait_seconds)
        t = server_round + self._offset - 1
        state, layout = self.state, self._known.layout
        self._meet(grid, self.options.min_replies)
        roster, absent = draw_roster(self._registry, self.options, t)
        messages: list[Message] = []
        asked: list[Asked] = []
        if len(roster.clients) > 0:
            plan = self.algorithm.plan(roster, state.algorithm)
            held = self._variates() if self._nodes_hold else None
            known, is_law = self._holders, self.options.horizons is not None
            draft = Draft(t, roster, plan, layout, arrays, config, held, known, is_law)
            messages, asked = orders(draft, self._registry.contacts)
        begin = sent(layout, state.anchor)
        self._open = _Open(t, asked, absent, begin)
        log.info("round %d: %d clients asked", t + 1, len(asked))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next model, None where the round is rejected, and all about the round.

        The replies are used up: their ArrayRecords are emptied, to free the memory.
        """
        assert self._open is not None, "`configure_train` comes first"
        opened, kept, self._open = self._open, self._known, None
        replies = list(replies)
        heard, outcome = self._concluded(opened, kept, replies)
        excluded = (*opened.absent, *heard.excluded)
        for exclusion in excluded:
            log.warning("round %d: %s", opened.t + 1, report.sentence(exclusion))
        clear_arrays(replies)
        state = charged(outcome.state, self.algorithm, self.options, len(opened.asked))
        self._kept = replace(kept, round=opened.t + 1, state=state)
        self._remember(opened, heard, outcome)
        self._note = report.note(heard, outcome, excluded)
        log.info("round %d: %s", opened.t + 1, outcome.status)
        metrics = report.metrics(server_round + self._offset, heard, outcome, excluded)
        return None if outcome.decision is None else self.model(), metrics

    def _concluded(
        self, opened: _Open, kept: Kept, replies: Sequence[Message]
    ) -> tuple[Heard, Outcome]:
        """What was heard, and what came of it.

        Exact weights come from inner products of all rows, which are not finite if one
        entry is not: replies are looked through only after that, or for other rules.
        """
        reads_all = isinstance(self.algorithm, Modelled)
        for finite in (False, True) if reads_all else (True,):
            heard = sift(
                opened.asked,
                replies,
                kept.layout,
                opened.begin,
                named=self.options.population is not None,
                insist=opened.t == self._offset,
                finite=finite,
            )
            outcome = concluded(
                self.algorithm, self.options, kept.layout, kept.state, heard, opened.t
            )
            if outcome.decision is not None:
                break
        return replace(heard, displacements=None), outcome

    @property
    def _nodes_hold(self) -> bool:
        return self.algorithm.demands.variates and self.options.variates == "node"

    def _variates(self) -> Any:
        """Control variates, wherever the method keeps them."""
        assert isinstance(self.algorithm, Corrected)
        return self.algorithm.variates(self.state.algorithm)

    def _remember(self, opened: _Open, heard: Heard, outcome: Outcome) -> None:
        """Offers of steps, and which nodes hold a control variate that is right."""
        self._registry = self._registry.offered(heard.offers)
        moved = outcome.decision is not None
        accepted = {int(i) for i in heard.clients} if moved else set()
        for question in opened.asked:
            self._holders.pop(question.client, None)
            if question.client in accepted:
                self._holders[question.client] = (question.node, opened.t + 1)

    def _finish(
        self, t: int, given: MetricRecord | None, folder: RunFolder | None
    ) -> None:
        """Put a round on record, once everything about it is known."""
        measured = {**self._measured, **report.numbers(given)}
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
            folder.commit(record, self._known)

    # -------------------------------------------------------------- evaluation

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,  # noqa: ARG002 - the training round has met everybody
    ) -> Iterable[Message]:
        """The model to a share of the connected nodes, drawn from the seed."""
        t, present = server_round + self._offset, self._registry.present()
        return evaluation.questions(present, self.options, t, arrays, config)

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002 - Flower's signature
        replies: Iterable[Message],
    ) -> MetricRecord | None:
        """Means over the nodes that answered, weighted by their examples."""
        clients = {c.node: i for i, c in self._registry.contacts.items()}
        found = evaluation.means(replies, clients)
        self._measured = report.numbers(found)
        return found

    def summary(self) -> None:
        """Log what runs here."""
        log.info("\t├──> %r", self.algorithm)
        log.info("\t└──> %r", self.options)


def _gradients(heard: Heard) -> dict[int, Float64[Array, " d"]]:
    for exclusion in heard.excluded:
        log.warning("start: %s", report.sentence(exclusion))
    if heard.displacements is None:
        return {}
    rows = heard.displacements.matrix()
    return dict(zip(map(int, heard.clients), rows, strict=True))
