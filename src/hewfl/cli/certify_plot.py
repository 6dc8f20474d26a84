"""A certificate as a figure: certified gap over rounds."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.control.certificate import Variant
from hewfl.core.array_types import Float64
from hewfl.core.validation import Array
from hewfl.plotting import COLOURS, legend, name_ends, save_as
from hewfl.theory.absent_clients import LABEL as PARTIAL
from hewfl.theory.absent_clients import absent_clients
from hewfl.theory.certificates import Certificate, Guarantee
from hewfl.theory.post_local import PostLocal
from hewfl.theory.rounds_to_target import MOST_STEPS, single_trajectory
from hewfl.theory.theorem_table import THEOREMS, theorem_curve

_STYLES = {"printed": ":", "paper": "-", "sharp": "--", "absorbed": "-."}
_POINTS = 400


def draw_certificate(certificate: Certificate, path: Path) -> None:
    """Save the bounds of all theorems that hold, beside cap and target.

    A bound above the cap is drawn at the cap, which lem:gap gives without a theorem.
    The best row of each theorem is a thick line with its name; the others are thin.
    """
    c, cap, goal = certificate, float(certificate.case.system.cap), certificate.target
    drawn, best = [p for p in c.guarantees if p.holds], _best_rows(c)
    rounds = _plotted_rounds(c, drawn)

    def draw(figure: Any) -> None:
        axes, ends = figure.add_subplot(), {}
        for p in drawn:
            colour, is_best = _colour(p.label), p in best
            gaps = _certified_gaps(c, p, rounds)
            axes.plot(
                rounds,
                gaps,
                color=colour,
                linestyle=_STYLES[p.variant],
                linewidth=1.8 if is_best else 0.9,
                label=f"{p.label}, {p.variant}, ϑ = {float(p.amplitude):.2g}",
            )
            if is_best:
                ends[p.label] = (float(rounds[-1]), float(gaps[-1]), colour)
        axes.axhline(cap, color="0.5", linewidth=0.8, label="cap LR²/2")
        axes.axhline(float(goal), color="k", linewidth=0.8, label="target")
        axes.set(xscale="log", yscale="log", xlabel="rounds", ylabel="certified gap")
        axes.set_ylim(bottom=float(goal) / 30)  # a bound may tend to zero
        axes.set_title("certified gap by theorem" if drawn else "no theorem holds")
        name_ends(axes, ends)
        legend(figure, [axes], columns=2)

    save_as(draw, (7.0, 3.4 + 0.09 * len(drawn)), path)


def _colour(label: str) -> str:
    """The colour of a theorem."""
    colours = list(COLOURS.values())
    return colours[[*THEOREMS, PARTIAL].index(label) % len(colours)][0]


def _best_rows(c: Certificate) -> list[Guarantee]:
    """The row with the best constants of each theorem that holds and is not vacuous."""
    held = [p for p in c.guarantees if p.holds and not p.vacuous]
    order = sorted(held, key=lambda p: (-float(p.rounds_to_target), -float(p.floor)))
    return list({p.label: p for p in order}.values())


def _plotted_rounds(
    c: Certificate, drawn: Sequence[Guarantee]
) -> Float64[Array, " points"]:
    """Rounds from 1 to twice the last at which a target is met.

    Not beyond `MOST_STEPS`, up to where recursions are iterated, if that shows all.
    """
    needed = [float(p.rounds_to_target) for p in drawn]
    most = max([c.rounds, *(t for t in needed if np.isfinite(t))])
    last = min(2 * most, max(most, MOST_STEPS))
    return np.unique(np.geomspace(1, last, _POINTS).round())


def _certified_gaps(
    c: Certificate, p: Guarantee, rounds: Float64[Array, " points"]
) -> Float64[Array, " points"]:
    """The better of closed bound and recursion, never above the cap.

    The recursion is iterated as far as `MOST_STEPS`.
    """
    if p.label == PARTIAL:
        variant: Variant = "paper" if p.variant == "printed" else p.variant
        bound = absent_clients(c.case, float(p.amplitude), variant=variant)
        last = int(min(rounds[-1], MOST_STEPS))
        path = np.minimum.accumulate(list(islice(bound.gaps(), last + 1)))
        return np.asarray(path[np.minimum(rounds, last).astype(int)])
    controls = PostLocal(p.amplitude, p.curvature)
    curve = theorem_curve(p.label, c.case, controls, p.variant)
    gaps = np.minimum(curve.rate(rounds).value, float(c.case.system.cap))
    if curve.recursion is not None:
        last = int(min(rounds[-1], MOST_STEPS))
        path = np.asarray(single_trajectory(curve.recursion, curve.start, last))
        known = np.minimum(rounds, len(path) - 1).astype(int)
        gaps = np.where(rounds == known, np.minimum(gaps, path[known]), gaps)
    return np.asarray(gaps)
