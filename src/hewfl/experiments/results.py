"""The records of a run as arrays: methods × seeds × evaluated rounds.

`Results` has the numbers by method and quantity; `frame` makes tidy rows of them, one
number each, for pandas or polars:

    panel    method    seed    round    quantity    value

An axis is what a curve is drawn over: rounds, scalars sent, or seconds.
"""

import importlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from hewfl.core.array_types import Float64, Int64
from hewfl.core.atomic import read_json
from hewfl.core.validation import Array, Ints, invalid
from hewfl.errors import DataError, MissingExtraError
from hewfl.experiments.spec import Spec
from hewfl.experiments.spec_sections import (
    LOCAL_STEPS_GROUP,
    is_own_law,
    make_local_steps,
)
from hewfl.federation import EpochSteps, TimedSteps
from hewfl.server.trace import AVERAGED, WORST, RoundRecord, from_lines

Group = int | float
"""Local steps, or local epochs, which need not be whole."""
GAPS = {
    "gap": "objective",
    "pooled_gap": "pooled",
    "averaged_gap": "averaged_objective",
    "averaged_pooled_gap": "averaged_pooled",
}
"""Distances from the least value, by the quantity they belong to."""
_ACCURACIES = ("test_accuracy", "validation_accuracy", WORST)
LARGER_IS_BETTER = (*_ACCURACIES, *(f"{AVERAGED}{name}" for name in _ACCURACIES))
Axis = Literal["rounds", "bytes", "scalars", "paper_scalars", "seconds"]
AXES: dict[Axis, str] = {
    "rounds": "rounds",
    "bytes": "bytes sent",
    "scalars": "scalars sent",
    "paper_scalars": "scalars sent, paper's count",
    "seconds": "seconds",
}
COLUMNS = ("panel", "method", "seed", "round", "quantity", "value")
Row = tuple[str, str, int, int, str, float]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """The records of all seeds of a run.

    Attributes:
        spec: tuned.
        rounds: in which the methods were evaluated.
        records: of each seed, method and round, all rounds, in that order.
        constants: of each seed: L, least objectives, sizes.
    """

    spec: Spec
    rounds: Int64[Ints, " points"]
    records: tuple[tuple[tuple[RoundRecord, ...], ...], ...]
    constants: tuple[Mapping[str, Any], ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the methods."""
        return tuple(method.label for method in self.spec.methods)

    @property
    def yardsticks(self) -> tuple[str, ...]:
        """Methods that know the truth: limits that are drawn and never ranked."""
        known = self.constants[0].get("yardsticks", ()) if self.constants else ()
        methods = self.spec.methods
        return tuple(m.label for m in methods if m.is_yardstick or m.label in known)

    def curve(self, label: str, quantity: str) -> Float64[Array, "seeds points"]:
        """A quantity of one method over the evaluated rounds; NaN where not measured.

        `gap` and `pooled_gap` are the objectives less their least values.

        Args:
            label: of the method.
            quantity: such as `objective`, `gap` or `test_accuracy`.

        Returns:
            One row for each seed, one column for each evaluated round.

        Raises:
            InvalidInputError: the method or the quantity is unknown.
        """
        values = self.values(label, quantity)
        if np.isnan(values).all():
            raise invalid("quantity", "one that was measured", repr(quantity))
        return values

    def measures(self, label: str, quantity: str) -> bool:
        """Whether a quantity of one method has a curve.

        Args:
            label: of the method.
            quantity: such as `objective`, `gap` or `test_accuracy`.

        Returns:
            True or False.
        """
        return not np.isnan(self.values(label, quantity)).all()

    def evaluated_quantity(self, label: str, quantity: str) -> str:
        """The quantity that compares a method: of its iterate or of the average.

        Args:
            label: of the method.
            quantity: such as `objective`, `gap` or `test_accuracy`.

        Returns:
            The name of the quantity.
        """
        of_average = f"{AVERAGED}{quantity}"
        asked = self.spec.evaluate_model == "averaged" and self.measures(
            label, of_average
        )
        return of_average if asked else quantity

    def values(self, label: str, quantity: str) -> Float64[Array, "seeds points"]:
        """As `curve`, but NaN everywhere if the quantity was never measured.

        Args:
            label: of the method.
            quantity: such as `objective`, `gap` or `test_accuracy`.

        Returns:
            One row for each seed, one column for each evaluated round.

        Raises:
            InvalidInputError: the method is unknown.
        """
        if label not in self.labels:
            raise invalid("label", f"one of {', '.join(self.labels)}", repr(label))
        entry = self.labels.index(label)
        rows = [
            [_value(by_entry[entry][t], quantity, known) for t in self.rounds]
            for by_entry, known in zip(self.records, self.constants, strict=True)
        ]
        return np.array(rows, dtype=np.float64)

    def final(self, label: str, quantity: str) -> Float64[Array, " seeds"]:
        """A quantity of one method after the last round, seed by seed.

        Args:
            label: of the method.
            quantity: such as `objective`, `gap` or `test_accuracy`.

        Returns:
            One number for each seed.
        """
        return self.curve(label, quantity)[:, -1]

    def accuracies(
        self, label: str, group: Literal["class", "client"]
    ) -> Float64[Array, "seeds points groups"]:
        """Test accuracy of each class or client over the evaluated rounds.

        A client's is that of its own test samples with a natural partition, else the
        expected one on a test set with its mix of classes.

        Args:
            label: of the method.
            group: "class" or "client".

        Returns:
            One number for each seed, evaluated round and class or client; NaN where
            there are no test samples.

        Raises:
            InvalidInputError: the method is unknown, or the run has not measured it:
                clients by features or by a partition of the user's own have none.
        """
        if label not in self.labels:
            raise invalid("label", f"one of {', '.join(self.labels)}", repr(label))
        entry = self.labels.index(label)
        rows = [
            [by_entry[entry][t].accuracies.get(group) for t in self.rounds]
            for by_entry in self.records
        ]
        known = [len(row) for by_round in rows for row in by_round if row is not None]
        if not known:
            raise invalid("group", "one that was measured", repr(group))
        blank = [np.nan] * max(known)
        full = [[blank if row is None else row for row in r] for r in rows]
        return np.array(full, dtype=np.float64)

    def frame(self, library: str = "pandas") -> Any:
        """All measured numbers as a DataFrame of tidy rows.

        Args:
            library: whose DataFrame: "pandas" or "polars".

        Returns:
            A DataFrame with the columns `panel`, `method`, `seed`, `round`, `quantity`
            and `value`.

        Raises:
            InvalidInputError: the library is another one.
            MissingExtraError: it is not installed.
        """
        return frame(self, library)

    def groups(self, seed: int, record: RoundRecord) -> tuple[Group, ...]:
        """The group of each client of a round: its local steps, or local epochs.

        A client's epochs are the choice of the spec that gives its steps, the largest
        of several; the nearest choice where none does (a node that did less).

        Args:
            seed: position of the record's seed.
            record: of the round.

        Returns:
            One group for each client of the record.
        """
        if not self.counts_epochs:
            return tuple(record.horizons)
        law = make_local_steps(self.spec.clients.local_steps)
        assert isinstance(law, EpochSteps)
        choices = np.atleast_1d(law.epochs).tolist()
        sizes, b = self.constants[seed]["samples"], self.spec.clients.batch_size
        pairs = zip(record.clients, record.horizons, strict=True)
        return tuple(_epochs(choices, sizes[i], b, h) for i, h in pairs)

    @property
    def counts_epochs(self) -> bool:
        """Whether local work is a number of passes over data of known size."""
        given = self.spec.clients.local_steps
        if is_own_law(given, LOCAL_STEPS_GROUP):  # reading a run loads no code
            return False
        law = make_local_steps(given)
        known = all(constants["samples"] for constants in self.constants)
        return known and isinstance(law, EpochSteps)

    def mass(self, label: str) -> dict[Group, Float64[Array, " seeds"]]:
        """Weight of the clients of each group in the last round, seed by seed.

        Args:
            label: of the method.

        Returns:
            For each group the sum of its weights, one number for each seed.
        """
        entry = self.labels.index(label)
        last = [by_entry[entry][-1] for by_entry in self.records]
        groups = [self.groups(k, record) for k, record in enumerate(last)]
        rows = list(zip(last, groups, strict=True))
        return {
            h: np.array([_mass(r.weights, members, h) for r, members in rows])
            for h in sorted({h for members in groups for h in members})
        }


def measured(results: Results, quantities: Iterable[str]) -> list[str]:
    """Those of some quantities that were measured of at least one method."""
    labels = results.labels
    return [q for q in quantities if any(results.measures(k, q) for k in labels)]


def read_results(spec: Spec, seeds: Mapping[int, Path]) -> Results:
    """The results of finished seeds, from their folders."""
    entries = len(spec.methods)
    records = []
    for folder in seeds.values():
        try:
            flat = _read_trace(folder, entries * (spec.rounds + 1))
        except (OSError, ValueError, TypeError, KeyError) as error:
            summary, run = folder.parent / "summary.json", folder.parent
            again = f"delete {folder} and, if it is there, {summary}; then resume {run}"
            text = f"the trace in {folder} cannot be read: {error}; it is damaged or of"
            raise DataError(f"{text} another version of hewfl; {again}") from error
        records.append(tuple(tuple(flat[k::entries]) for k in range(entries)))
    every, last = spec.evaluate_every, spec.rounds
    points = sorted({*range(0, last + 1, every), last})
    pairs = zip(seeds.values(), records, strict=True)
    known = tuple(_constants(spec, folder, own) for folder, own in pairs)
    return Results(spec, np.array(points), tuple(records), known)


def _constants(
    spec: Spec, folder: Path, entries: Sequence[Sequence[RoundRecord]]
) -> Mapping[str, Any]:
    """The constants.json of a seed; the record of a real job may have none.

    Its n is then the largest client number plus one, and the rest is None.
    """
    file = folder / "constants.json"
    if not spec.is_record:
        constants: Mapping[str, Any] = read_json(file)
        return constants
    clients = (i for own in entries for r in own for i in (*r.clients, *r.excluded))
    names = ("smoothness", "objective", "pooled", "d")
    counted = dict.fromkeys(names) | {"n": 1 + max(clients, default=0), "samples": []}
    return {**counted, **(read_json(file, missing=True) or {})}


def count_records(folder: Path) -> int:
    """Complete lines of the trace of a seed; 0 if it has none."""
    trace = folder / "trace.jsonl"
    return trace.read_bytes().count(b"\n") if trace.exists() else 0


def _read_trace(folder: Path, least: int) -> list[RoundRecord]:
    lines = (folder / "trace.jsonl").read_text(encoding="utf-8").splitlines()
    records = from_lines(lines[:least])  # a run that goes on has written more by now
    if len(records) < least:
        raise ValueError(f"it has {len(records)} of {least} records")
    return records


def _epochs(choices: Sequence[float], m: int, b: int, h: int) -> Group:
    """The number of epochs e with ⌈e m / b⌉ = h, as `EpochSteps` counts steps."""

    def distance(e: float) -> tuple[int, float]:
        return abs(max(math.ceil(e * m / b), 1) - h), -e

    nearest = min(choices, key=distance)
    return int(nearest) if float(nearest).is_integer() else nearest


def _mass(weights: Sequence[float], groups: Sequence[Group], wanted: Group) -> float:
    pairs = zip(weights, groups, strict=True)
    return float(sum(weight for weight, h in pairs if h == wanted))


def _value(record: RoundRecord, quantity: str, known: Mapping[str, Any]) -> float:
    if quantity in GAPS:
        value = _value(record, GAPS[quantity], known)
        least = known[GAPS[quantity].removeprefix(AVERAGED)]
        return np.nan if least is None else value - least
    for source in (record.metrics, record.observed):
        if quantity in source:
            return source[quantity]
    number = getattr(record, quantity, None)
    return float(number) if isinstance(number, int | float) else np.nan


def tidy_rows(results: Results) -> Iterator[Row]:
    """Every finite number that was measured in a run, one row each.

    Yields:
        Name of the run, label of the method, seed, round, name of the quantity, value.
    """
    spec = results.spec
    for label, entry in zip(results.labels, range(len(results.labels)), strict=True):
        for quantity in _quantities(results, entry):
            table = results.values(label, quantity)
            for seed, row in zip(spec.seeds, table.tolist(), strict=True):
                for t, value in zip(results.rounds.tolist(), row, strict=True):
                    if math.isfinite(value):
                        yield spec.name, label, seed, t, quantity, value


def frame(results: Results | Sequence[Results], library: str = "pandas") -> Any:
    """Results of one or several runs as a DataFrame.

    Args:
        results: of one run, or of several, distinguished by the column `panel`.
        library: whose DataFrame: "pandas" or "polars".

    Returns:
        A DataFrame with the columns `panel`, `method`, `seed`, `round`, `quantity` and
        `value`.

    Raises:
        InvalidInputError: the library is another one.
        MissingExtraError: it is not installed.

    Examples:
        >>> frame([results, others])  # doctest: +SKIP
    """
    if library not in ("pandas", "polars"):
        raise invalid("library", '"pandas" or "polars"', repr(library))
    try:
        module: Any = importlib.import_module(library)
    except ImportError as error:
        text = f"frames need {library}: pip install {library}"
        raise MissingExtraError(text) from error
    runs = [results] if isinstance(results, Results) else results
    rows = [row for each in runs for row in tidy_rows(each)]
    columns = zip(*rows, strict=True) if rows else ([] for _ in COLUMNS)
    return module.DataFrame(
        {name: list(values) for name, values in zip(COLUMNS, columns, strict=True)}
    )


def _quantities(results: Results, entry: int) -> list[str]:
    """The quantities measured of a method in any round, in a fixed order."""
    names = dict.fromkeys(("objective", "pooled", "scalars", "paper_scalars", *GAPS))
    for by_entry in results.records:
        for t in results.rounds:
            record = by_entry[entry][t]
            names |= dict.fromkeys((*record.metrics, *record.observed))
    return list(names)


def available_axes(results: Results) -> list[Axis]:
    """The axes of a run; seconds only where clients have a time budget and speeds."""
    given = results.spec.clients.local_steps
    timed = isinstance(given, Mapping) and given.get("kind") == "TimedSteps"
    return [axis for axis in AXES if axis != "seconds" or timed]


def axis_values(
    results: Results, label: str, axis: Axis
) -> Float64[Array, "seeds points"]:
    """The evaluated rounds of a method on an axis, seed by seed."""
    if axis == "rounds":
        rounds = results.rounds.astype(np.float64)
        return np.tile(rounds, (len(results.records), 1))
    if axis == "seconds":
        return _seconds(results, label)
    if axis == "bytes":  # numbers are sent in the precision of the run
        size = np.dtype(results.spec.dtype).itemsize
        return results.curve(label, "scalars") * size
    return results.curve(label, axis)


def mean_axis_values(
    results: Results, label: str, axis: Axis
) -> Float64[Array, " points"]:
    """The evaluated rounds of a method on an axis, mean over seeds."""
    return np.asarray(axis_values(results, label, axis).mean(axis=0))


def _seconds(results: Results, label: str) -> Float64[Array, "seeds points"]:
    """Time since the start, by budget and speeds of the spec; sending takes none."""
    law = make_local_steps(results.spec.clients.local_steps)
    assert isinstance(law, TimedSteps)
    entry = results.labels.index(label)
    rows = []
    for by_entry in results.records:
        each = [_duration(law, record) for record in by_entry[entry][1:]]
        rows.append(np.concatenate(([0.0], np.cumsum(each)))[results.rounds])
    return np.array(rows)


def _duration(law: TimedSteps, record: RoundRecord) -> float:
    """A round's budget, or the one step of a client too slow to end it in that time."""
    pairs = zip(record.clients, record.horizons, strict=True)
    return max([law.budget, *(1 / law.speeds[i] for i, h in pairs if h == 1)])
