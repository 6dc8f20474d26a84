"""Progress of a run: one bar for each stage, with the time left."""

from collections.abc import Sequence
from types import TracebackType
from typing import final

import rich.progress
from rich.console import Console

from hewfl.experiments.run import Progress
from hewfl.experiments.workers import Task


@final
class Bars(Progress):
    """Bars in the terminal; nothing but lines where there is none."""

    def __init__(self, console: Console) -> None:
        self._bars = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TaskProgressColumn(),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TextColumn("left"),
            rich.progress.TimeRemainingColumn(),
            console=console,
        )
        self._bar: rich.progress.TaskID | None = None
        self._done: dict[int, int] = {}

    def begin(self, tasks: Sequence[Task]) -> None:
        """A new bar that counts the steps of all tasks of the stage."""
        self._complete()
        self._done = {}
        stage, count = tasks[0].stage, len(tasks)
        total = sum(task.steps for task in tasks)
        text = f"{stage} ({count} part{'s' if count > 1 else ''})"
        self._bar = self._bars.add_task(text, total=total)

    def step(self, task: int, done: int) -> None:
        """Move the bar."""
        assert self._bar is not None
        self._bars.update(self._bar, advance=done - self._done.get(task, 0))
        self._done[task] = done

    def _complete(self) -> None:
        """Fill the bar of a stage that is over: last messages may be under way."""
        for bar in self._bars.tasks:
            self._bars.update(bar.id, completed=bar.total)

    def __enter__(self) -> "Bars":
        """Show the bars."""
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave them as they are, full if all went well."""
        if kind is None:
            self._complete()
        self._bars.stop()
