"""The second phase of a round over Flower's Grid, in the clear or under SecAgg+."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from types import SimpleNamespace
from typing import Any, final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns, Parameters, parameters_to_ndarrays
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp import Grid
from jaxtyping import Bool, Float64

from hewfl.core.checks import Array, Mask, invalid
from hewfl.flower import protocol as say
from hewfl.flower.layout import Layout, record_of, views
from hewfl.flower.replies import Answer, log
from hewfl.server.two_phases import Factors

WIDTH = 2**12
"""k, numbers of a sketch: products are right to about 1/√k."""
TOGETHER = 4
"""Replies that are fetched at a time: those are held, and the sum."""
SAME_LENGTH = 1.25
"""A sketch of thousands of numbers knows a length to some percent: who sends an update
longer than this times its sketch sends another one."""


def opening(messages: Sequence[Message], t: int, config_key: str) -> list[Message]:
    """FedAvg's messages as questions for a sketch, with one seed for all."""
    told = {say.SEED: t, say.WIDTH: WIDTH}
    found = []
    for m in messages:
        config = ConfigRecord({**m.content[config_key], **told})
        content = RecordDict({**m.content, config_key: config})
        found.append(Message(content, m.metadata.dst_node_id, say.SKETCH))
    return found


@final
@dataclass(frozen=True, slots=True)
class SecondPhase:
    """The clients of a round, asked again (`hewfl.server.two_phases.Transport`).

    Attributes:
        grid: the federation.
        layout: of the model.
        t: number of the round.
        answers: the sketches, one of each client.
        timeout: seconds to wait for answers.
        secure: whether updates are masked by SecAgg+.
    """

    grid: Grid
    layout: Layout
    t: int
    answers: Sequence[Answer]
    timeout: float
    secure: bool

    @property
    def nodes(self) -> list[int]:
        """Flower's ids of the clients, in their order."""
        return [answer.question.node for answer in self.answers]

    def sums(
        self, factors: Factors
    ) -> tuple[Sequence[Float64[Array, " d"]], Bool[Mask, " s"]]:
        """Σ f_iD_i over those heard for each list of factors, and who was heard."""
        told = [
            dict(zip((say.WEIGHT, say.JUDGED), map(float, own), strict=False))
            for own in zip(*factors, strict=True)
        ]
        found, nodes = (self._masked if self.secure else self._plain)(told)
        return found, np.array([node in nodes for node in self.nodes])

    def _plain(self, told: Sequence[dict[str, float]]) -> tuple[Any, set[int]]:
        """Sums of what comes, and whose it is, few replies at a time."""
        messages, each, heard = [], len(self.layout.names), set()
        places = {node: k for k, node in enumerate(self.nodes)}
        for node, own in zip(places, told, strict=True):
            content = RecordDict({say.CONFIG: ConfigRecord(own)})
            messages.append(Message(content, node, say.TRAIN))
        totals = [np.zeros(self.layout.d) for _ in told[0]]
        for reply in self._replies(messages):
            node = int(reply.metadata.src_node_id)
            k = places[node]
            try:
                record = next(iter(reply.content.array_records.values()))
                arrays, parts = list(record.values()), []
                for j, factor in enumerate(told[k].values()):
                    own = dict(zip(self.layout.names, arrays[j * each :], strict=False))
                    parts.append(views(self.layout, own))
                    square = sum(float(row @ row) for row in parts[-1])
                    most = (SAME_LENGTH * factor) ** 2 * self.answers[k].sq_norm
                    if not square <= most:
                        raise invalid("update", "as long as its sketch", square)
            except (ValueError, StopIteration) as error:
                log.warning("node %d is lost: %s", node, error)
                continue
            heard.add(node)
            for total, rows in zip(totals, parts, strict=True):
                begin = 0
                for row in rows:
                    total[begin : begin + len(row)] += row
                    begin += len(row)
            record.clear()  # Flower's messages hold each other: they go late
        return totals, heard

    def _replies(self, messages: list[Message]) -> Iterator[Message]:
        """Answers with content as they come, few at a time."""
        waiting = set(self.grid.push_messages(messages))
        end, pause = time.monotonic() + self.timeout, 0.05
        while waiting and time.monotonic() < end:
            before, left = len(waiting), sorted(waiting)
            for lo in range(0, before, TOGETHER):
                for reply in self.grid.pull_messages(left[lo : lo + TOGETHER]):
                    waiting.discard(reply.metadata.reply_to_message_id)
                    if reply.has_content():
                        yield reply
            if len(waiting) == before:
                time.sleep(pause)
                pause = min(2 * pause, 3.0)

    def products(self, vector: Float64[Array, " d"]) -> Float64[Array, " s"]:
        """⟨v, D_i⟩ of every client; NaN where there is no answer."""
        content = RecordDict({say.ARRAYS: record_of(self.layout, vector)})
        asked = [Message(content, node, say.CERTIFY) for node in self.nodes]
        found = dict.fromkeys(self.nodes, float("nan"))
        for reply in self.grid.send_and_receive(asked, timeout=self.timeout):
            if reply.has_content():
                metrics: Any = next(iter(reply.content.metric_records.values()), {})
                value = metrics.get(say.PRODUCT)
                value = value if isinstance(value, float) else float("nan")
                found[int(reply.metadata.src_node_id)] = value
        return np.array([found[node] for node in self.nodes])

    def _masked(self, told: Sequence[dict[str, float]]) -> tuple[Any, set[int]]:
        """The sums by Flower's SecAgg+, whose workflow speaks its older language.

        It averages what clients send with equal shares, each entry clipped to a range:
        the largest entry that a client told, so nothing is lost.
        """
        found: list[tuple[int, Any]] = []
        asked = dict(zip(self.nodes, told, strict=True))

        def configure(*_: Any) -> list[Any]:
            none = Parameters([], "numpy.ndarray")
            return [
                (SimpleNamespace(node_id=i), FitIns(none, c)) for i, c in asked.items()
            ]

        def aggregate(_round: int, results: Any, _failures: Any) -> tuple[None, Any]:
            found.extend((proxy.node_id, res.parameters) for proxy, res in results)
            return None, {}

        strategy = SimpleNamespace(configure_fit=configure, aggregate_fit=aggregate)
        crowd = SimpleNamespace(num_available=lambda: len(asked))
        config = ConfigRecord({"current_round": self.t})
        state = RecordDict({"config": config, "parameters": ArrayRecord()})
        context = LegacyContext(Context(0, 0, {}, state, {}), None, strategy, crowd)
        clip = 0.0
        for answer, own in zip(self.answers, told, strict=True):
            largest, length = answer.metrics.get(say.LARGEST), sqrt(answer.sq_norm)
            largest = min(largest, length) if isinstance(largest, float) else length
            clip = max(clip, abs(largest) * max(map(abs, own.values())))
        workflow = SecAggPlusWorkflow(
            1.0, 0.67, max_weight=1.0, clipping_range=clip or 1.0, timeout=self.timeout
        )
        workflow(self.grid, context)
        if not found:
            return [], set()
        arrays, each = parameters_to_ndarrays(found[0][1]), len(self.layout.names)
        sums = [
            len(found) * np.concatenate([a.ravel() for a in arrays[k : k + each]])
            for k in range(0, len(arrays), each)
        ]
        return sums, {int(node) for node, _ in found}
