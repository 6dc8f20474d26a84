"""Ranks with weight zero in many consecutive rounds are named once."""

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
from hewfl.torch.sync import ZERO_WEIGHT_ROUNDS, name_zero_weights

ALL = np.arange(3)


def test_a_rank_is_named_once() -> None:
    counts, weights = np.zeros(3, dtype=np.int64), np.array([0.5, 0.0, 0.5])
    rounds = range(2 * ZERO_WEIGHT_ROUNDS)
    texts = [name_zero_weights(counts, weights, ALL) for _ in rounds]
    expected = f"weight zero for {ZERO_WEIGHT_ROUNDS} rounds in a row: rank 1"
    assert texts[ZERO_WEIGHT_ROUNDS - 1] == expected
    assert [text for text in texts if text] == [expected]


def test_only_consecutive_rounds_with_a_displacement_count() -> None:
    counts = np.zeros(3, dtype=np.int64)

    def text_of(weights: list[float], ranks: Any = ALL) -> str:
        return name_zero_weights(counts, np.array(weights), ranks)

    for _ in range(ZERO_WEIGHT_ROUNDS - 1):
        text_of([1.0, 0.0, 0.0])
    assert text_of([0.5, 0.5, 0.0]).endswith("in a row: rank 2")
    for _ in range(ZERO_WEIGHT_ROUNDS):  # rank 1 takes no part: its count stays
        assert text_of([1.0, 0.0], np.array([0, 2])) == ""
    for _ in range(ZERO_WEIGHT_ROUNDS - 1):
        assert text_of([1.0, 0.0, 0.0]) == ""
    assert text_of([1.0, 0.0, 0.0]).endswith("in a row: rank 1")


def job(rank: int, _: int, folder: str) -> str:
    """Two ranks; the rule gives weight to the first alone."""
    module = Quadratic(rank, (torch.float64,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    options = SyncOptions(folder=folder)
    with HewLocalSGD(module, optimizer, 1, First(), None, options) as local:
        descend(module, optimizer, ZERO_WEIGHT_ROUNDS)
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
        f"the first; weight zero for {ZERO_WEIGHT_ROUNDS} rounds in a row: rank 1"
    }
    lines = (tmp_path / "seed-0" / "trace.jsonl").read_text().splitlines()
    assert [record.status for record in from_lines(lines)][-1] == statuses[0]
