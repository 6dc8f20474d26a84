"""A round of two phases: weights from sketches, then one plain sum.

    k numbers of each client     →  weights w by any rule that looks at products
    w_i to client i              →  d = Σ w_iD_i, which is only summed
    r = Λ d + Σ u_iD_i           →  ⟨r, D_i⟩: n numbers, and with them the gap of these
                                    weights on the true problem, not on the sketches

At no time does the server hold n updates, and under secure aggregation it never sees
one. A client that is lost between the phases leaves the others with their weights over
their sum; there is no certificate then.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from types import SimpleNamespace
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns, Parameters, parameters_to_ndarrays
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp import Grid

from hewfl.aggregators import Mean
from hewfl.core.algorithm import Modelled
from hewfl.core.array_types import Bool, Float64
from hewfl.core.round import Round
from hewfl.core.validation import Array, Mask, invalid
from hewfl.displacements.dense import matrix_round
from hewfl.errors import HewError
from hewfl.flower import client as say
from hewfl.flower.arrays import Layout, record_of, views
from hewfl.flower.replies import Answer, log
from hewfl.methods.registry import as_algorithm
from hewfl.server.finish_round import Outcome, finish_round
from hewfl.server.state import Entry, ServerState, checked_decision

Factors = Sequence[Float64[Array, " s"]]


@runtime_checkable
class Transport(Protocol):
    """How a server asks the clients of a round, without seeing their updates."""

    def sums(self, factors: Factors) -> tuple[Sequence[Any], Bool[Mask, " s"]]:
        """Σ f_iD_i over those heard for each list of factors, and who was heard."""

    def products(self, vector: Float64[Array, " d"]) -> Float64[Array, " s"]:
        """⟨v, D_i⟩ of every client; NaN where there is no answer."""


def conclude_in_phases(
    entry: Entry,
    state: ServerState,
    round_: Round,
    transport: Transport,
    *,
    fits: Callable[[Float64[Array, " d"]], bool],
    certify: bool = False,
) -> Outcome:
    """Weigh sketches, sum updates, step; the state as it was where nothing came.

    Args:
        entry: the rule, which must give weights and no step of its own.
        state: before the round.
        round_: of sketches in place of displacements; its anchor is the model.
        transport: asks the clients.
        fits: whether a model is one that can be sent.
        certify: whether the clients are asked for the gap as well; it costs a second
            sum and a broadcast.
    """
    try:
        decision, following = checked_decision(entry.algorithm, round_, state.algorithm)
    except HewError as error:
        return Outcome(state, "refused", str(error))
    w = decision.weights
    factors = [w]
    if certify and isinstance(entry.algorithm, Modelled):
        model = entry.algorithm.model(round_, state.algorithm)
        u = getattr(model.reference, "weights", np.zeros_like(w))
        factors.append(model.curvature * w + u)
    sums, heard = transport.sums(factors)
    share = float(w[heard].sum())
    if share <= 0:
        return Outcome(state, "refused", "no client answered in the second phase")
    one = np.zeros(1, dtype=np.int64)  # the sum is the displacement of one client
    alone = (round_.cohort.only(one), round_.plan.only(one))
    step = matrix_round(state.anchor, sums[0][None] / share, *alone)
    mean = Entry(as_algorithm(Mean()), entry.server_step)
    came = finish_round(mean, replace(state, algorithm=None), step, fits=fits)
    if came.decision is None:
        return replace(came, state=state)
    if len(sums) > 1 and heard.all():
        p = transport.products(sums[1])
        if np.isfinite(p).all():
            decision = replace(decision, gap=float(w @ p - p.min()))
    lost = int((~heard).sum())
    status = decision.status + (f"; {lost} lost between phases" if lost else "")
    return Outcome(replace(came.state, algorithm=following), "ok", status, decision)


# ------------------ The second phase of a round over Flower's Grid, in the clear or

WIDTH = 2**12
"""k, numbers of a sketch: products are right to about 1/√k."""
TOGETHER = 4
"""Replies that are fetched at a time: those are held, and the sum."""
SAME_LENGTH = 1.25
"""A sketch of thousands of numbers knows a length to some percent: who sends an update
longer than this times its sketch sends another one."""


def opening(messages: Sequence[Message], t: int, config_key: str) -> list[Message]:
    """FedAvg's messages as questions for a sketch, with one seed for all."""
    found = []
    for m in messages:
        told = {**m.content[config_key], say.SEED: t, say.WIDTH: WIDTH}
        content = RecordDict({**m.content, config_key: ConfigRecord(told)})
        found.append(Message(content, m.metadata.dst_node_id, say.SKETCH))
    return found


@final
@dataclass(frozen=True, slots=True)
class SecondPhase:
    """The clients of a round, asked again (`hewfl.flower.secure_aggregation.Transport`).

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
        """Σ f_iD_i over those heard for each list of factors, and who was heard.

        A later sum that lacks a client of the first is left out.
        """
        nodes, ask = self.nodes, self._masked if self.secure else self._plain
        found = [ask(dict(zip(nodes, map(float, f), strict=True))) for f in factors]
        heard = found[0][1]
        sums = [total for total, who in found if who >= heard]
        return sums, np.array([node in heard for node in nodes])

    def _plain(self, asked: dict[int, float]) -> tuple[Any, set[int]]:
        """The sum of what comes, and whose it is, few replies at a time."""
        messages = [
            Message(
                RecordDict({say.CONFIG: ConfigRecord({say.WEIGHT: w})}), i, say.TRAIN
            )
            for i, w in asked.items()
        ]
        total, heard = np.zeros(self.layout.d), set()
        lengths = {answer.question.node: answer.sq_norm for answer in self.answers}
        for reply in self._replies(messages):
            node = int(reply.metadata.src_node_id)
            try:
                record = next(iter(reply.content.array_records.values()))
                rows = views(self.layout, record)
                square = sum(float(row @ row) for row in rows)
                if not square <= (SAME_LENGTH * asked[node]) ** 2 * lengths[node]:
                    raise invalid("update", "as long as its sketch", square)
            except (ValueError, StopIteration) as error:
                log.warning("node %d is lost: %s", node, error)
                continue
            heard.add(node)
            for row, (_, _, place, _) in zip(rows, self.layout.parts(), strict=True):
                total[place] += row
            record.clear()  # Flower's messages hold each other: they go late
        return total, heard

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
                if isinstance(value, float):
                    found[int(reply.metadata.src_node_id)] = value
        return np.array([found[node] for node in self.nodes])

    def _masked(self, asked: dict[int, float]) -> tuple[Any, set[int]]:
        """The sum by Flower's SecAgg+, whose workflow speaks its older language.

        It averages what clients send with equal shares, each entry clipped to a range:
        the largest entry that a client told, so nothing is lost.
        """
        found: dict[int, Any] = {}

        def keep(_round: int, results: Any, _failures: Any) -> tuple[None, Any]:
            found.update({int(proxy.node_id): res for proxy, res in results})
            return None, {}

        none = Parameters([], "numpy.ndarray")
        orders = [
            (SimpleNamespace(node_id=i), FitIns(none, {say.WEIGHT: w}))
            for i, w in asked.items()
        ]
        plain = SimpleNamespace(configure_fit=lambda *_: orders, aggregate_fit=keep)
        crowd = SimpleNamespace(num_available=lambda: len(asked))
        config = ConfigRecord({"current_round": self.t})
        state = RecordDict({"config": config, "parameters": ArrayRecord()})
        context = LegacyContext(Context(0, 0, {}, state, {}), None, plain, crowd)
        clip = 0.0
        for answer, w in zip(self.answers, asked.values(), strict=True):
            largest, length = answer.metrics.get(say.LARGEST), sqrt(answer.sq_norm)
            largest = min(largest, length) if isinstance(largest, float) else length
            clip = max(clip, abs(largest * w))
        told: Any = {"clipping_range": clip or 1.0, "timeout": self.timeout}
        SecAggPlusWorkflow(1.0, 0.67, max_weight=1.0, **told)(self.grid, context)
        if not found:
            return np.zeros(self.layout.d), set()
        mean = parameters_to_ndarrays(next(iter(found.values())).parameters)
        return len(found) * np.concatenate([a.ravel() for a in mean]), set(found)
