"""`hewfl demo`: one round by four rules, as tables."""

from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from hewfl.demo import Demo, run_demo


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Seed of the round.")] = 0,
) -> None:
    """Aggregate one round of local SGD on handwritten digits by four rules."""
    show(run_demo(seed), Console())


def show(result: Demo, console: Console) -> None:
    """Print the weights and what each rule achieves."""
    console.print(
        f"\n{len(result.sizes)} clients with unequal data trained a softmax model on "
        f"the digits for 1 to {result.horizons.max()} steps each.\n"
    )
    console.print(_clients(result))
    console.print(_rules(result))
    solution = result.solution
    console.print(
        f"exact weights: {solution.status}; {int(solution.support.sum())} clients "
        f"carry weight; certified gap {float(solution.gap):.1e} after "
        f"{int(solution.iterations)} pivots.\n"
    )


def _clients(result: Demo) -> Table:
    table = Table(title="weights by local steps", title_justify="left")
    for name in ("steps", "clients", "samples", "uniform", "data size", "exact"):
        table.add_column(name, justify="right")
    weights = {outcome.rule: outcome.weights for outcome in result.outcomes}
    for steps in np.unique(result.horizons):
        here = result.horizons == steps
        mass = [f"{w[here].sum():.3f}" for w in weights.values()]
        table.add_row(
            str(steps),
            str(int(here.sum())),
            str(int(result.sizes[here].sum())),
            mass[0],
            mass[1],
            mass[3],
        )
    return table


def _rules(result: Demo) -> Table:
    table = Table(
        title=f"one round from objective {result.before:.4f}", title_justify="left"
    )
    table.add_column("rule")
    for name in ("model of next", "measured next", "certified miss"):
        table.add_column(name, justify="right")
    for outcome in result.outcomes:
        table.add_row(
            outcome.rule,
            f"{outcome.model_value:.5f}",
            f"{outcome.objective:.5f}",
            f"{max(outcome.missed, 0.0):.1e}",
        )
    return table
