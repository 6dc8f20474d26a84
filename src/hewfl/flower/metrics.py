"""What a round leaves behind: metrics for Flower, a record for the trace, its cost."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord

from hewfl.core.algorithm import Demands
from hewfl.core.round import Cohort
from hewfl.core.validation import invalid
from hewfl.errors import InvalidInputError
from hewfl.flower.messages import log, metrics_and_size
from hewfl.flower.replies import EXCLUSION_KINDS, Exclusion
from hewfl.server.communication import (
    RoundCommunication,
    add_mean_gradients,
    round_communication,
)
from hewfl.server.finish_round import Outcome
from hewfl.server.trace import decision_fields


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
        f"excluded-{kind}": sum(e.kind == kind for e in excluded)
        for kind in EXCLUSION_KINDS
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

    A client without the weight, with a value that is not finite, or with other keys
    than most clients is left out: Flower's functions would fail, or return NaN.
    """
    errors, usable = [], []
    for reply in replies:
        if isinstance(reply, Message) and reply.has_error():
            errors.append(reply)  # Flower logs them
            continue
        try:
            record, _ = metrics_and_size(reply.content, size_key)
            values = np.concatenate([np.ravel(value) for value in record.values()])
            if not np.isfinite(values.astype(np.float64)).all():
                raise invalid("metrics", "finite numbers", "one that is not finite")
            usable.append((frozenset(record), reply))
        except InvalidInputError as error:
            log.warning("a client is not in the mean of the metrics: %s", error)
    usual = Counter(keys for keys, _ in usable).most_common(1)
    return errors + [reply for keys, reply in usable if keys == usual[0][0]]


def finite_numbers(record: Mapping[str, Any] | None) -> dict[str, float]:
    """The finite numbers of a record by name, for loggers; weights by client."""
    items: Mapping[str, Any] = {} if record is None else dict(record)
    numbers = {
        key: float(value)
        for key, value in items.items()
        if isinstance(value, int | float) and isfinite(value)
    }
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
