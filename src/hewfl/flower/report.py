"""What a round leaves behind: metrics for Flower, a record for the trace."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import Result

from hewfl.core.round import Roster
from hewfl.errors import InvalidInputError
from hewfl.flower.replies import KINDS, Exclusion, weighed
from hewfl.server.conclude import Outcome
from hewfl.server.trace import round_note

Aggregate = Callable[[list[RecordDict], str], MetricRecord]


def note(
    roster: Roster, outcome: Outcome, excluded: Sequence[Exclusion]
) -> dict[str, Any]:
    """A round's part of its record in the trace."""
    counts = {f"excluded-{e.kind}": float(_count(excluded, e.kind)) for e in excluded}
    told: dict[str, Any] = {
        "excluded": tuple(sorted({e.client for e in excluded if e.client >= 0})),
        "observed": {**outcome.terms, **counts},
    }
    if outcome.decision is None:
        return told | {"status": outcome.status}
    return round_note(roster, outcome.decision, outcome.status) | told


def metrics(
    t: int, known: Mapping[str, Any], excluded: Sequence[Exclusion], means: MetricRecord
) -> MetricRecord:
    """A round's metrics for Flower: ours, and the means of the clients' own."""
    counts = {kind: _count(excluded, kind) for kind in KINDS}
    ours = {
        "round": t,
        "accepted": int("weights" in known),
        "clients": list(known.get("clients", ())),
        "steps": list(known.get("horizons", ())),
        "weights": list(known.get("weights", ())),
        "gap": known.get("gap", 0.0),
        "excluded": sum(counts.values()),
        **{k: v for k, v in known["observed"].items() if not k.startswith("excluded-")},
        **{f"excluded-{kind}": count for kind, count in counts.items()},
    }
    others = {k: v for k, v in means.items() if k not in ours}
    return MetricRecord({**ours, **others})


def means_of(
    contents: Sequence[RecordDict], key: str, aggregate: Aggregate
) -> tuple[MetricRecord, list[str]]:
    """The clients' own measures, by Flower's or the user's function; who is not in it.

    A client without the weight, with a number that is none, or with other keys than
    most is left out: Flower's functions would fail, or give NaN.
    """
    taken, reasons = [], []
    for content in contents:
        try:
            record, _ = weighed(content, key)
        except InvalidInputError as error:
            reasons.append(str(error))
            continue
        values = np.concatenate([np.ravel(value) for value in record.values()])
        if np.isfinite(values.astype(np.float64)).all():
            taken.append((frozenset(record), content))
        else:
            reasons.append("a measure is not finite")
    if not taken:
        return MetricRecord(), reasons
    usual, count = Counter(keys for keys, _ in taken).most_common(1)[0]
    reasons += ["it measures other things than the others"] * (len(taken) - count)
    return aggregate([c for keys, c in taken if keys == usual], key), reasons


def _count(excluded: Sequence[Exclusion], kind: str) -> int:
    return sum(e.kind == kind for e in excluded)


def sentence(exclusion: Exclusion) -> str:
    """Why somebody is left out, for the log."""
    who = f"client {exclusion.client}" if exclusion.client >= 0 else "a sender"
    where = f" (node {exclusion.node})" if exclusion.node >= 0 else ""
    return f"{who}{where} is left out, {exclusion.kind}: {exclusion.reason}"


def numbers(record: Mapping[str, Any] | None) -> dict[str, float]:
    """The numbers of a record by name, lists by entry: what a logger takes.

    Weights are named by their clients.
    """
    found: dict[str, float] = {}
    items: Mapping[str, Any] = {} if record is None else dict(record)
    for key, value in items.items():
        if isinstance(value, int | float) and isfinite(value):
            found[key] = float(value)
    for client, weight in zip(
        items.get("clients", ()), items.get("weights", ()), strict=True
    ):
        found[f"weight/{client}"] = float(weight)
    return found


def renumbered(result: Result, offset: int) -> Result:
    """A result whose rounds count from the beginning of the run."""
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        by_round = getattr(result, name)
        setattr(result, name, {t + offset: value for t, value in by_round.items()})
    found = result.evaluate_metrics_serverapp
    result.evaluate_metrics_serverapp = {t + offset: v for t, v in found.items()}
    return result
