"""What a round leaves behind: metrics for Flower, a record for the trace."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from hewfl.core.round import Roster
from hewfl.flower.evaluation import averaged
from hewfl.flower.replies import KINDS, Exclusion, Heard
from hewfl.server.conclude import Outcome
from hewfl.server.trace import round_note


def note(
    heard: Heard, outcome: Outcome, excluded: Sequence[Exclusion]
) -> dict[str, Any]:
    """A round's part of its record in the trace."""
    decision = outcome.decision
    counts = {f"excluded-{e.kind}": float(_count(excluded, e.kind)) for e in excluded}
    told: dict[str, Any] = {
        "status": outcome.status,
        "excluded": tuple(sorted({e.client for e in excluded if e.client >= 0})),
        "observed": {**outcome.terms, **counts},
    }
    if decision is None:
        return told
    s = np.ones_like(heard.clients)
    roster = Roster(heard.clients, heard.steps, s, s, len(s))
    return round_note(roster, decision, outcome.status) | told


def metrics(
    t: int, heard: Heard, outcome: Outcome, excluded: Sequence[Exclusion]
) -> MetricRecord:
    """A round's metrics for Flower, with means of the clients' own measures."""
    known = note(heard, outcome, excluded)
    found = MetricRecord(
        {
            "round": t,
            "accepted": int(outcome.decision is not None),
            "clients": list(known.get("clients", ())),
            "steps": list(known.get("horizons", ())),
            "weights": list(known.get("weights", ())),
            "gap": known.get("gap", 0.0),
            "excluded": len(excluded),
            **outcome.terms,
            **{f"excluded-{k}": _count(excluded, k) for k in KINDS},
        }
    )
    for key, value in averaged(heard.metrics, heard.sizes.tolist()).items():
        if key not in found:
            found[key] = value
    return found


def _count(excluded: Sequence[Exclusion], kind: str) -> int:
    return sum(e.kind == kind for e in excluded)


def sentence(exclusion: Exclusion) -> str:
    """Why somebody is left out, for the log."""
    who = "a sender" if exclusion.client < 0 else f"client {exclusion.client}"
    return f"{who} is left out ({exclusion.kind}): {exclusion.reason}"


def numbers(record: MetricRecord | None) -> dict[str, float]:
    """The plain numbers of a record."""
    items: Mapping[str, Any] = {} if record is None else dict(record)
    return {k: float(v) for k, v in items.items() if isinstance(v, int | float)}


def renumbered(result: Result, offset: int) -> Result:
    """A result whose rounds count from the beginning of the run."""
    for name in (
        "train_metrics_clientapp",
        "evaluate_metrics_clientapp",
        "evaluate_metrics_serverapp",
    ):
        by_round = getattr(result, name)
        setattr(result, name, {t + offset: value for t, value in by_round.items()})
    return result
