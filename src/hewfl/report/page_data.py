"""The data of a report page: escaped HTML, one run, and the values that are drawn."""

import base64
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap, zip_longest
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float64, Int64, UInt16
from hewfl.core.validation import Array, Ints
from hewfl.experiments.plots import QUANTITIES, Style, leaders
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
from hewfl.experiments.summary import statistics


class Html(str):
    """Text that is HTML already; all other text is escaped."""

    __slots__ = ()


def tag(name: str, *inside: str, **attributes: str | int | float) -> Html:
    """An element. Attributes are in Python's spelling: `class_` is class."""
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
    )
    return Html(f"<{name}{named}>{join(inside)}</{name}>")


def join(parts: Iterable[str]) -> Html:
    """Parts one after the other."""
    return Html("".join(p if isinstance(p, Html) else html.escape(p) for p in parts))


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str,
    *,
    css: str = "cards",
) -> Html:
    """A table; on a narrow screen each row is a card that names its cells.

    Args:
        head: names of the columns.
        rows: cells.
        caption: what it shows.
        css: "cards", or "matrix", which stays a table at any width, and scrolls;
            "matrix long" has long texts in the last column.
    """
    top = tag("tr", *(tag("th", name, scope="col") for name in head))
    # cells with the names of their columns; a row may be longer than the head
    named = (zip_longest(head[: len(row)], row, fillvalue="") for row in rows)
    body = (tag("tr", *starmap(_cell, cells)) for cells in named)
    parts = (tag("caption", caption), tag("thead", top), tag("tbody", *body))
    look = {"class_": "scroll"}
    if css != "cards":  # who cannot point scrolls by keys
        look |= {"tabindex": "0", "role": "region", "aria_label": caption}
    return tag("div", tag("table", *parts, class_=css), **look)


def _cell(name: str, cell: str) -> Html:
    """A cell with the name of its column; a cell that is a td element is unchanged."""
    if isinstance(cell, Html) and cell.startswith("<td"):
        return cell
    return tag("td", tag("span", cell), data_name=name)


def warning(text: str) -> Html:
    """A paragraph that stands out."""
    return tag("p", text, class_="warn")


@final
@dataclass(frozen=True, slots=True, eq=False)
class PageRun:
    """What the page says about one run."""

    folder: Folder
    results: Results
    summary: Mapping[str, Any]
    styles: Mapping[str, Style]
    rankings: Mapping[str, Ranking]
    number: int

    def name(self, label: str) -> Html:
        """A method with its line before it; a limit says so."""
        style = self.styles[label]
        dash = " ".join(f"{style.width * part:g}" for part in style.dash) or "none"
        look = {"stroke_width": f"{style.width}", "stroke_dasharray": dash}
        line = tag("line", x1=0, y1=5, x2=34, y2=5, **look)
        css = f"swatch {style.colour}"
        swatch = tag(
            "svg",
            line,
            class_=css,
            viewBox="0 0 34 10",
            aria_hidden="true",
            data_marker=style.marker,
        )
        is_limit = label in self.results.yardsticks
        note = (" ", tag("small", "limit")) if is_limit else ()
        return join((swatch, label, *note))

    def final(self, label: str, quantity: str) -> str:
        """A method's quantity after the last round: mean ± deviation over seeds."""
        return plus_minus(statistics(self.results.values(label, quantity)[:, -1]))

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


def plus_minus(value: Mapping[str, Any]) -> str:
    """Mean ± deviation, to two digits of the deviation."""
    mean, std = value["mean"], value["std"]
    if mean is None:
        return "—"
    if not std or std < 1e-12 * abs(mean):  # rounding is no deviation
        return f"{mean:,.0f}" if float(mean).is_integer() else f"{mean:.5g}"
    places = max(0, 1 - math.floor(math.log10(std)))
    if places > 7 or abs(mean) >= 1e6:
        return f"{mean:.3e} ± {std:.1e}"
    return f"{mean:.{places}f} ± {std:.{places}f}"


def values(given: Mapping[str, Any], names: Iterable[str]) -> str:
    """Some of the parameters given, with their names."""
    return ", ".join(f"{name} = {given[name]}" for name in names)


def listed(names: Iterable[str], most: int = 3) -> str:
    """Names in a sentence, the rest counted.

    >>> listed(["A", "B", "C", "D", "E"])
    'A, B, C and 2 more'
    """
    every = list(names)
    if len(every) > most:
        every = [*every[:most], f"{len(every) - most} more"]
    if len(every) < 2:
        return "".join(every)
    return f"{', '.join(every[:-1])} and {every[-1]}"


POINTS = 400
"""Of a curve; longer ones are thinned."""
WEIGHTS = 400_000
"""Of a run; with more, rounds are left out evenly, and then seeds."""
ABSENT = 65535
"""Code of a client that did not take part in a round."""


def page_data(results: Results, styles: Mapping[str, Style]) -> dict[str, Any]:
    """What the script draws of one run, at six significant digits."""
    axes = available_axes(results)
    points = _spread_out(0, len(results.rounds) - 1, POINTS)
    offered = measured(results, QUANTITIES)
    return {
        "seeds": list(results.spec.seeds),
        "rounds": results.rounds[points].tolist(),
        "name": results.spec.name,
        "axes": [{"key": axis, "name": AXES[axis]} for axis in axes],
        "quantities": [
            {
                "key": key,
                "name": QUANTITIES[key],
                "log": key in GAPS,
                "up": key in LARGER_IS_BETTER,
                "leaders": leaders(results, key),
            }
            for key in offered
        ],
        "methods": [
            {
                "label": label,
                "colour": style.colour,
                "dash": [style.width * part for part in style.dash],
                "marker": style.marker,
                "width": style.width,
                "at": {
                    a: _rounded(mean_axis_values(results, label, a)[points])
                    for a in axes
                },
                "curves": {
                    key: [_rounded(row[points]) for row in results.values(label, key)]
                    for key in offered
                },
            }
            for label, style in ((k, styles[k]) for k in results.labels)
        ],
        "weights": _weights(results),
    }


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
        "rounds": rounds.tolist(),
        "seeds": list(results.spec.seeds[:seeds]),
        "low": _rounded(low),
        "width": _rounded(width),
        "codes": [[_packed(part) for part in rows] for rows in codes.astype(np.uint16)],
        "horizons": [_packed(part) for part in horizons],
    }


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
