"""One run as a report page shows it: methods with their lines, numbers as text."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from hewfl.experiments.folder import Folder
from hewfl.experiments.markup import Html, join, tag
from hewfl.experiments.results import Results
from hewfl.experiments.standing import Standing
from hewfl.experiments.styles import Style
from hewfl.experiments.summary import statistics


@final
@dataclass(frozen=True, slots=True, eq=False)
class PageRun:
    """What the page says about one run."""

    folder: Folder
    results: Results
    summary: Mapping[str, Any]
    styles: Mapping[str, Style]
    standings: Mapping[str, Standing]
    number: int

    def name(self, label: str) -> Html:
        """A method with its line before it."""
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
        return join((swatch, label))

    def final(self, label: str, quantity: str) -> str:
        """A method's quantity after the last round: mean ± deviation over seeds."""
        return plus_minus(statistics(self.results.values(label, quantity)[:, -1]))

    @property
    def so_far(self) -> str:
        """How much there is of a run that is not finished; empty of one that is."""
        asked, found = self.folder.spec, self.results.spec
        if (found.rounds, found.seeds) == (asked.rounds, asked.seeds):
            return ""
        return (
            f"Not finished. So far: {found.rounds} of {asked.rounds} rounds of "
            f"{len(found.seeds)} of {len(asked.seeds)} seeds."
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
