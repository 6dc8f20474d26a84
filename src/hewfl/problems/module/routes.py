"""How local steps are run: client by client, stacked, or as CUDA graphs."""

from typing import Literal

from hewfl.problems.module.task import Task

FEW, SMALL, NARROW = 8, 2**14, 2**18
"""On a CPU stacking pays from this many models on, of so many parameters at most, with
minibatches that keep so many numbers at most; measured, see docs/torch_module.md."""


def choose_route(
    task: Task, models: int, width: int
) -> Literal["graph", "stacked", "loop"]:
    """The route that the settings name; for `auto` the one measured to be fastest.

    Args:
        task: what is trained, and where.
        models: clients × lanes to be stepped in a round.
        width: samples of the largest minibatch.
    """
    if task.training.route != "auto":
        return task.training.route
    if task.features.device.type == "cuda":
        return "graph"
    is_small = task.network.layout.d <= SMALL and width * task.footprint <= NARROW
    return "stacked" if models >= FEW and is_small else "loop"
