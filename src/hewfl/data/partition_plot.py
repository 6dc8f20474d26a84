"""A plot of a partition: one bar per client, divided by class."""

from pathlib import Path
from typing import Any

import numpy as np

from hewfl.core.array_types import Int64
from hewfl.core.validation import Ints
from hewfl.plotting import (
    COLOURS,
    check_figure_path,
    import_matplotlib,
    legend,
    plain_text,
    save_as,
)

LISTED = 30
"""Most classes in the legend; of more, evenly spaced ones are named."""


def draw_partition(
    counts: Int64[Ints, "n c"], classes: tuple[str, ...], title: str, path: Path
) -> None:
    """Save a plot of the classes that each client holds, as PNG, PDF or SVG.

    Raises:
        InvalidInputError: the path has another suffix.
        MissingExtraError: matplotlib is not installed.
    """
    check_figure_path("output", path)
    n, c = counts.shape
    inks = [light for light, _ in COLOURS.values()]
    if c > len(inks):
        maps = import_matplotlib().colormaps
        inks = list(maps["turbo"].resampled(c)(np.arange(c)))
    named = set(np.linspace(0, c - 1, min(c, LISTED)).round().astype(int).tolist())

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        left = np.zeros(n)
        for k, name in enumerate(classes):
            text = plain_text(name) if k in named else None
            bar = {"left": left, "color": inks[k], "label": text, "height": 0.82}
            axes.barh(np.arange(n), counts[:, k], linewidth=0, **bar)
            left += counts[:, k]
        axes.set(xlabel="samples", ylabel="client", title=plain_text(title))
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.invert_yaxis()
        axes.margins(y=0.01)
        axes.grid(visible=False, axis="y")
        legend(figure, [axes], columns=min(8, c))

    save_as(draw, (7.0, 1.7 + 0.2 * min(n, 100) + 0.16 * (len(named) // 8)), path)
