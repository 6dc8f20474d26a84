"""Evaluation by the nodes, and means of what nodes measure."""

from collections.abc import Iterable, Mapping, Sequence

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from hewfl.errors import InvalidInputError
from hewfl.flower.contacts import Contact, log, whole
from hewfl.flower.options import Options
from hewfl.flower.protocol import ARRAYS, CONFIG, EXAMPLES, METRICS, OWN, ROUND
from hewfl.flower.replies import metrics_of
from hewfl.server.federation import generator

_STREAM = 7
"""Of random numbers, apart from the engine's."""


def questions(
    present: Mapping[int, Contact],
    options: Options,
    t: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
) -> list[Message]:
    """The model to a share of the clients that are there, drawn from seed and round."""
    count = round(options.fraction_evaluate * len(present))
    rng = generator(options.seed, _STREAM, t)
    chosen = sorted(rng.choice(list(present), count, replace=False)) if count else []
    told = ConfigRecord({**config, ROUND: t})
    record = RecordDict({ARRAYS: arrays, CONFIG: told})
    kind, nodes = MessageType.EVALUATE, [present[int(i)].node for i in chosen]
    return [Message(record, node, kind, group_id=str(t)) for node in nodes]


def means(
    replies: Iterable[Message], clients: Mapping[int, int]
) -> MetricRecord | None:
    """Means over the nodes that answered, weighted by their examples; None if none.

    Args:
        replies: in whatever order they came.
        clients: by node; they are summed in that order.
    """
    records, sizes = [], []
    for reply in sorted(replies, key=lambda r: clients.get(r.metadata.src_node_id, -1)):
        node = reply.metadata.src_node_id
        if reply.has_error():
            log.warning("node %d did not evaluate: %s", node, reply.error.reason)
            continue
        try:
            metrics = metrics_of(reply.content)
            sizes.append(whole(metrics, EXAMPLES))
            records.append(metrics)
        except InvalidInputError as error:
            log.warning("node %d evaluated badly: %s", node, error)
    return averaged(records, sizes) if records else None


def averaged(records: Sequence[MetricRecord], sizes: Sequence[int]) -> MetricRecord:
    """Flower's own weighted mean of the numbers that all records have."""
    if not records:
        return MetricRecord()
    common = [
        key
        for key in records[0]
        if key not in OWN
        and all(isinstance(record.get(key), int | float) for record in records)
    ]
    parts = [
        RecordDict({METRICS: MetricRecord({k: r[k] for k in common} | {EXAMPLES: m})})
        for r, m in zip(records, sizes, strict=True)
    ]
    return aggregate_metricrecords(parts, EXAMPLES)
