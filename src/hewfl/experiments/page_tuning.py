"""The section of a report page on tuning: choices, edges of grids, every trial."""

from collections.abc import Mapping, Sequence

from hewfl.experiments.markup import Html, join, table, tag, warning
from hewfl.experiments.page_run import PageRun, values
from hewfl.experiments.tune import Choice, Trials

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
    caption = f"Chosen by the mean {tune.by} after {tune.rounds} rounds"
    if run.folder.spec.judge == "averaged":
        caption += ", of the averaged model where a method keeps one"
    if tune.tie:
        caption += f"; between means within {tune.tie:g}, by the mean {tune.tie_by}"
    return join(
        (
            _edges(choices),
            warning(_LEAK) if tune.by.startswith("test_") else "",
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
    for label, own in trials.items():
        for trial in own:
            cells = [*map(_score, trial["scores"])]
            if tune.tie:
                cells += map(_score, trial["tie_scores"])
            tried = values(trial["parameters"], grids[label])
            rows.append([run.name(label), tried, *cells])
    if not rows:
        return Html("")
    asked = (tune.by, tune.tie_by) if tune.tie else (tune.by,)
    head = ["method", "parameters"]
    head += [f"{quantity}, seed {seed}" for quantity in asked for seed in seeds]
    summary = f"{len(rows)} {'first trials' if first else 'trials'}"
    scores = table(head, rows, f"After {rounds} rounds", css="matrix")
    return tag("details", tag("summary", summary), scores)


def _score(score: float | None) -> str:
    return "diverged" if score is None else f"{score:.5g}"


def _edges(choices: Sequence[Choice]) -> Html:
    """A warning where a wider grid might have done better."""
    found = [
        f"{choice.label} ({', '.join(choice.at_edge)})"
        for choice in choices
        if choice.at_edge
    ]
    if not found:
        return tag("p", "Every choice is inside its grid.")
    text = "At the edge of the grid, where a wider one may do better: "
    return warning(f"{text}{'; '.join(found)}.")
