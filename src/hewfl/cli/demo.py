"""`hewfl demo`: careless and colluding clients on the built-in digits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from hewfl.cli.error_messages import one_line_errors
from hewfl.cli.execute import run_quietly
from hewfl.cli.options import Jobs
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.results import Results
from hewfl.experiments.run_folder import folder_for
from hewfl.experiments.spec import Spec
from hewfl.experiments.spec_sections import ClientsSpec, DataSpec, ProblemSpec, TuneSpec
from hewfl.experiments.statistics import Ranking, rank_methods
from hewfl.report.findings import listed
from hewfl.report.page import write_report
from hewfl.report.page_data import faulty_clients

CLIENTS, ROOT_SAMPLES = 20, 100
CARELESS_SHARE, HOSTILE_SHARE = 0.15, 0.4
"""Of the clients: three of twenty, and eight."""
NO_WEIGHT = 0.1
"""Less than this part of an equal share is called none."""
AVERAGE, TRUST, MIXED, ROOTED, LIMIT = (
    *("FedAvg", "Trust", "AngleMix + median", "RootWeights", "limit"),
)
SCALES, AMPLITUDES = (0.8, 3.2, 12.8, 51.2), (4.0, 16.0, 64.0, 256.0)
"""They hold their best value."""
EXTENSIONS = 4
"""How often a list may grow all the same, where the last value is the best."""
BAR = 20
"""Characters of a bar of 100 %."""


def careless_spec() -> Spec:
    """Three of twenty clients have random labels.

    The objective is that of the other seventeen. Only the limit, in the last row, knows
    which clients they are. The first method is what the report is about.
    """
    methods = {
        TRUST: "trust",
        AVERAGE: "FedAvg",
        "geometric median": "geometric-median",
        LIMIT: "oracle",
    }
    fault = {"kind": "RandomLabels", "share": CARELESS_SHARE}
    return _spec("demo-random-labels", methods, fault)


def hostile_spec() -> Spec:
    """Eight of twenty clients send one common direction, as long as honest updates.

    The server owns 100 samples, which one of the rules uses.
    """
    methods = {
        ROOTED: "root-weights",
        AVERAGE: "FedAvg",
        TRUST: "trust",
        MIXED: "angle-mix+geometric-median",
        LIMIT: "oracle",
    }
    fault = {"kind": "Drift", "share": HOSTILE_SHARE}
    return _spec("demo-collusion", methods, fault, {"size": ROOT_SAMPLES})


def _spec(name: str, methods: Mapping[str, str], fault: Any, root: Any = None) -> Spec:
    scales, amplitudes = {"step_scale": SCALES}, {"amplitude": AMPLITUDES}
    return Spec(
        name=name,
        methods=tuple(
            MethodSpec(method, label, {}, scales if method == "FedAvg" else amplitudes)
            for label, method in methods.items()
        ),
        rounds=40,
        seeds=(0, 1, 2, 3, 4),
        evaluate_every=2,
        data=DataSpec("digits"),
        problem=ProblemSpec(solve_optimum=False),
        clients=ClientsSpec(
            n=CLIENTS,
            partition="iid",
            batch_size=8,
            local_steps={"kind": "ChoiceSteps", "choices": [1, 2, 4, 8]},
            scenario={"faults": [fault]},
            root=root,
        ),
        tune=TuneSpec(rounds=20, seeds=(5, 6), max_extensions=EXTENSIONS),
    )


def demo(
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for runs and report.")
    ] = Path("hewfl-demo"),
    jobs: Jobs = None,
) -> None:
    """Find clients with random labels, and resist clients that collude.

    Twenty clients train a classifier of handwritten digits with 1, 2, 4 or 8 local
    steps. Every method is tuned over a list of step sizes that holds its best one, and
    run for five seeds.
    """
    console = Console()
    with one_line_errors():
        folders = [folder_for(s, output / "runs") for s in _specs()]
        run_quietly(folders, jobs, console)
        write_report(folders, output / "report.html")
        careless, hostile = (folder.results for folder in folders)
        parts = (careless_part(careless), hostile_part(hostile))
    seeds = len(careless.spec.seeds)
    closing = [
        Text(f"Accuracy on test digits, mean ± deviation of {seeds} seeds.", "dim"),
        Text(
            "Step sizes are tuned for every method; the limit knows who is bad.", "dim"
        ),
        Text("No rule is best against every attack: docs/hostile.md", "dim"),
        Text(f"details: {output / 'report.html'}", "bold"),
    ]
    for part in (*parts, closing):
        console.print()
        for line in part:
            console.print(line, highlight=False, soft_wrap=True)


def _specs() -> tuple[Spec, Spec]:
    return careless_spec(), hostile_spec()


def careless_part(results: Results) -> list[Text]:
    """Who has random labels, who got no weight, and the accuracies."""
    bad, dropped = faulty_clients(results, 0), clients_without_weight(results, TRUST, 0)
    n, seeds = results.spec.clients.n, results.spec.seeds
    exact = sum(
        clients_without_weight(results, TRUST, k) == faulty_clients(results, k)
        for k in range(len(seeds))
    )
    first = f"{_number(len(bad))} of {_number(n).lower()} clients have random labels: "
    first += f"{listed(map(str, bad))} (seed {seeds[0]})."
    second = f"{TRUST} gives no weight to {listed(map(str, dropped)) or 'nobody'}; "
    second += f"it is exactly right in {exact} of {len(seeds)} seeds."
    good = 2 * exact > len(seeds)
    return [*_finding(good, first, second), *_rows(results, {TRUST: ""})]


def hostile_part(results: Results) -> list[Text]:
    """How many collude, and the accuracies with and without a root reference."""
    bad, n = len(faulty_clients(results, 0)), results.spec.clients.n
    ranking = rank_methods(results, "test_accuracy")
    words = {label: _word(ranking, label) for label in (MIXED, ROOTED)}
    first = f"{_number(bad)} of {_number(n).lower()} clients collude: they send one "
    first += "common wrong direction."
    if len(set(words.values())) == 1:
        second = f"{MIXED} and {ROOTED} {words[MIXED]} {AVERAGE}."
    else:
        each = (f"{label} {word} {AVERAGE}" for label, word in words.items())
        second = f"{'; '.join(each)}."
    notes = {
        MIXED: "no root reference",
        ROOTED: f"{results.spec.clients.root['size']} root samples",
    }
    good = set(words.values()) == {BETTER}
    rows = _rows(results, notes, {TRUST: "for careless clients"})
    return [*_finding(good, first, second), *rows]


def _finding(good: bool, *lines: str) -> list[Text]:
    return [Text(line, "bold green" if good else "bold yellow") for line in lines]


BETTER = "have more accuracy than"


def _word(ranking: Ranking, label: str) -> str:
    """The verdict on a rule against the average, as a part of a sentence."""
    verdict = ranking.compare(label, AVERAGE).verdict
    words = {"better": BETTER, "worse": "have less accuracy than"}
    return words.get(verdict, "are, with these seeds, not told apart from")


def _rows(
    results: Results, good: Mapping[str, str], other: Mapping[str, str] | None = None
) -> list[Text]:
    """A line for each method, the average first: accuracy in per cent, a bar, a note.

    Args:
        results: of a run.
        good: notes of the recommended methods.
        other: notes of others.
    """
    width = max(map(len, results.labels))
    notes = {**(other or {}), **good}
    lines = []
    for label in sorted(results.labels, key=lambda label: label != AVERAGE):
        values = 100 * results.final(label, "test_accuracy")
        number = f"{values.mean():.1f} ± {values.std(ddof=1):.1f} %"
        bar = "━" * round(BAR * values.mean() / 100)
        style = "green" if label in good else "dim" if label == LIMIT else ""
        text = f"  {label:{width}}  {number:>12}  {bar:{BAR}}  {notes.get(label, '')}"
        lines.append(Text(text.rstrip(), "red" if label == AVERAGE else style))
    return lines


def clients_without_weight(results: Results, label: str, seed: int) -> list[int]:
    """Clients to which a method gave next to no weight at the end of a seed.

    By the mean of the last ten rounds, against a tenth of an equal share.

    Args:
        results: of a run.
        label: of the method.
        seed: its position in the spec.
    """
    records = results.records[seed][results.labels.index(label)][-10:]
    total = dict.fromkeys(range(results.spec.clients.n), 0.0)
    for record in records:
        for i, weight in zip(record.clients, record.weights, strict=True):
            total[i] += abs(weight) / len(records)
    least = NO_WEIGHT / results.spec.clients.n
    return sorted(i for i, weight in total.items() if weight < least)


def _number(count: int) -> str:
    """A count at the beginning of a sentence."""
    words = {3: "Three", 8: "Eight", 20: "Twenty"}
    return words.get(count, str(count))
