"""Figures by matplotlib in one style.

No clock and no global state enters: the same drawing gives the same bytes.
"""

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

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
"""Colours on white and on black: the palette of Okabe and Ito, which is safe for common
colour blindness, darkened and lightened to a contrast of 3 to 1, and two more for
comparisons of many methods."""
FILE_TYPES = (".png", ".pdf", ".svg")
"""Suffixes of the files of a figure."""
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


def check_figure_path(name: str, path: Path) -> None:
    """Require that a figure can be saved at a path, before the work for it.

    Raises:
        InvalidInputError: it has another suffix, or no folder.
        MissingExtraError: matplotlib is not installed.
    """
    if path.suffix not in FILE_TYPES:
        raise invalid(name, f"a path ending in {' or '.join(FILE_TYPES)}", path)
    if not path.parent.is_dir():
        raise invalid(name, "a path in a folder that exists", path)
    import_matplotlib()


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
    matplotlib = import_matplotlib()
    with matplotlib.rc_context(_RC):
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        draw(figure)
        _fix_layout(figure)
        for file in files:
            stream = io.BytesIO()
            kind = file.suffix[1:]
            undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
            figure.savefig(stream, format=kind, dpi=200, metadata=undated.get(kind, {}))
            write_bytes(file, stream.getvalue())


def import_matplotlib() -> Any:
    """The module matplotlib, with its figures.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import matplotlib.figure  # noqa: PLC0415 - slow to import, and optional
    except ImportError as error:
        text = "figures need matplotlib: install hewfl's extra report"
        raise MissingExtraError(text) from error
    return matplotlib


def _fix_layout(figure: Any) -> None:
    """Fix the layout: its solver's last digits change from one call to the next."""
    figure.draw_without_rendering()
    figure.set_layout_engine(None)  # a placeholder would draw each file twice
    for axes in figure.axes:
        axes.set_position([round(v, 4) for v in axes.get_position().bounds])


def legend(figure: Any, panels: Iterable[Any], *, columns: int) -> None:
    """One legend for all panels, each name once, below them.

    The figure grows by its height. Where the names are too long for so many columns,
    it has fewer; a name too long for one column loses its middle.

    Args:
        figure: of the panels; its width stays.
        panels: with labelled lines.
        columns: at most.
    """
    lines: dict[str, Any] = {}
    for axes in panels:
        handles, names = axes.get_legend_handles_labels()
        lines |= dict(zip(names, handles, strict=True))
    if not lines:
        return
    width, longest = figure.bbox.width, 60
    while True:
        names = [_shorten(name, longest) for name in lines]
        box = figure.legend(
            lines.values(), names, loc="outside lower center", ncols=columns,
            columnspacing=1.2,
        )  # fmt: skip
        size = box.get_window_extent()
        if size.width <= width or longest <= 8:
            break
        box.remove()
        columns, longest = max(1, columns - 1), longest - 4 * (columns == 1)
    figure.set_figheight(figure.get_figheight() + size.height / figure.dpi)


def _shorten(name: str, longest: int) -> str:
    """A name without its middle, if it is long.

    >>> _shorten("coordinate-median", 9)
    'coord…ian'
    """
    if len(name) <= longest:
        return name
    tail = (longest - 1) * 2 // 5
    return f"{name[: longest - 1 - tail]}…{name[-tail:]}"


def plain_text(name: str) -> str:
    """A name that matplotlib prints as it is: no formula, not hidden."""
    plain = name.replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain
