"""The summary of a run: final values, comparisons, weights, audit."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array
from hewfl.experiments.results import Results, measured
from hewfl.experiments.spec import portable_table
from hewfl.experiments.statistics import RANKED, rank_methods
from hewfl.server.trace import AVERAGED, RoundRecord

_OF_MODELS = (
    *("objective", "gap", "pooled", "pooled_gap"),
    *("validation_accuracy", "validation_loss", "test_accuracy", "test_loss"),
)
_AVERAGED = (f"{AVERAGED}{quantity}" for quantity in _OF_MODELS)
QUANTITIES = (*_OF_MODELS, *_AVERAGED, "scalars", "paper_scalars")
"""Of a summary, where they were measured."""


def summarise(results: Results) -> dict[str, Any]:
    """The content of summary.json."""
    spec = results.spec
    return {
        "name": spec.name,
        "digest": spec.digest,
        "rounds": spec.rounds,
        "seeds": list(spec.seeds),
        "evaluate_model": spec.evaluate_model,
        "constants": list(results.constants),
        "methods": [_method(results, k) for k in range(len(spec.methods))],
        "pairs": all_pairs(results),
    }


def _method(results: Results, entry: int) -> dict[str, Any]:
    method = results.spec.methods[entry]
    by_seed = [by_entry[entry] for by_entry in results.records]
    final = {
        quantity: statistics(results.final(method.label, quantity))
        for quantity in QUANTITIES
        if results.measures(method.label, quantity)
    }
    mass = {str(h): statistics(m) for h, m in results.mass(method.label).items()}
    stopped = {
        word: [
            seed
            for seed, records in zip(results.spec.seeds, by_seed, strict=True)
            if word in records[-1].status
        ]
        for word in ("diverged", "refused")
    }
    return {
        "label": method.label,
        "method": portable_table(results.spec)["methods"][entry]["method"],
        "is_limit": method.label in results.yardsticks,
        "parameters": dict(method.parameters),
        "final": final,
        "mass_by_horizon": mass,
        **stopped,
        **_weight_on_faulty(by_seed),
        "excluded": sum(len(r.excluded) for records in by_seed for r in records),
        "audit": _audit(results, entry),
    }


def _weight_on_faulty(
    by_seed: Sequence[Sequence[RoundRecord]],
) -> dict[str, Any]:
    """Mean share of the weights of faulty clients; empty where there are none."""
    shares = []
    for records in by_seed:
        faulty = set(records[0].scenario.get("faulty", ()))
        sums = [
            (
                sum(abs(w) for i, w in pairs if i in faulty),
                sum(abs(w) for _, w in pairs),
            )
            for record in records[1:]
            if (pairs := list(zip(record.clients, record.weights, strict=True)))
        ]
        if faulty:
            known = [part / whole for part, whole in sums if whole > 0]
            shares.append(float(np.mean(known)) if known else math.nan)
    return {"weight_on_bad": statistics(np.array(shares))} if shares else {}


def _audit(results: Results, entry: int) -> dict[str, Any] | None:
    """Rounds in which the pathwise certificate was checked, and violations."""
    audits = [
        r.observed
        for by_entry in results.records
        for r in by_entry[entry]
        if "certificate_slack" in r.observed
    ]
    if not audits:
        return None
    return {
        "checks": len(audits),
        "violations": int(sum(s["certificate_violated"] for s in audits)),
        "least_slack": min(s["certificate_slack"] for s in audits),
    }


def all_pairs(results: Results) -> list[dict[str, Any]]:
    """Every method against every later one that is ranked, quantity by quantity."""
    pairs = []
    for quantity in measured(results, RANKED):
        ranking = rank_methods(results, quantity)
        labels = [label for label in results.labels if label in ranking.finals]
        for first, second in combinations(labels, 2):
            names = {"first": first, "second": second, "quantity": quantity}
            pairs.append(names | ranking.compare(first, second).as_json())
    return pairs


def mean_text(value: Mapping[str, Any] | None) -> str:
    """A value of `statistics` as text, with the number of diverged seeds."""
    if value is None or value["mean"] is None:
        return "diverged"
    spread = "" if value["std"] is None else f" ± {value['std']:.1g}"
    lost = sum(seed is None for seed in value["seeds"])
    note = f" ({lost} of {len(value['seeds'])} seeds diverged)" if lost else ""
    return f"{value['mean']:.4f}{spread}{note}"


def statistics(values: Float64[Array, " seeds"]) -> dict[str, Any]:
    """Mean, standard deviation and each seed's value; None for what is not finite."""
    finite = values[np.isfinite(values)]
    return {
        "mean": float(finite.mean()) if len(finite) else None,
        "std": float(finite.std(ddof=1)) if len(finite) > 1 else None,
        "seeds": [_finite(float(v)) for v in values],
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
