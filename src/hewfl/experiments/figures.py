"""The figure of any run: curves and final weights on one sheet."""

from pathlib import Path
from typing import Any

from hewfl.experiments.canvas import legend, plain_text, save
from hewfl.experiments.curves import Axis, draw_curves, measured
from hewfl.experiments.results import Results
from hewfl.experiments.weight_charts import draw_weight_map


def figure_run(results: Results, path: Path) -> tuple[Path, Path]:
    """Draw any run on one sheet: training, accuracy, and final weights by horizon.

    Args:
        results: of the run.
        path: of the files, without the ending.

    Returns:
        The PDF and the PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    kinds = (("gap", "objective"), ("test_accuracy", "test_loss"))
    offered = [measured(results, kind)[:1] for kind in kinds]
    quantities = [found[0] for found in offered if found]

    def draw(figure: Any) -> None:
        grid = figure.add_gridspec(2, len(quantities) + 1)
        ways: tuple[Axis, Axis] = ("rounds", "scalars")
        for i, axis in enumerate(ways):
            for j, quantity in enumerate(quantities):
                panel = figure.add_subplot(grid[i, j])
                draw_curves(panel, results, quantity, axis=axis)
        draw_weight_map(figure.add_subplot(grid[:, -1]), results)
        figure.suptitle(plain_text(results.spec.name))
        legend(figure, figure.axes[:1], columns=5)

    height = 4.6 + 0.16 * (len(results.labels) // 5)
    return save(draw, (3.1 * len(quantities) + 3.3, height), path)
