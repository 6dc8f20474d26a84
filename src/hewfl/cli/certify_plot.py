"""A certificate as a figure: certified gap over rounds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array
from hewfl.plotting import COLOURS, legend, name_ends, save_as
from hewfl.theory.certificates import Certificate, Promise
from hewfl.theory.homogeneous import PostLocal
from hewfl.theory.rounds_to_target import MOST_STEPS, single_path
from hewfl.theory.theorems import THEOREMS, theorem_curve

_STYLES = {"printed": ":", "paper": "-", "sharp": "--", "absorbed": "-."}
_POINTS = 400


def colour_of(label: str) -> str:
    """The name in `COLOURS` that stands for a theorem, in pictures and pages."""
    return tuple(COLOURS)[list(THEOREMS).index(label) % len(COLOURS)]


def draw_certificate(certificate: Certificate, path: Path) -> None:
    """Save the bounds of all theorems that hold, beside cap and target.

    A bound above the cap is drawn at the cap, which lem:gap gives for nothing. The best
    row of each theorem is a thick line with its name; the others are thin.
    """
    c, cap = certificate, float(certificate.case.system.cap)
    goal, drawn, best = (
        float(c.target),
        [p for p in c.promises if p.holds],
        best_rows(c),
    )
    rounds = rounds_shown(c, drawn)

    def draw(figure: Any) -> None:
        axes, ends = figure.add_subplot(), {}
        for p in drawn:
            ink, is_best = COLOURS[colour_of(p.label)][0], p in best
            gaps = certified_gaps(c, p, rounds)
            axes.plot(
                rounds,
                gaps,
                color=ink,
                linestyle=_STYLES[p.variant],
                linewidth=1.8 if is_best else 0.9,
                label=f"{p.label}, {p.variant}, ϑ = {float(p.amplitude):.2g}",
            )
            if is_best:
                ends[p.label] = (float(rounds[-1]), float(gaps[-1]), ink)
        axes.axhline(cap, color="0.5", linewidth=0.8, label="cap LR²/2")
        axes.axhline(goal, color="k", linewidth=0.8, label="target")
        axes.set(xscale="log", yscale="log", xlabel="rounds", ylabel="certified gap")
        axes.set_ylim(bottom=goal / 30)  # a bound may tend to zero
        axes.set_title("what the theorems promise" if drawn else "no theorem holds")
        name_ends(axes, ends)
        legend(figure, [axes], columns=2)

    save_as(draw, (7.0, 3.4 + 0.09 * len(drawn)), path)


def best_rows(c: Certificate) -> list[Promise]:
    """Of each theorem that holds and says something the row with the best constants."""
    held = [p for p in c.promises if p.holds and not p.vacuous]
    best = {}
    for p in sorted(held, key=lambda p: (-float(p.rounds_to_target), -float(p.floor))):
        best[p.label] = p
    return [best[label] for label in THEOREMS if label in best]


def rounds_shown(c: Certificate, drawn: Sequence[Promise]) -> Float64[Array, " points"]:
    """Rounds to draw, from 1 to twice the last at which a target is met.

    Not beyond `MOST_STEPS`, up to where recursions are iterated, if that shows all.
    """
    needed = [float(p.rounds_to_target) for p in drawn]
    most = max([c.rounds, *(t for t in needed if np.isfinite(t))])
    last = min(2 * most, max(most, MOST_STEPS))
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
