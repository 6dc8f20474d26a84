"""What a round leaves behind: metrics for Flower, a record for the trace."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord

from hewfl.core.round import Cohort
from hewfl.core.validation import invalid
from hewfl.errors import InvalidInputError
from hewfl.flower.replies import KINDS, Exclusion, log, weighed
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
