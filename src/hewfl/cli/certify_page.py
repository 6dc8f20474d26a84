"""A certificate as a page: one file, no scripts, nothing from elsewhere."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from hewfl.cli.certify_plot import certified_gaps, rounds_shown
from hewfl.cli.certify_words import (
    UNITS,
    asked,
    best_row,
    change_rows,
    client_note,
    client_rows,
    headline,
    theorem_rows,
    verdict,
)
from hewfl.core.checks import Array
from hewfl.theory.certificates import Certificate, Promise
from hewfl.theory.theorems import THEOREMS
from hewfl.theory.whatif import Improvement

_WIDE, _HIGH = 340.0, 240.0
"""Size of the picture in its own units; at 320 pixels its letters keep their size."""
_KINDS = 50
"""Kinds of client listed."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 8.0, 8.0, 34.0

_STYLE = """
:root{color-scheme:light dark;--back:#fff;--card:#f6f7f9;--ink:#1c1f24;--soft:#5b6270;
--line:#d5d9e0;--c0:#0b62c4;--c1:#b3420e;--c2:#187a3c;--c3:#8a2be2;--c4:#a3720a;
--c5:#c2185b;--c6:#00796b}
@media(prefers-color-scheme:dark){:root{--back:#14161a;--card:#1e2127;--ink:#e8eaee;
--soft:#a3abb8;--line:#3a3f49;--c0:#6aaeff;--c1:#ff9a62;--c2:#5fd38a;--c3:#c79bff;
--c4:#e6bd55;--c5:#ff80b3;--c6:#4dd0c0}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
main{max-width:52rem;margin:0 auto;padding:1rem}
h1{font-size:1.35rem;line-height:1.25;margin:.2rem 0 .6rem}
h2{font-size:1.1rem;margin:1.8rem 0 .4rem}
h3{font-size:1rem;margin:0 0 .2rem}
p{margin:.3rem 0}
.soft{color:var(--soft)}
.answer{border-left:4px solid var(--c0);padding:.2rem 0 .2rem .8rem}
article{background:var(--card);border:1px solid var(--line);border-radius:6px;
padding:.7rem .8rem;margin:.7rem 0}
svg{display:block;width:100%;max-width:40rem;height:auto}
svg text{fill:var(--soft);font:10px system-ui,sans-serif}
.axis{stroke:var(--line)}.mark{stroke:var(--ink);stroke-dasharray:3 3}
.curve{fill:none;stroke-width:1.8}
.key{list-style:none;padding:0;margin:.4rem 0;font-size:.9rem}
.key span{display:inline-block;width:1.4rem;height:.25rem;vertical-align:middle;
margin-right:.5rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .8rem .2rem 0;text-align:right;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}
th{font-weight:600;color:var(--soft);vertical-align:bottom}
@media(max-width:34rem){
.rows,.rows tbody,.rows tr,.rows td{display:block;width:100%}
.rows thead{display:none}
.rows tr{border-bottom:1px solid var(--line);padding:.3rem 0}
.rows td{border:0;display:flex;justify-content:space-between;gap:1rem;padding:.05rem 0;
text-align:right}
.rows td::before{content:attr(data-name);color:var(--soft);text-align:left}}
"""


def write_page(
    certificate: Certificate, tried: Sequence[Improvement], path: Path
) -> None:
    """Save the report with its curves as one file of HTML.

    Args:
        certificate: of one configuration.
        tried: what one change at a time would do.
        path: where to.
    """
    path.write_text(_page(certificate, tried), encoding="utf-8")


def _page(c: Certificate, tried: Sequence[Improvement]) -> str:
    first, second = headline(c, tried)
    left_out = "".join(
        f"<p class=soft>{label} was not asked: it needs {' and '.join(names)}.</p>"
        for label, names in c.unasked
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>What the theory promises</title><style>{_STYLE}</style></head><body>"
        "<main><h1>What the theory promises for this federation</h1>"
        f"<div class=answer><p><strong>{escape(first)}</strong></p>"
        f"<p>{escape(second)}</p></div>"
        f"<p>{escape(asked(c))}</p><p class=soft>{escape(UNITS)}</p>"
        f"<h2>Certified gap over rounds</h2>{_picture(c)}"
        f"<h2>Theorem by theorem</h2>{_theorems(c)}{left_out}"
        f"<h2>What one change would do</h2>{_table(*change_rows(c, tried))}"
        f"<h2>Clients by kind</h2>{_table(*client_rows(c, _KINDS))}"
        f"<p class=soft>{escape(client_note(c, _KINDS))}</p></main></body></html>\n"
    )


# ------------------------------------------------------------------ the picture


def _picture(c: Certificate) -> str:
    """The best constants of each theorem that holds, on two logarithmic axes."""
    drawn = _best_rows(c)
    if not drawn:
        return "<p>No theorem holds, so there is nothing to draw.</p>"
    rounds, cap, goal = (
        rounds_shown(c, drawn),
        float(c.case.system.cap),
        float(c.target),
    )
    low, high = np.log([goal / 10, cap * 1.3])

    def x(t: Float64[Array, "..."]) -> Float64[Array, "..."]:
        share = np.log(t) / np.log(rounds[-1])
        return np.asarray(_LEFT + share * (_WIDE - _LEFT - _RIGHT))

    def y(g: Float64[Array, "..."]) -> Float64[Array, "..."]:
        share = (np.log(np.maximum(g, goal / 10)) - low) / (high - low)
        return np.asarray(_HIGH - _BOTTOM - share * (_HIGH - _BOTTOM - _TOP))

    parts, keys = [_axes(rounds, (goal / 10, cap * 1.3), x, y)], []
    for name, level in (("LR²/2", cap), ("target", goal)):
        at = float(y(np.asarray(level)))
        parts.append(
            f'<line class=mark x1="{_LEFT}" x2="{_WIDE - _RIGHT}" y1="{at:.1f}" '
            f'y2="{at:.1f}"/><text x="{_LEFT + 3}" y="{at - 3:.1f}">{name}</text>'
        )
    for p in drawn:
        colour = f"var(--c{list(THEOREMS).index(p.label) % 7})"
        gaps = certified_gaps(c, p, rounds)
        below = np.flatnonzero(gaps < goal / 10)  # a curve ends where it leaves
        shown = slice(None, below[0] + 1 if below.size else None)
        across, up = x(rounds[shown]), y(gaps[shown])
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, up, strict=True))
        parts.append(
            f'<polyline class=curve style="stroke:{colour}" points="{points}"/>'
        )
        text = f"{p.label}, {p.variant}: {p.about}"
        keys.append(f'<li><span style="background:{colour}"></span>{escape(text)}</li>')
    label = "Certified gap over rounds, both on logarithmic scales"
    return (
        f'<svg viewBox="0 0 {_WIDE:g} {_HIGH:g}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg><ul class=key>{''.join(keys)}</ul>"
    )


def _axes(rounds, ends, x, y) -> str:  # type: ignore[no-untyped-def]  # two maps above
    """Lines at powers of ten, thinned where there are many."""
    parts = []
    top = int(np.log10(rounds[-1]))
    for k in range(0, top + 1, 1 + top // 6):
        at, name = float(x(np.asarray(10.0**k))), f"{10**k:,}" if k < 5 else f"1e{k}"
        parts.append(
            f'<line class=axis x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" '
            f'y2="{_HIGH - _BOTTOM}"/><text x="{at:.1f}" y="{_HIGH - _BOTTOM + 12}" '
            f'text-anchor="middle">{name}</text>'
        )
    first, last = int(np.ceil(np.log10(ends[0]))), int(np.floor(np.log10(ends[1])))
    for k in range(first, last + 1, 1 + (last - first) // 6):
        at = float(y(np.asarray(10.0**k)))
        parts.append(
            f'<line class=axis x1="{_LEFT}" x2="{_WIDE - _RIGHT}" y1="{at:.1f}" '
            f'y2="{at:.1f}"/><text x="{_LEFT - 4}" y="{at + 3:.1f}" '
            f'text-anchor="end">{10.0**k:g}</text>'
        )
    middle = (_LEFT + _WIDE - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{_HIGH - 6}" text-anchor="middle">rounds</text>'
    )
    return "".join(parts)


def _best_rows(c: Certificate) -> list[Promise]:
    held = [p for p in c.promises if p.holds and not p.vacuous]
    best = {}
    for p in sorted(held, key=lambda p: (-float(p.rounds_to_target), -float(p.floor))):
        best[p.label] = p
    return [best[label] for label in THEOREMS if label in best]


# ------------------------------------------------------------------ the tables


def _theorems(c: Certificate) -> str:
    found = []
    for label in dict.fromkeys(p.label for p in c.promises):
        rows = [p for p in c.promises if p.label == label]
        p = best_row(rows)
        which = f" ({p.variant} constants)" if len(rows) > 1 and p.holds else ""
        said = verdict(c, p).removesuffix(".") + which + "."
        table = _table(*theorem_rows(c, rows)) if any(q.holds for q in rows) else ""
        found.append(
            f"<article><h3>{escape(p.title)}</h3><p class=soft>{label}; for "
            f"{escape(p.iterate)}; {escape(p.weights)}.</p><p>{escape(said)}</p>"
            f"{table}</article>"
        )
    return "".join(found)


def _table(names: tuple[str, ...], rows: list[list[str]]) -> str:
    """A table that turns into a list of name and number on narrow screens."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-name="{escape(name)}">{escape(cell)}</td>'
            for name, cell in zip(names, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f"<div class=scroll><table class=rows><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )
