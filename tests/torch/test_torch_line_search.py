"""A line search in a torch job: losses of all ranks along the step."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.torch.pool import Pool
from tests.torch.scenarios import Quadratic, descend, flat, quadratic

from hewfl import InvalidInputError, ServerStep
from hewfl.server.line_search import fit_line_search, trial_lengths
from hewfl.torch import HewAverager, HewLocalSGD, SyncOptions

Array = NDArray[np.float64]
pytestmark = pytest.mark.torch
SERVER_STEP = ServerStep(1.0, 0.5, line_search_samples=9)
RATE = 0.01


@final
@dataclass(frozen=True)
class RankRecord:
    """One rank: models before and after each round, reports, scales, rates seen."""

    start: Array
    before: list[Array]
    after: list[Array]
    reports: list[Any]
    scales: list[float]
    asked: list[int]


def make(rank: int, asked: list[int]) -> tuple[Any, Any, HewLocalSGD]:
    module = Quadratic(rank, (torch.float64,))
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    options = SyncOptions(bucket_bytes=64, server_step=SERVER_STEP)
    local = HewLocalSGD(module, optimizer, 99, "step-weighted", None, options)

    def probe(samples: int) -> Any:
        asked.append(samples)
        return module  # its loss has no samples: exact

    local.set_probe(probe)
    return module, optimizer, local


def play(rank: int, _: int, folder: str) -> RankRecord:
    asked: list[int] = []
    module, optimizer, local = make(rank, asked)
    outcome = RankRecord(flat(module), [], [], [], [], asked)
    local.__enter__()
    for t in range(3):
        if t == 1 and folder:
            path = Path(folder, f"{rank}.pt")
            parts = (module, optimizer, local)
            torch.save([part.state_dict() for part in parts], path)
            module, optimizer, local = parts = make(rank, asked)
            for part, state in zip(parts, torch.load(path), strict=True):
                part.load_state_dict(state)
            local.__enter__()
        outcome.scales.append(local.scale)
        descend(module, optimizer, 1 + rank)
        assert optimizer.param_groups[0]["lr"] == RATE  # as schedulers see it
        outcome.before.append(flat(module))
        outcome.reports.append(local.sync())
        outcome.after.append(flat(module))
    return outcome


def branch(rank: int, x: Array, rate: float) -> Array:
    A, b = quadratic(rank)
    y = x
    for _ in range(1 + rank):
        y = y - rate * A.T @ (A @ y - b)
    return y


def loss(rank: int, x: Array) -> float:
    A, b = quadratic(rank)
    return float(0.5 * ((A @ x - b) ** 2).sum())


def test_measured_steps_are_the_engines(pool: Pool, tmp_path: Path) -> None:
    outcome = pool.run(play, 2, "")
    again = pool.run(play, 2, str(tmp_path))
    for a, b in zip(outcome, again, strict=True):
        for one, other in zip(a.after, b.after, strict=True):
            assert one.tobytes() == other.tobytes()
        assert a.scales == b.scales
    x, memory, scale = outcome[0].start, np.zeros_like(outcome[0].start), 1.0
    for t in range(3):
        assert outcome[0].scales[t] == pytest.approx(scale)
        ends = [branch(rank, x, scale * RATE) for rank in range(2)]
        for rank in range(2):
            assert np.abs(outcome[rank].before[t] - ends[rank]).max() < 1e-12
        w = np.array([1 / 3, 2 / 3])
        s = w @ (np.stack(ends) - x)
        points = trial_lengths(SERVER_STEP)
        table = [[loss(rank, x + a * s) for a in points] for rank in range(2)]
        results = fit_line_search(SERVER_STEP, w, np.array(table))
        for rank in outcome:
            measured = rank.reports[t].line_search
            assert measured.length == pytest.approx(results.length)
            assert measured.decrease == pytest.approx(results.decrease)
            assert (measured.low, measured.high) == pytest.approx(
                (results.low, results.high)
            )
        memory = 0.5 * memory + results.length * s
        x, scale = x + memory, scale * results.step_size_factor
        for rank in outcome:
            assert np.abs(rank.after[t] - x).max() < 1e-11
    assert outcome[0].asked == [9, 9, 9]


def refusals(rank: int, _: int) -> list[str]:
    module = Quadratic(rank, (torch.float64,))
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    options = SyncOptions(server_step=SERVER_STEP)
    texts = []
    with pytest.raises(InvalidInputError) as caught:
        HewAverager(module.parameters(), 2, options=options)
    texts.append(str(caught.value))
    local = HewLocalSGD(module, optimizer, 99, "step-weighted", None, options)
    with pytest.raises(InvalidInputError) as caught:
        local.sync()
    return [*texts, str(caught.value)]


def test_a_job_that_cannot_measure_says_so(pool: Pool) -> None:
    averager, silent = pool.run(refusals, 2)[0]
    assert "`options.server_step.line_search_samples` must be left out" in averager
    assert "set_probe" in silent
