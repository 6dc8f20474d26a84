"""What workers tell the process that started them."""

import signal
import sys
import warnings
from typing import Any

import pytest

from hewfl.experiments.executor import Task, execute


def warns(number: int, on_step: Any) -> int:
    on_step(1)
    warnings.warn("this is odd", stacklevel=1)
    return number


def is_silent(on_step: Any) -> None:
    """Ends without news of its steps, as if the result had overtaken them."""


def ignore(task: int, done: int) -> None:
    assert (task, done) >= (0, 0)


def hears_ctrl_c(on_step: Any) -> bool:
    on_step(1)
    return signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signal masks")
def test_workers_are_deaf_to_ctrl_c_from_their_start() -> None:
    """Heard while it imports, a worker would print a traceback."""
    task = Task("s", "t", 1, hears_ctrl_c, ())
    assert execute([task], jobs=1, report=ignore) == [False]
    assert execute([task], jobs=0, report=ignore) == [True]


def test_a_result_is_news_of_all_steps() -> None:
    seen: list[tuple[int, int]] = []
    tasks = [Task("s", "t", 7, is_silent, ())]
    execute(tasks, jobs=1, report=lambda task, done: seen.append((task, done)))
    assert seen == [(0, 7)]


def test_warnings_of_workers_are_given_here_once() -> None:
    tasks = [Task("s", f"t{k}", 1, warns, (k,)) for k in range(4)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        assert execute(tasks, jobs=2, report=ignore) == [0, 1, 2, 3]
    assert [str(warning.message) for warning in caught] == ["this is odd"]
    with pytest.raises(UserWarning, match="this is odd"):
        execute(tasks[:1], jobs=1, report=ignore)
