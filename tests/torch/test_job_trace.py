"""A job's trace is a run folder that reports read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.torch.pool import Pool
from tests.torch.scenarios import Quadratic, descend, make_aggregator

from hewfl.experiments.run_folder import open_folder
from hewfl.report.page import write_report
from hewfl.server.trace import RoundRecord, from_lines
from hewfl.torch import HewLocalSGD, SyncOptions

pytestmark = pytest.mark.torch


def kept(
    rank: int, _: int, folder: str, rounds: int, state: Any = None
) -> tuple[Any, Any]:
    """A job that measures its loss after every round; its last state and report."""
    module = Quadratic(rank, (torch.float64,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    options = SyncOptions(folder=folder)
    saved = None
    with HewLocalSGD(
        module, optimizer, rank + 1, make_aggregator("exact"), None, options
    ) as local:
        if state is not None:
            local.load_state_dict(state[rank])
        else:
            local.log_metrics(objective=float(module().detach()))
        while local.rounds < rounds:
            descend(module, optimizer, rank + 1)
            local.log_metrics(objective=float(module().detach()), rounds=local.rounds)
        saved = local.state_dict()
    return saved, local.last


def records(folder: Path) -> list[RoundRecord]:
    return from_lines((folder / "seed-0" / "trace.jsonl").read_text().splitlines())


def test_a_job_leaves_a_trace_that_reports_read(pool: Pool, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    (_, last), *_ = pool.run(kept, 3, str(folder), 4)
    results = records(folder)
    assert [record.round for record in results] == [0, 1, 2, 3, 4]
    assert results[-1].weights == last.weights
    assert results[-1].horizons == last.steps == (1, 2, 3)
    assert results[-1].observed["bytes_sent"] > 0
    assert [record.metrics.get("rounds") for record in results] == [None, 1, 2, 3, 4]
    assert results[-1].objective is not None
    run = open_folder(folder)
    write_report([run], tmp_path / "page.html")
    assert "Exact weights" in (tmp_path / "page.html").read_text()
    final = run.summary["methods"][0]["final"]["objective"]["mean"]
    assert final == results[-1].objective


def test_a_resumed_job_goes_on_with_its_trace(pool: Pool, tmp_path: Path) -> None:
    states = [saved for saved, _ in pool.run(kept, 2, str(tmp_path / "a"), 2)]
    first = records(tmp_path / "a")
    pool.run(kept, 2, str(tmp_path / "a"), 4, states)
    results = records(tmp_path / "a")
    assert results[:3] == first
    assert [record.round for record in results] == [0, 1, 2, 3, 4]
    assert results[-1].scalars == 2 * results[2].scalars
    pool.run(kept, 2, str(tmp_path / "a"), 1)  # a new job in the same folder
    assert [record.round for record in records(tmp_path / "a")] == [0, 1]


def killed(rank: int, _: int, folder: str, state: Any = None) -> Any:
    """A state from the middle of a job that never reaches its end, or one resumed."""
    module = Quadratic(rank, (torch.float64,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    options = SyncOptions(folder=folder)
    local = HewLocalSGD(
        module, optimizer, 10**9, make_aggregator("variate"), None, options
    )
    local.__enter__()
    if state is not None:
        local.load_state_dict(state[rank])
    for _ in range(2):
        descend(module, optimizer, 2)
        local.sync()
        local.log_metrics(objective=float(module().detach()))
    return local.state_dict()


def test_a_killed_job_loses_no_round(pool: Pool, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    states = pool.run(killed, 2, str(folder))
    results = records(folder)
    assert [record.round for record in results] == [0, 1, 2]
    assert results[2].objective is not None
    size = sum(p.numel() for p in Quadratic(0, (torch.float64,)).parameters())
    assert results[0].scalars == 2 * size  # the first gradients (E-29)
    with (folder / "seed-0" / "trace.jsonl").open("a") as file:
        file.write('{"round": 3, "la')  # the process died here
    pool.run(killed, 2, str(folder), states)
    again = records(folder)
    assert again[:3] == results
    assert [record.round for record in again] == [0, 1, 2, 3, 4]
    assert again[4].scalars - again[3].scalars == again[3].scalars - again[2].scalars
