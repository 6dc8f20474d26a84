"""A certificate as a page: one file, no scripts, nothing from elsewhere."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hewfl.cli.certify_plot import best_rows, certified_gaps, colour_of, rounds_shown
from hewfl.cli.certify_text import (
    UNITS,
    Rows,
    asked,
    best_row,
    change_rows,
    client_note,
    client_rows,
    headline,
    theorem_rows,
    verdict,
)
from hewfl.core.validation import Array
from hewfl.experiments.styles import page_style
from hewfl.report.page_data import Html, join, table, tag
from hewfl.theory.certificates import Certificate
from hewfl.theory.sensitivity import Improvement

_WIDE, _HIGH = 340.0, 240.0
"""Size of the picture in its own units; at 320 pixels its letters keep their size."""
_KINDS = 50
"""Kinds of client listed."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 8.0, 8.0, 34.0
_END, _BASE = _WIDE - _RIGHT, _HIGH - _BOTTOM
_OWN = """
main{max-width:52rem;margin:0 auto}.picture{width:100%;max-width:44rem;height:auto}
.picture text{font-size:10px}.target{stroke:var(--text);stroke-dasharray:3 3}
.key{list-style:none;padding:0;font-size:.9rem}
"""
"""What only this page has, besides the style of reports."""
Scale = Callable[[Array | float], Array]


def write_page(
    certificate: Certificate, tried: Sequence[Improvement], path: Path
) -> None:
    """Save the report with its curves as one file of HTML."""
    title = "What the theory promises"
    head = (
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{title}</title><style>{page_style()}{_OWN}</style>"
    )
    body = tag("main", *_parts(certificate, tried))
    page = f'<html lang="en"><head>{head}</head><body>{body}</body></html>'
    path.write_text(f"<!doctype html>{page}\n", encoding="utf-8")


def _parts(c: Certificate, tried: Sequence[Improvement]) -> list[str]:
    first, second = headline(c, tried)
    left_out = [
        tag("p", f"{label} was not asked: it needs {' and '.join(names)}.")
        for label, names in c.unasked
    ]
    return [
        tag("h1", "What the theory promises for this federation"),
        tag("p", first, class_="answer"),
        *(tag("p", text) for text in (second, asked(c))),
        tag("p", UNITS, class_="note"),
        tag("h2", "Certified gap over rounds"),
        _picture(c),
        tag("h2", "Theorem by theorem"),
        *_theorems(c),
        *left_out,
        tag("h2", "What one change would do"),
        _table(change_rows(c, tried), "Rounds to the target after one change"),
        tag("h2", "Clients by kind"),
        _table(client_rows(c, _KINDS), "Noise and weight by kind of client"),
        tag("p", client_note(c, _KINDS), class_="note"),
    ]


# ------------------ the picture


def _picture(c: Certificate) -> Html:
    """The best constants of each theorem that holds, on two logarithmic axes."""
    drawn = best_rows(c)
    if not drawn:
        return tag("p", "No theorem holds, so there is nothing to draw.")
    cap, goal = float(c.case.system.cap), float(c.target)
    rounds = rounds_shown(c, drawn)
    x = _scale(1.0, float(rounds[-1]), _LEFT, _END)
    y = _scale(goal / 10, cap * 1.3, _BASE, _TOP)
    parts, keys = [*_down(x, float(rounds[-1])), *_across(y, goal / 10, cap * 1.3)], []
    for name, level in (("LR²/2", cap), ("target", goal)):
        at = float(y(level))
        parts.append(_line("target", (_LEFT, at), (_END, at)))
        parts.append(_text(_LEFT + 3, at - 3, name, "start"))
    for p in drawn:
        gaps = certified_gaps(c, p, rounds)
        below = np.flatnonzero(gaps < goal / 10)  # a curve ends where it leaves
        shown = slice(None, below[0] + 1 if below.size else None)
        pairs = zip(x(rounds[shown]), y(gaps[shown]), strict=True)
        points = " ".join(f"{a:.1f},{min(b, _BASE):.1f}" for a, b in pairs)
        css = f"curve {colour_of(p.label)}"
        parts.append(tag("polyline", class_=css, stroke_width=1.8, points=points))
        line = tag("line", x1=0, y1=5, x2=34, y2=5, stroke_width=3)
        look = {"class_": f"swatch {colour_of(p.label)}", "viewBox": "0 0 34 10"}
        swatch = tag("svg", line, aria_hidden="true", **look)
        keys.append(tag("li", swatch, f"{p.label}, {p.variant}: {p.about}"))
    label = "Certified gap over rounds, both on logarithmic scales"
    look = {"class_": "chart picture", "viewBox": f"0 0 {_WIDE:g} {_HIGH:g}"}
    picture = tag("svg", *parts, role="img", aria_label=label, **look)
    return join((picture, tag("ul", *keys, class_="key")))


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    """From values to units of the picture, by their logarithms."""
    width = np.log(high / low)
    return lambda v: np.asarray(start + np.log(v / low) / width * (end - start))


def _down(x: Scale, last: float) -> list[Html]:
    """Lines at powers of ten of the rounds, thinned where there are many."""
    parts, top = [_text((_LEFT + _END) / 2, _HIGH - 6, "rounds")], int(np.log10(last))
    for k in range(0, top + 1, 1 + top // 6):
        at, name = float(x(10.0**k)), f"{10**k:,}" if k < 5 else f"1e{k}"
        line = _line("grid", (at, _TOP), (at, _BASE))
        parts += [line, _text(at, _BASE + 12, name)]
    return parts


def _across(y: Scale, low: float, high: float) -> list[Html]:
    """Lines at powers of ten of the gap, thinned where there are many."""
    parts = list[Html]()
    first, last = int(np.ceil(np.log10(low))), int(np.floor(np.log10(high)))
    for k in range(first, last + 1, 1 + (last - first) // 6):
        at = float(y(10.0**k))
        parts.append(_line("grid", (_LEFT, at), (_END, at)))
        parts.append(_text(_LEFT - 4, at + 3, f"{10.0**k:g}", "end"))
    return parts


def _line(css: str, start: tuple[float, float], end: tuple[float, float]) -> Html:
    (x1, y1), (x2, y2) = ((f"{x:.1f}", f"{y:.1f}") for x, y in (start, end))
    return tag("line", class_=css, x1=x1, y1=y1, x2=x2, y2=y2)


def _text(x: float, y: float, text: str, anchor: str = "middle") -> Html:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


# ------------------ the tables


def _theorems(c: Certificate) -> list[Html]:
    found = []
    for label in dict.fromkeys(p.label for p in c.promises):
        rows = [p for p in c.promises if p.label == label]
        p = best_row(rows)
        which = f" ({p.variant} constants)" if len(rows) > 1 and p.holds else ""
        said = verdict(c, p).removesuffix(".") + which + "."
        about = f"{label}; for {p.iterate}; {p.weights}."
        holds = any(q.holds for q in rows)
        found.append(
            tag(
                "section",
                tag("h3", p.title),
                tag("p", about, class_="note"),
                tag("p", said),
                _table(theorem_rows(c, rows), f"Numbers of {label}") if holds else "",
            )
        )
    return found


def _table(rows: Rows, caption: str) -> Html:
    names, body = rows
    return table(names, body, caption)
