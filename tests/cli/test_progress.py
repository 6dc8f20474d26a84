"""Progress: what is done by cost, and the time left by the rate of this start."""

import io

import pytest
from rich.console import Console

from hewfl.cli.progress import Bars, left_of
from hewfl.experiments.executor import Task


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass only when the test says so."""
    now = [100.0]
    monkeypatch.setattr("hewfl.cli.progress.time.monotonic", lambda: now[0])
    return now


def task(steps: int, *, done: int = 0, cost: int = 1) -> Task:
    return Task("tuning", "t", steps, print, (), done, cost)


def bars_of(clock: list[float], text: io.StringIO) -> Bars:
    bars = Bars(Console(file=text, width=80))
    bars._bars.get_time = lambda: clock[0]  # what rich offers its constructor
    return bars


def test_what_an_earlier_start_did_does_not_count_as_speed(clock: list[float]) -> None:
    bars = bars_of(clock, io.StringIO())
    bars.begin([task(10, done=10), task(10, cost=3)])
    (bar,) = bars._bars.tasks
    assert bar.percentage == 25
    assert left_of(bar) is None
    clock[0] += 20
    bars.step(1, 5)
    assert bar.percentage == pytest.approx(62.5)
    assert left_of(bar) == pytest.approx(20)
    bars.step(1, 10)
    assert left_of(bar) == 0


def test_a_log_gets_a_line_a_minute(clock: list[float]) -> None:
    text = io.StringIO()
    bars = bars_of(clock, text)
    bars.begin([task(4)])
    clock[0] += 30
    bars.step(0, 1)
    assert text.getvalue() == ""
    clock[0] += 30
    bars.step(0, 2)
    assert text.getvalue() == "tuning: 50 % after 0:01:00, 0:01:00 left\n"
    bars.step(0, 3)
    assert text.getvalue().count("\n") == 1
