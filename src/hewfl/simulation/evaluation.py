"""Records of a round: evaluation of all entries, and what the trace keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array
from hewfl.server.state import ServerState
from hewfl.server.trace import AVERAGED, SPREAD, WORST, RoundRecord, decision_fields
from hewfl.simulation.rounds import EntryRound, Setting

OBJECTIVE_LIMIT = 1e12
"""An entry stops when its objective is larger than this, or not finite."""


@final
@dataclass(frozen=True, slots=True)
class Evaluation:
    """Objectives and metrics of a model; empty without an evaluation."""

    objective: float | None = None
    pooled: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    accuracies: Mapping[str, Sequence[float | None]] = field(default_factory=dict)

    @property
    def has_diverged(self) -> bool:
        """Whether the objective is out of range."""
        F = self.objective
        return F is not None and not abs(F) < OBJECTIVE_LIMIT  # NaN is not


def record_round(
    setting: Setting, rounds: Sequence[EntryRound], t: int, *, evaluate: bool
) -> tuple[list[ServerState], list[RoundRecord]]:
    """The states and the records of all entries after t rounds.

    An entry whose objective is out of range stops.
    """
    states = [round_.state for round_ in rounds]
    values = [Evaluation()] * len(rounds)
    if evaluate:
        values = evaluate_all(setting, states)
    pairs = enumerate(zip(rounds, values, strict=True))
    records = [_record(t, k, round_, value) for k, (round_, value) in pairs]
    after = [
        replace(state, diverged=True) if value.has_diverged else state
        for state, value in zip(states, values, strict=True)
    ]
    return after, records


def _record(t: int, k: int, round_: EntryRound, value: Evaluation) -> RoundRecord:
    fields: dict[str, Any] = {"status": round_.status}
    if round_.cohort is not None:
        fields = decision_fields(round_.cohort, round_.decision, round_.status)
    return RoundRecord(
        round=t,
        entry=k,
        objective=value.objective,
        pooled=value.pooled,
        metrics=value.metrics,
        accuracies=value.accuracies,
        scalars=round_.state.scalars,
        paper_scalars=round_.state.paper_scalars,
        excluded=round_.excluded,
        observed=round_.observed,
        **fields,
    )


def evaluate_all(setting: Setting, states: Sequence[ServerState]) -> list[Evaluation]:
    """Objectives and metrics of all entries that have not stopped.

    Scores are products in the run's precision; losses are summed in float64. Averages
    are evaluated in a batch of their own: the rounding of a product may depend on its
    batch, and an average must not change the iterates' values.
    """
    running = [k for k, state in enumerate(states) if not state.stopped]
    iterates = _evaluate(setting, [states[k].anchor for k in running])
    values = dict(zip(running, iterates, strict=True))
    means = {k: average.model for k in running if (average := states[k].average)}
    averages = _evaluate(setting, list(means.values()))
    for k, value in zip(means, averages, strict=True):
        more = {**value.metrics, "objective": value.objective, "pooled": value.pooled}
        metrics = {f"{AVERAGED}{name}": v for name, v in more.items() if v is not None}
        values[k] = replace(values[k], metrics={**values[k].metrics, **metrics})
    return [values.get(k, Evaluation()) for k in range(len(states))]


def _evaluate(
    setting: Setting, models: Sequence[Float64[Array, " d"]]
) -> list[Evaluation]:
    if not models:
        return []
    stack = np.stack(models).astype(setting.dtype)
    if (stack == stack[0]).all():  # all entries start at one point
        stack = stack[:1]
    with np.errstate(all="ignore"):
        values = np.asarray(setting.objectives(stack), dtype=np.float64)
        measures = {
            k: np.asarray(v) for k, v in setting.problem.evaluate(stack).items()
        }
    by_group = {name: v for name, v in measures.items() if v.ndim == 2}
    metrics = {name: v for name, v in measures.items() if v.ndim == 1}
    if "client" in by_group:
        counted = by_group["client"][:, setting.faults.evaluated_clients]
        metrics |= client_statistics(counted)
    rows = [min(row, len(stack) - 1) for row in range(len(models))]
    return [
        Evaluation(
            float(values[row, 0]),
            float(values[row, 1]),
            {name: float(v[row]) for name, v in metrics.items()},
            {name: _rounded(v[row]) for name, v in by_group.items()},
        )
        for row in rows
    ]


def client_statistics(
    accuracies: Float64[Array, "models n"],
) -> dict[str, Float64[Array, " models"]]:
    """Mean of the worst tenth of clients, rounded up, and deviation over clients.

    Clients without test samples do not count.
    """
    known = np.sort(accuracies[:, np.isfinite(accuracies[0])], axis=1)
    if known.shape[1] == 0:
        return {}
    worst = known[:, : -(-known.shape[1] // 10)]
    return {WORST: worst.mean(axis=1), SPREAD: known.std(axis=1)}


def _rounded(values: Float64[Array, " k"]) -> tuple[float | None, ...]:
    """Six decimal places: a trace has many of them."""
    return tuple(round(v, 6) if np.isfinite(v) else None for v in values.tolist())
