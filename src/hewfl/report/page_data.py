"""The data of a report page: one run, and the values that its script draws."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float64, Int64, UInt16
from hewfl.core.validation import Array, Ints
from hewfl.experiments.plots import (
    QUANTITIES,
    Style,
    author_rule,
    average_of,
    leaders,
    main_quantity,
    mean_and_spread,
    panel_limits,
)
from hewfl.experiments.results import (
    AXES,
    GAPS,
    LARGER_IS_BETTER,
    Results,
    available_axes,
    mean_axis_values,
    measured,
)
from hewfl.experiments.run_folder import Folder
from hewfl.experiments.statistics import Ranking

POINTS = 400
"""Of a curve; longer ones are thinned."""
WEIGHTS = 400_000
"""Of a run; with more, rounds are left out evenly, and then seeds."""
ABSENT = 65535
"""Code of a client that did not take part in a round."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class PageRun:
    """What the page shows of one run.

    Attributes:
        folder: of the run.
        results: of the seeds that are done.
        summary: as in summary.json.
        styles: of the methods of the whole page.
        rankings: by quantity.
        number: on the page, from 0.
    """

    folder: Folder
    results: Results
    summary: Mapping[str, Any]
    styles: Mapping[str, Style]
    rankings: Mapping[str, Ranking]
    number: int

    @property
    def name(self) -> str:
        """Of the spec."""
        return self.results.spec.name

    @property
    def rule(self) -> str:
        """The method that the run is about."""
        return author_rule(self.results.spec.methods, self.results.yardsticks)

    @property
    def quantity(self) -> str:
        """By which the first screen compares."""
        return main_quantity(self.results)

    @property
    def ranking(self) -> Ranking:
        """By that quantity; of no methods where nothing was evaluated."""
        nothing = Ranking(self.quantity, {}, {}, {})
        return self.rankings.get(self.quantity) or next(
            iter(self.rankings.values()), nothing
        )

    @property
    def reference(self) -> str | None:
        """What the rule stands beside: the plain average, or the best other method."""
        others = [k for k in self.ranking.labels if k != self.rule]
        average = average_of(self.results)
        return average if average in others else next(iter(others), None)

    @property
    def so_far(self) -> str:
        """How much there is of a run that is not finished; empty of one that is."""
        asked, done = self.folder.spec, self.results.spec
        if (done.rounds, done.seeds) == (asked.rounds, asked.seeds):
            return ""
        return (
            f"Not finished. So far: {done.rounds} of {asked.rounds} rounds of "
            f"{len(done.seeds)} of {len(asked.seeds)} seeds."
        )


def page_data(run: PageRun) -> dict[str, Any]:
    """What the script draws of one run, at six significant digits."""
    results = run.results
    axes = available_axes(results)
    points = _spread_out(0, len(results.rounds) - 1, POINTS)
    offered = measured(results, QUANTITIES)
    return {
        "seeds": list(results.spec.seeds),
        "rounds": results.rounds[points].tolist(),
        "name": results.spec.name,
        "main": run.ranking.quantity,
        "axes": [{"key": axis, "name": AXES[axis]} for axis in axes],
        "quantities": [
            {
                "key": key,
                "name": QUANTITIES[key],
                "log": key in GAPS,
                "up": key in LARGER_IS_BETTER,
                "leaders": leaders(results, key),
                "window": _window(results, key),
            }
            for key in offered
        ],
        "methods": [
            _look(label, style)
            | {
                "at": {
                    a: _rounded(mean_axis_values(results, label, a)[points])
                    for a in axes
                },
                "curves": {
                    key: [_rounded(row[points]) for row in results.values(label, key)]
                    for key in offered
                },
            }
            for label, style in ((k, run.styles[k]) for k in results.labels)
        ],
        "weights": _weights(results) | {"shown": _beside(run)},
    }


def panels_data(runs: Sequence[PageRun], rule: str) -> dict[str, Any] | None:
    """What the script draws over the runs of a sweep: last values over its values.

    It has the form of `page_data`, with a run for a round and its value in `ticks`.

    Args:
        runs: about one rule.
        rule: whose line is the strong one.

    Returns:
        The data of one figure; None where the runs are no sweep over one field, or
        differ in quantity or seeds.
    """
    first, swept = runs[0], _swept([run.name for run in runs])
    quantity, seeds = first.ranking.quantity, first.results.spec.seeds
    alike = {(run.ranking.quantity, run.results.spec.seeds) for run in runs}
    if swept is None or len(alike) > 1 or not first.rankings:
        return None
    axis, ticks = swept
    places = list(range(1, len(runs) + 1))
    labels = list(dict.fromkeys(k for run in runs for k in run.results.labels))
    rows = {k: _last_values(runs, k, quantity) for k in labels}
    leaders_ = [rule, *([first.reference] if first.reference else [])]
    shown = {
        "key": quantity,
        "name": QUANTITIES[quantity],
        "log": quantity in GAPS,
        "up": quantity in LARGER_IS_BETTER,
        "leaders": leaders_,
        "window": _around(rows, leaders_),
    }
    return {
        "seeds": list(seeds),
        "rounds": places,
        "ticks": ticks,
        "name": f"{first.name} and {len(runs) - 1} more",
        "main": quantity,
        "axes": [{"key": "panels", "name": axis}],
        "quantities": [shown],
        "methods": [
            _look(k, first.styles[k])
            | {"at": {"panels": places}, "curves": {quantity: rows[k]}}
            for k in labels
        ],
    }


def _last_values(
    runs: Sequence[PageRun], label: str, quantity: str
) -> list[list[float | int | None]]:
    """Seeds by panels; None where a panel has no such method."""
    nothing = np.full(len(runs[0].results.spec.seeds), np.nan)
    columns = [
        run.results.final(label, quantity) if label in run.results.labels else nothing
        for run in runs
    ]
    return [_rounded(row) for row in np.array(columns).T]


def _around(
    rows: Mapping[str, list[list[float | int | None]]], leaders_: Sequence[str]
) -> list[float | int | None]:
    """Ends of the vertical axis: all means, and the bands of the leaders."""
    every = {k: np.array(v, dtype=float) for k, v in rows.items()}
    ends = [values.mean(axis=0) for values in every.values()]
    for label in leaders_:
        mean, spread = mean_and_spread(every[label])
        ends += [mean - spread, mean + spread]
    known = np.concatenate(ends)
    known = known[np.isfinite(known)]
    if not known.size or known.min() == known.max():
        return [None, None]
    margin = 0.04 * (known.max() - known.min())
    return _rounded(np.array([known.min() - margin, known.max() + margin]))


def _swept(names: Sequence[str]) -> tuple[str, list[str]] | None:
    """The field of a sweep and its values, from the names of its runs.

    >>> _swept(["mine-alpha=0.1", "mine-alpha=1.0"])
    ('alpha', ['0.1', '1.0'])
    >>> _swept(["study-mnist", "study-digits"])
    """
    parts = [name.rpartition("=") for name in names]
    before = {first for first, _, _ in parts}
    if len(before) > 1 or before == {""}:
        return None
    return before.pop().rpartition("-")[2], [value for _, _, value in parts]


def _look(label: str, style: Style) -> dict[str, Any]:
    """A method as the script draws it."""
    return {
        "label": label,
        "colour": style.colour,
        "dash": style.strokes,
        "marker": style.marker,
        "width": style.width,
    }


def _window(results: Results, quantity: str) -> list[float | int | None]:
    """Ends of the vertical axis, as in figures."""
    rows = {k: results.values(k, quantity) for k in results.labels}
    means = {k: mean_and_spread(v)[0] for k, v in rows.items() if np.isfinite(v).any()}
    if quantity in GAPS:
        means = {k: np.where(mean > 0, mean, np.nan) for k, mean in means.items()}
    ends = panel_limits(means, results, quantity, leaders(results, quantity))
    return _rounded(np.array([np.nan if end is None else end for end in ends]))


def _beside(run: PageRun) -> list[int]:
    """Whose weights stand beside each other: of the average, and of the best rule.

    That is the author's rule unless another one is certainly better.
    """
    ranking, labels = run.ranking, run.results.labels
    best = next(iter(ranking.best), run.rule)
    if run.rule in ranking.labels and best != run.rule:
        behind = ranking.compare(run.rule, best).verdict == "worse"
        best = best if behind else run.rule
    other = average_of(run.results)
    if other in (None, best):
        other = next((k for k in (run.rule, *ranking.labels) if k != best), best)
    return [labels.index(str(other)), labels.index(best)]


def _weights(results: Results) -> dict[str, Any]:
    """Weights of each method, seed, round and client in two bytes each."""
    n, entries, last = (
        results.constants[0]["n"],
        len(results.labels),
        results.spec.rounds,
    )
    few = min(last, 30)  # rounds worth having before a second seed is
    seeds = max(1, min(len(results.records), WEIGHTS // (entries * n * few)))
    rounds = _spread_out(1, last, max(1, WEIGHTS // (entries * n * seeds)))
    horizons = np.zeros((seeds, len(rounds), n), dtype=np.uint16)
    weights = np.full((entries, seeds, len(rounds), n), np.nan)
    for s, by_entry in enumerate(results.records[:seeds]):
        for entry, records in enumerate(by_entry):
            for k, t in enumerate(rounds):
                active = list(records[t].clients)
                weights[entry, s, k, active] = records[t].weights
                horizons[s, k, active] = np.minimum(records[t].horizons, ABSENT)
    weights[~np.isfinite(weights)] = np.nan
    low = np.fmin.reduce(weights, axis=(1, 2, 3), initial=0.0)
    high = np.fmax.reduce(weights, axis=(1, 2, 3), initial=0.0)
    width = np.where(high > low, high - low, 1.0)
    scaled = (weights - low[:, None, None, None]) / width[:, None, None, None]
    absent = np.isnan(weights)
    codes = np.where(absent, ABSENT, np.rint(np.where(absent, 0.0, scaled) * 65534))
    return {
        "n": n,
        "absent": ABSENT,
        "rounds": rounds.tolist(),
        "seeds": list(results.spec.seeds[:seeds]),
        "bad": [faulty_clients(results, s) for s in range(seeds)],
        "low": _rounded(low),
        "width": _rounded(width),
        "codes": [[_packed(part) for part in rows] for rows in codes.astype(np.uint16)],
        "horizons": [_packed(part) for part in horizons],
    }


def faulty_clients(results: Results, seed: int) -> list[int]:
    """The faulty clients of a seed, from its trace.

    Args:
        results: of a run.
        seed: its position in the spec.
    """
    return sorted(results.records[seed][0][0].scenario.get("faulty", ()))


def _packed(values: UInt16[Ints, "rounds n"]) -> str:
    """Base64 of little-endian codes."""
    return base64.b64encode(values.astype("<u2").tobytes()).decode()


def _spread_out(first: int, last: int, most: int) -> Int64[Ints, " points"]:
    """Whole numbers from first to last, at most so many, evenly spaced."""
    count = min(most, last - first + 1)
    if count == 1:
        return np.array([last])
    return np.unique(np.rint(np.linspace(first, last, count)).astype(np.int64))


def _rounded(values: Float64[Array, " k"]) -> list[float | int | None]:
    return [_number(f"{v:.6g}") if math.isfinite(v) else None for v in values]


def _number(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 1e15 else value
