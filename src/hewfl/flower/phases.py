"""The server of a round of two phases: weights from sketches, then one plain sum.

    k numbers of each client     →  weights w by any rule that looks at products
    w_i to client i              →  Σ w_iD_i, summed as it arrives, in the clear or
                                    masked by Flower's SecAgg+
    r = Λ Σ w_iD_i + Σ u_iD_i    →  ⟨r, D_i⟩: n numbers, and with them the gap of these
                                    weights on the true problem, not on the sketches

At no time does the server hold n updates, and under SecAgg+ it never sees one. A client
that is lost between the phases leaves the others with their weights over their sum.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from types import SimpleNamespace
from typing import Any, final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from jaxtyping import Float64

from hewfl.aggregate.rows import matrix_round
from hewfl.baselines.uniform import UniformLocalSGD
from hewfl.core.algorithm import Modelled
from hewfl.core.checks import Array
from hewfl.core.round import Round
from hewfl.errors import HewError
from hewfl.flower import protocol as say
from hewfl.flower.layout import Layout, layout_of, record_of, views
from hewfl.flower.replies import Answer
from hewfl.server.conclude import Outcome, conclude, decided
from hewfl.server.state import Lane, ServerState

WIDTH = 2**12
"""k, numbers of a sketch: products are right to about 1/√k."""
TOGETHER = 16
"""Replies that are fetched at a time: those are held, and the sum."""
SAME_LENGTH = 1.25
"""A sketch of thousands of numbers knows a length to some percent: who sends an update
longer than this times its sketch sends another one."""


def opening(messages: Sequence[Message], t: int, config_key: str) -> list[Message]:
    """FedAvg's messages as questions for a sketch, with one seed for all."""
    told = {say.SEED: t, say.WIDTH: WIDTH}
    return [
        Message(
            RecordDict(
                {
                    **m.content,
                    config_key: ConfigRecord({**m.content[config_key], **told}),
                }
            ),
            m.metadata.dst_node_id,
            say.SKETCH,
            group_id=m.metadata.group_id,
        )
        for m in messages
    ]


def sketch_layout() -> tuple[Layout, ArrayRecord]:
    """What a sketch looks like, and the one of zero."""
    zero = ArrayRecord([np.zeros(WIDTH)])
    return layout_of(zero), zero


@final
@dataclass(frozen=True, slots=True)
class Contribution:
    """What one client is asked to send.

    Attributes:
        factors: w_i, and where a certificate is wanted also Λw_i + u_i.
        length: ‖D_i‖, by its sketch.
        largest: bound on the entries of D_i, as told and by the length.
    """

    factors: tuple[float, ...]
    length: float
    largest: float


@final
@dataclass(frozen=True, slots=True)
class SecondPhase:
    """The second phase of a round.

    Attributes:
        grid: the federation.
        layout: of the model.
        t: number of the round.
        timeout: seconds to wait for answers.
        secure: whether updates are masked by SecAgg+.
    """

    grid: Grid
    layout: Layout
    t: int
    timeout: float
    secure: bool

    def concluded(
        self,
        lane: Lane,
        state: ServerState,
        round_: Round,
        answers: Sequence[Answer],
        *,
        certify: bool,
    ) -> Outcome:
        """Weigh sketches, sum updates, step; the state as it was where nothing came.

        Args:
            lane: the rule and the outer step.
            state: before the round.
            round_: of the sketches.
            answers: they came in, one for each client of the round.
            certify: whether clients are asked for the gap.
        """
        try:
            decision, following = decided(lane.algorithm, round_, state.algorithm)
        except HewError as error:
            return Outcome(state, str(error))
        w, factors = decision.weights, [decision.weights]
        if certify and isinstance(lane.algorithm, Modelled):
            model = lane.algorithm.model(round_, state.algorithm)
            u = getattr(model.reference, "weights", np.zeros_like(w))
            factors.append(model.curvature * w + u)
        asked, nodes = {}, [answer.question.node for answer in answers]
        for answer, *own in zip(answers, *factors, strict=True):
            length, told = sqrt(answer.sq_norm), answer.metrics.get(say.LARGEST_ENTRY)
            largest = min(told, length) if isinstance(told, float) else length
            who = Contribution(tuple(map(float, own)), length, abs(largest))
            asked[answer.question.node] = who
        sums, heard = self.sums(asked)
        share = sum(asked[node].factors[0] for node in heard)
        if not heard or share <= 0:
            return Outcome(state, "nobody was heard in the second phase")
        one = np.zeros(1, dtype=np.int64)
        alone = round_.roster.only(one)
        step = matrix_round(
            state.anchor, sums[0][None] / share, alone, round_.plan.only(one)
        )
        blank = replace(state, algorithm=None)
        mean = Lane(UniformLocalSGD(1.0, 1.0), lane.outer)
        came = conclude(mean, blank, step, fits=self.layout.fits)
        if came.decision is None:
            return replace(came, state=state)
        if len(sums) > 1:
            products = self.products(sums[1], nodes)
            if set(products) == set(nodes) == set(heard):
                p = np.array([products[node] for node in nodes])
                decision = replace(decision, gap=float(w @ p - p.min()))
        lost = len(asked) - len(heard)
        status = decision.status + (f"; {lost} lost between phases" if lost else "")
        state = replace(came.state, algorithm=following)
        return Outcome(state, status, decision)

    def sums(
        self, asked: Mapping[int, Contribution]
    ) -> tuple[list[Float64[Array, " d"]], list[int]]:
        """Σ f_iD_i for each factor, and the nodes that are in it."""
        if self.secure:
            return self._secure_sums(asked)
        messages = [
            Message(
                RecordDict({say.CONFIG: ConfigRecord(_config(who))}),
                node,
                say.TRAIN,
                group_id=str(self.t),
            )
            for node, who in asked.items()
        ]
        totals = [np.zeros(self.layout.d) for _ in next(iter(asked.values())).factors]
        heard = []
        for reply in self._replies(messages):
            node = int(reply.metadata.src_node_id)
            parts = self._parts(reply, asked.get(node))
            if parts is not None:
                heard.append(node)
                for total, part in zip(totals, parts, strict=True):
                    begin = 0
                    for row in part:
                        total[begin : begin + len(row)] += row
                        begin += len(row)
        return totals, heard

    def _parts(self, reply: Message, who: Contribution | None) -> Any:
        """The arrays of each factor, if they are those of the sketch; else None."""
        if reply.has_error() or who is None or len(reply.content.array_records) != 1:
            return None
        record = next(iter(reply.content.array_records.values()))
        each, arrays = len(self.layout.names), list(record.values())
        try:
            parts = [
                views(self.layout, dict(zip(self.layout.names, some, strict=True)))
                for some in (
                    arrays[k * each : (k + 1) * each] for k in range(len(who.factors))
                )
            ]
        except ValueError:
            return None
        for part, factor in zip(parts, who.factors, strict=True):
            square = sum(float(row @ row) for row in part)
            if not square <= (SAME_LENGTH * abs(factor) * who.length) ** 2:
                return None
        return parts

    def _replies(self, messages: list[Message]) -> Iterator[Message]:
        """Answers as they come, few at a time."""
        waiting = list(self.grid.push_messages(messages))
        end, pause = time.monotonic() + self.timeout, 0.05
        while waiting and time.monotonic() < end:
            for lo in range(0, len(waiting), TOGETHER):
                for reply in self.grid.pull_messages(waiting[lo : lo + TOGETHER]):
                    waiting[waiting.index(reply.metadata.reply_to_message_id)] = ""
                    yield reply
            waiting, before = [number for number in waiting if number], len(waiting)
            if waiting and len(waiting) == before:
                time.sleep(pause)
                pause = min(2 * pause, 3.0)

    def products(
        self, vector: Float64[Array, " d"], nodes: list[int]
    ) -> dict[int, float]:
        """⟨v, D_i⟩ of each node that answers."""
        content = RecordDict({say.ARRAYS: record_of(self.layout, vector)})
        messages = [Message(content, node, say.CERTIFY) for node in nodes]
        found = {}
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout):
            if reply.has_content():
                metrics = next(iter(reply.content.metric_records.values()), {})
                value = metrics.get(say.PRODUCT)
                if isinstance(value, float) and np.isfinite(value):
                    found[int(reply.metadata.src_node_id)] = value
        return found

    def _secure_sums(
        self, asked: Mapping[int, Contribution]
    ) -> tuple[list[Float64[Array, " d"]], list[int]]:
        """The sums by Flower's SecAgg+, whose workflow speaks its older language.

        It averages what clients send with equal shares, each entry clipped to a range;
        the range is the largest entry that a client told, so nothing is lost.
        """
        from flwr.common import FitIns, Parameters, parameters_to_ndarrays
        from flwr.server import LegacyContext
        from flwr.server.workflow import SecAggPlusWorkflow

        found: list[Any] = []

        def aggregate(_round: int, results: Any, _failures: Any) -> tuple[None, dict]:
            found.extend(
                (proxy.node_id, result.parameters) for proxy, result in results
            )
            return None, {}

        def configure(*_: Any) -> list[Any]:
            none = Parameters([], "numpy.ndarray")
            return [
                (SimpleNamespace(node_id=node), FitIns(none, _config(who)))
                for node, who in asked.items()
            ]

        strategy = SimpleNamespace(configure_fit=configure, aggregate_fit=aggregate)
        crowd = SimpleNamespace(num_available=lambda: len(asked))
        state = RecordDict(
            {
                "config": ConfigRecord({"current_round": self.t}),
                "parameters": ArrayRecord(),
            }
        )
        context = LegacyContext(Context(0, 0, {}, state, {}), None, strategy, crowd)
        clip = max(max(map(abs, who.factors)) * who.largest for who in asked.values())
        SecAggPlusWorkflow(
            1.0,
            0.67,
            max_weight=1.0,
            clipping_range=float(clip) or 1.0,
            timeout=self.timeout,
        )(self.grid, context)
        if not found:
            return [], []
        arrays = parameters_to_ndarrays(found[0][1])
        each, n = len(self.layout.names), len(found)
        totals = [
            n * np.concatenate([a.ravel() for a in arrays[k : k + each]])
            for k in range(0, len(arrays), each)
        ]
        return totals, [int(node) for node, _ in found]


def _config(who: Contribution) -> dict[str, float]:
    return dict(zip((say.WEIGHT, say.JUDGED), who.factors, strict=False))
