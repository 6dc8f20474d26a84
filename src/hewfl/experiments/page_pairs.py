"""Sections of a report page that compare: all pairs, the best baseline, a target."""

import math
from collections.abc import Iterable, Mapping

import numpy as np

from hewfl.experiments.axes import AXES, axes_of
from hewfl.experiments.compare import LEVEL
from hewfl.experiments.curves import QUANTITIES
from hewfl.experiments.markup import Html, join, table, tag
from hewfl.experiments.page_run import PageRun
from hewfl.experiments.reach import common_target, reach, reach_text
from hewfl.experiments.standing import Certain, Standing
from hewfl.experiments.styles import is_hew
from hewfl.experiments.tune import LARGER_IS_BETTER

WORDS = {"better": "▲ better", "worse": "▼ worse", "undecided": "? undecided"}
"""A verdict in a table. Undecided is a question: the data do not say, in no way that
the two are equal."""
_RULES = (
    f"Differences are paired by seed. Intervals are {LEVEL:.0%} of Student's t, each "
    "for itself; verdicts rest on p corrected by Holm over all pairs of methods of a "
    "quantity. ▲ better and ▼ worse are certain in that sense. ? undecided says that "
    "these seeds do not tell: the true difference may be anything in the interval, not "
    "that the two are equal. All are compared after the same number of rounds, in "
    "which some send more scalars than others."
)


def baseline(run: PageRun) -> Html:
    """Every method against the best baseline, quantity by quantity."""
    rivals = {m.label for m in run.results.spec.methods if not is_hew(m)}
    tables = []
    for s in run.standings.values():
        best = next((k for k in s.labels if k in rivals), None)
        others = [label for label in run.results.labels if label != best]
        if best is None or not others or not math.isfinite(s.mean(best)):
            continue
        found = {label: s.against(label, best) for label in others}
        scale = _scale(found.values())
        rows = [
            [run.name(label), "0", "the same in every seed", "", "—", "= equal"]
            if s.is_equal(label, best)
            else [run.name(label), *_difference(c, scale, run.styles[label].colour)]
            for label, c in found.items()
        ]
        better = "more" if s.quantity in LARGER_IS_BETTER else "less"
        caption = f"{QUANTITIES[s.quantity]} minus that of {best}; {better} is better"
        if run.results.spec.judge == "averaged":
            caption += "; by the averaged model of methods that keep one"
        head = ["method", "difference", "interval", "picture", "p", "verdict"]
        tables.append(table(head, rows, caption))
    if not tables:
        return tag("p", "There is no baseline to compare with.")
    return join((tag("p", _RULES, class_="note"), *tables))


def matrix(run: PageRun) -> Html:
    """All pairs: the row less the column."""
    if len(run.results.labels) < 2:
        return tag("p", "There is one method only.")
    first, *rest = (_matrix(run, s) for s in run.standings.values())
    names = [QUANTITIES[s.quantity] for s in run.standings.values()][1:]
    folded = [
        tag("details", tag("summary", name), inside)
        for name, inside in zip(names, rest, strict=True)
    ]
    return join((first, *folded))


def _matrix(run: PageRun, s: Standing) -> Html:
    head = ["method", *(str(k) for k in range(1, len(s.labels) + 1))]
    rows = []
    for k, label in enumerate(s.labels, start=1):
        name = join((f"{k}  ", run.name(label)))
        cells = [_matrix_cell(s, label, other) for other in s.labels]
        rows.append([name, *cells])
    better = "more" if s.quantity in LARGER_IS_BETTER else "less"
    caption = f"{QUANTITIES[s.quantity]}: row minus column, best mean first; {better} "
    caption += "is better; ▲ ▼ certain by Holm's correction, ? undecided, = the same "
    caption += "in every seed"
    return table(head, rows, caption, css="matrix")


def _matrix_cell(s: Standing, label: str, other: str) -> Html:
    if label == other:
        return tag("td", "·", class_="self")
    if s.is_equal(label, other):
        return tag("td", "= 0", class_="equal", title="the same in every seed")
    c = s.against(label, other)
    text = f"{WORDS[c.verdict][0]} {_signed(c.found.mean)}"
    told = f"{label} against {other}: p = {c.p:.2g}"
    return tag("td", text, class_=c.verdict, title=told)


def _signed(value: float) -> str:
    return f"{value:+.2g}" if math.isfinite(value) else "—"


def targets(run: PageRun, asked: Mapping[str, float]) -> Html:
    """Rounds, scalars and seconds to a target, with intervals over seeds.

    Args:
        run: of the page.
        asked: targets by quantity; of others a level that half of the methods reach.
    """
    tables, results = [], run.results
    axes = [axis for axis in axes_of(results) if axis != "paper_scalars"]
    for s in run.standings.values():
        target = asked.get(s.quantity, common_target(s))
        if target is None:
            continue
        rows = []
        for label in s.labels:
            found = {a: reach(results, label, s.quantity, target, a) for a in axes}
            order = float(np.mean(found["rounds"]))
            cells = [reach_text(own) for own in found.values()]
            rows.append((order, [run.name(label), *cells]))
        rows.sort(key=lambda row: row[0])
        what = "as asked" if s.quantity in asked else "reached by half of the methods"
        caption = f"{QUANTITIES[s.quantity]} of {target:.4g}, {what}"
        head = ["method", *(AXES[axis] for axis in axes)]
        tables.append(table(head, [cells for _, cells in rows], caption))
    note = (
        f"When a method first is at the target: mean over seeds and its {LEVEL:.0%} "
        "interval, between two evaluations by a straight line. Where some seeds never "
        "are, the median, and how many are. Seconds are there where the spec has time "
        "budgets and speeds (TimedHorizons); sending takes none."
    )
    return join((tag("p", note, class_="note"), *tables))


def _difference(c: Certain, scale: float, colour: str) -> list[str]:
    """A comparison as cells of a row: numbers, a small picture, a word."""
    found = c.found
    verdict = tag("span", WORDS[c.verdict], class_=c.verdict)
    if not math.isfinite(found.high):
        known = f"{found.mean:+.4g}" if found.seeds else "—"
        why = "needs two seeds" if found.seeds else "no seed in common"
        return [known, why, "", "—", verdict]
    low, mean, high = (
        90 + 85 * max(-1.0, min(1.0, v / scale))
        for v in (found.low, found.mean, found.high)
    )
    picture = tag(
        "svg",
        tag("line", x1=90, y1=0, x2=90, y2=16, class_="zero"),
        tag("line", x1=f"{low:.1f}", y1=8, x2=f"{high:.1f}", y2=8, class_="interval"),
        tag("circle", cx=f"{mean:.1f}", cy=8, r=3.5, class_="mean"),
        class_=f"forest {colour}",
        viewBox="0 0 180 16",
        aria_hidden="true",
    )
    interval = f"[{found.low:+.3g}, {found.high:+.3g}]"
    rounding = 1e-9 * (found.high - found.low)
    shown = 0.0 if abs(found.mean) < rounding else found.mean
    return [f"{shown:+.4g}", interval, picture, f"{c.p:.2g}", verdict]


def _scale(found: Iterable[Certain]) -> float:
    """Half the width of the pictures: far outliers end at the border."""
    ends = [max(abs(c.found.low), abs(c.found.high)) for c in found]
    kept = [end for end in ends if math.isfinite(end)]
    return min(max(kept), 3 * float(np.median(kept))) or 1.0 if kept else 1.0
