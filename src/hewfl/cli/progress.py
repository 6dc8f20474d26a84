"""Progress of a run: one bar for each stage, with the time left."""

import time
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import final

import rich.progress
from rich.console import Console
from rich.text import Text

from hewfl.experiments.executor import Progress, Task

LINE_EVERY = 60.0
"""Seconds between lines where there is no terminal for bars."""


@final
class Bars(Progress):
    """Bars in the terminal; a line now and then where there is none.

    Steps count by their cost. The time left is judged by all that was done of the
    stage since it began, without what an earlier start had done.
    """

    def __init__(self, console: Console, *, transient: bool = False) -> None:
        self._console = console
        self._bars = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TaskProgressColumn(),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TextColumn("left"),
            _TimeLeft(),
            console=console,
            transient=transient,
        )
        self._bar: rich.progress.TaskID | None = None
        self._tasks: Sequence[Task] = ()
        self._done: dict[int, int] = {}
        self._spoke = time.monotonic()

    def begin(self, tasks: Sequence[Task]) -> None:
        """A new bar that counts the steps of all tasks of the stage."""
        self._complete()
        self._tasks = tasks
        self._done = {k: task.done for k, task in enumerate(tasks)}
        known = sum(task.cost * task.done for task in tasks)
        total = sum(task.cost * task.steps for task in tasks)
        self._bar = self._bars.add_task(
            tasks[0].stage, total=total, completed=known, known=known
        )
        self._spoke = time.monotonic()

    def step(self, task: int, done: int) -> None:
        """So many steps of a task are done."""
        assert self._bar is not None
        cost = self._tasks[task].cost
        self._bars.update(self._bar, advance=cost * (done - self._done[task]))
        self._done[task] = done
        if not self._console.is_terminal:
            self._speak(self._bars.tasks[-1])

    def note(self, text: str) -> None:
        """Say beside the bar who is at work."""
        assert self._bar is not None
        text = f"{self._tasks[0].stage} ({text})"
        self._bars.update(self._bar, description=text)

    def _speak(self, bar: rich.progress.Task) -> None:
        """A line for a log, if the last one is a while ago."""
        now = time.monotonic()
        if now - self._spoke < LINE_EVERY:
            return
        self._spoke = now
        share = f"{bar.description}: {bar.percentage:.0f} %"
        line = f"{share} after {_clock(bar.elapsed or 0)}, {_clock(left_of(bar))} left"
        self._console.print(line, highlight=False)

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


@final
class _TimeLeft(rich.progress.ProgressColumn):
    """Time left by the rate since the start; rich forgets after half a minute."""

    max_refresh = 0.5

    def render(self, task: rich.progress.Task) -> Text:
        return Text(_clock(left_of(task)), style="progress.remaining")


def left_of(bar: rich.progress.Task) -> float | None:
    """Seconds left at the rate of the stage so far; None while nothing was done."""
    done = bar.completed - bar.fields["known"]
    if bar.remaining is None or bar.elapsed is None:
        return None
    if bar.remaining <= 0:
        return 0.0
    return None if done <= 0 else bar.elapsed / done * bar.remaining


def _clock(seconds: float | None) -> str:
    return "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))
