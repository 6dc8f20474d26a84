"""A partition as a picture: one bar per client, cut by class."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from hewfl.core.checks import Ints, invalid
from hewfl.errors import MissingExtraError


def draw_partition(
    counts: Int64[Ints, "n c"], classes: tuple[str, ...], title: str, path: Path
) -> None:
    """Save a picture of who holds how much of what, as PNG or PDF.

    Args:
        counts: from `class_counts`.
        classes: names for the legend.
        title: above the bars.
        path: ending in .png or .pdf.

    Raises:
        InvalidInputError: the path has another ending.
        MissingExtraError: matplotlib is not installed.
    """
    if path.suffix not in (".png", ".pdf"):
        raise invalid("output", "a path ending in .png or .pdf", path)
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
        colours: Any = importlib.import_module("matplotlib").colormaps
    except ImportError as error:
        text = "pictures need matplotlib: pip install 'hewfl[report]'"
        raise MissingExtraError(text) from error
    n, c = counts.shape
    colour = colours["tab10" if c <= 10 else "turbo"].resampled(max(c, 10 * (c <= 10)))
    figure = figures.Figure(figsize=(8, 1.6 + 0.22 * min(n, 100)), layout="constrained")
    axes = figure.add_subplot()
    left = np.zeros(n)
    for k, name in enumerate(classes):
        axes.barh(np.arange(n), counts[:, k], left=left, color=colour(k), label=name)
        left += counts[:, k]
    axes.set(xlabel="samples", ylabel="client", title=title)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    figure.legend(loc="outside right upper", title="class", fontsize="small")
    # Without a date the same partition gives the same bytes.
    undated = {"CreationDate": None} if path.suffix == ".pdf" else {}
    figure.savefig(path, dpi=150, metadata=undated)
