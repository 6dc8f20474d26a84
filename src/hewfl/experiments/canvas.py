"""A sheet of matplotlib: drawn on, laid out and saved as PDF and PNG.

No clock and no global state enters: the same drawing gives the same bytes.
"""

import importlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hewfl.core.atomic import write_bytes
from hewfl.errors import MissingExtraError

_RC = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 8,
    "axes.titlesize": 8.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 3.2,  # long enough to show a dash
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
}


def save(draw: Any, size: tuple[float, float], path: Path) -> tuple[Path, Path]:
    """Draw a figure and write both files.

    Args:
        draw: a function of matplotlib's figure.
        size: in inches.
        path: of the files, without the ending.

    Returns:
        The PDF and the PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        text = "figures need matplotlib: pip install 'hewfl[report]'"
        raise MissingExtraError(text) from error
    stem = path.with_suffix("") if path.suffix in (".pdf", ".png") else path
    files = tuple(stem.with_name(stem.name + ending) for ending in (".pdf", ".png"))
    with matplotlib.rc_context(_RC):
        figure = figures.Figure(figsize=size, layout="constrained")
        draw(figure)
        _settle(figure)
        for file in files:
            stream = io.BytesIO()
            kind = file.suffix[1:]
            undated = {"CreationDate": None} if kind == "pdf" else {}
            figure.savefig(stream, format=kind, dpi=200, metadata=undated)
            write_bytes(file, stream.getvalue())
    return files[0], files[1]


def _settle(figure: Any) -> None:
    """Fix the layout: its solver's last digits change from one call to the next."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position([round(v, 4) for v in axes.get_position().bounds])


def legend(figure: Any, panels: Iterable[Any], *, columns: int) -> None:
    """One legend for all panels, each name once, below."""
    known: dict[str, Any] = {}
    for axes in panels:
        handles, names = axes.get_legend_handles_labels()
        known |= dict(zip(names, handles, strict=True))
    figure.legend(
        known.values(), known.keys(), loc="outside lower center", ncols=columns
    )


def plain_text(name: str) -> str:
    """A name that matplotlib takes as it is: neither formula nor hidden."""
    plain = name.replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain
