"""What came of a run, in numbers that fit on a page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array
from hewfl.experiments.results import Results
from hewfl.experiments.statistics import compare_finals, final_values
from hewfl.server.trace import AVERAGED, RoundRecord

_OF_MODELS = (
    *("objective", "gap", "pooled", "pooled_gap"),
    *("validation_accuracy", "validation_loss", "test_accuracy", "test_loss"),
)
_AVERAGED = (f"{AVERAGED}{quantity}" for quantity in _OF_MODELS)
QUANTITIES = (*_OF_MODELS, *_AVERAGED, "scalars", "paper_scalars")
"""Those that a summary gives, where they were measured."""
COMPARED = ("objective", "pooled", "test_accuracy")


def summarise(results: Results) -> dict[str, Any]:
    """What summary.json holds: last values, weights by horizon, paired comparisons."""
    spec = results.spec
    return {
        "name": spec.name,
        "digest": spec.digest,
        "rounds": spec.rounds,
        "seeds": list(spec.seeds),
        "constants": list(results.constants),
        "methods": [_method(results, k) for k in range(len(spec.methods))],
        "pairs": _pairs(results),
    }


def _method(results: Results, entry: int) -> dict[str, Any]:
    method = results.spec.methods[entry]
    own = [by_entry[entry] for by_entry in results.records]
    final = {
        quantity: statistics(results.final(method.label, quantity))
        for quantity in QUANTITIES
        if results.measures(method.label, quantity)
    }
    mass = {str(h): statistics(m) for h, m in results.mass(method.label).items()}
    stopped = {
        word: [
            seed
            for seed, records in zip(results.spec.seeds, own, strict=True)
            if word in records[-1].status
        ]
        for word in ("diverged", "refused")
    }
    return {
        "label": method.label,
        "method": method.method,
        "parameters": dict(method.parameters),
        "final": final,
        "mass_by_horizon": mass,
        **stopped,
        **_on_bad(own),
        "excluded": sum(len(r.excluded) for records in own for r in records),
        "audit": _audit(results, entry),
    }


def _on_bad(own: Sequence[Sequence[RoundRecord]]) -> dict[str, Any]:
    """Mean share of the weights that bad clients were given, where there are any."""
    shares = []
    for records in own:
        bad = set(records[0].scenario.get("faulty", ()))
        sums = [
            (sum(abs(w) for i, w in pairs if i in bad), sum(abs(w) for _, w in pairs))
            for record in records[1:]
            if (pairs := list(zip(record.clients, record.weights, strict=True)))
        ]
        if bad:
            known = [part / whole for part, whole in sums if whole > 0]
            shares.append(float(np.mean(known)) if known else math.nan)
    return {"weight_on_bad": statistics(np.array(shares))} if shares else {}


def _audit(results: Results, entry: int) -> dict[str, Any] | None:
    """Rounds in which the pathwise certificate was checked, and violations."""
    seen = [
        r.observed
        for by_entry in results.records
        for r in by_entry[entry]
        if "certificate_slack" in r.observed
    ]
    if not seen:
        return None
    return {
        "checks": len(seen),
        "violations": int(sum(s["certificate_violated"] for s in seen)),
        "least_slack": min(s["certificate_slack"] for s in seen),
    }


def _pairs(results: Results) -> list[dict[str, Any]]:
    """Every method against every later one, in the quantities that matter.

    One that diverged for every seed is behind one that did not.
    """
    found = []
    for quantity in COMPARED:
        if not any(results.measures(label, quantity) for label in results.labels):
            continue
        # once for each: a study has fifty methods and a thousand pairs
        finals = {k: final_values(results, k, quantity) for k in results.labels}
        for i, first in enumerate(results.labels):
            for second in results.labels[i + 1 :]:
                found_one = compare_finals(finals[first], finals[second], quantity)
                outcome = asdict(found_one)
                names = {"first": first, "second": second, "quantity": quantity}
                found.append(names | {k: _finite(v) for k, v in outcome.items()})
    return found


def mean_text(value: Mapping[str, Any] | None) -> str:
    """A value of `statistics` as text, with how many seeds are not in its mean."""
    if value is None or value["mean"] is None:
        return "diverged"
    spread = "" if value["std"] is None else f" ± {value['std']:.1g}"
    lost = sum(seed is None for seed in value["seeds"])
    note = f" ({lost} of {len(value['seeds'])} seeds diverged)" if lost else ""
    return f"{value['mean']:.4f}{spread}{note}"


def statistics(values: Float64[Array, " seeds"]) -> dict[str, Any]:
    """Mean, standard deviation and each seed's value; None for what is not finite."""
    kept = values[np.isfinite(values)]
    many = len(kept) > 1
    return {
        "mean": float(kept.mean()) if len(kept) else None,
        "std": float(kept.std(ddof=1)) if many else None,
        "seeds": [_finite(float(v)) for v in values],
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
