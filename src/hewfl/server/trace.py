"""The trace of a run: one record per entry and round, as JSON lines."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, final

import numpy as np

from hewfl.core.algorithm import Traffic
from hewfl.core.array_types import Float64
from hewfl.core.round import Cohort, Decision
from hewfl.core.validation import Array, format_value, invalid
from hewfl.server.communication import RunCommunication, run_communication

AVERAGED = "averaged_"
"""Prefix of the metrics of the averaged model."""
WORST, SPREAD = "worst_tenth_accuracy", "client_accuracy_std"
"""Test accuracy of the worst tenth of the clients, and its deviation over clients."""
NUMBERS = ("round", "objective", "pooled", "scalars", "paper_scalars", "gap")
"""Fields of a record that have a curve."""


@final
@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One entry after one round; round 0 is the start.

    Attributes:
        round: rounds done.
        entry: index of the entry.
        objective: (1/n) Σ F_i, the paper's F; None in rounds without evaluation.
        pooled: mean over all training samples.
        metrics: of the problem, such as test accuracy; with an average of the iterates
            also all values of the averaged model, such as `averaged_objective`.
        scalars: numbers sent since the start.
        paper_scalars: numbers sent since the start, in the paper's count.
        clients: participants with finite vectors.
        horizons: their local steps.
        weights: their aggregation weights.
        gap: certificate of the weights.
        status: one sentence.
        excluded: participants whose vectors were not finite.
        observed: values of observers and of the line search.
        scenario: in round 0 of a simulation with faults: the `faulty` clients, the
            `attackers` among them, and the true `batch_sizes`. No algorithm sees it.
        accuracies: on the test set, of each `class` and of each `client`; None for one
            without test samples.
    """

    round: int
    entry: int
    objective: float | None = None
    pooled: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    scalars: int = 0
    paper_scalars: int = 0
    clients: Sequence[int] = ()
    horizons: Sequence[int] = ()
    weights: Sequence[float] = ()
    gap: float = 0.0
    status: str = "start"
    excluded: Sequence[int] = ()
    observed: Mapping[str, float] = field(default_factory=dict)
    scenario: Mapping[str, Sequence[int]] = field(default_factory=dict)
    accuracies: Mapping[str, Sequence[float | None]] = field(default_factory=dict)


def decision_fields(
    cohort: Cohort, decision: Decision | None, status: str
) -> dict[str, Any]:
    """The fields of a record about participants and weights."""
    s = len(cohort.clients)
    return {
        "clients": tuple(int(i) for i in cohort.clients),
        "horizons": tuple(int(h) for h in cohort.horizons),
        "weights": (0.0,) * s if decision is None else tuple(decision.weights.tolist()),
        "gap": 0.0 if decision is None else float(decision.gap),
        "status": status,
    }


@final
@dataclass(frozen=True, slots=True)
class Trace:
    """A comparison: its entries and all their records, in order of round, then entry.

    Attributes:
        entries: `repr` of each entry, which holds every hyper-parameter.
        names: in tables; numbered where two entries share a name.
        records: of all rounds.
        anchors: final models, one row per entry.
        traffic: what each entry's method sends in a round.
        population: number of clients.
        averages: final averaged models, one row per entry; the final model itself
            without an average.

    Examples:
        >>> from hewfl import FedAvg, Federation, FixedSteps, simulate
        >>> from hewfl.problems import random_quadratic
        >>> problem = random_quadratic(seed=0, n=4, d=3)
        >>> federation = Federation(FixedSteps(2))
        >>> trace = simulate(problem, federation, [FedAvg(0.1)], rounds=5, seed=0)
        >>> trace.names, len(trace.of("FedAvg"))
        (('FedAvg',), 6)
        >>> trace.curve("FedAvg", "scalars").tolist()
        [0.0, 15.0, 30.0, 45.0, 60.0, 75.0]
    """

    entries: tuple[str, ...]
    names: tuple[str, ...]
    records: tuple[RoundRecord, ...]
    anchors: Float64[Array, "entries d"]
    traffic: tuple[Traffic, ...]
    population: int
    averages: Float64[Array, "entries d"]

    @property
    def faulty(self) -> tuple[int, ...]:
        """The faulty clients of the scenario; none without a scenario."""
        return tuple(self.records[0].scenario.get("faulty", ())) if self.records else ()

    @property
    def attackers(self) -> tuple[int, ...]:
        """The faulty clients that attack: they see everything and work together."""
        first = self.records[0].scenario if self.records else {}
        return tuple(first.get("attackers", ()))

    def communication(self, entry: int | str) -> RunCommunication:
        """The communication of one entry, in total and per client.

        Args:
            entry: its index or its name.

        Returns:
            Numbers sent down, up and besides.
        """
        index = self._index(entry)
        start, *rounds = self.of(index)
        contacted = [(*r.clients, *r.excluded) for r in rounds]
        n, d = self.population, self.anchors.shape[1]
        first = start.scalars // n
        return run_communication(self.traffic[index], contacted, n, d, at_start=first)

    def of(self, entry: int | str) -> tuple[RoundRecord, ...]:
        """The records of one entry, by index or by name.

        Args:
            entry: its index or its name.

        Returns:
            One record for each round, the start before them.
        """
        index = self._index(entry)
        return tuple(record for record in self.records if record.entry == index)

    def curve(self, entry: int | str, quantity: str) -> Float64[Array, " points"]:
        """A quantity over rounds: a field of the record, a metric or an observation.

        Rounds in which it was not measured are NaN.

        Args:
            entry: its index or its name.
            quantity: such as `objective`, `scalars` or `test_accuracy`.

        Returns:
            One number for the start and each round.

        Raises:
            InvalidInputError: the quantity was never measured, or there is no such
                entry.
        """
        values = [_value(record, quantity) for record in self.of(entry)]
        if all(value is None for value in values):
            rule = f"one that was measured: {', '.join(self._quantities(entry))}"
            raise invalid("quantity", rule, format_value(quantity))
        return np.array([np.nan if v is None else v for v in values], dtype=np.float64)

    def _quantities(self, entry: int | str) -> list[str]:
        """The quantities that `curve` has for an entry."""
        records = self.of(entry)
        numbers = (k for k in NUMBERS for r in records if getattr(r, k) is not None)
        more = (k for r in records for k in (*r.metrics, *r.observed))
        return list(dict.fromkeys([*numbers, *more]))

    def _index(self, entry: int | str) -> int:
        if isinstance(entry, str):
            if entry not in self.names:
                raise invalid("entry", f"one of {', '.join(self.names)}", repr(entry))
            return self.names.index(entry)
        if not 0 <= entry < len(self.names):
            raise invalid("entry", f"from 0 to {len(self.names) - 1}", entry)
        return entry

    def final(self, quantity: str = "objective") -> dict[str, float]:
        """The last measured value of a quantity, entry by entry.

        Args:
            quantity: as for `curve`.

        Returns:
            One number for each entry, by name.
        """
        last = {}
        for entry, name in enumerate(self.names):
            curve = self.curve(entry, quantity)
            last[name] = float(curve[~np.isnan(curve)][-1])
        return last


def _value(record: RoundRecord, quantity: str) -> float | int | None:
    for source in (record.metrics, record.observed):
        if quantity in source:
            return source[quantity]
    return getattr(record, quantity) if quantity in NUMBERS else None


def to_line(record: RoundRecord) -> str:
    """One line of JSON; floats keep every bit."""
    # `asdict` copies every weight of every client: a tenth of a run's time
    table = {entry.name: getattr(record, entry.name) for entry in fields(record)}
    return json.dumps(table, separators=(",", ":")) + "\n"


def from_lines(lines: Iterable[str]) -> list[RoundRecord]:
    """The records of a file written by `to_line`."""
    return [_record(json.loads(line)) for line in lines]


def _record(values: dict[str, Any]) -> RoundRecord:
    for name in ("clients", "horizons", "weights", "excluded"):
        values[name] = tuple(values[name])
    scenario = values["scenario"].items()
    values["scenario"] = {key: tuple(value) for key, value in scenario}
    return RoundRecord(**values)
