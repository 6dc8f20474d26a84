"""State dicts: a job cut in two ends on the same bits as an uninterrupted one."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.torch.pool import Pool
from tests.torch.scenarios import Quadratic, descend, flat, post_local

from hewfl import DataError, Outer
from hewfl.torch import HewAverager, HewLocalSGD, SyncOptions

Array = NDArray[np.float64]
pytestmark = pytest.mark.torch
OPTIONS = SyncOptions(bucket_bytes=64, outer=Outer(0.7, 0.9, nesterov=True))


@final
@dataclass(frozen=True)
class Job:
    """Three rounds and one step, whole, or stopped some steps after the first round."""

    rule: str
    dtype: torch.dtype
    stop: int | None = None
    folder: str = ""


def make(rank: int, job: Job) -> tuple[Any, Any, HewLocalSGD]:
    module = Quadratic(rank, (job.dtype,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.5)
    every = 2 + rank
    local = HewLocalSGD(module, optimizer, every, job.rule, None, OPTIONS)
    return module, optimizer, local


def run(rank: int, _: int, job: Job) -> Array:
    every = 2 + rank
    left = 3 * every + 1
    module, optimizer, local = make(rank, job)
    if job.stop is not None:
        local.__enter__()  # never left: the process is killed at this point
        descend(module, optimizer, every + job.stop)
        left -= every + job.stop
        path = Path(job.folder, f"{rank}.pt")
        torch.save([part.state_dict() for part in (module, optimizer, local)], path)
        module, optimizer, local = make(rank, job)
        held = torch.load(path, weights_only=True)
        for part, state in zip((module, optimizer, local), held, strict=True):
            part.load_state_dict(state)
    with local:
        descend(module, optimizer, left)
    return flat(module)


@pytest.mark.parametrize("stop", [0, 1])
@pytest.mark.parametrize("rule", ["hom", "het"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_resume_is_bit_identical(
    pool: Pool, tmp_path: Path, rule: str, dtype: torch.dtype, stop: int
) -> None:
    whole = Job(rule, dtype)
    cut = replace(whole, stop=stop, folder=str(tmp_path))
    for a, b in zip(pool.run(run, 4, whole), pool.run(run, 4, cut), strict=True):
        assert a.tobytes() == b.tobytes()


def refusals(rank: int, ranks: int) -> list[str]:
    _, _, local = make(rank, Job("hom", torch.float32))
    state = local.state_dict()
    others = [
        state | {"format": 7},
        state | {"identity": state["identity"] | {"rank": (rank + 1) % ranks}},
        state | {"identity": state["identity"] | {"number of ranks": 9}},
        state | {"identity": state["identity"] | {"layout": 5}},
    ]
    texts = []
    for other in others:
        with pytest.raises(DataError) as caught:
            local.load_state_dict(other)
        texts.append(str(caught.value))
    return texts


def test_states_of_other_jobs_are_refused(pool: Pool) -> None:
    form, rank, ranks, layout = pool.run(refusals, 2)[0]
    assert form == "the state has format 7; this reads 1"
    assert rank == "the state belongs to another job: its rank is 1, not 0"
    assert "its number of ranks is 9, not 2" in ranks
    assert "its layout is 5" in layout


def averaged(rank: int, _: int, stop: int | None) -> Array:
    def fresh() -> tuple[Any, Any]:
        module = Quadratic(rank, (torch.float32,))
        local = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.5)
        averager = HewAverager(module.parameters(), 3, options=OPTIONS)
        return module, post_local(local, averager)

    module, optimizer = fresh()
    if stop is not None:
        descend(module, optimizer, stop)
        parts = (module, optimizer, optimizer.averager)
        held = [part.state_dict() for part in parts]
        module, optimizer = fresh()
        for part, state in zip(
            (module, optimizer, optimizer.averager), held, strict=True
        ):
            part.load_state_dict(state)
    descend(module, optimizer, 7 - (stop or 0))
    return flat(module)


def test_averagers_resume_too(pool: Pool) -> None:
    whole, cut = pool.run(averaged, 2, None), pool.run(averaged, 2, 5)
    for a, b in zip(whole, cut, strict=True):
        assert a.tobytes() == b.tobytes()
