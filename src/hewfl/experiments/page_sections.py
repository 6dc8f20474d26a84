"""Sections of a report page: final values, comparisons, weights, certificate, spec."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hewfl.core.atomic import read_json
from hewfl.experiments.compare import LEVEL, Comparison, pair
from hewfl.experiments.curves import QUANTITIES, measured
from hewfl.experiments.markup import Html, join, table, tag, warning
from hewfl.experiments.page_run import PageRun, plus_minus, values
from hewfl.experiments.page_tuning import tuning
from hewfl.experiments.spec import write_spec
from hewfl.experiments.styles import is_hew
from hewfl.experiments.summary import COMPARED
from hewfl.experiments.tune import LARGER_IS_BETTER

_WORDS = {"better": "▲ better", "worse": "▼ worse", "undecided": "= undecided"}
_NOTHING = {"mean": None, "std": None}
_SMOOTHNESS = {"estimate": "an estimate", "bound": "a proven bound"}


def contents(runs: Sequence[PageRun]) -> Html:
    """An overview of several runs, with links."""
    compared = [q for q in COMPARED if any(measured(r.results, [q]) for r in runs)]
    rows = []
    for k, run in enumerate(runs):
        link = tag("a", run.results.spec.name, href=f"#run-{k}")
        labels, judged = run.results.labels, run.results.judged
        found = [(q, run.best(q, labels, judged=True)) for q in compared]
        cells = [
            join((run.name(b), ": ", run.final(b, judged(b, q)))) if b else "none"
            for q, b in found
        ]
        rows.append([link, *cells])
    head = ["run", *(f"best {QUANTITIES[q]}" for q in compared)]
    return tag("nav", table(head, rows, "The runs of this page"), class_="contents")


def article(k: int, run: PageRun) -> Html:
    """All about one run."""
    sections = (
        ("Curves", _view(k, "curves")),
        ("Final values", _finals(run)),
        ("Against the best baseline", _comparisons(run)),
        ("Weights", join((_view(k, "weights"), _masses(run)))),
        ("Certificate", _audit(run)),
        ("Tuning", tuning(run)),
        ("Spec and environment", _environment(run)),
    )
    parts = [tag("section", tag("h3", title), inside) for title, inside in sections]
    name = tag("h2", run.results.spec.name)
    return tag("article", name, _lead(run), *parts, id=f"run-{k}")


def _view(k: int, kind: str) -> Html:
    """Where the script draws; hidden until it does."""
    return tag("div", class_="view", data_run=k, data_view=kind, hidden="")


def _lead(run: PageRun) -> Html:
    """One sentence on the set-up; of a job's record only what is sure."""
    spec, known = run.results.spec, run.results.constants[0]
    told = [f"{spec.data.name}: {known['n']} clients", spec.clients.shared_out]
    if not spec.is_record:
        told.append(_horizons(spec.clients.horizons))
        told.append(f"batches of {spec.clients.batch_size}")
    if known["d"] is not None:
        told.append(f"{known['d']} parameters")
    told.append(f"{spec.rounds} rounds")
    told.append(f"{len(spec.seeds)} {'seed' if len(spec.seeds) == 1 else 'seeds'}")
    if not spec.is_record:
        told.append(f"λ = {spec.problem.l2:g}")
    return tag("p", ", ".join(told) + ".", class_="lead")


def _horizons(given: Any) -> str:
    if isinstance(given, Mapping):
        rest = ", ".join(f"{k} = {v}" for k, v in given.items() if k != "kind")
        return f"{given['kind']} ({rest})" if rest else str(given["kind"])
    return f"H = {given}"


def _finals(run: PageRun) -> Html:
    """Mean and deviation of everything measured, after the last round."""
    offered = measured(run.results, QUANTITIES)
    best = {q: run.best(q, run.results.labels) for q in offered}
    rows = []
    for method in run.summary["methods"]:
        label = method["label"]
        texts = {q: run.final(label, q) for q in offered}
        cells = [tag("strong", t) if best[q] == label else t for q, t in texts.items()]
        sent = run.final(label, "scalars")
        given = values(method["parameters"], method["parameters"])
        rows.append([run.name(label), *cells, sent, given])
    head = ["method", *(QUANTITIES[q] for q in offered), "scalars sent", "parameters"]
    last = run.results.spec.rounds
    caption = f"After round {last}: mean ± standard deviation over seeds; best in bold"
    lost = [
        f"{m['label']} diverged, left out of its mean: seeds {seeds}."
        for m in run.summary["methods"]
        if (seeds := ", ".join(map(str, m["diverged"])))
    ]
    return join((*map(warning, lost), table(head, rows, caption)))


def _comparisons(run: PageRun) -> Html:
    """Every method against the best baseline, paired by seed."""
    results, tables = run.results, []
    baselines = [m.label for m in results.spec.methods if not is_hew(m)]
    for quantity in measured(results, COMPARED):
        best = run.best(quantity, baselines, judged=True)
        others = [label for label in results.labels if label != best]
        if best is None or not others:
            continue
        up = quantity in LARGER_IS_BETTER
        found = {label: pair(results, label, best, quantity) for label in others}
        scale = _scale(found.values())
        rows = [
            [run.name(label), *_difference(c, scale, run.styles[label].colour)]
            for label, c in found.items()
        ]
        better = "more" if up else "less"
        caption = f"{QUANTITIES[quantity]} minus that of {best}; {better} is better"
        if results.spec.judge == "averaged":
            caption += "; by the averaged model of methods that keep one"
        head = ["method", "difference", "interval", "", "verdict"]
        tables.append(table(head, rows, caption))
    if not tables:
        return tag("p", "There is no baseline to compare with.")
    note = (
        f"Differences are paired by seed, with {LEVEL:.0%} intervals of Student's t, "
        "each for itself: no correction is made for their number. The baseline is the "
        "one with the best mean over these same seeds. All are compared after the same "
        "number of rounds, in which some send more scalars than others."
    )
    return join((tag("p", note, class_="note"), *tables))


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
    verdict = tag("span", _WORDS[found.verdict], class_=found.verdict)
    rounding = 1e-9 * (found.high - found.low)
    shown = 0.0 if abs(found.mean) < rounding else found.mean
    return [f"{shown:+.4g}", interval, picture, verdict]


def _scale(found: Iterable[Comparison]) -> float:
    """Half the width of the pictures: far outliers end at the border."""
    ends = [max(abs(c.low), abs(c.high)) for c in found]
    kept = [end for end in ends if math.isfinite(end)]
    return min(max(kept), 3 * float(np.median(kept))) or 1.0 if kept else 1.0


def _masses(run: PageRun) -> Html:
    """Final weights by horizon."""
    mass = {m["label"]: m["mass_by_horizon"] for m in run.summary["methods"]}
    found = sorted({h for own in mass.values() for h in own}, key=float)
    rows = [
        [run.name(label), *(plus_minus(own.get(h, _NOTHING)) for h in found)]
        for label, own in mass.items()
    ]
    head = ["method", *(f"H = {h}" for h in found)]
    return table(head, rows, "Weight by horizon in the last round, over seeds")


def _audit(run: PageRun) -> Html:
    """What the checks of the pathwise certificate found, in words."""
    checked = [m for m in run.summary["methods"] if m["audit"] is not None]
    if not checked:
        every = run.results.spec.audit_every
        why = "audit_every is 0" if every == 0 else "no method here has one"
        return tag("p", f"The pathwise certificate was not checked: {why}.")
    L = _SMOOTHNESS[run.results.spec.problem.smoothness]
    return join(_audit_sentence(method, L) for method in checked)


def _audit_sentence(method: Mapping[str, Any], L: str) -> Html:
    label, audit = method["label"], method["audit"]
    checks, broken, slack = audit["checks"], audit["violations"], audit["least_slack"]
    begin = f"The certificate of {label} was checked {checks} times, over all seeds,"
    if broken == 0:
        text = f"{begin} and held every time; the least slack was {slack:.3g}."
        return tag("p", text)
    return warning(
        f"{begin} and failed {broken} times; the least slack was {slack:.3g}. The "
        f"smoothness constant of this run is {L}: the certificate holds only if it is "
        "not too small."
    )


def _environment(run: PageRun) -> Html:
    """The spec as asked for, and where and when it ran."""
    text = write_spec(run.folder.spec)
    spec = tag("details", tag("summary", "Spec (TOML)"), tag("pre", text))
    times = read_json(run.folder.path / "times.json", missing=True) or {}
    rows = [["folder", run.folder.path.name], *([k, str(v)] for k, v in times.items())]
    return join((spec, table(["", ""], rows, "Environment")))
