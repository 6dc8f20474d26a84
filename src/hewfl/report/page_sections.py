"""The top of a report page: which method wins on what, how sure it is, at what cost."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.atomic import read_json
from hewfl.core.rounding import format_lower
from hewfl.core.validation import Array
from hewfl.errors import DataError
from hewfl.experiments.candidates import Choice, Trials
from hewfl.experiments.plots import QUANTITIES, is_hew
from hewfl.experiments.results import (
    AXES,
    LARGER_IS_BETTER,
    available_axes,
    mean_axis_values,
    measured,
)
from hewfl.experiments.spec import write_spec
from hewfl.experiments.statistics import (
    LEVEL,
    Comparison,
    Ranking,
    common_target,
    detectable_text,
    friedman_p,
    interval_text,
    mean_ranks,
    reason_text,
    rounds_to_target,
    seeds_text,
    short_number,
    target_text,
)
from hewfl.experiments.summary import statistics
from hewfl.report.page_data import (
    Html,
    PageRun,
    join,
    listed,
    plus_minus,
    table,
    tag,
    values,
    warning,
)


def answer(run: PageRun) -> Html:
    """One sentence and one small table on one run."""
    sentences = [_sentence(s) for s in run.rankings.values()]
    head = ["quantity", "best", "certainty", "cost"]
    rows = [
        [
            QUANTITIES[s.quantity],
            join(_named(run, s)),
            _certainty(s),
            join(_costs(run, s)),
        ]
        for s in run.rankings.values()
        if s.best
    ]
    last = run.results.spec.rounds
    caption = (
        f"After round {last}: the best mean, against every other method (paired by "
        f"seed, Holm's correction over all pairs, {LEVEL:.0%})"
    )
    if run.results.spec.evaluate_model == "averaged":
        caption += "; by the averaged model of methods that keep one"
    text = "; ".join(sentences)
    return tag(
        "div",
        tag("p", f"{text[:1].upper()}{text[1:]}.", class_="answer"),
        table(head, rows, caption) if rows else "",
        class_="top",
    )


def overview(runs: Sequence[PageRun]) -> Html:
    """One sentence, one table of winners and one ranking over several runs."""
    shared = [q for q in QUANTITIES if all(q in run.rankings for run in runs)]
    if not shared:
        return Html("")
    text = "; ".join(_over_panels(runs, q) for q in shared)
    head = ["panel", *(f"best {QUANTITIES[q]}" for q in shared)]
    rows = []
    for run in runs:
        cells = [
            join((*_named(run, s), tag("small", _short_certainty(s)), _sent(run, s)))
            for s in (run.rankings[q] for q in shared)
        ]
        link = tag("a", run.results.spec.name, href=f"#run-{run.number}")
        rows.append([link, *cells])
    caption = "The panels of this page; certain: Holm-corrected over all pairs of one"
    return tag(
        "section",
        tag("h2", "In short", id="short"),
        tag("p", f"Of {len(runs)} panels: {text}.", class_="answer"),
        table(head, rows, caption),
        *(_ranking(runs, q) for q in shared),
    )


def _over_panels(runs: Sequence[PageRun], quantity: str) -> str:
    """Who is best in how many panels, in words."""
    rankings = [run.rankings[quantity] for run in runs]
    best = Counter(s.best[0] for s in rankings if s.best)
    sure = Counter(s.best[0] for s in rankings if s.best and _is_certain(s))
    names = [f"{k} in {n} (certain in {sure[k]})" for k, n in best.most_common()]
    return f"best {QUANTITIES[quantity]}: {listed(names)}"


def _ranking(runs: Sequence[PageRun], quantity: str) -> Html:
    """Methods by their mean rank over the panels."""
    rankings = [run.rankings[quantity] for run in runs]
    rows = mean_ranks(rankings)
    if not rows:
        return Html("")
    p = friedman_p(rankings)
    test = "" if p is None else f"; Friedman's test that all are alike: p = {p:.2g}"
    caption = f"Ranking by {QUANTITIES[quantity]} over panels, 1 is best{test}"
    head = ["method", "mean rank", "panels", "best in", "certain wins", "losses"]
    looks = {label: run for run in runs for label in run.styles}
    cells = [
        [
            looks[row.label].name(row.label),
            f"{row.rank:.2f}",
            *map(str, (row.panels, row.best, row.wins, row.losses)),
        ]
        for row in rows
    ]
    return table(head, cells, caption)


def _is_certain(s: Ranking) -> bool:
    """Whether the best is certainly ahead of all others."""
    return len(s.by_verdict(s.best[0])["better"]) == len(s.labels) - len(s.best)


def _sentence(s: Ranking) -> str:
    name = QUANTITIES[s.quantity]
    if not s.best:
        return f"on {name} every method diverged in a seed"
    others = len(s.labels) - len(s.best)
    first = listed(s.best) + (", equal in every seed," if len(s.best) > 1 else "")
    if others == 0:
        return f"on {name} there is nothing to compare {first} with"
    many = len(s.best) > 1
    if _is_certain(s):
        wins = "win" if many else "wins"
        return f"on {name} {first} {wins}, certainly against all {others} others"
    doubt = s.by_verdict(s.best[0])["undecided"]
    if len(doubt) == others:
        has = "have" if many else "has"
        return f"on {name} {first} {has} the best mean, but nothing is certain"
    leads = "lead" if many else "leads"
    return f"on {name} {first} {leads}, not distinguished from {listed(doubt)}"


def _named(run: PageRun, s: Ranking) -> list[str]:
    """The best with their lines and the mean of the first."""
    if not s.best:
        return ["none"]
    names = [tag("span", run.name(label), class_="method") for label in s.best]
    quantity = run.results.evaluated_quantity(s.best[0], s.quantity)
    return [*names, tag("small", run.final(s.best[0], quantity))]


def _short_certainty(s: Ranking) -> str:
    if not s.best:
        return ""
    ahead = len(s.by_verdict(s.best[0])["better"])
    others = len(s.labels) - len(s.best)
    return "certain" if ahead == others else f"certain against {ahead} of {others}"


def _certainty(s: Ranking) -> str:
    """How sure the first place is, with the largest corrected p behind it."""
    others = s.by_verdict(s.best[0])
    count = len(s.labels) - len(s.best)
    if len(next(iter(s.finals.values()))) < 2:
        return "one seed: nothing can be certain"
    if not others["undecided"]:
        levels = [s.compare(s.best[0], k).corrected_p for k in others["better"]]
        worst = _rounded_up(max(levels, default=0.0))
        return f"certain against all {count} others, p ≤ {worst}"
    doubt = listed(others["undecided"], 4)
    return (
        f"certain against {len(others['better'])} of {count}; not distinguished from "
        f"{doubt}: {_shown(s, others['undecided'])}"
    )


def _rounded_up(p: float) -> str:
    """A p to one digit, never below it, and not below 0.0001."""
    p = max(p, 1e-4)
    unit = 10.0 ** math.floor(math.log10(p))
    return f"{math.ceil(p / unit - 1e-9) * unit:.1g}"


def _shown(s: Ranking, undecided: Sequence[str]) -> str:
    """The least of the differences that would have been shown against all of these."""
    pairs = [s.compare(s.best[0], k) for k in undecided]
    return detectable_text(max(pairs, key=lambda c: c.detectable))


def _costs(run: PageRun, s: Ranking) -> list[Html]:
    """What the best sent in all, and what it needed to the common target."""
    results, label = run.results, s.best[0]
    lines = [_sent(run, s)]
    target = common_target(s)
    if target is not None:
        for axis in available_axes(results):
            if axis in ("rounds", "seconds"):
                when = target_text(
                    rounds_to_target(results, label, s.quantity, target, axis)
                )
                lines.append(
                    tag("small", f"{AXES[axis]} to {target:.4g}: {when}"),
                )
    return lines


def _sent(run: PageRun, s: Ranking) -> Html:
    """What the best sent in all, beside the least that a method sent."""
    if not s.best:
        return Html("")
    sent = {k: mean_axis_values(run.results, k, "scalars")[-1] for k in s.labels}
    least = min((v for v in sent.values() if v > 0), default=np.nan)
    ratio = sent[s.best[0]] / least
    more = f", {ratio:.2g} times the least" if ratio > 1.05 else ""
    return tag("small", f"{short_number(float(sent[s.best[0]]))} scalars{more}")


WORDS = {"better": "▲ better", "worse": "▼ worse", "undecided": "? undecided"}
"""A verdict in a table. Undecided is a question: the data do not say, in no way that
the two are equal."""
_RULES = (
    "Methods are compared seed by seed: losses by their ratios, which are tested as "
    "logarithms, accuracies (and losses of which one is not positive) by differences. "
    f"Intervals are {LEVEL:.0%} of Student's t, each for itself; verdicts rest on p "
    "corrected by Holm over all pairs of methods of a quantity. ▲ better and ▼ worse "
    "are certain in that sense, or by divergence: a method that diverged, or ended "
    "above its own start, is behind one that did not. ? undecided says that these "
    "seeds do not tell, not that the two are equal; beside it stands what they would "
    "have shown, in four cases of five. The exact p is that of all sign flips; with n "
    "seeds it is at least 2/2ⁿ, so that few seeds cannot decide by it. Methods that "
    "know the truth are limits: they have no rank and no verdict. All are compared "
    "after the same number of rounds, in which some send more scalars than others."
)


def baseline(run: PageRun) -> Html:
    """Every method against the best baseline, quantity by quantity."""
    rivals = {m.label for m in run.results.spec.methods if not is_hew(m)}
    tables = []
    for s in run.rankings.values():
        best = next((k for k in s.labels if k in rivals), None)
        others = [k for k in run.results.labels if k != best and k in s.finals]
        if best is None or not others or not math.isfinite(s.mean(best)):
            continue
        comparisons = {label: s.compare(label, best) for label in others}
        scale = _scale(comparisons.values())
        rows = [
            [run.name(label), "the same in every seed", "", "", "—", "= equal"]
            if s.is_equal(label, best)
            else [run.name(label), *_difference(c, scale, run.styles[label].colour)]
            for label, c in comparisons.items()
        ]
        caption = f"{_compared(s)} that of {best}; {_better(s)} is better"
        if run.results.spec.evaluate_model == "averaged":
            caption += "; by the averaged model of methods that keep one"
        what = "ratio" if _is_ratio(s) else "difference"
        head = ["method", f"{what}, interval", "seeds", "picture", "p", "verdict"]
        tables.append(table(head, rows, caption))
    if not tables:
        return tag("p", "There is no baseline to compare with.")
    return join((tag("p", _RULES, class_="note"), *tables))


def matrix(run: PageRun) -> Html:
    """All pairs: the row less the column."""
    if len(run.results.labels) < 2:
        return tag("p", "There is one method only.")
    first, *rest = (_matrix(run, s) for s in run.rankings.values())
    names = [QUANTITIES[s.quantity] for s in run.rankings.values()][1:]
    folded = [
        tag("details", tag("summary", name), inside)
        for name, inside in zip(names, rest, strict=True)
    ]
    return join((first, *folded))


def _matrix(run: PageRun, s: Ranking) -> Html:
    head = ["method", *(str(k) for k in range(1, len(s.labels) + 1))]
    rows = []
    for k, label in enumerate(s.labels, start=1):
        name = join((f"{k}  ", run.name(label)))
        cells = [_matrix_cell(s, label, other) for other in s.labels]
        rows.append([name, *cells])
    how = "divided by" if _is_ratio(s) else "minus"
    caption = f"{QUANTITIES[s.quantity]}: row {how} column, best mean first; "
    caption += f"{_better(s)} is better; ▲ ▼ certain by Holm's correction, ? "
    caption += "undecided, = the same in every seed"
    return table(head, rows, caption, css="matrix")


def _is_ratio(s: Ranking) -> bool:
    return any(c.is_ratio for c in s.pairs.values())


def _better(s: Ranking) -> str:
    return "more" if s.quantity in LARGER_IS_BETTER else "less"


def _compared(s: Ranking) -> str:
    return f"{QUANTITIES[s.quantity]} {'divided by' if _is_ratio(s) else 'minus'}"


def _matrix_cell(s: Ranking, label: str, other: str) -> Html:
    if label == other:
        return tag("td", "·", class_="self")
    if s.is_equal(label, other):
        return tag("td", "=", class_="equal", title="the same in every seed")
    c = s.compare(label, other)
    text = f"{WORDS[c.verdict][0]} {_short(c)}"
    title = f"{label} against {other}: {reason_text(c)}"
    return tag("td", text, class_=c.verdict, title=title)


def _short(c: Comparison) -> str:
    if not math.isfinite(c.mean):
        return "—"
    return f"{c.mean:.3g}" if c.is_ratio else f"{c.mean:+.2g}"


def targets(run: PageRun, asked: Mapping[str, float]) -> Html:
    """Rounds, scalars and seconds to a target, with intervals over seeds.

    Args:
        run: of the page.
        asked: targets by quantity; of others a level that half of the methods reach.
    """
    tables, results = [], run.results
    axes = [axis for axis in available_axes(results) if axis != "paper_scalars"]
    for s in run.rankings.values():
        target = asked.get(s.quantity, common_target(s))
        if target is None:
            continue
        rows = []
        for label in s.labels:
            costs = {
                a: rounds_to_target(results, label, s.quantity, target, a) for a in axes
            }
            order = float(np.mean(costs["rounds"]))
            cells = [target_text(each) for each in costs.values()]
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
        "budgets and speeds (TimedSteps); sending takes none."
    )
    return join((tag("p", note, class_="note"), *tables))


def _difference(c: Comparison, scale: float, colour: str) -> list[str]:
    """A comparison as cells of a row: numbers, seeds, a small picture, p, a word."""
    verdict: str = tag("span", WORDS[c.verdict], class_=c.verdict)
    if c.verdict == "undecided":
        verdict = join((verdict, " ", tag("small", detectable_text(c))))
    if c.reason:
        verdict = join((verdict, " ", tag("small", c.reason)))
    p = "—" if c.reason or c.seeds < 2 else f"{c.corrected_p:.2g}"
    drawn = _picture(c, scale, colour) if math.isfinite(c.half) else ""
    return [interval_text(c), seeds_text(c), drawn, p, verdict]


def _picture(c: Comparison, scale: float, colour: str) -> Html:
    """The interval, on a logarithmic axis if it is of ratios."""
    low, mean, high = (
        90 + 85 * max(-1.0, min(1.0, v / scale)) for v in _on_axis(c, scale)
    )
    return tag(
        "svg",
        tag("line", x1=90, y1=0, x2=90, y2=16, class_="zero"),
        tag("line", x1=f"{low:.1f}", y1=8, x2=f"{high:.1f}", y2=8, class_="interval"),
        tag("circle", cx=f"{mean:.1f}", cy=8, r=3.5, class_="mean"),
        class_=f"forest {colour}",
        viewBox="0 0 180 16",
        aria_hidden="true",
    )


def _on_axis(c: Comparison, far: float) -> list[float]:
    """Ends and middle, as logarithms if they are ratios; what is not finite is far."""
    if not c.is_ratio:
        return [c.low, c.mean, c.high]
    return [
        -far if v == 0 else far if math.isinf(v) else math.log(v)
        for v in (c.low, c.mean, c.high)
    ]


def _scale(comparisons: Iterable[Comparison]) -> float:
    """Half the width of the pictures: far outliers end at the border."""
    known = [c for c in comparisons if math.isfinite(c.half)]
    finite = [max(map(abs, _on_axis(c, math.inf))) for c in known]
    finite = [end for end in finite if math.isfinite(end)]
    return min(max(finite), 3 * float(np.median(finite))) or 1.0 if finite else 1.0


_LEAK = (
    "Tuned on the test part: final test values are better than fresh data would give."
)


def tuning(run: PageRun) -> Html:
    """What was chosen from which grid, with a warning at its edge."""
    choices = run.folder.choices
    if not choices:
        return tag("p", "Nothing was tuned: every hyper-parameter was given.")
    tune = run.folder.spec.tune
    grids = {m.label: m.grid for m in run.folder.spec.methods}
    rows = []
    for choice in choices:
        name, grid = run.name(choice.label), grids[choice.label]
        lists = "; ".join(f"{k}: {', '.join(map(str, v))}" for k, v in grid.items())
        rows.append([name, values(choice.parameters, grid), lists])
    caption = f"Chosen by the mean {tune.metric} after {tune.rounds} rounds"
    if run.folder.spec.evaluate_model == "averaged":
        caption += ", of the averaged model where a method keeps one"
    if tune.tie_tolerance:
        within = f"between means within {tune.tie_tolerance:g}"
        caption += f"; {within}, by the mean {tune.tie_metrics[0]}"
    return join(
        (
            _edges(choices),
            warning(_LEAK) if tune.metric.startswith("test_") else "",
            table(["method", "chosen", "grid"], rows, caption),
            _trials(run, {c.label: c.screen for c in choices}, first=True),
            _trials(run, {c.label: c.table for c in choices}, first=False),
        )
    )


def _trials(run: PageRun, trials: Mapping[str, Trials], *, first: bool) -> Html:
    """Every trial of a stage, folded; nothing where there are none."""
    tune = run.folder.spec.tune
    grids = {m.label: m.grid for m in run.folder.spec.methods}
    seeds = tune.screen_seeds if first else tune.seeds
    rounds = tune.screen_rounds if first else tune.rounds
    rows = []
    for label, tried_ in trials.items():
        for trial in tried_:
            cells = [*map(_score, trial["scores"])]
            if tune.tie_tolerance:
                cells += map(_score, trial["tie_scores"])
            tried = values(trial["parameters"], grids[label])
            rows.append([run.name(label), tried, *cells])
    if not rows:
        return Html("")
    asked = (tune.metric, tune.tie_metrics[0]) if tune.tie_tolerance else (tune.metric,)
    head = ["method", "parameters"]
    head += [f"{quantity}, seed {seed}" for quantity in asked for seed in seeds]
    summary = f"{len(rows)} {'first trials' if first else 'trials'}"
    scores = table(head, rows, f"After {rounds} rounds", css="matrix")
    return tag("details", tag("summary", summary), scores)


def _score(score: float | None) -> str:
    return "diverged" if score is None else f"{score:.5g}"


def _edges(choices: Sequence[Choice]) -> Html:
    """A warning where a wider grid might have done better."""
    names = [
        f"{choice.label} ({', '.join(choice.at_edge)})"
        for choice in choices
        if choice.at_edge
    ]
    if not names:
        return tag("p", "Every choice is inside its grid.")
    text = "At the edge of the grid, where a wider one may do better: "
    return warning(f"{text}{'; '.join(names)}.")


COLUMNS = 8
"""Groups of local steps with their own column; of more, neighbours share one."""
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
        links = [
            tag("li", tag("a", name, href=f"#run-{run.number}-{key}"))
            for key, (name, _) in SECTIONS.items()
        ]
        inside = tag("ul", *links)
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
    parts = [f"{spec.data.name}: {known['n']} clients", spec.clients.partition_text]
    if not spec.is_record:
        parts.append(_local_steps_text(spec.clients.local_steps))
        parts.append(f"batches of {spec.clients.batch_size}")
    if known["d"] is not None:
        parts.append(f"{known['d']} parameters")
    parts.append(f"{spec.rounds} rounds")
    parts.append(f"{len(spec.seeds)} {'seed' if len(spec.seeds) == 1 else 'seeds'}")
    if not spec.is_record:
        parts.append(f"λ = {spec.problem.l2:g}")
    return tag("p", ", ".join(parts) + ".", class_="lead")


def _local_steps_text(given: Any) -> str:
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
    finals = {k: run.results.values(k, quantity)[:, -1] for k in run.results.labels}
    means = {k: float(v.mean()) for k, v in finals.items() if np.isfinite(v).all()}
    means = {k: mean for k, mean in means.items() if k not in run.results.yardsticks}
    if not means:
        return set()
    top = (max if quantity in LARGER_IS_BETTER else min)(means, key=means.__getitem__)

    def read(label: str) -> str:
        known = statistics(finals[top])
        return plus_minus(known | {"mean": means[label]}).partition(" ±")[0]

    return {label for label in means if read(label) == read(top)}


def _masses(run: PageRun) -> Html:
    """Final weights by horizon, and what they sum to."""
    mass = {m["label"]: m["mass_by_horizon"] for m in run.summary["methods"]}
    every = sorted({h for groups in mass.values() for h in groups}, key=float)
    size = max(1, -(-len(every) // COLUMNS))
    parts = [every[k : k + size] for k in range(0, len(every), size)]
    sums = {label: statistics(_sum(groups, every)) for label, groups in mass.items()}
    rows = []
    for label, groups in mass.items():
        cells = [plus_minus(statistics(_sum(groups, part))) for part in parts]
        rows.append([run.name(label), *cells, plus_minus(sums[label])])
    heads = [f"H = {p[0]}" + (f" to {p[-1]}" if len(p) > 1 else "") for p in parts]
    head = ["method", *heads, "sum"]
    caption = "Weight by horizon in the last round, over seeds"
    means = {k: total["mean"] for k, total in sums.items()}
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


def _sum(
    groups: Mapping[str, Any], horizons: Sequence[str]
) -> Float64[Array, " seeds"]:
    """Weight of several horizons together, seed by seed; NaN where there is none."""
    seeds_ = [groups[h]["seeds"] for h in horizons if h in groups]
    rows = np.array([[np.nan if v is None else v for v in row] for row in seeds_])
    return rows.sum(axis=0) if seeds_ else np.array([np.nan])


def _audit(run: PageRun) -> Html:
    """The results of the checks of the pathwise certificate."""
    checked = [m for m in run.summary["methods"] if m["audit"] is not None]
    if not checked:
        every = run.results.spec.audit_every
        why = "audit_every is 0" if every == 0 else "no method here has one"
        return tag("p", f"The pathwise certificate was not checked: {why}.")
    L = _SMOOTHNESS[run.results.spec.problem.smoothness]
    return join(_audit_sentence(method, L) for method in checked)


def _audit_sentence(method: Mapping[str, Any], L: str) -> Html:
    label, audit = method["label"], method["audit"]
    checks, broken = audit["checks"], audit["violations"]
    slack = format_lower(audit["least_slack"])
    begin = f"The certificate of {label} was checked {checks} times, over all seeds,"
    if broken == 0:
        text = f"{begin} and held every time; the least slack was {slack}."
        return tag("p", text)
    return warning(
        f"{begin} and failed {broken} times; the least slack was {slack}. The "
        f"smoothness constant of this run is {L}: the certificate holds only if it is "
        "not too small."
    )


def _environment(run: PageRun) -> Html:
    """The spec as asked for, and where and when it ran."""
    text = write_spec(run.folder.spec)
    spec = tag("details", tag("summary", "Spec (TOML)"), tag("pre", text))
    try:
        times = read_json(run.folder.path / "times.json", missing=True) or {}
        rows_of_times = [[str(k), str(v)] for k, v in times.items()]
    except (DataError, AttributeError):  # results are shown all the same
        rows_of_times = [["times.json", "damaged; delete it"]]
    rows = [["folder", run.folder.path.name], *rows_of_times]
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
