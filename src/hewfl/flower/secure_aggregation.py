"""A round of two phases: weights from sketches, then one sum, plain or by SecAgg+.

    k numbers of each client     →  weights w by any rule that looks at products
    w_i to client i              →  d = Σ w_iD_i, which is only summed
    r = Λ d + Σ u_iD_i           →  ⟨r, D_i⟩: n numbers, which give the gap of these
                                    weights on the true problem, not on the sketches

The server never holds n updates, and under secure aggregation it never sees one. If a
client is lost between the phases, the weights of the others are divided by their sum;
there is no certificate then.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from types import SimpleNamespace
from typing import Any, final

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
from hewfl.displacements.chunked import ChunkedDisplacements
from hewfl.errors import HewError
from hewfl.flower import messages as keys
from hewfl.flower.arrays import flat_views, to_record
from hewfl.flower.messages import log
from hewfl.flower.replies import ClientUpdate
from hewfl.methods.registry import as_algorithm
from hewfl.server.array_layout import ArrayLayout
from hewfl.server.finish_round import Outcome, finish_round, reject
from hewfl.server.state import Entry, ServerState, checked_decision

Factors = Sequence[Float64[Array, " s"]]

SKETCH_WIDTH = 2**12
"""k, numbers of a sketch: products are right to about 1/√k."""
NO_SECOND_REPLY = "no client replied in the second phase"
"""Status of a round whose sketches arrived, and no update."""
FETCH_AT_ONCE = 4
"""Replies that are fetched at a time: memory holds these, and the sum."""
MAX_LENGTH_RATIO = 1.25
"""A sketch of thousands of numbers gives a length to some percent: an update longer
than this times its sketch is another one."""


def request_sketches(
    messages: Sequence[Message], t: int, config_key: str
) -> list[Message]:
    """FedAvg's messages as requests for a sketch, with one seed for all."""
    requests = []
    for m in messages:
        config = {**m.content[config_key], keys.SEED: t, keys.WIDTH: SKETCH_WIDTH}
        content = RecordDict({**m.content, config_key: ConfigRecord(config)})
        requests.append(Message(content, m.metadata.dst_node_id, keys.SKETCH))
    return requests


@final
@dataclass(frozen=True, slots=True)
class SecondPhase:
    """The clients of a round, asked again, without seeing their updates one by one.

    Attributes:
        grid: the federation.
        layout: of the model.
        t: number of the round.
        sketches: one of each client.
        timeout: seconds to wait for replies.
        secure: whether updates are masked by SecAgg+.
    """

    grid: Grid
    layout: ArrayLayout
    t: int
    sketches: Sequence[ClientUpdate]
    timeout: float
    secure: bool

    @property
    def nodes(self) -> list[int]:
        """Flower's ids of the clients, in their order."""
        return [sketch.node for sketch in self.sketches]

    def sums(
        self, factors: Factors
    ) -> tuple[Sequence[Float64[Array, " d"]], Bool[Mask, " s"]]:
        """Σ f_iD_i over the clients that reply, for each list of factors, and a mask.

        A later sum that lacks a client of the first is left out.
        """
        nodes, add = self.nodes, self._masked_sum if self.secure else self._plain_sum
        results = [add(dict(zip(nodes, map(float, f), strict=True))) for f in factors]
        replied = results[0][1]
        sums = [total for total, who in results if who >= replied]
        return sums, np.array([node in replied for node in nodes])

    def _plain_sum(self, weights: dict[int, float]) -> tuple[Any, set[int]]:
        """The sum of the replies, and their nodes, few replies at a time."""
        messages = [
            Message(
                RecordDict({keys.CONFIG: ConfigRecord({keys.WEIGHT: w})}), i, keys.TRAIN
            )
            for i, w in weights.items()
        ]
        total, replied = np.zeros(self.layout.d), set[int]()
        lengths = {sketch.node: sketch.sq_norm for sketch in self.sketches}
        for reply in self._fetch(messages):
            node = int(reply.metadata.src_node_id)
            try:
                record = next(iter(reply.content.array_records.values()))
                rows = flat_views(self.layout, record)
                square = sum(float(row @ row) for row in rows)
                if (
                    not square
                    <= (MAX_LENGTH_RATIO * weights[node]) ** 2 * lengths[node]
                ):
                    raise invalid("update", "as long as its sketch", square)
            except (ValueError, StopIteration) as error:
                log.warning("node %d is lost: %s", node, error)
                continue
            replied.add(node)
            for row, (_, _, place, _) in zip(rows, self.layout.parts(), strict=True):
                total[place] += row
            record.clear()  # Flower's messages hold each other: they go late
        return total, replied

    def _fetch(self, messages: list[Message]) -> Iterator[Message]:
        """Replies with content as they arrive, few at a time."""
        waiting = set(self.grid.push_messages(messages))
        end, pause = time.monotonic() + self.timeout, 0.05
        while waiting and time.monotonic() < end:
            before, left = len(waiting), sorted(waiting)
            for lo in range(0, before, FETCH_AT_ONCE):
                for reply in self.grid.pull_messages(left[lo : lo + FETCH_AT_ONCE]):
                    waiting.discard(reply.metadata.reply_to_message_id)
                    if reply.has_content():
                        yield reply
            if len(waiting) == before:
                time.sleep(pause)
                pause = min(2 * pause, 3.0)

    def products(self, vector: Float64[Array, " d"]) -> Float64[Array, " s"]:
        """⟨v, D_i⟩ of every client; NaN where there is no reply."""
        content = RecordDict({keys.ARRAYS: to_record(self.layout, vector)})
        requests = [Message(content, node, keys.CERTIFY) for node in self.nodes]
        products = dict.fromkeys(self.nodes, float("nan"))
        for reply in self.grid.send_and_receive(requests, timeout=self.timeout):
            if reply.has_content():
                metrics: Any = next(iter(reply.content.metric_records.values()), {})
                value = metrics.get(keys.PRODUCT)
                if isinstance(value, float):
                    products[int(reply.metadata.src_node_id)] = value
        return np.array([products[node] for node in self.nodes])

    def _masked_sum(self, weights: dict[int, float]) -> tuple[Any, set[int]]:
        """The sum by Flower's SecAgg+, whose workflow uses its older interface.

        It averages what clients send with equal shares, each entry clipped to a range:
        the largest entry that a client reported, so nothing is lost.
        """
        received: dict[int, Any] = {}

        def keep(_round: int, results: Any, _failures: Any) -> tuple[None, Any]:
            received.update({int(proxy.node_id): res for proxy, res in results})
            return None, {}

        none = Parameters([], "numpy.ndarray")
        orders = [
            (SimpleNamespace(node_id=i), FitIns(none, {keys.WEIGHT: w}))
            for i, w in weights.items()
        ]
        plain = SimpleNamespace(configure_fit=lambda *_: orders, aggregate_fit=keep)
        crowd = SimpleNamespace(num_available=lambda: len(weights))
        config = ConfigRecord({"current_round": self.t})
        state = RecordDict({"config": config, "parameters": ArrayRecord()})
        context = LegacyContext(Context(0, 0, {}, state, {}), None, plain, crowd)
        clip = 0.0
        for sketch, w in zip(self.sketches, weights.values(), strict=True):
            largest, length = sketch.metrics.get(keys.LARGEST), sqrt(sketch.sq_norm)
            largest = min(largest, length) if isinstance(largest, float) else length
            clip = max(clip, abs(largest * w))
        options: Any = {"clipping_range": clip or 1.0, "timeout": self.timeout}
        SecAggPlusWorkflow(1.0, 0.67, max_weight=1.0, **options)(self.grid, context)
        if not received:
            return np.zeros(self.layout.d), set()
        mean = parameters_to_ndarrays(next(iter(received.values())).parameters)
        total = len(received) * np.concatenate([a.ravel() for a in mean])
        return total, set(received)


def finish_two_phase_round(
    entry: Entry,
    state: ServerState,
    round_: Round,
    second: SecondPhase,
    *,
    fits: Callable[[Float64[Array, " d"]], bool],
    certify: bool = False,
) -> Outcome:
    """Weigh sketches, sum updates, step; the state is unchanged if nothing arrived.

    Args:
        entry: the method, which must give weights and no step of its own.
        state: before the round.
        round_: of sketches in place of displacements; its anchor is the model.
        second: asks the clients again.
        fits: whether a model can be sent.
        certify: whether the gap is computed as well; it costs a second sum and a
            broadcast.
    """
    sketches: Any = round_.displacements
    sketches = replace(sketches, sketch_of=second.layout.d)
    round_ = replace(round_, displacements=sketches)
    try:
        decision, following = checked_decision(entry.algorithm, round_, state.algorithm)
    except HewError as error:
        return Outcome(state, "refused", str(error))
    if decision.rejected:
        return reject(state, decision)
    w = decision.weights
    factors, model = [w], None
    if certify and isinstance(entry.algorithm, Modelled):
        model = entry.algorithm.model(round_, state.algorithm)
    if model is not None:
        u = getattr(model.reference, "weights", np.zeros_like(w))
        factors.append(model.curvature * w + u)
    sums, replied = second.sums(factors)
    share = float(w[replied].sum())
    if share <= 0:
        return Outcome(state, "refused", NO_SECOND_REPLY)
    one = np.zeros(1, dtype=np.int64)  # the sum is the displacement of one client
    alone = (round_.cohort.only(one), round_.plan.only(one))
    total = np.ascontiguousarray(sums[0], dtype=np.float64)
    total /= share
    step = Round(state.anchor, ChunkedDisplacements(((total,),)), *alone)
    mean = Entry(as_algorithm(Mean()), entry.server_step)
    outcome = finish_round(mean, replace(state, algorithm=None), step, fits=fits)
    if outcome.decision is None:
        return replace(outcome, state=state)
    if len(sums) > 1 and replied.all():
        p = second.products(sums[1])
        if np.isfinite(p).all():
            decision = replace(decision, gap=float(w @ p - p.min()))
    lost, numbers = int((~replied).sum()), decision.measured
    status = decision.status
    if lost:  # the step is that of other weights
        status, numbers = f"{status}; {lost} lost between phases", {}
    after = replace(outcome.state, algorithm=following)
    return Outcome(after, "ok", status, decision, observed=numbers)
