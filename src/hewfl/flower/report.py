"""What a round leaves behind: metrics for Flower, a record for the trace."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict

from hewfl.core.round import Roster
from hewfl.errors import InvalidInputError
from hewfl.flower.replies import KINDS, Exclusion, log, weighed
from hewfl.server.conclude import Outcome
from hewfl.server.trace import round_note

Aggregate = Callable[[list[RecordDict], str], MetricRecord]


def note(
    roster: Roster, outcome: Outcome, excluded: Sequence[Exclusion]
) -> dict[str, Any]:
    """A round's part of its record in the trace."""
    counts = Counter(e.kind for e in excluded)
    told: dict[str, Any] = {
        "excluded": tuple(sorted({e.client for e in excluded if e.client >= 0})),
        "observed": dict(outcome.terms)
        | {f"excluded-{k}": float(v) for k, v in counts.items()},
    }
    if outcome.decision is None:
        return told | {"status": outcome.status}
    return round_note(roster, outcome.decision, outcome.status) | told


def metrics(
    t: int, known: Mapping[str, Any], excluded: Sequence[Exclusion], means: MetricRecord
) -> MetricRecord:
    """A round's metrics for Flower: ours, and the means of the clients' own."""
    counts = Counter(e.kind for e in excluded)
    ours = {
        "round": t,
        "accepted": int("weights" in known),
        "clients": list(known.get("clients", ())),
        "steps": list(known.get("horizons", ())),
        "weights": list(known.get("weights", ())),
        "gap": known.get("gap", 0.0),
        "excluded": len(excluded),
        "excluded-clients": list(known["excluded"]),
    }
    return MetricRecord(
        {**means, **known["observed"], **ours}
        | {f"excluded-{kind}": counts[kind] for kind in KINDS}
    )


def means_of(
    contents: Sequence[RecordDict], key: str, aggregate: Aggregate
) -> MetricRecord:
    """The clients' own measures, by Flower's or the user's function.

    A client without the weight, with a number that is none, or with other keys than
    most is left out: Flower's functions would fail, or give NaN.
    """
    taken = []
    for content in contents:
        try:
            record, _ = weighed(content, key)
        except InvalidInputError as error:
            log.warning("a client is not in the mean of the measures: %s", error)
            continue
        values = np.concatenate([np.ravel(value) for value in record.values()])
        if np.isfinite(values.astype(np.float64)).all():
            taken.append((frozenset(record), content))
        else:
            log.warning("a client's measures are left out: a measure is not finite")
    if not taken:
        return MetricRecord()
    usual, _ = Counter(keys for keys, _ in taken).most_common(1)[0]
    return aggregate([content for keys, content in taken if keys == usual], key)


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
