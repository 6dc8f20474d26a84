"""The runs of stock_apps.py as tables and sentences, and their place in
docs/results/flower.md.

`Sieve` has two numbers, which were looked for on seeds of their own, `TUNING`,
by `choice`; all tables are of other seeds. Nothing here needs torch or Flower.
"""

import json
import math
import statistics
from pathlib import Path

from benchmarks.report import table

from hewfl.experiments.statistics import (
    Comparison,
    decide,
    detectable_text,
    measure,
)

FILE = Path(__file__).parent / "results" / "stock_apps.jsonl"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "flower.md"
MARKS = "<!-- stock apps: begin -->\n", "<!-- stock apps: end -->\n"
APPS = ("cnn-sgd", "cnn-adamw", "news")
SCENARIOS = ("clean", "labels", "sign", "scale")
FRAME = "FedAvg"
CANDIDATES = {
    f"sieve {tolerance:g} {clip:g}": (tolerance, clip)
    for tolerance, clip in (
        *((0.2, 2.0), (0.0, 2.0), (0.1, 2.0), (0.4, 2.0), (1e6, 2.0)),
        *((0.2, 1.0), (0.2, 3.0)),
    )
}
"""Tolerance and clip of the sieve."""
PLAIN = "sieve 0.4 2"
"""What `Sieve()` is for six and for ten clients, the numbers of the apps."""
TUNING = (10, 11, 12)
SAFE = 0.01
"""Largest mean loss of accuracy against FedAvg among good clients, on each app."""

Cell = tuple[str, str, str, int]
"""App, scenario, strategy, seed."""
Known = dict[Cell, list[float]]
"""Test accuracy of a cell's model before the first round and after each."""


def known() -> Known:
    """Finished runs; a line that was cut short is none."""
    runs = {}
    if FILE.exists():
        for line in FILE.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            runs[tuple(row["cell"])] = row["accuracy"]
    return runs


def split(runs: Known) -> tuple[Known, Known]:
    """Runs for choosing, and runs for judging."""
    return (
        {cell: curve for cell, curve in runs.items() if cell[3] in TUNING},
        {cell: curve for cell, curve in runs.items() if cell[3] not in TUNING},
    )


def ends(runs: Known, app: str, scenario: str, strategy: str) -> dict[int, float]:
    """Final accuracy by seed."""
    by_seed = {
        k[3]: v[-1] for k, v in runs.items() if k[:3] == (app, scenario, strategy)
    }
    return dict(sorted(by_seed.items()))


def _cell(runs: Known, app: str, scenario: str, strategy: str) -> str:
    values = list(ends(runs, app, scenario, strategy).values())
    text = f"{statistics.mean(values):.3f}" if values else "-"
    return text + (f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else "")


def _strategies(runs: Known) -> list[str]:
    return list(dict.fromkeys(cell[2] for cell in sorted(runs, key=_order)))


def _order(cell: Cell) -> tuple[bool, str]:
    """Flower's own first: they begin with a capital."""
    return cell[2][0].islower(), cell[2].lower()


def difference(runs: Known, app: str, scenario: str, strategy: str) -> Comparison:
    """Accuracy less FedAvg's over the same seeds, without a verdict."""
    ours, theirs = (ends(runs, app, scenario, name) for name in (strategy, FRAME))
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    first, second = zip(*pairs, strict=True) if pairs else ((), ())
    return measure(first, second, larger_is_better=True)


def shortfalls(runs: Known) -> dict[str, tuple[float, str]]:
    """How far a strategy is behind the best of a cell at most, and in which cell.

    Only strategies that ran in all apps and scenarios.
    """
    cells = [(app, scenario) for app in APPS for scenario in SCENARIOS]
    means: dict[str, list[float]] = {}
    for strategy in _strategies(runs):
        cells_ = [ends(runs, *cell, strategy) for cell in cells]
        if all(cells_):
            means[strategy] = [statistics.mean(f.values()) for f in cells_]
    behind = {}
    for strategy, accuracies in means.items():
        lost = [
            max(other[k] for other in means.values()) - accuracies[k]
            for k in range(len(cells))
        ]
        worst = max(range(len(cells)), key=lost.__getitem__)
        behind[strategy] = lost[worst], " ".join(cells[worst])
    return dict(sorted(behind.items(), key=lambda item: item[1]))


def losses(runs: Known) -> dict[str, float]:
    """Largest mean loss of accuracy against FedAvg among good clients, of the apps."""
    return {
        name: max(-difference(runs, app, "clean", name).mean for app in APPS)
        for name in _strategies(runs)
        if all(ends(runs, app, "clean", name) for app in APPS)
    }


def choice(tuning: Known) -> str:
    """The candidate that is safe among good clients and least behind the best one.

    Where none is safe, the one that loses least among good clients.
    """
    lost, behind = losses(tuning), shortfalls(tuning)
    safe = [name for name in behind if name in CANDIDATES and lost[name] <= SAFE]
    return (
        safe[0] if safe else min(CANDIDATES, key=lambda name: lost.get(name, math.inf))
    )


def tables(runs: Known) -> str:
    """For each app: final accuracy, mean ± standard deviation."""
    parts = []
    for app in APPS:
        rows = [
            [
                _label(name),
                *(_cell(runs, app, scenario, name) for scenario in SCENARIOS),
            ]
            for name in _strategies(runs)
        ]
        rows = [row for row in rows if set(row[1:]) != {"-"}]
        if rows:
            parts.append(table([app, *SCENARIOS], rows))
    return "\n\n".join(parts)


def _label(strategy: str) -> str:
    return "sieve" if strategy == PLAIN else strategy


def choosing(runs: Known) -> str:
    """The candidates on the seeds for choosing and on the others."""
    rows = []
    measured = [(losses(part), shortfalls(part)) for part in split(runs)]
    for name in ("FedAvg", *CANDIDATES):
        row = [_label(name) if name == PLAIN else name]
        for lost, behind in measured:
            row += [f"{lost[name]:+.3f}" if name in lost else "-"]
            row += [f"{behind[name][0]:.3f}" if name in behind else "-"]
        rows.append(row)
    head = ["tolerance, clip", "loss, choosing", "behind, choosing", "loss", "behind"]
    return table(head, rows)


def verdict(runs: Known) -> str:
    """`Sieve` beside FedAvg in each cell, and who is least behind the best."""
    cells = [(app, scenario) for app in APPS for scenario in SCENARIOS]
    pairs = decide({cell: difference(runs, *cell, PLAIN) for cell in cells})
    rows = [[app, *(_signed(pairs[app, w]) for w in SCENARIOS)] for app in APPS]
    clean = {app: pairs[app, "clean"] for app in APPS}
    below = [app for app, c in clean.items() if c.verdict == "worse"]
    doubt = [c for c in clean.values() if c.verdict == "undecided"]
    shown = detectable_text(max(doubt, key=lambda c: c.detectable)) if doubt else ""
    text = "not below FedAvg beyond the noise of the seeds on any app"
    text += f" ({shown})" if shown else ""
    if below:
        text = f"below FedAvg beyond the noise of the seeds on {', '.join(below)}"
    behind = shortfalls(runs)
    least = [[_label(k), f"{v:.3f}", cell] for k, (v, cell) in behind.items()]
    return "\n\n".join(
        [
            "`sieve` less FedAvg, paired over seeds, with 95 % intervals, each for "
            "itself; ▲ above and ▼ below by Holm's correction over the table:",
            table(["", *SCENARIOS], rows),
            f"Where all clients are good `sieve` is {text}; its largest mean loss "
            f"there is {max(0.0, -min(c.mean for c in clean.values())):.3f}.",
            "How far a strategy is behind the best one of a cell, at most:",
            table(["", "behind", "in"], least),
        ]
    )


def _signed(c: Comparison) -> str:
    if not math.isfinite(c.mean):
        return "-"
    mark = {"better": " ▲", "worse": " ▼", "undecided": ""}[c.verdict]
    half = f" ± {c.half:.3f}" if math.isfinite(c.half) else ""
    return f"{c.mean:+.3f}{half}{mark}"


def section(runs: Known) -> str:
    """What stands between the marks of the page."""
    tuning, judged = split(runs)
    count = len({cell[3] for cell in judged})
    parts = [f"Mean ± standard deviation over {count} seeds; `-`: not run."]
    shown = {
        cell: curve
        for cell, curve in judged.items()
        if cell[2] == PLAIN or cell[2] not in CANDIDATES
    }
    parts += [tables(shown), verdict(shown)]
    if tuning:
        parts += [
            f"Tolerance and clip were looked for on {len(TUNING)} other seeds: of the "
            f"pairs that lose at most {SAFE:g} against FedAvg among good clients on "
            "each app, the one that is least behind the best pair of a cell; if no "
            "pair is safe, the one that loses least. By that it is "
            f"`{choice(tuning)}`. "
            '"Loss" is the largest one among good clients; the last two columns are of '
            "the seeds of the tables.",
            choosing(runs),
        ]
    return "\n" + "\n\n".join(parts) + "\n\n"


def publish(page: Path = PAGE) -> str:
    """Put the section into the page; what was put there."""
    new = section(known())
    between_marks(page, MARKS, new)
    return new


def between_marks(page: Path, marks: tuple[str, str], new: str) -> None:
    """Replace what stands between two marks of a page."""
    before, rest = page.read_text(encoding="utf-8").split(marks[0])
    _, after = rest.split(marks[1])
    page.write_text(before + marks[0] + new + marks[1] + after, encoding="utf-8")
