"""A certificate as a figure: certified gap over rounds."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array, invalid
from hewfl.errors import MissingExtraError
from hewfl.theory.arrival import MOST_STEPS, single_path
from hewfl.theory.certificates import Certificate, Promise
from hewfl.theory.post_local import PostLocal
from hewfl.theory.theorems import THEOREMS, theorem_curve

_STYLES = {"printed": ":", "paper": "-", "sharp": "--", "absorbed": "-."}
_POINTS = 400


def figure_class(path: Path) -> Any:
    """The class of figures, once it is clear that one can be saved at the path.

    Raises:
        InvalidInputError: the path does not end in .png or .pdf, or has no folder.
        MissingExtraError: matplotlib is not installed.
    """
    if path.suffix not in (".png", ".pdf"):
        raise invalid("plot", "a path ending in .png or .pdf", path)
    if not path.parent.is_dir():
        raise invalid("plot", "a path in a folder that exists", path)
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        text = "figures need matplotlib: pip install 'hewfl[report]'"
        raise MissingExtraError(text) from error


def draw_certificate(certificate: Certificate, path: Path) -> None:
    """Save the bounds of all theorems that hold, beside cap and target.

    A bound above the cap is drawn at the cap, which lem:gap gives for nothing.

    Args:
        certificate: of one configuration.
        path: ending in .png or .pdf.
    """
    figure = figure_class(path)(figsize=(8, 5), layout="constrained")
    c, cap = certificate, float(certificate.case.system.cap)
    axes = figure.add_subplot()
    colours = {label: f"C{k}" for k, label in enumerate(THEOREMS)}
    drawn = [p for p in c.promises if p.holds]
    rounds = rounds_shown(c, drawn)
    for p in drawn:
        axes.plot(
            rounds,
            certified_gaps(c, p, rounds),
            color=colours[p.label],
            linestyle=_STYLES[p.variant],
            label=f"{p.label}, {p.variant}, ϑ = {float(p.amplitude):.2g}",
        )
    axes.axhline(cap, color="0.5", linewidth=0.8, label="cap LR²/2")
    axes.axhline(float(c.target), color="k", linewidth=0.8, label="target")
    axes.set(xscale="log", yscale="log", xlabel="rounds", ylabel="certified gap")
    axes.set_ylim(bottom=float(c.target) / 30)  # a bound may tend to zero
    axes.set_title("no theorem holds" if not drawn else "what the theorems promise")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    # Without a date the same certificate gives the same bytes.
    undated = {"CreationDate": None} if path.suffix == ".pdf" else {}
    figure.savefig(path, dpi=150, metadata=undated)


def rounds_shown(c: Certificate, drawn: Sequence[Promise]) -> Float64[Array, " points"]:
    """Rounds to draw, from 1 to twice the last at which a target is met."""
    needed = [float(p.rounds_to_target) for p in drawn]
    last = 2 * max([c.rounds, *(t for t in needed if np.isfinite(t))])
    return np.unique(np.geomspace(1, last, _POINTS).round())


def certified_gaps(
    c: Certificate, p: Promise, rounds: Float64[Array, " points"]
) -> Float64[Array, " points"]:
    """The better of closed bound and recursion, never above the cap.

    The recursion is iterated as far as `MOST_STEPS`.
    """
    curve = theorem_curve(
        p.label, c.case, PostLocal(p.amplitude, p.curvature), p.variant
    )
    gaps = np.minimum(curve.rate(rounds).value, float(c.case.system.cap))
    if curve.law is not None:
        path = np.asarray(
            single_path(curve.law, curve.start, int(min(rounds[-1], MOST_STEPS)))
        )
        known = np.minimum(rounds, len(path) - 1).astype(int)
        gaps = np.where(rounds == known, np.minimum(gaps, path[known]), gaps)
    return np.asarray(gaps)
