"""Tasks that leave a mark when they begin, so that a test can count how often."""

import os
import time
from pathlib import Path
from typing import Any

from hewfl.experiments.executor import Task


def marked(number: int, marks: Path, seconds: float, file: Path, on_step: Any) -> int:
    """The square of a number: from its file if it was done before, else in a while."""
    if not file.exists():
        with (marks / str(number)).open("a") as mark:
            mark.write("began\n")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.02)
            on_step(0)
        file.write_text(str(number**2))
    return int(file.read_text())


def marked_tasks(count: int, marks: Path, seconds: float) -> list[Task]:
    marks.mkdir(exist_ok=True)
    tasks = []
    for k in range(count):
        file = marks.with_name(f"{marks.name}-done") / f"{k}.txt"
        call = (k, marks, seconds, file)
        done = int(file.exists())
        tasks.append(Task("marked", f"t{k}", 1, marked, call, done, writes=file))
    return tasks


def begun(marks: Path) -> list[int]:
    """How often each task has begun."""
    return [len(file.read_text().splitlines()) for file in sorted(marks.iterdir())]


def dies(on_step: Any) -> None:
    """End the worker as the system does when memory runs out."""
    on_step(0)
    os._exit(9)
