"""A certificate as a figure: certified gap over rounds."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.control.certificate import VARIANTS
from hewfl.core.array_types import Float64
from hewfl.core.validation import Array, invalid
from hewfl.plotting import COLOURS, legend, save_as
from hewfl.theory.absent_clients import LABEL as PARTIAL
from hewfl.theory.absent_clients import absent_clients
from hewfl.theory.certificates import Certificate, Guarantee
from hewfl.theory.post_local import PostLocal
from hewfl.theory.rounds_to_target import MOST_STEPS, single_trajectory
from hewfl.theory.theorem_table import THEOREMS, theorem_curve

_POINTS = 400


def draw_certificate(
    certificate: Certificate, path: Path, observed: Array | None = None
) -> None:
    """Save the bounds of the theorems that hold, at their best constants.

    A theorem has one colour: its recursion is solid, its closed form dashed, its floor
    dotted. A bound above the cap is drawn at the cap, which lem:gap gives without a
    theorem. `observed` are the gaps of a run, from round 0 on.
    """
    c, cap, goal = certificate, float(certificate.case.system.cap), certificate.target
    drawn = _best_rows(c)
    rounds = _plotted_rounds(c, drawn)

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for p in drawn:
            colour = _colour(p.label)
            name = f"{p.label}, {p.variant}, ϑ = {p.amplitude:.2g}"
            iterated, closed = _certified_gaps(c, p, rounds)
            axes.plot(rounds, iterated, color=colour, linewidth=1.8, label=name)
            if closed is not None:
                axes.plot(rounds, closed, color=colour, linestyle="--", linewidth=0.9)
            level = np.full(rounds.shape, max(p.floor, goal / 100))
            axes.plot(rounds, level, color=colour, linestyle=":", linewidth=0.9)
        for style, name in (("-", "recursion"), ("--", "closed form"), (":", "floor")):
            axes.plot([], [], color="0.5", linestyle=style, label=name)
        if observed is not None:
            steps = np.arange(1, len(observed))
            axes.plot(steps, observed[1:], color="k", linewidth=1.2, label="observed")
        axes.axhline(cap, color="0.5", linewidth=0.8, label="cap LR²/2")
        axes.axhline(goal, color="k", linewidth=0.8, label="target")
        axes.set(xscale="log", yscale="log", xlabel="rounds", ylabel="certified gap")
        axes.set_ylim(bottom=goal / 30)  # a bound may tend to zero
        axes.set_title("certified gap by theorem" if drawn else "no theorem holds")
        legend(figure, [axes], columns=2)

    save_as(draw, (7.0, 3.8 + 0.09 * len(drawn)), path)


def read_gaps(path: Path) -> Array:
    """The gaps of a run, one a line, from round 0 on."""
    try:
        gaps = np.loadtxt(path, ndmin=1)
    except (OSError, ValueError) as error:
        rule = "a readable file with a number on each line"
        raise invalid("observed", rule, f"{path}: {error}") from error
    if gaps.ndim != 1 or len(gaps) < 2:
        raise invalid("observed", "two numbers or more, one a line", gaps.shape)
    return np.asarray(gaps)


def _colour(label: str) -> str:
    """The colour of a theorem."""
    colours = list(COLOURS.values())
    return colours[[*THEOREMS, PARTIAL].index(label) % len(colours)][0]


def _best_rows(c: Certificate) -> list[Guarantee]:
    """The row with the best constants of each theorem that holds and is not vacuous."""
    held = [p for p in c.guarantees if p.holds and not p.vacuous]
    order = sorted(held, key=lambda p: (-p.rounds_to_target, -p.floor))
    return list({p.label: p for p in order}.values())


def _plotted_rounds(
    c: Certificate, drawn: list[Guarantee]
) -> Float64[Array, " points"]:
    """Rounds from 1 to twice the last at which a target is met.

    Not beyond `MOST_STEPS`, up to where recursions are iterated, if that shows all.
    """
    needed = [p.rounds_to_target for p in drawn]
    most = max([c.rounds, *(t for t in needed if np.isfinite(t))])
    last = min(2 * most, max(most, MOST_STEPS))
    return np.unique(np.geomspace(1, last, _POINTS).round())


def _certified_gaps(
    c: Certificate, p: Guarantee, rounds: Float64[Array, " points"]
) -> tuple[Array, Array | None]:
    """Recursion and closed form, never above the cap; the first up to `MOST_STEPS`."""
    cap, last = float(c.case.system.cap), int(min(rounds[-1], MOST_STEPS))
    known = np.minimum(rounds, last).astype(int)
    if p.label == PARTIAL:
        (variant,) = (v for v in VARIANTS if v == p.variant)
        bound = absent_clients(c.case, p.amplitude, variant=variant)
        path = np.minimum.accumulate(list(islice(bound.gaps(), last + 1)))
        return np.asarray(path[known]), None
    controls = PostLocal(p.amplitude, p.curvature)
    curve = theorem_curve(p.label, c.case, controls, p.variant)
    closed = np.asarray(np.minimum(curve.rate(rounds).value, cap))
    if curve.recursion is None:
        return closed, None
    gaps = np.asarray(single_trajectory(curve.recursion, curve.start, last))[known]
    return np.where(rounds == known, np.minimum(gaps, cap), np.nan), closed
