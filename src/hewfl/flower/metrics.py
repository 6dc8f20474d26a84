"""What a round leaves behind: metrics for Flower, a record for the trace."""

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
from hewfl.flower.replies import KINDS, Exclusion, log, weighed
from hewfl.server.communication import (
    RoundCommunication,
    add_mean_gradients,
    round_communication,
)
from hewfl.server.finish_round import Outcome
from hewfl.server.trace import decision_fields


def described(
    cohort: Cohort, outcome: Outcome, excluded: Sequence[Exclusion], means: Any
) -> tuple[dict[str, Any], MetricRecord]:
    """A round's part of its record in the trace, and its metrics for Flower."""
    counts = {f"excluded-{k}": sum(e.kind == k for e in excluded) for k in KINDS}
    note: dict[str, Any] = {"status": outcome.status}
    if outcome.decision is not None:
        note = decision_fields(cohort, outcome.decision, outcome.status)
    out = tuple(sorted({e.client for e in excluded if e.client >= 0}))
    seen = {**outcome.terms, **{k: float(v) for k, v in counts.items() if v}}
    ours = {
        "round": cohort.round + 1,
        "accepted": int(outcome.decision is not None),
        "clients": list(note.get("clients", ())),
        "steps": list(note.get("horizons", ())),
        "weights": list(note.get("weights", ())),
        "gap": note.get("gap", 0.0),
        "excluded": len(excluded),
        "excluded-clients": list(out),
    }
    metrics = MetricRecord({**means, **outcome.terms, **ours, **counts})
    return note | {"excluded": out, "observed": seen}, metrics


def usable(replies: Iterable[Any], key: str) -> list[Any]:
    """Replies whose measures can be averaged, and those that are errors.

    A client without the weight, with a number that is none, or with other keys than
    most is left out: Flower's functions would fail, or give NaN.
    """
    kept, taken = [], []
    for reply in replies:
        if isinstance(reply, Message) and reply.has_error():
            kept.append(reply)  # Flower logs them
            continue
        try:
            record, _ = weighed(reply.content, key)
            values = np.concatenate([np.ravel(value) for value in record.values()])
            if not np.isfinite(values.astype(np.float64)).all():
                raise invalid("measures", "finite numbers", "a measure is not finite")
            taken.append((frozenset(record), reply))
        except InvalidInputError as error:
            log.warning("a client is not in the mean of the measures: %s", error)
    usual = Counter(keys for keys, _ in taken).most_common(1)
    return kept + [reply for keys, reply in taken if keys == usual[0][0]]


def numbers(record: Mapping[str, Any] | None) -> dict[str, float]:
    """The numbers of a record by name, as loggers take them; weights by client."""
    items: Mapping[str, Any] = {} if record is None else dict(record)
    found = {
        key: float(value)
        for key, value in items.items()
        if isinstance(value, int | float) and isfinite(value)
    }
    pairs = zip(items.get("clients", ()), items.get("weights", ()), strict=True)
    return found | {f"weight/{client}": float(weight) for client, weight in pairs}


def unicast_communication(
    demands: Demands, active: int, d: int, *, means: bool = False, more: int = 0
) -> tuple[RoundCommunication, RoundCommunication]:
    """The cost of a round whose messages go to each client by itself, and the paper's.

    Corrections are then a vector for each client, and not one that is broadcast.

    Args:
        demands: of the method.
        active: clients asked.
        d: number of parameters.
        means: whether clients sent mean gradients besides.
        more: numbers that each client sent besides, such as a sketch.
    """
    own = demands.traffic
    sent = add_mean_gradients(own) if means else own
    if demands.variates:
        sent = replace(sent, down=1, down_scalars=sent.down_scalars + d)
    sent = replace(sent, up_scalars=sent.up_scalars + more)
    return round_communication(sent, active, d), round_communication(own, active, d)
