"""A sheet of matplotlib in the style of all figures: drawn on, laid out and saved.

No clock and no global state enters: the same drawing gives the same bytes.
"""

import importlib
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.core.atomic import write_bytes
from hewfl.core.validation import invalid
from hewfl.errors import MissingExtraError

COLOURS = {
    "vermilion": ("#d55e00", "#ff8a3d"),
    "blue": ("#0072b2", "#58b0ec"),
    "green": ("#00875f", "#2cc295"),
    "amber": ("#b07a00", "#f0b83c"),
    "purple": ("#8b3a8f", "#d18ad6"),
    "sky": ("#2b95c8", "#8fd3f7"),
    "pink": ("#c4588f", "#f29cc4"),
    "grey": ("#6b6b6b", "#b4b4b4"),
    "olive": ("#6d7a00", "#bccb4e"),
    "brown": ("#85532f", "#d6a37f"),
}
"""On white and on black: the palette of Okabe and Ito, which readers with any common
colour blindness can tell apart, darkened and lightened to a contrast of 3 to 1, and two
more for comparisons of many algorithms."""
ENDINGS = (".png", ".pdf", ".svg")
"""Of files that a figure can be saved as."""
APART = 0.085
"""Least distance of two names, as a share of the panel."""
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
    "svg.hashsalt": "hewfl",  # names inside the file do not change
}


def require_canvas(name: str, path: Path) -> None:
    """Require that a figure can be saved at a path, before work is spent on it.

    Raises:
        InvalidInputError: it has another ending, or no folder.
        MissingExtraError: matplotlib is not installed.
    """
    if path.suffix not in ENDINGS:
        raise invalid(name, f"a path ending in {' or '.join(ENDINGS)}", path)
    if not path.parent.is_dir():
        raise invalid(name, "a path in a folder that exists", path)
    _matplotlib()


def save(
    draw: Callable[[Any], None], size: tuple[float, float], path: Path
) -> tuple[Path, Path]:
    """Draw a figure, its size in inches, and write it as PDF and as PNG."""
    stem = path.with_suffix("") if path.suffix in (".pdf", ".png") else path
    pdf, png = (stem.with_name(stem.name + ending) for ending in (".pdf", ".png"))
    save_as(draw, size, pdf, png)
    return pdf, png


def save_as(
    draw: Callable[[Any], None], size: tuple[float, float], *files: Path
) -> None:
    """Draw a figure, its size in inches, once; write it to files by their endings."""
    matplotlib, figures = _matplotlib()
    with matplotlib.rc_context(_RC):
        figure = figures.Figure(figsize=size, layout="constrained")
        draw(figure)
        _settle(figure)
        for file in files:
            stream = io.BytesIO()
            kind = file.suffix[1:]
            undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
            figure.savefig(stream, format=kind, dpi=200, metadata=undated.get(kind, {}))
            write_bytes(file, stream.getvalue())


def _matplotlib() -> tuple[Any, Any]:
    """Import matplotlib and its figures."""
    try:
        names = ("matplotlib", "matplotlib.figure")
        matplotlib, figures = map(importlib.import_module, names)
    except ImportError as error:
        text = "figures need matplotlib: install hewfl's extra report"
        raise MissingExtraError(text) from error
    return matplotlib, figures


def _settle(figure: Any) -> None:
    """Fix the layout: its solver's last digits change from one call to the next."""
    figure.draw_without_rendering()
    figure.set_layout_engine(None)  # a placeholder would draw each file twice
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


def name_ends(axes: Any, ends: Mapping[str, tuple[float, float, str]]) -> None:
    """Write names near the right ends of their lines, inside, none on another.

    They lie on that side of the lines that has more room.
    """
    if not ends:
        return
    effects: Any = importlib.import_module("matplotlib.patheffects")
    halo = [effects.withStroke(linewidth=2.2, foreground="white")]
    scale = axes.transScale + axes.transLimits
    found = np.clip([scale.transform((x, y)) for x, y, _ in ends.values()], 0.0, 1.0)
    across, up = found[:, 0].max(), found[:, 1]
    way = -1 if up.mean() > 0.5 else 1
    x, side = (across + 0.02, "left") if across < 0.6 else (0.985, "right")
    at = -way * np.inf
    for k in np.argsort(way * up, kind="stable"):
        # the next beyond the last, and a little off its own line
        beside = up[k] + (0.025 if way > 0 else -1.1 * APART)
        at = max(beside, at + APART) if way > 0 else min(beside, at - APART)
        label = list(ends)[k]
        axes.text(
            x, at, plain_text(label), color=ends[label][2], ha=side, fontsize=6.5,
            fontweight="bold", path_effects=halo, transform=axes.transAxes, zorder=5,
        )  # fmt: skip
