"""Tasks that leave a mark when they begin, so that a test can count how often."""

import time
from pathlib import Path
from typing import Any

from hewfl.experiments.workers import Task


def marked(number: int, marks: Path, seconds: float, on_step: Any) -> int:
    """Leave a mark, then take some time in steps."""
    with (marks / str(number)).open("a") as file:
        file.write("began\n")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)
        on_step(0)
    return number**2


def marked_tasks(count: int, marks: Path, seconds: float) -> list[Task]:
    marks.mkdir()
    return [
        Task("marked", f"t{k}", 1, marked, (k, marks, seconds)) for k in range(count)
    ]


def begun(marks: Path) -> list[int]:
    """How often each task has begun."""
    return [len(file.read_text().splitlines()) for file in sorted(marks.iterdir())]
