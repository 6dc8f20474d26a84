"""Sections of a report page: final values, weights, certificate, spec."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from hewfl.core.atomic import read_json
from hewfl.core.checks import Array
from hewfl.experiments.curves import QUANTITIES, measured
from hewfl.experiments.markup import Html, join, table, tag, warning
from hewfl.experiments.page_answer import answer
from hewfl.experiments.page_pairs import baseline, matrix, targets
from hewfl.experiments.page_run import PageRun, listed, plus_minus, values
from hewfl.experiments.page_tuning import tuning
from hewfl.experiments.spec import write_spec
from hewfl.experiments.summary import statistics
from hewfl.experiments.tune import LARGER_IS_BETTER

COLUMNS = 8
"""Horizons that have a column of their own; of more, neighbours share one."""
_SMOOTHNESS = {"estimate": "an estimate", "bound": "a proven bound"}


def article(run: PageRun, asked: Mapping[str, float]) -> Html:
    """All about one run."""
    k = run.number
    parts = [
        tag("section", tag("h3", name), show(run, asked), id=f"run-{k}-{key}")
        for key, (name, show) in SECTIONS.items()
    ]
    note = [warning(run.so_far)] if run.so_far else []
    name = tag("h2", run.results.spec.name)
    return tag("article", name, *note, _lead(run), *parts, id=f"run-{k}")


def navigation(runs: Sequence[PageRun]) -> Html:
    """Links that stay in sight: runs, and the sections of the one being read."""
    items = []
    for run in runs:
        own = [
            tag("li", tag("a", name, href=f"#run-{run.number}-{key}"))
            for key, (name, _) in SECTIONS.items()
        ]
        inside = tag("ul", *own)
        if len(runs) > 1:
            name = tag("a", run.results.spec.name, href=f"#run-{run.number}")
            inside = join((name, inside))
        items.append(tag("li", inside, class_="run", data_run=run.number))
    top = [tag("li", tag("a", "In short", href="#short"))] if len(runs) > 1 else []
    return tag("nav", tag("ul", *top, *items), aria_label="Contents")


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
    texts = {
        q: {label: run.final(label, q) for label in run.results.labels} for q in offered
    }
    best = {q: _best(run, q) for q in offered}
    rows = []
    for method in run.summary["methods"]:
        label = method["label"]
        cells = [
            tag("strong", texts[q][label]) if label in best[q] else texts[q][label]
            for q in offered
        ]
        sent = run.final(label, "scalars")
        given = values(method["parameters"], method["parameters"])
        rows.append([run.name(label), *cells, sent, given])
    head = ["method", *(QUANTITIES[q] for q in offered), "scalars sent", "parameters"]
    last = run.results.spec.rounds
    caption = (
        f"After round {last}: mean ± standard deviation over seeds; best in bold, all "
        "of those that are equal to the digits shown"
    )
    lost = [
        f"{m['label']} diverged, left out of its mean: seeds {seeds}."
        for m in run.summary["methods"]
        if (seeds := ", ".join(map(str, m["diverged"])))
    ]
    return join((*map(warning, lost), table(head, rows, caption, css="matrix long")))


def _best(run: PageRun, quantity: str) -> set[str]:
    """Methods whose mean is the best, or reads the same beside its deviation."""
    found = {k: run.results.values(k, quantity)[:, -1] for k in run.results.labels}
    means = {k: float(v.mean()) for k, v in found.items() if np.isfinite(v).all()}
    if not means:
        return set()
    top = (max if quantity in LARGER_IS_BETTER else min)(means, key=means.__getitem__)

    def read(label: str) -> str:
        own = statistics(found[top])
        return plus_minus(own | {"mean": means[label]}).partition(" ±")[0]

    return {label for label in means if read(label) == read(top)}


def _masses(run: PageRun) -> Html:
    """Final weights by horizon, and what they sum to."""
    mass = {m["label"]: m["mass_by_horizon"] for m in run.summary["methods"]}
    every = sorted({h for own in mass.values() for h in own}, key=float)
    size = max(1, -(-len(every) // COLUMNS))
    parts = [every[k : k + size] for k in range(0, len(every), size)]
    sums = {label: statistics(_sum(own, every)) for label, own in mass.items()}
    rows = []
    for label, own in mass.items():
        cells = [plus_minus(statistics(_sum(own, part))) for part in parts]
        rows.append([run.name(label), *cells, plus_minus(sums[label])])
    heads = [f"H = {p[0]}" + (f" to {p[-1]}" if len(p) > 1 else "") for p in parts]
    head = ["method", *heads, "sum"]
    caption = "Weight by horizon in the last round, over seeds"
    means = {k: found["mean"] for k, found in sums.items()}
    odd = [k for k, m in means.items() if m is not None and abs(m - 1) > 1e-6]
    note = [
        tag(
            "p",
            f"The weights of {listed(odd)} do not sum to one. Weights are factors of "
            "the clients' displacements in the step of the server: with a sum of 1 it "
            "is their weighted mean, with a sum of 2 twice that, a longer step; less "
            "than 1 is a shorter one.",
            class_="note",
        )
    ]
    return join((*(note if odd else ()), table(head, rows, caption)))


def _sum(own: Mapping[str, Any], horizons: Sequence[str]) -> Float64[Array, " seeds"]:
    """Weight of several horizons together, seed by seed; NaN where there is none."""
    found = [own[h]["seeds"] for h in horizons if h in own]
    rows = np.array([[np.nan if v is None else v for v in seeds] for seeds in found])
    return rows.sum(axis=0) if found else np.array([np.nan])


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
    return join((spec, table(["field", "value"], rows, "Environment")))


Section = tuple[str, Callable[[PageRun, Mapping[str, float]], Html]]
SECTIONS: dict[str, Section] = {
    "answer": ("Answer", lambda run, _: answer(run)),
    "curves": ("Curves", lambda run, _: _view(run.number, "curves")),
    "finals": ("Final values", lambda run, _: _finals(run)),
    "baseline": ("Against the best baseline", lambda run, _: baseline(run)),
    "matrix": ("All pairs", lambda run, _: matrix(run)),
    "target": ("To a target", targets),
    "weights": (
        "Weights",
        lambda run, _: join((_view(run.number, "weights"), _masses(run))),
    ),
    "certificate": ("Certificate", lambda run, _: _audit(run)),
    "tuning": ("Tuning", lambda run, _: tuning(run)),
    "spec": ("Spec and environment", lambda run, _: _environment(run)),
}
"""Of a run: as the navigation calls them, and what they show."""
