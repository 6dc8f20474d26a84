"""`hewfl demo`: two comparisons on the built-in digits."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from hewfl.cli.error_messages import one_line_errors
from hewfl.cli.execute import execute, verdict_lines
from hewfl.cli.options import Jobs
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.plots import figure_run
from hewfl.experiments.results import Results
from hewfl.experiments.run_folder import folder_for
from hewfl.experiments.spec import Spec
from hewfl.experiments.spec_sections import ClientsSpec, DataSpec, ProblemSpec, TuneSpec
from hewfl.report.page import write_report

HEW, HEW_PLAIN = "HEW (Alg. 2)", "HEW (Alg. 3)"
AMPLITUDES, SCALES = (2.0, 8.0, 32.0, 128.0), (0.4, 1.6, 6.4, 25.6)
RATIOS = (1.01, 1.1, 1.5, 3.0)
"""They hold their best value; Λ/L ends at its bound, where weights stop to change."""
EXTENSIONS = 4
"""How often a list may grow all the same, where the last value is the best."""
FAULTY_SHARE = 0.15
"""Of the clients in the second part: three of twenty."""
NO_WEIGHT = 0.1
"""Less than this part of an equal share is called none."""
TRUST, ORACLE = "trust", "oracle"
WIDE = (4.0, 16.0, 64.0, 256.0)
WIDE_SCALES = (0.8, 3.2, 12.8, 51.2)


def demo_spec() -> Spec:
    """Twenty clients with skewed shares of the digits do 1, 2, 4 or 8 local steps.

    Every method is tuned over lists that reach as far.
    """
    amplitudes = {"amplitude": AMPLITUDES}
    exact = amplitudes | {"curvature_ratio": RATIOS}
    scales = {"step_scale": SCALES}
    return Spec(
        name="demo",
        methods=(
            MethodSpec("HewHet", HEW, {}, exact),
            MethodSpec("HewHom", HEW_PLAIN, {}, exact),
            MethodSpec("HewFixed", "HEW-Fixed", {"power": 0.0}, amplitudes),
            MethodSpec("UniformLocalSGD", "Uniform", {}, scales),
            MethodSpec("FedAvg", "FedAvg", {}, scales),
            MethodSpec("FedNova", "FedNova", {}, scales),
            MethodSpec("Scaffold", "SCAFFOLD", {}, scales),
        ),
        rounds=60,
        seeds=(0, 1, 2),
        audit_every=5,
        data=DataSpec("digits"),
        clients=ClientsSpec(
            n=20,
            partition="dirichlet",
            alpha=0.2,
            min_samples=8,
            batch_size=8,
            local_steps={"kind": "ChoiceSteps", "choices": [1, 2, 4, 8]},
        ),
        tune=TuneSpec(rounds=20, seeds=(0, 1, 2), max_extensions=EXTENSIONS),
    )


def faulty_demo_spec() -> Spec:
    """The digits again, shuffled; three of the twenty clients have random labels.

    The objective is that of the other seventeen. Only the oracle in the last row knows
    which clients they are.
    """
    amplitudes, scales = {"amplitude": WIDE}, {"step_scale": WIDE_SCALES}
    exact = {"kappa": 10.0, "normalize": "total_step", "cross_fit": False}
    return Spec(
        name="demo-faulty-clients",
        methods=(
            MethodSpec("FedAvg", "FedAvg", {}, scales),
            MethodSpec("HewFixed", "weights by steps", {"power": 1.0}, amplitudes),
            MethodSpec("exact", "exact weights, kappa 10", exact, amplitudes),
            MethodSpec("geometric-median", "geometric median", {}, amplitudes),
            MethodSpec("trust", TRUST, {}, amplitudes),
            MethodSpec("oracle", ORACLE, {}, amplitudes),
        ),
        rounds=40,
        seeds=(0, 1, 2),
        evaluate_every=5,
        data=DataSpec("digits"),
        problem=ProblemSpec(solve_optimum=False),
        clients=ClientsSpec(
            n=20,
            partition="iid",
            batch_size=8,
            local_steps={"kind": "ChoiceSteps", "choices": [1, 2, 4, 8]},
            scenario={"faults": [{"kind": "RandomLabels", "share": FAULTY_SHARE}]},
        ),
        tune=TuneSpec(rounds=20, seeds=(3,), max_extensions=EXTENSIONS),
    )


def clients_without_weight(results: Results, label: str) -> list[int]:
    """Clients to which a method gave next to no weight at the end of the first seed.

    By the mean of the last ten rounds, against a tenth of an equal share.
    """
    records = results.records[0][results.labels.index(label)][-10:]
    total = dict.fromkeys(range(results.spec.clients.n), 0.0)
    for record in records:
        for i, weight in zip(record.clients, record.weights, strict=True):
            total[i] += abs(weight) / len(records)
    least = NO_WEIGHT / results.spec.clients.n
    return sorted(i for i, weight in total.items() if weight < least)


def faulty_clients(results: Results) -> list[int]:
    """The faulty clients of the first seed, from its trace."""
    return list(results.records[0][0][0].scenario["faulty"])


def demo(
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for page and figures.")
    ] = Path("hewfl-demo"),
    jobs: Jobs = None,
) -> None:
    """Compare exact weights with fixed rules on handwritten digits.

    Twenty clients hold skewed shares and do 1, 2, 4 or 8 local steps each; every
    method is tuned over lists of step sizes that hold its best one, and run for three
    seeds. Then three
    of twenty have random labels, and no rule knows which.
    """
    console = Console()
    console.print(f"[bold]hewfl demo[/]: {escape(str(demo.__doc__).splitlines()[0])}")
    with one_line_errors():
        specs = (demo_spec(), faulty_demo_spec())
        folders = [folder_for(spec, output / "runs") for spec in specs]
        execute(folders, jobs, console)
        write_report(folders, output / "report.html")
        made = [output / "report.html"]
        good, bad = folders
        if find_spec("matplotlib") is not None:
            figure_run(good.results, output / "figure")
            made += [output / "figure.png", output / "figure.pdf"]
        lines = [*sentences(good.summary), *faulty_sentences(bad.results, bad.summary)]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    console.print("made " + ", ".join(map(str, made)), highlight=False)


def sentences(summary: dict[str, Any]) -> list[str]:
    """Verdicts on the pairs of HEW, and the result of the audit."""
    lines = ["objective, paired by seed, 95 % intervals, Holm's correction:"]
    every = verdict_lines(summary, "objective")
    lines += [f"  {line}" for line in every if line.startswith(f"{HEW} against")]
    audits = [m["audit"] for m in summary["methods"] if m["audit"] is not None]
    checks = sum(audit["checks"] for audit in audits)
    violations = sum(audit["violations"] for audit in audits)
    lines.append(
        f"certificate of the exact weights checked with exact gradients in {checks} "
        f"rounds: {violations} violations"
    )
    return lines


def faulty_sentences(results: Results, summary: dict[str, Any]) -> list[str]:
    """The faulty clients, the clients without weight, and the accuracies."""
    final = {m["label"]: m["final"] for m in summary["methods"]}
    lines = [
        f"clients with random labels (first seed): {_names(faulty_clients(results))}"
    ]
    for label in (TRUST, "FedAvg"):
        clients = clients_without_weight(results, label)
        lines.append(f"given no weight by {label}: {_names(clients)}")
    shown = [
        f"{label} {mean:.3f}"
        for label in ("FedAvg", TRUST, ORACLE)
        if (mean := final[label].get("test_accuracy", {}).get("mean")) is not None
    ]
    lines.append(f"test accuracy with three faulty clients: {', '.join(shown)}")
    return lines


def _names(clients: Sequence[int]) -> str:
    return ", ".join(map(str, clients)) if clients else "none"
