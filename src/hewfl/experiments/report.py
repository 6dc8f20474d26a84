"""Runs as one HTML page: curves, weights, certificates, comparisons, tuning, spec.

The page needs nothing but itself: style, script and data are inside, and a content
policy keeps it from loading or running anything else. Tables are plain HTML and remain
without JavaScript. The same runs give the same bytes.
"""

import base64
import hashlib
import html
import json
import math
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Float64, Int64, UInt16

from hewfl.core.checks import Array, Ints, invalid
from hewfl.errors import DataError
from hewfl.experiments.compare import LEVEL, Comparison, pair
from hewfl.experiments.figures import AXES, QUANTITIES, measured, positions
from hewfl.experiments.files import read_json, write_text
from hewfl.experiments.results import GAPS, Results, read_results
from hewfl.experiments.run import Folder
from hewfl.experiments.spec import ClientsSpec, write_spec
from hewfl.experiments.styles import Style, is_hew, style_sheet, styles_of
from hewfl.experiments.summary import COMPARED, statistics
from hewfl.experiments.tune import LARGER_IS_BETTER, Choice, Trials
from hewfl.version import __version__

POINTS = 400
"""Of a curve; longer ones are thinned."""
WEIGHTS = 400_000
"""Of a run; with more, rounds are left out evenly, and then seeds."""
ABSENT = 65535
"""Code of a client that was not heard in a round."""
_WORDS = {"better": "▲ better", "worse": "▼ worse", "undecided": "= undecided"}
_LEAK = (
    "Tuned on the test part: final test values are better than fresh data would give."
)
_NOTHING = {"mean": None, "std": None}
_SMOOTHNESS = {"estimate": "an estimate", "bound": "a proven bound"}


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """What the page says about one run.

    Attributes:
        folder: where it is.
        results: its records as arrays.
        summary: its summary.json.
        styles: of its methods.
    """

    folder: Folder
    results: Results
    summary: Mapping[str, Any]
    styles: Mapping[str, Style]


def write_report(folders: Sequence[Folder], path: Path) -> None:
    """Write the page of one or several runs.

    Args:
        folders: of finished runs, in the order of the page.
        path: of the file.

    Raises:
        InvalidInputError: no run is given.
        DataError: a run is not finished, or its files are damaged.
    """
    if not folders:
        raise invalid("folders", "at least one run", "none")
    runs = [_read(folder) for folder in folders]
    page = resources.files("hewfl.experiments") / "page"
    kinds = ("html", "css", "js")
    text = {kind: (page / f"report.{kind}").read_text("utf-8") for kind in kinds}
    css, js = style_sheet() + text["css"], text["js"]
    names = [run.results.spec.name for run in runs]
    given = [_data(run) for run in runs]
    data = json.dumps(given, separators=(",", ":"), allow_nan=False)
    filled = string.Template(text["html"]).substitute(
        title=html.escape(f"Report: {', '.join(names)}"),
        policy=_policy(css, js),
        css=css,
        js=js,
        contents=_contents(runs) if len(runs) > 1 else "",
        body="\n".join(_article(k, run) for k, run in enumerate(runs)),
        data=data.replace("<", "\\u003c"),  # no text can close the script element
        version=html.escape(__version__),
    )
    write_text(path, filled)


def _read(folder: Folder) -> _Run:
    spec = folder.tuned
    if spec is None or not folder.is_done:
        raise DataError(f"{folder.path} is not finished: run it again to resume it")
    results = read_results(spec, {seed: folder.of_seed(seed) for seed in spec.seeds})
    summary = read_json(folder.path / "summary.json")
    return _Run(folder, results, summary, styles_of(spec.methods))


def _policy(css: str, js: str) -> str:
    """Run and style by exactly what is here; load nothing."""
    parts = ["default-src 'none'", "img-src data:"]
    for kind, text in (("script-src", js), ("style-src", css)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        parts.append(f"{kind} 'sha256-{digest}'")
    return "; ".join(parts)


# ------------------------------------------------------------------ data of the script


def _data(run: _Run) -> dict[str, Any]:
    """What the script draws, at six significant digits."""
    results = run.results
    kept = _spread_out(0, len(results.rounds) - 1, POINTS)
    offered = measured(results, QUANTITIES)
    return {
        "seeds": list(results.spec.seeds),
        "rounds": results.rounds[kept].tolist(),
        "axes": [{"key": key, "name": name} for key, name in AXES.items()],
        "quantities": [
            {
                "key": key,
                "name": QUANTITIES[key],
                "log": key in GAPS,
                "up": key in LARGER_IS_BETTER,
            }
            for key in offered
        ],
        "methods": [
            {
                "label": label,
                "colour": style.colour,
                "dash": [style.width * part for part in style.dash],
                "width": style.width,
                "scalars": _rounded(positions(results, label, "scalars")[kept]),
                "paper_scalars": _rounded(
                    positions(results, label, "paper_scalars")[kept]
                ),
                "curves": {
                    key: [_rounded(row[kept]) for row in results.curve(label, key)]
                    for key in offered
                },
            }
            for label, style in run.styles.items()
        ],
        "weights": _weights(results),
    }


def _weights(results: Results) -> dict[str, Any]:
    """Weights of each method, seed, round and client in two bytes each."""
    n, lanes, last = results.constants[0]["n"], len(results.labels), results.spec.rounds
    few = min(last, 30)  # rounds worth having before a second seed is
    seeds = max(1, min(len(results.records), WEIGHTS // (lanes * n * few)))
    rounds = _spread_out(1, last, max(1, WEIGHTS // (lanes * n * seeds)))
    horizons = np.zeros((seeds, len(rounds), n), dtype=np.uint16)
    weights = np.full((lanes, seeds, len(rounds), n), np.nan)
    for s, by_lane in enumerate(results.records[:seeds]):
        for lane, records in enumerate(by_lane):
            for k, t in enumerate(rounds):
                heard = list(records[t].clients)
                weights[lane, s, k, heard] = records[t].weights
                horizons[s, k, heard] = np.minimum(records[t].horizons, ABSENT)
    weights[~np.isfinite(weights)] = np.nan
    low = np.fmin.reduce(weights, axis=(1, 2, 3), initial=0.0)
    high = np.fmax.reduce(weights, axis=(1, 2, 3), initial=0.0)
    width = np.where(high > low, high - low, 1.0)
    scaled = (weights - low[:, None, None, None]) / width[:, None, None, None]
    absent = np.isnan(weights)
    codes = np.where(absent, ABSENT, np.rint(np.where(absent, 0.0, scaled) * 65534))
    return {
        "n": n,
        "rounds": rounds.tolist(),
        "seeds": list(results.spec.seeds[:seeds]),
        "low": _rounded(low),
        "width": _rounded(width),
        "codes": [[_packed(part) for part in rows] for rows in codes.astype(np.uint16)],
        "horizons": [_packed(part) for part in horizons],
    }


def _packed(values: UInt16[Ints, "rounds n"]) -> str:
    """Base64 of little-endian codes."""
    return base64.b64encode(values.astype("<u2").tobytes()).decode()


def _spread_out(first: int, last: int, most: int) -> Int64[Ints, " kept"]:
    """Whole numbers from first to last, at most so many, evenly spaced."""
    count = min(most, last - first + 1)
    if count == 1:
        return np.array([last])
    return np.unique(np.rint(np.linspace(first, last, count)).astype(np.int64))


def _rounded(values: Float64[Array, " k"]) -> list[float | int | None]:
    return [_number(f"{v:.6g}") if math.isfinite(v) else None for v in values]


def _number(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


# ------------------------------------------------------------------ safe HTML


class _Html(str):
    """Text that is HTML already; all other text is escaped."""

    __slots__ = ()


def _tag(name: str, *inside: str, **attributes: str | int | float) -> _Html:
    """An element. Attributes in Python's spelling: `class_` is class."""
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
    )
    return _Html(f"<{name}{named}>{_join(inside)}</{name}>")


def _join(parts: Iterable[str]) -> _Html:
    return _Html("".join(p if isinstance(p, _Html) else html.escape(p) for p in parts))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> _Html:
    top = _tag("tr", *(_tag("th", name, scope="col") for name in head))
    body = (_tag("tr", *(_tag("td", cell) for cell in row)) for row in rows)
    parts = (_tag("caption", caption), _tag("thead", top), _tag("tbody", *body))
    return _tag("div", _tag("table", *parts), class_="scroll")


def _name(run: _Run, label: str) -> _Html:
    """A method with its line before it."""
    style = run.styles[label]
    dash = " ".join(f"{style.width * part:g}" for part in style.dash) or "none"
    look = {"stroke_width": f"{style.width}", "stroke_dasharray": dash}
    line = _tag("line", x1=0, y1=5, x2=34, y2=5, **look)
    css = f"swatch {style.colour}"
    swatch = _tag("svg", line, class_=css, viewBox="0 0 34 10", aria_hidden="true")
    return _join((swatch, label))


# ------------------------------------------------------------------ sections


def _contents(runs: Sequence[_Run]) -> _Html:
    """An overview of several runs, with links."""
    compared = [q for q in COMPARED if any(measured(r.results, [q]) for r in runs)]
    rows = []
    for k, run in enumerate(runs):
        link = _tag("a", run.results.spec.name, href=f"#run-{k}")
        found = [(q, _best(run, q, run.results.labels)) for q in compared]
        cells = [
            _join((_name(run, b), ": ", _final(run, b, q))) if b else "none"
            for q, b in found
        ]
        rows.append([link, *cells])
    head = ["run", *(f"best {QUANTITIES[q]}" for q in compared)]
    return _tag("nav", _table(head, rows, "The runs of this page"), class_="contents")


def _article(k: int, run: _Run) -> _Html:
    """All about one run."""
    sections = (
        ("Curves", _view(k, "curves")),
        ("Final values", _finals(run)),
        ("Against the best baseline", _comparisons(run)),
        ("Weights", _join((_view(k, "weights"), _masses(run)))),
        ("Certificate", _audit(run)),
        ("Tuning", _tuning(run)),
        ("Spec and environment", _circumstances(run)),
    )
    parts = [_tag("section", _tag("h3", title), inside) for title, inside in sections]
    name = _tag("h2", run.results.spec.name)
    return _tag("article", name, _lead(run), *parts, id=f"run-{k}")


def _view(k: int, kind: str) -> _Html:
    """Where the script draws; hidden until it does."""
    return _tag("div", class_="view", data_run=k, data_view=kind, hidden="")


def _lead(run: _Run) -> _Html:
    spec, known = run.results.spec, run.results.constants[0]
    text = (
        f"{spec.data.name}: {known['n']} clients, {_partition(spec.clients)}, "
        f"{_horizons(spec.clients.horizons)}, batches of {spec.clients.batch_size}, "
        f"{known['d']} parameters, {spec.rounds} rounds, {len(spec.seeds)} "
        f"{'seed' if len(spec.seeds) == 1 else 'seeds'}, λ = {spec.problem.l2:g}."
    )
    return _tag("p", text, class_="lead")


def _partition(clients: ClientsSpec) -> str:
    if clients.partition == "dirichlet":
        return f"Dirichlet partition with α = {clients.alpha:g}"
    words = {
        "iid": "shuffled even shards",
        "pool": "one pool for all",
        "nodes": "data as the nodes hold them",
    }
    return words[clients.partition]


def _horizons(given: Any) -> str:
    if isinstance(given, Mapping):
        rest = ", ".join(f"{k} = {v}" for k, v in given.items() if k != "kind")
        return f"{given['kind']} ({rest})" if rest else str(given["kind"])
    return f"H = {given}"


def _finals(run: _Run) -> _Html:
    """Mean and deviation of everything measured, after the last round."""
    offered = measured(run.results, QUANTITIES)
    best = {q: _best(run, q, run.results.labels) for q in offered}
    rows = []
    for method in run.summary["methods"]:
        label = method["label"]
        texts = {q: _final(run, label, q) for q in offered}
        cells = [_tag("strong", t) if best[q] == label else t for q, t in texts.items()]
        sent = _final(run, label, "scalars")
        rows.append([_name(run, label), *cells, sent, _parameters(method)])
    head = ["method", *(QUANTITIES[q] for q in offered), "scalars sent", "parameters"]
    last = run.results.spec.rounds
    caption = f"After round {last}: mean ± standard deviation over seeds; best in bold"
    lost = [
        f"{m['label']} diverged, left out of its mean: seeds {seeds}."
        for m in run.summary["methods"]
        if (seeds := ", ".join(map(str, m["diverged"])))
    ]
    return _join((*map(_warning, lost), _table(head, rows, caption)))


def _comparisons(run: _Run) -> _Html:
    """Every method against the best baseline, paired by seed."""
    results, tables = run.results, []
    baselines = [m.label for m in results.spec.methods if not is_hew(m)]
    for quantity in measured(results, COMPARED):
        best = _best(run, quantity, baselines)
        others = [label for label in results.labels if label != best]
        if best is None or not others:
            continue
        up = quantity in LARGER_IS_BETTER
        found = {label: pair(results, label, best, quantity) for label in others}
        scale = _scale(found.values())
        rows = [
            [_name(run, label), *_difference(c, scale, run.styles[label].colour)]
            for label, c in found.items()
        ]
        better = "more" if up else "less"
        caption = f"{QUANTITIES[quantity]} minus that of {best}; {better} is better"
        head = ["method", "difference", "interval", "", "verdict"]
        tables.append(_table(head, rows, caption))
    if not tables:
        return _tag("p", "There is no baseline to compare with.")
    note = (
        f"Differences are paired by seed, with {LEVEL:.0%} intervals of Student's t, "
        "each for itself: no correction is made for their number. The baseline is the "
        "one with the best mean over these same seeds. All are compared after the same "
        "number of rounds, in which some send more scalars than others."
    )
    return _join((_tag("p", note, class_="note"), *tables))


def _difference(found: Comparison, scale: float, colour: str) -> list[str]:
    """A comparison as cells of a row: numbers, a small picture, a word."""
    if not math.isfinite(found.high):
        known = f"{found.mean:+.4g}" if found.seeds else "—"
        why = "needs two seeds" if found.seeds else "no seed in common"
        return [known, why, "", _WORDS[found.verdict]]
    low, mean, high = (
        90 + 85 * max(-1.0, min(1.0, v / scale))
        for v in (found.low, found.mean, found.high)
    )
    picture = _tag(
        "svg",
        _tag("line", x1=90, y1=0, x2=90, y2=16, class_="zero"),
        _tag("line", x1=f"{low:.1f}", y1=8, x2=f"{high:.1f}", y2=8, class_="interval"),
        _tag("circle", cx=f"{mean:.1f}", cy=8, r=3.5, class_="mean"),
        class_=f"forest {colour}",
        viewBox="0 0 180 16",
        aria_hidden="true",
    )
    interval = f"[{found.low:+.3g}, {found.high:+.3g}]"
    verdict = _tag("span", _WORDS[found.verdict], class_=found.verdict)
    rounding = 1e-9 * (found.high - found.low)
    shown = 0.0 if abs(found.mean) < rounding else found.mean
    return [f"{shown:+.4g}", interval, picture, verdict]


def _scale(found: Iterable[Comparison]) -> float:
    """Half the width of the pictures: far outliers end at the border."""
    ends = [max(abs(c.low), abs(c.high)) for c in found]
    kept = [end for end in ends if math.isfinite(end)]
    return min(max(kept), 3 * float(np.median(kept))) or 1.0 if kept else 1.0


def _masses(run: _Run) -> _Html:
    """Final weights by horizon."""
    mass = {m["label"]: m["mass_by_horizon"] for m in run.summary["methods"]}
    found = sorted({h for own in mass.values() for h in own}, key=float)
    rows = [
        [_name(run, label), *(_plus_minus(own.get(h, _NOTHING)) for h in found)]
        for label, own in mass.items()
    ]
    head = ["method", *(f"H = {h}" for h in found)]
    return _table(head, rows, "Weight by horizon in the last round, over seeds")


def _audit(run: _Run) -> _Html:
    """What the checks of the pathwise certificate found, in words."""
    checked = [m for m in run.summary["methods"] if m["audit"] is not None]
    if not checked:
        every = run.results.spec.audit_every
        why = "audit_every is 0" if every == 0 else "no method here has one"
        return _tag("p", f"The pathwise certificate was not checked: {why}.")
    L = _SMOOTHNESS[run.results.spec.problem.smoothness]
    return _join(_audit_sentence(method, L) for method in checked)


def _audit_sentence(method: Mapping[str, Any], L: str) -> _Html:
    label, audit = method["label"], method["audit"]
    checks, broken, slack = audit["checks"], audit["violations"], audit["least_slack"]
    begin = f"The certificate of {label} was checked {checks} times, over all seeds,"
    if broken == 0:
        text = f"{begin} and held every time; the least slack was {slack:.3g}."
        return _tag("p", text)
    return _warning(
        f"{begin} and failed {broken} times; the least slack was {slack:.3g}. The "
        f"smoothness constant of this run is {L}: the certificate holds only if it is "
        "not too small."
    )


def _tuning(run: _Run) -> _Html:
    """What was chosen from which grid, with a warning at its edge."""
    choices = run.folder.choices
    if not choices:
        return _tag("p", "Nothing was tuned: every hyper-parameter was given.")
    tune = run.folder.spec.tune
    grids = {m.label: m.grid for m in run.folder.spec.methods}
    rows = []
    for choice in choices:
        name, grid = _name(run, choice.label), grids[choice.label]
        lists = "; ".join(f"{k}: {', '.join(map(str, v))}" for k, v in grid.items())
        rows.append([name, _values(choice.parameters, grid), lists])
    caption = f"Chosen by the mean {tune.by} after {tune.rounds} rounds"
    if tune.tie:
        caption += f"; between means within {tune.tie:g}, by the mean {tune.tie_by}"
    return _join(
        (
            _edges(choices),
            _warning(_LEAK) if tune.by.startswith("test_") else "",
            _table(["method", "chosen", "grid"], rows, caption),
            _trials(run, {c.label: c.screen for c in choices}, first=True),
            _trials(run, {c.label: c.table for c in choices}, first=False),
        )
    )


def _trials(run: _Run, trials: Mapping[str, Trials], *, first: bool) -> _Html:
    """Every trial of a stage, folded; nothing where there are none."""
    tune = run.folder.spec.tune
    grids = {m.label: m.grid for m in run.folder.spec.methods}
    seeds = tune.screen_seeds if first else tune.seeds
    rounds = tune.screen_rounds if first else tune.rounds
    rows = []
    for label, own in trials.items():
        for trial in own:
            cells = [*map(_score, trial["scores"])]
            if tune.tie:
                cells += [*map(_score, trial["tie_scores"])] or ["—"] * len(seeds)
            values = _values(trial["parameters"], grids[label])
            rows.append([_name(run, label), values, *cells])
    if not rows:
        return _Html("")
    asked = (tune.by, tune.tie_by) if tune.tie else (tune.by,)
    head = ["method", "parameters"]
    head += [f"{quantity}, seed {seed}" for quantity in asked for seed in seeds]
    summary = f"{len(rows)} {'first trials' if first else 'trials'}"
    table = _table(head, rows, f"After {rounds} rounds")
    return _tag("details", _tag("summary", summary), table)


def _score(score: float | None) -> str:
    return "diverged" if score is None else f"{score:.5g}"


def _edges(choices: Sequence[Choice]) -> _Html:
    """A warning where a wider grid might have done better."""
    found = [
        f"{choice.label} ({', '.join(choice.at_edge)})"
        for choice in choices
        if choice.at_edge
    ]
    if not found:
        return _tag("p", "Every choice is inside its grid.")
    text = "At the edge of the grid, where a wider one may do better: "
    return _warning(f"{text}{'; '.join(found)}.")


def _warning(text: str) -> _Html:
    return _tag("p", text, class_="warn")


def _circumstances(run: _Run) -> _Html:
    """The spec as asked for, and where and when it ran."""
    text = write_spec(run.folder.spec)
    spec = _tag("details", _tag("summary", "Spec (TOML)"), _tag("pre", text))
    times = read_json(run.folder.path / "times.json", missing=True) or {}
    rows = [["folder", run.folder.path.name], *([k, str(v)] for k, v in times.items())]
    return _join((spec, _table(["", ""], rows, "Environment")))


# ------------------------------------------------------------------ numbers


def _best(run: _Run, quantity: str, labels: Sequence[str]) -> str | None:
    """The method with the best mean, of those that finished every seed."""
    if not measured(run.results, [quantity]):
        return None
    sign = -1 if quantity in LARGER_IS_BETTER else 1
    final = {label: run.results.final(label, quantity).mean() for label in labels}
    kept = {label: sign * mean for label, mean in final.items() if math.isfinite(mean)}
    return min(kept, key=kept.__getitem__) if kept else None


def _final(run: _Run, label: str, quantity: str) -> str:
    return _plus_minus(statistics(run.results.final(label, quantity)))


def _plus_minus(value: Mapping[str, Any]) -> str:
    """Mean ± deviation, to two digits of the deviation."""
    mean, std = value["mean"], value["std"]
    if mean is None:
        return "—"
    if not std:
        return f"{mean:,.0f}" if float(mean).is_integer() else f"{mean:.5g}"
    places = max(0, 1 - math.floor(math.log10(std)))
    if places > 7 or abs(mean) >= 1e6:
        return f"{mean:.3e} ± {std:.1e}"
    return f"{mean:.{places}f} ± {std:.{places}f}"


def _parameters(method: Mapping[str, Any]) -> str:
    return _values(method["parameters"], method["parameters"])


def _values(given: Mapping[str, Any], names: Iterable[str]) -> str:
    return ", ".join(f"{name} = {given[name]}" for name in names)
