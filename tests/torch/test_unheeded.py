"""Ranks that work for nothing are named, once."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch
from tests.torch.pool import Pool
from tests.torch.scenarios import Quadratic, descend

from hewfl import Cohort, Decision, Demands, LocalPlan, Round
from hewfl.server.trace import from_lines
from hewfl.torch import HewLocalSGD, SyncOptions
from hewfl.torch.job import PATIENCE, Unheeded

ALL = np.arange(3)


def told(watch: Unheeded, weights: list[float], heard: Any = ALL, t: int = 1) -> str:
    return watch.noted(Decision(np.array(weights), "solved"), heard, t).status


def test_a_rank_is_named_when_it_has_waited_long_enough(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = Unheeded(3, logs=True)
    with caplog.at_level(logging.WARNING, "hewfl.torch"):
        said = [told(watch, [0.5, 0.0, 0.5], t=t) for t in range(1, 2 * PATIENCE)]
    expected = f"solved; weight zero for {PATIENCE} rounds in a row: rank 1"
    assert said[PATIENCE - 1] == expected
    assert [text for text in said if text != "solved"] == [expected]
    (line,) = caplog.messages
    assert line.startswith(f"round {PATIENCE}: weight zero for {PATIENCE} rounds")


def test_only_rounds_in_a_row_count_and_only_those_in_which_it_was_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = Unheeded(3, logs=False)
    for _ in range(PATIENCE - 1):
        told(watch, [1.0, 0.0, 0.0])
    assert told(watch, [0.5, 0.5, 0.0]).endswith("in a row: rank 2")
    for _ in range(PATIENCE):  # rank 1 is not heard: it is named elsewhere
        assert told(watch, [1.0, 0.0], np.array([0, 2])) == "solved"
    for _ in range(PATIENCE - 1):
        assert told(watch, [1.0, 0.0, 0.0]) == "solved"
    assert told(watch, [1.0, 0.0, 0.0]).endswith("in a row: rank 1")
    assert not caplog.messages


def job(rank: int, _: int, folder: str) -> str:
    """Two ranks under a rule that hears the first alone."""
    module = Quadratic(rank, (torch.float64,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    options = SyncOptions(folder=folder)
    with HewLocalSGD(module, optimizer, 1, First(), None, options) as local:
        descend(module, optimizer, PATIENCE)
    assert local.last is not None
    return local.last.status


@final
@dataclass(frozen=True)
class First:
    """All weight to the first rank."""

    name: ClassVar[str] = "first"
    demands: ClassVar[Demands] = Demands()

    def init(self, n: int, d: int, gradients: Any) -> None:
        """There is no state."""

    def plan(self, cohort: Cohort, state: None) -> LocalPlan:  # noqa: ARG002 - none
        return LocalPlan(np.full(len(cohort.clients), 0.1))

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        weights = np.zeros(round_.displacements.n)
        weights[0] = 1.0
        return Decision(weights, "the first"), state


@pytest.mark.torch
def test_the_trace_of_a_job_names_it(pool: Pool, tmp_path: Path) -> None:
    statuses = pool.run(job, 2, str(tmp_path))
    assert set(statuses) == {
        f"the first; weight zero for {PATIENCE} rounds in a row: rank 1"
    }
    lines = (tmp_path / "seed-0" / "trace.jsonl").read_text().splitlines()
    assert [record.status for record in from_lines(lines)][-1] == statuses[0]
