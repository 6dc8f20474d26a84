"""What a round leaves behind: metrics for Flower, a record for the trace, its cost."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict

from hewfl.core.algorithm import Demands
from hewfl.core.round import Cohort
from hewfl.core.validation import PerClient, invalid
from hewfl.errors import InvalidInputError
from hewfl.flower.messages import log, metrics_and_size
from hewfl.flower.replies import EXCLUSION_KINDS, Exclusion
from hewfl.server import plausibility
from hewfl.server.communication import (
    RoundCommunication,
    add_mean_gradients,
    round_communication,
)
from hewfl.server.finish_round import Outcome
from hewfl.server.trace import decision_fields

_COUNTS = {kind: f"excluded-{kind}" for kind in EXCLUSION_KINDS}
"""Made once: Flower keeps the metrics of all rounds, and with them their names."""


def round_metrics(
    cohort: Cohort,
    outcome: Outcome,
    excluded: Sequence[Exclusion],
    means: Mapping[str, Any],
    *,
    has_steps: bool,
) -> tuple[dict[str, Any], MetricRecord]:
    """A round's part of its record in the trace, and its metrics for Flower.

    `steps` is among the metrics only where steps were ordered or reported.
    """
    counts = {
        key: sum(e.kind == kind for e in excluded) for kind, key in _COUNTS.items()
    }
    note: dict[str, Any] = {"status": outcome.status}
    if outcome.decision is not None or outcome.kind == "rejected":
        note = decision_fields(cohort, outcome.decision, outcome.status)
    out = tuple(sorted({e.client for e in excluded if e.client >= 0}))
    numbers = {**outcome.terms, **outcome.observed}
    observed = {**numbers, **{k: float(v) for k, v in counts.items() if v}}
    about = {
        "round": cohort.round + 1,
        "accepted": int(outcome.decision is not None),
        "clients": list(note.get("clients", ())),
        "weights": list(note.get("weights", ())),
        "gap": note.get("gap", 0.0),
        "excluded": len(excluded),
        "excluded-clients": list(out),
    }
    if has_steps:
        about["steps"] = list(note.get("horizons", ()))
    metrics = MetricRecord({**means, **numbers, **about, **counts})
    return note | {"excluded": out, "observed": observed}, metrics


def drop_unusable(replies: Iterable[Any], size_key: str) -> list[Any]:
    """Replies whose metrics can be averaged, and those that are errors.

    A client is left out whose weight is missing or zero, with a value that is not
    finite or far above those of the others (`plausibility`), or with other keys
    or lists of other lengths than most clients: Flower's functions would raise, or
    return what one client says.
    """
    errors, usable = [], []
    for reply in replies:
        if isinstance(reply, Message) and reply.has_error():
            errors.append(reply)  # Flower logs them
            continue
        try:
            record, size = metrics_and_size(reply.content, size_key)
            values = {k: np.asarray(v, np.float64) for k, v in record.items()}
            if not all(np.isfinite(value).all() for value in values.values()):
                raise invalid("metrics", "finite numbers", "one that is not finite")
        except InvalidInputError as error:
            log.warning("a client is not in the mean of the metrics: %s", error)
            continue
        if size > 0:
            values.pop(size_key)
            usable.append((reply, values))
    shapes = [
        frozenset((k, v.shape) for k, v in values.items()) for _, values in usable
    ]
    usual = Counter(shapes).most_common(1)
    alike = []
    for pair, form in zip(usable, shapes, strict=True):
        if form == usual[0][0]:
            alike.append(pair)
            continue
        names = ", ".join(
            f'"{key}"' for key in sorted({k for k, _ in form ^ usual[0][0]})
        )
        text = "a client is not in the mean of the metrics: unlike most clients in %s"
        log.warning(text + " (absent, or of another shape)", names)
    kept = np.ones(len(alike), dtype=bool)
    for key in alike[0][1] if alike else ():
        column = np.array([np.abs(values[key]).max(initial=0) for _, values in alike])
        far = plausibility.implausible_metrics(column)
        for k in np.flatnonzero(far):
            text = 'a client is not in the mean of the metrics: its "%s" is %.3g'
            log.warning(text, key, column[k])
        kept &= ~far
    return errors + [
        reply for (reply, _), keep in zip(alike, kept, strict=True) if keep
    ]


def with_sizes(
    contents: Sequence[RecordDict],
    size_key: str,
    sizes: PerClient,
    counted: PerClient,
) -> list[RecordDict]:
    """Contents whose metrics are weighed by other sizes; the same where none differs.

    Args:
        contents: usable, as `drop_unusable` leaves them.
        size_key: of the number that weighs a client.
        sizes: as reported.
        counted: in place of them.
    """
    weighed = []
    for content, size, count in zip(contents, sizes, counted, strict=True):
        if size == count:
            weighed.append(content)
            continue
        ((name, record),) = content.metric_records.items()
        metrics = MetricRecord({**record, size_key: float(count)})
        weighed.append(RecordDict({**content, name: metrics}))
    return weighed


def finite_numbers(record: Mapping[str, Any] | None) -> dict[str, float]:
    """The finite numbers of a record by name, for loggers; weights by client."""
    items: Mapping[str, Any] = {} if record is None else dict(record)
    numbers = plausibility.finite_numbers(items)
    pairs = zip(items.get("clients", ()), items.get("weights", ()), strict=True)
    return numbers | {f"weight/{client}": float(weight) for client, weight in pairs}


def unicast_communication(
    demands: Demands, active: int, d: int, *, means: bool = False, more: int = 0
) -> tuple[RoundCommunication, RoundCommunication]:
    """The cost of a round with one message per client, and the cost by the paper.

    Corrections are then a vector for each client, and not one that is broadcast.

    Args:
        demands: of the method.
        active: clients asked.
        d: number of parameters.
        means: whether clients also sent mean gradients.
        more: further numbers that each client sent, such as a sketch.
    """
    traffic = demands.traffic
    sent = add_mean_gradients(traffic) if means else traffic
    if demands.variates:
        sent = replace(sent, down=1, down_scalars=sent.down_scalars + d)
    sent = replace(sent, up_scalars=sent.up_scalars + more)
    paper = round_communication(traffic, active, d)
    return round_communication(sent, active, d), paper
