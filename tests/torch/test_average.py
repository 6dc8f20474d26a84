"""Averages and adaptive server step of a torch job: the engine's, and resumed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.torch.pool import Pool
from tests.torch.scenarios import Quadratic, descend, flat

from hewfl import InvalidInputError, ServerStep
from hewfl.server.server_step import add_iterate, average_weight
from hewfl.torch import HewLocalSGD, SyncOptions

Array = NDArray[np.float64]
pytestmark = pytest.mark.torch
ROUNDS = 4


@final
@dataclass(frozen=True)
class RankRecord:
    """One rank: start, model before and after each round, averages, weights."""

    start: Array
    before: list[Array]
    after: list[Array]
    averages: list[Array]
    weights: list[Any]


def make(rank: int, server_step: ServerStep) -> tuple[Any, Any, HewLocalSGD]:
    module = Quadratic(rank, (torch.float64,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    options = SyncOptions(bucket_bytes=64, server_step=server_step)
    return (
        module,
        optimizer,
        HewLocalSGD(module, optimizer, 99, "step-weighted", None, options),
    )


def play(rank: int, _: int, server_step: ServerStep, folder: str) -> RankRecord:
    """Four rounds; in the middle one the job is stopped and goes on from its state."""
    module, optimizer, local = make(rank, server_step)
    outcome = RankRecord(flat(module), [], [], [], [])
    local.__enter__()
    for t in range(ROUNDS):
        descend(module, optimizer, 1 + rank)
        if t == 2 and folder:
            path = Path(folder, f"{rank}.pt")
            parts = (module, optimizer, local)
            torch.save([part.state_dict() for part in parts], path)
            module, optimizer, local = parts = make(rank, server_step)
            for part, state in zip(parts, torch.load(path), strict=True):
                part.load_state_dict(state)
            local.__enter__()
        outcome.before.append(flat(module))
        report = local.sync()
        assert report is not None
        outcome.weights.append(report.weights)
        outcome.after.append(flat(module))
        if server_step.average:
            descend(module, optimizer, 1)  # steps since the round are not lost
            pending = flat(module)
            with local.averaged_model():
                outcome.averages.append(flat(module))
            assert flat(module).tobytes() == pending.tobytes()
            local._job.model.set_parameters()  # the next branch from x
            local._steps.work = type(local._steps.work)()
    return outcome


@pytest.mark.parametrize(
    "server_step",
    [
        ServerStep(1.0, 0.5, average="ema"),
        ServerStep(average="tail", average_from=2),
        ServerStep(0.05, 0.9, adapt="adam", average="tail"),
        ServerStep(0.05, 0.5, adapt="yogi"),
    ],
    ids=repr,
)
def test_averages_are_the_engines(
    pool: Pool, server_step: ServerStep, tmp_path: Path
) -> None:
    """Whole and stopped half way: the same bits, and the simulator's formulas."""
    outcome = pool.run(play, 2, server_step, "")
    again = pool.run(play, 2, server_step, str(tmp_path))
    for a, b in zip(outcome, again, strict=True):
        for one, other in zip(a.after + a.averages, b.after + b.averages, strict=True):
            assert one.tobytes() == other.tobytes()
    x, average = outcome[0].start, outcome[0].start
    memory: Any = np.zeros_like(x)
    if server_step.adapt:
        memory = np.repeat(np.array(server_step.memory)[:, None], len(x), axis=1)
    for t in range(ROUNDS):
        updates = np.stack([rank.before[t] - x for rank in outcome])
        move, memory = server_step.apply(outcome[0].weights[t] @ updates, memory)
        x = x + move
        for rank in outcome:
            assert np.abs(rank.after[t] - x).max() <= 1e-12
        if server_step.average:
            average = add_iterate(average_weight(server_step, t), average, x)
            for rank in outcome:
                assert np.abs(rank.averages[t] - average).max() <= 1e-12


def refused(rank: int, _: int) -> str:
    _, _, local = make(rank, ServerStep())
    with pytest.raises(InvalidInputError) as caught, local.averaged_model():
        pass
    return str(caught.value)


def test_a_job_without_an_average_says_so(pool: Pool) -> None:
    texts = pool.run(refused, 2)
    assert "`options.server_step` must be one with an average" in texts[0]
