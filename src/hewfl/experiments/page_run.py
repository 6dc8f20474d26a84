"""One run as a report page shows it: methods with their lines, numbers as text."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from hewfl.experiments.curves import measured
from hewfl.experiments.folder import Folder
from hewfl.experiments.markup import Html, join, tag
from hewfl.experiments.results import Results
from hewfl.experiments.styles import Style
from hewfl.experiments.summary import statistics
from hewfl.experiments.tune import LARGER_IS_BETTER


@final
@dataclass(frozen=True, slots=True, eq=False)
class PageRun:
    """What the page says about one run.

    Attributes:
        folder: where it is.
        results: its records as arrays.
        summary: its summary.json.
        styles: of its methods.
    """

    folder: Folder
    results: Results
    summary: Mapping[str, Any]
    styles: Mapping[str, Style]

    def name(self, label: str) -> Html:
        """A method with its line before it."""
        style = self.styles[label]
        dash = " ".join(f"{style.width * part:g}" for part in style.dash) or "none"
        look = {"stroke_width": f"{style.width}", "stroke_dasharray": dash}
        line = tag("line", x1=0, y1=5, x2=34, y2=5, **look)
        css = f"swatch {style.colour}"
        swatch = tag("svg", line, class_=css, viewBox="0 0 34 10", aria_hidden="true")
        return join((swatch, label))

    def best(
        self, quantity: str, labels: Sequence[str], *, judged: bool = False
    ) -> str | None:
        """The method with the best mean, of those that finished every seed.

        Args:
            quantity: that is compared.
            labels: of the methods to choose from.
            judged: take of each method the model that the spec judges by.
        """
        results = self.results
        if not measured(results, [quantity]):
            return None
        sign = -1 if quantity in LARGER_IS_BETTER else 1
        names = {k: results.judged(k, quantity) if judged else quantity for k in labels}
        final = {k: results.values(k, own)[:, -1].mean() for k, own in names.items()}
        kept = {
            label: sign * mean for label, mean in final.items() if math.isfinite(mean)
        }
        return min(kept, key=kept.__getitem__) if kept else None

    def final(self, label: str, quantity: str) -> str:
        """A method's quantity after the last round: mean ± deviation over seeds."""
        return plus_minus(statistics(self.results.values(label, quantity)[:, -1]))


def plus_minus(value: Mapping[str, Any]) -> str:
    """Mean ± deviation, to two digits of the deviation."""
    mean, std = value["mean"], value["std"]
    if mean is None:
        return "—"
    if not std:
        return f"{mean:,.0f}" if float(mean).is_integer() else f"{mean:.5g}"
    places = max(0, 1 - math.floor(math.log10(std)))
    if places > 7 or abs(mean) >= 1e6:
        return f"{mean:.3e} ± {std:.1e}"
    return f"{mean:.{places}f} ± {std:.{places}f}"


def values(given: Mapping[str, Any], names: Iterable[str]) -> str:
    """Some of the parameters given, with their names."""
    return ", ".join(f"{name} = {given[name]}" for name in names)
