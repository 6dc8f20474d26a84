"""The tables of a report page: final values, pairs, targets, tuning, environment."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.atomic import read_json
from hewfl.core.rounding import format_lower
from hewfl.core.validation import Array
from hewfl.errors import DataError
from hewfl.experiments.candidates import Trials
from hewfl.experiments.plots import QUANTITIES
from hewfl.experiments.results import (
    AXES,
    LARGER_IS_BETTER,
    available_axes,
    measured,
)
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
from hewfl.report.findings import amount, end_text, listed, places
from hewfl.report.page_data import PageRun

COLUMNS = 8
"""Groups of local steps with their own column; of more, neighbours share one."""
_SMOOTHNESS = {"estimate": "an estimate", "bound": "a proven bound"}
WORDS = {"better": "▲ better", "worse": "▼ worse", "undecided": "? undecided"}
"""A verdict in a table. Undecided is a question: the data do not say, in no way that
the two are equal."""


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: plain.
        method: label of the method whose line and name it shows; "" for none.
        css: class of the text, such as a verdict.
        small: a second line.
        is_best: whether it is bold.
        title: a longer text, for the pointer.
        dots: places from 0 to 100 and classes of points on a strip.
        bar: ends of an interval on that strip; its middle is a dot.
        link: place on the page.
    """

    text: str = ""
    method: str = ""
    css: str = ""
    small: str = ""
    is_best: bool = False
    title: str = ""
    dots: tuple[tuple[float, str], ...] = ()
    bar: tuple[float, float] | None = None
    link: str = ""


Row = list[Cell | str]


@final
@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page.

    Attributes:
        name: a few words, of its file.
        caption: what it shows.
        head: names of the columns.
        rows: cells; plain text is a cell of it.
        css: "cards": on a narrow screen each row is a card that names its cells; or
            "matrix", which stays a table at any width, and scrolls.
    """

    name: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Row]
    css: str = "cards"


def _method(label: str) -> Cell:
    return Cell(method=label)


def finals(run: PageRun) -> list[Table]:
    """Final values: the main quantity with a dot for each seed, then all of them."""
    results, ranking = run.results, run.ranking
    quantity = ranking.quantity
    every = {**ranking.finals, **ranking.limits}
    best = _reads_best(ranking.finals, quantity)
    last = results.spec.rounds
    rows: list[Row] = []
    scale = _strip_scale(every.values())
    for label, values in every.items():
        ends = tuple((x, run.styles[label].colour) for x in _on_strip(values, scale))
        sent = statistics(results.values(label, "scalars")[:, -1])["mean"]
        rows.append(
            [
                _method(label),
                Cell(end_text(values, quantity), is_best=label in best),
                Cell(dots=ends, title=f"one dot for each of {len(values)} seeds"),
                "—" if sent is None else short_number(sent),
            ]
        )
    name = QUANTITIES[quantity]
    caption = f"After round {last}, best mean first: mean ± standard deviation, a dot "
    caption += "for each seed; bold: the best, and all that read the same"
    if results.spec.evaluate_model == "averaged":
        caption += "; by the averaged model of methods that keep one"
    head = ["rule", name, f"seeds{_ends(scale, quantity)}", "scalars sent"]
    shown = Table("final values", caption, head, rows)
    return [shown, _all_finals(run)]


def _ends(scale: tuple[float, float], quantity: str) -> str:
    """What the ends of a strip are, in words."""
    low, high = (amount(np.array([end]), quantity) for end in scale)
    return "" if low == high else f", {low} to {high}"


def _all_finals(run: PageRun) -> Table:
    """Mean and deviation of everything measured, after the last round."""
    results = run.results
    offered = measured(results, QUANTITIES)
    ends = {
        q: {k: results.values(k, q)[:, -1] for k in results.labels} for q in offered
    }
    ranked = {
        q: _reads_best(
            {k: v for k, v in rows.items() if k not in results.yardsticks}, q
        )
        for q, rows in ends.items()
    }
    rows = []
    for method in run.summary["methods"]:
        label = method["label"]
        cells: list[Cell | str] = [_method(label)]
        for q in offered:
            text = end_text(ends[q][label], q)
            cells.append(Cell(text, is_best=label in ranked[q]))
        given = ", ".join(f"{k} = {v}" for k, v in method["parameters"].items())
        rows.append([*cells, given])
    head = ["rule", *(QUANTITIES[q] for q in offered), "parameters"]
    caption = f"After round {results.spec.rounds}: every quantity that was measured"
    return Table("every quantity", caption, head, rows, css="matrix long")


def _reads_best(
    finals_: Mapping[str, Float64[Array, " seeds"]], quantity: str
) -> set[str]:
    """Methods whose mean is the best, or reads the same to the digits shown."""
    means = {k: float(v.mean()) for k, v in finals_.items() if np.isfinite(v).all()}
    if not means:
        return set()
    choose = max if quantity in LARGER_IS_BETTER else min
    top = choose(means, key=means.__getitem__)
    read = amount(finals_[top], quantity)
    return {k for k in means if amount(finals_[k], quantity) == read}


def _strip_scale(
    rows: Iterable[Float64[Array, " seeds"]],
) -> tuple[float, float]:
    """Ends of a strip: all seeds, but those far behind lie at its end."""
    every = np.concatenate([np.empty(0), *rows])
    finite = every[np.isfinite(every)]
    if finite.size == 0:
        return 0.0, 1.0
    low, middle, high = np.quantile(finite, [0.25, 0.5, 0.75])
    far = 6 * max(high - low, 1e-9 * abs(middle))
    inside = finite[np.abs(finite - middle) <= far]
    return float(inside.min()), float(inside.max())


def _on_strip(
    values: Float64[Array, " seeds"], scale: tuple[float, float]
) -> list[float]:
    low, width = scale[0], (scale[1] - scale[0]) or 1.0
    kept = values[np.isfinite(values)]
    return [round(100 * min(1.0, max(0.0, (v - low) / width)), 1) for v in kept]


def lost(run: PageRun) -> list[tuple[str, bool]]:
    """Sentences about methods that lost seeds; all of them warn."""
    return [
        (f"{m['label']} diverged, left out of its mean: seeds {seeds}.", True)
        for m in run.summary["methods"]
        if (seeds := ", ".join(map(str, m["diverged"])))
    ]


def panels(runs: Sequence[PageRun], rule: str) -> Table:
    """The panels of a page about one rule: who is ahead in each."""
    rows: list[Row] = []
    for run in runs:
        ranking = run.ranking
        means = {k: v.mean() for k, v in {**ranking.finals, **ranking.limits}.items()}
        scale = _strip_scale([np.array(list(means.values()))])
        dots = tuple(
            (x, run.styles[k].colour)
            for k, v in means.items()
            for x in _on_strip(np.array([v]), scale)
        )
        best = ranking.best[0] if ranking.best else ""
        rows.append(
            [
                Cell(run.name, link=f"#run-{run.number}"),
                _value(run, rule),
                _value(run, run.reference),
                Cell(best, small="" if not best else _value(run, best).text),
                Cell(dots=dots, title=listed(means, 20)),
                Cell(*_versus(ranking, rule, run.reference)),
            ]
        )
    name, other = _shared_name(runs), runs[0].reference
    same = len({run.reference for run in runs}) == 1 and other is not None
    second = f"{other}" if same else "beside it"
    head = ["panel", rule, second, "best", "all rules", f"{rule} against {second}"]
    return Table("panels", f"{name}, panel by panel", head, rows)


def _value(run: PageRun, label: str | None) -> Cell:
    every = {**run.ranking.finals, **run.ranking.limits}
    if label is None or label not in every:
        return Cell("—")
    return Cell(end_text(every[label], run.ranking.quantity))


def _versus(ranking: Ranking, rule: str, other: str | None) -> tuple[str, str, str]:
    """Text, no method, and class of a verdict."""
    if other is None or rule not in ranking.labels:
        return "—", "", ""
    if ranking.is_equal(rule, other):
        return "= equal", "", ""
    verdict = ranking.compare(rule, other).verdict
    return WORDS[verdict], "", verdict


def _shared_name(runs: Sequence[PageRun]) -> str:
    names = {QUANTITIES[run.ranking.quantity] for run in runs}
    text = names.pop() if len(names) == 1 else "the main quantity"
    return f"{text[:1].upper()}{text[1:]}"


def mean_rank_tables(runs: Sequence[PageRun]) -> list[Table]:
    """Methods by their mean rank over the panels, for each quantity that all have."""
    tables = []
    for quantity in QUANTITIES:
        if not all(quantity in run.rankings for run in runs):
            continue
        rankings = [run.rankings[quantity] for run in runs]
        ranks = mean_ranks(rankings)
        if not ranks:
            continue
        p = friedman_p(rankings)
        test = "" if p is None else f"; Friedman's test that all are alike: p = {p:.2g}"
        name = QUANTITIES[quantity]
        head = ["rule", "mean rank", "panels", "best in", "certain wins", "losses"]
        rows: list[Row] = [
            [
                _method(row.label),
                f"{row.rank:.2f}",
                *map(str, (row.panels, row.best, row.wins, row.losses)),
            ]
            for row in ranks
        ]
        caption = f"Ranking by {name} over panels, 1 is best{test}"
        tables.append(Table(f"ranks by {name}", caption, head, rows))
    return tables


# ------------------------------------------------------------------ pairs

RULES = (
    "Methods are compared seed by seed: losses by their ratios, which are tested as "
    "logarithms, accuracies (and losses of which one is not positive) by differences. "
    f"Intervals are {LEVEL:.0%} of Student's t, each for itself; verdicts rest on p "
    "corrected by Holm over all pairs of methods of a quantity. ▲ better and ▼ worse "
    "are certain in that sense, or by divergence: a method that diverged, or ended "
    "above its own start and is nowhere ahead, is behind one that did not. ? undecided "
    "says that these seeds do not tell, not that the two are equal; beside it stands "
    "what they would have shown, in four cases of five. The exact p is that of all "
    "sign flips; with n seeds it is at least 2/2ⁿ, so that few seeds cannot decide by "
    "it. Methods that "
    "know the truth are limits: they have no rank and no verdict. All are compared "
    "after the same number of rounds, in which some send more scalars than others."
)


def pairs(run: PageRun) -> list[Table]:
    """The author's rule against every other one, the main quantity first."""
    return [
        table
        for s in _main_first(run)
        if (table := _against_others(run, s)) is not None
    ]


def matrices(run: PageRun) -> list[Table]:
    """All pairs of methods, the main quantity first."""
    if len(run.ranking.labels) < 2:
        return []
    return [_matrix(s) for s in _main_first(run)]


def _main_first(run: PageRun) -> list[Ranking]:
    main = run.ranking
    others = (s for s in run.rankings.values() if s is not main)
    return [main, *others] if run.rankings else []


def _against_others(run: PageRun, s: Ranking) -> Table | None:
    others = [k for k in s.labels if k != run.rule]
    if run.rule not in s.labels or not others:
        return None
    comparisons = {label: s.compare(run.rule, label) for label in others}
    scale = _half_scale(comparisons.values())
    rows: list[Row] = []
    for label, c in comparisons.items():
        if s.is_equal(run.rule, label):
            same = "the same in every seed"
            rows.append([_method(label), same, "", "", "—", "= equal"])
        else:
            rows.append([_method(label), *_difference(c, scale, run)])
    name = QUANTITIES[s.quantity]
    how = "divided by" if _is_ratio(s) else "minus"
    caption = f"{name} of {run.rule} {how} that of each other rule; {_better(s)} is "
    caption += "better"
    if run.results.spec.evaluate_model == "averaged":
        caption += "; by the averaged model of methods that keep one"
    what = "ratio" if _is_ratio(s) else "difference"
    head = ["against", f"{what}, interval", "seeds", "picture", "p", "verdict"]
    return Table(f"{run.rule} against others, {name}", caption, head, rows)


def _difference(c: Comparison, scale: float, run: PageRun) -> list[Cell | str]:
    """A comparison as cells of a row: numbers, seeds, a small picture, p, a word."""
    small = c.reason or (detectable_text(c) if c.verdict == "undecided" else "")
    p = "—" if c.reason or c.seeds < 2 else f"{c.corrected_p:.2g}"
    drawn = Cell()
    if math.isfinite(c.half):
        low, mean, high = (
            round(50 + 47 * max(-1.0, min(1.0, v / scale)), 1)
            for v in _on_axis(c, scale)
        )
        dot = (mean, run.styles[run.rule].colour)
        drawn = Cell(css="zero", dots=(dot,), bar=(low, high))
    verdict = Cell(WORDS[c.verdict], css=c.verdict, small=small)
    return [interval_text(c), seeds_text(c), drawn, p, verdict]


def _on_axis(c: Comparison, far: float) -> list[float]:
    """Ends and middle, as logarithms if they are ratios; what is not finite is far."""
    if not c.is_ratio:
        return [c.low, c.mean, c.high]
    return [
        -far if v == 0 else far if math.isinf(v) else math.log(v)
        for v in (c.low, c.mean, c.high)
    ]


def _half_scale(comparisons: Iterable[Comparison]) -> float:
    """Half the width of the pictures: far outliers end at the border."""
    known = [c for c in comparisons if math.isfinite(c.half)]
    finite = [max(map(abs, _on_axis(c, math.inf))) for c in known]
    finite = [end for end in finite if math.isfinite(end)]
    return min(max(finite), 3 * float(np.median(finite))) or 1.0 if finite else 1.0


def _matrix(s: Ranking) -> Table:
    head = ["rule", *(str(k) for k in range(1, len(s.labels) + 1))]
    rows: list[Row] = [
        [
            Cell(f"{k}  ", method=label),
            *(_matrix_cell(s, label, other) for other in s.labels),
        ]
        for k, label in enumerate(s.labels, start=1)
    ]
    name = QUANTITIES[s.quantity]
    how = "divided by" if _is_ratio(s) else "minus"
    caption = f"{name}: row {how} column, best mean first; {_better(s)} is better; "
    caption += "▲ ▼ certain by Holm's correction, ? undecided, = the same in every seed"
    return Table(f"all pairs, {name}", caption, head, rows, css="matrix")


def _matrix_cell(s: Ranking, label: str, other: str) -> Cell:
    if label == other:
        return Cell("·", css="self")
    if s.is_equal(label, other):
        return Cell("=", css="equal", title="the same in every seed")
    c = s.compare(label, other)
    number = f"{c.mean:.3g}" if c.is_ratio else f"{c.mean:+.2g}"
    text = f"{WORDS[c.verdict][0]} {number if math.isfinite(c.mean) else '—'}"
    title = f"{label} against {other}: {reason_text(c)}"
    return Cell(text, css=c.verdict, title=title)


def _is_ratio(s: Ranking) -> bool:
    return any(c.is_ratio for c in s.pairs.values())


def _better(s: Ranking) -> str:
    return "more" if s.quantity in LARGER_IS_BETTER else "less"


# ------------------------------------------------------------------ folded

TARGET_NOTE = (
    f"When a method first is at the target: mean over seeds and its {LEVEL:.0%} "
    "interval, between two evaluations by a straight line. Where some seeds never "
    "are, the median, and how many are. Seconds are there where the spec has time "
    "budgets and speeds (TimedSteps); sending takes none."
)


def targets(run: PageRun, asked: Mapping[str, float]) -> list[Table]:
    """Rounds, scalars and seconds to a target, with intervals over seeds.

    Args:
        run: of the page.
        asked: targets by quantity; of others a level that half of the methods reach.
    """
    tables, results = [], run.results
    axes = [axis for axis in available_axes(results) if axis != "paper_scalars"]
    for s in _main_first(run):
        target = asked.get(s.quantity, common_target(s))
        if target is None:
            continue
        rows: list[tuple[float, Row]] = []
        for label in s.labels:
            costs = {
                a: rounds_to_target(results, label, s.quantity, target, a) for a in axes
            }
            cells = [target_text(each) for each in costs.values()]
            rows.append((float(np.mean(costs["rounds"])), [_method(label), *cells]))
        rows.sort(key=lambda row: row[0])
        what = "as asked" if s.quantity in asked else "reached by half of the methods"
        name = QUANTITIES[s.quantity]
        caption = f"{name} of {target:.4g}, {what}"
        head = ["rule", *(AXES[axis] for axis in axes)]
        cells_ = [cells for _, cells in rows]
        tables.append(Table(f"to a target, {name}", caption, head, cells_))
    return tables


def masses(run: PageRun) -> tuple[Table, str]:
    """Final weights by local steps, and a note where they do not sum to one."""
    mass = {m["label"]: m["mass_by_horizon"] for m in run.summary["methods"]}
    every = sorted({h for groups in mass.values() for h in groups}, key=float)
    size = max(1, -(-len(every) // COLUMNS))
    parts = [every[k : k + size] for k in range(0, len(every), size)]
    sums = {label: _sum(groups, every) for label, groups in mass.items()}
    rows: list[Row] = []
    for label, groups in mass.items():
        cells = [_plus_minus(_sum(groups, part)) for part in parts]
        rows.append([_method(label), *cells, _plus_minus(sums[label])])
    heads = [f"H = {p[0]}" + (f" to {p[-1]}" if len(p) > 1 else "") for p in parts]
    caption = "Weight by local steps H in the last round, over seeds"
    table = Table("weight by local steps", caption, ["rule", *heads, "sum"], rows)
    means = {k: v[np.isfinite(v)] for k, v in sums.items()}
    odd = [k for k, v in means.items() if v.size and abs(v.mean() - 1) > 1e-6]
    note = (
        f"The weights of {listed(odd)} do not sum to one. Weights are factors of the "
        "clients' displacements in the step of the server: with a sum of 1 it is their "
        "weighted mean, with a sum of 2 twice that, a longer step; less than 1 is a "
        "shorter one."
    )
    return table, note if odd else ""


def _plus_minus(values: Float64[Array, " seeds"]) -> str:
    """Mean ± deviation of the finite ones, to two digits of the deviation."""
    kept = values[np.isfinite(values)]
    if kept.size == 0:
        return "—"
    mean = float(kept.mean())
    std = float(kept.std(ddof=1)) if kept.size > 1 else 0.0
    if std < 1e-12 * abs(mean) or std == 0:
        return f"{mean:.5g}"
    digits = places(mean, std)
    return f"{mean:.{digits}f} ± {std:.{digits}f}"


def _sum(
    groups: Mapping[str, Any], horizons: Sequence[str]
) -> Float64[Array, " seeds"]:
    """Weight of several horizons together, seed by seed; NaN where there is none."""
    seeds_ = [groups[h]["seeds"] for h in horizons if h in groups]
    rows = np.array([[np.nan if v is None else v for v in row] for row in seeds_])
    return rows.sum(axis=0) if seeds_ else np.array([np.nan])


def certificate(run: PageRun) -> list[tuple[str, bool]]:
    """Sentences on the checks of the pathwise certificate, and which are warnings."""
    L = _SMOOTHNESS[run.results.spec.problem.smoothness]
    every = [m for m in run.summary["methods"] if m["audit"] is not None]
    return [_audited(m["label"], m["audit"], L) for m in every]


def _audited(label: str, audit: Mapping[str, Any], L: str) -> tuple[str, bool]:
    checks, broken = audit["checks"], audit["violations"]
    slack = format_lower(audit["least_slack"])
    text = f"The certificate of {label} was checked {checks} times, over all seeds, "
    if broken == 0:
        return f"{text}and held every time; the least slack was {slack}.", False
    text += f"and failed {broken} times; the least slack was {slack}. The smoothness "
    text += f"constant of this run is {L}: the certificate holds only if it is not too "
    return f"{text}small.", True


LEAK = (
    "Tuned on the test part: final test values are better than fresh data would give."
)


def tuning(run: PageRun) -> tuple[list[tuple[str, bool]], list[Table]]:
    """Sentences on what was chosen, which of them warn, and the tables."""
    choices = run.folder.choices
    if not choices:
        return [("Nothing was tuned: every hyper-parameter was given.", False)], []
    tune = run.folder.spec.tune
    grids = {m.label: m.grid for m in run.folder.spec.methods}
    rows: list[Row] = []
    for choice in choices:
        grid = grids[choice.label]
        lists = "; ".join(f"{k}: {', '.join(map(str, v))}" for k, v in grid.items())
        rows.append([_method(choice.label), _chosen(choice.parameters, grid), lists])
    caption = f"Chosen by the mean {tune.metric} after {tune.rounds} rounds"
    if run.folder.spec.evaluate_model == "averaged":
        caption += ", of the averaged model where a method keeps one"
    if tune.tie_tolerance:
        within = f"between means within {tune.tie_tolerance:g}"
        caption += f"; {within}, by the mean {tune.tie_metrics[0]}"
    edges = [f"{c.label} ({', '.join(c.at_edge)})" for c in choices if c.at_edge]
    far = (
        f"At the edge of the grid, where a wider one may do better: {'; '.join(edges)}."
    )
    notes = [(far, True) if edges else ("Every choice is inside its grid.", False)]
    notes += [(LEAK, True)] if tune.metric.startswith("test_") else []
    tables = [
        Table("chosen", caption, ["rule", "chosen", "grid"], rows),
        _trials(run, {c.label: c.screen for c in choices}, first=True),
        _trials(run, {c.label: c.table for c in choices}, first=False),
    ]
    return notes, [table for table in tables if table.rows]


def _trials(run: PageRun, trials: Mapping[str, Trials], *, first: bool) -> Table:
    """Every trial of a stage."""
    tune = run.folder.spec.tune
    grids = {m.label: m.grid for m in run.folder.spec.methods}
    seeds = tune.screen_seeds if first else tune.seeds
    rounds = tune.screen_rounds if first else tune.rounds
    rows: list[Row] = []
    for label, tried in trials.items():
        for trial in tried:
            cells = [*map(_score, trial["scores"])]
            if tune.tie_tolerance:
                cells += map(_score, trial["tie_scores"])
            given = _chosen(trial["parameters"], grids[label])
            rows.append([_method(label), given, *cells])
    asked = (tune.metric, tune.tie_metrics[0]) if tune.tie_tolerance else (tune.metric,)
    head = ["rule", "parameters"]
    head += [f"{quantity}, seed {seed}" for quantity in asked for seed in seeds]
    name = "first trials" if first else "trials"
    caption = f"{len(rows)} {name}, after {rounds} rounds"
    return Table(name, caption, head, rows, css="matrix")


def _score(score: float | None) -> str:
    return "diverged" if score is None else f"{score:.5g}"


def _chosen(given: Mapping[str, Any], names: Iterable[str]) -> str:
    return ", ".join(f"{name} = {given[name]}" for name in names)


def environment(run: PageRun) -> Table:
    """Where and when it ran."""
    try:
        times = read_json(run.folder.path / "times.json", missing=True) or {}
        rows: list[Row] = [[str(k), str(v)] for k, v in times.items()]
    except (DataError, AttributeError):  # results are shown all the same
        rows = [["times.json", "damaged; delete it"]]
    rows.insert(0, ["folder", run.folder.path.name])
    return Table("environment", "Environment", ["field", "value"], rows)
