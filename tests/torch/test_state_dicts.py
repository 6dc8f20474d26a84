"""State dicts: a job cut in two ends on the same bits as an uninterrupted one."""

import copy
import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from numpy.typing import NDArray
from tests.torch.pool import Pool
from tests.torch.scenarios import SIZE, Quadratic, descend, flat, make_aggregator
from torch.distributed.checkpoint import DefaultLoadPlanner

from hewfl import DataError, ServerStep
from hewfl.torch import HewLocalSGD, SyncOptions
from hewfl.torch.state_dicts import FORMAT

Array = NDArray[np.float64]
pytestmark = pytest.mark.torch
OPTIONS = SyncOptions(bucket_bytes=64, server_step=ServerStep(0.7, 0.9, nesterov=True))


@final
@dataclass(frozen=True)
class Job:
    """Three rounds and one step, whole, or stopped some steps after the first round.

    `loaded_first`: model and optimiser are loaded before HewLocalSGD is constructed.
    """

    rule: str
    dtype: torch.dtype
    stop: int | None = None
    folder: str = ""
    loaded_first: bool = False


def make(
    rank: int, job: Job, held: Sequence[dict[str, Any]] = ()
) -> tuple[Any, Any, HewLocalSGD]:
    module = Quadratic(rank, (job.dtype,))
    momentum = 0.0 if job.rule == "variate" else 0.5  # which need plain SGD
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02, momentum=momentum)
    every = 2 + rank
    for part, state in zip((module, optimizer), held, strict=False):
        part.load_state_dict(state)
    local = HewLocalSGD(
        module, optimizer, every, make_aggregator(job.rule), None, OPTIONS
    )
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
        held = torch.load(path, weights_only=True)
        early = held[:2] if job.loaded_first else []
        module, optimizer, local = make(rank, job, early)
        parts = (module, optimizer, local)
        for part, state in list(zip(parts, held, strict=True))[len(early) :]:
            part.load_state_dict(state)
    with local:
        descend(module, optimizer, left)
    return flat(module)


@pytest.mark.parametrize("rule", ["exact", "variate"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_resume_is_bit_identical(
    pool: Pool, tmp_path: Path, rule: str, dtype: torch.dtype
) -> None:
    """Whether model and optimiser are loaded before construction or after it."""
    whole = Job(rule, dtype)
    expected = pool.run(run, 3, whole)
    for stop, first in itertools.product((0, 1), (False, True)):
        cut = replace(whole, stop=stop, folder=str(tmp_path), loaded_first=first)
        for a, b in zip(expected, pool.run(run, 3, cut), strict=True):
            assert a.tobytes() == b.tobytes()


def refusals(rank: int, ranks: int) -> list[str]:
    _, _, local = make(rank, Job("exact", torch.float32))
    state = local.state_dict()
    mine = f"rank {rank} of {ranks}"
    common, vectors = state["common"], state[mine]["vectors"]
    short = common | {"anchor float32": common["anchor float32"][:-1]}
    no_memory = {k: v for k, v in common.items() if not k.startswith("memory")}
    others_of_mine = {k: v for k, v in vectors.items() if k[:5] != "param"}
    others = [
        state | {"format": FORMAT - 1},
        state | {"job": state["job"] | {"model": 5}},
        state | {"common": no_memory},
        state | {"common": short},
        state | {mine: state[mine] | {"vectors": others_of_mine, "rounds": 7}},
    ]
    before = copy.deepcopy(local.state_dict())
    texts = []
    for other in others:
        with pytest.raises(DataError) as caught:
            local.load_state_dict(other | {"rounds": 7})
        texts.append(str(caught.value))
    assert local.rounds == 0
    same(before, local.state_dict())
    return texts


def spoiled_values(value: Any) -> list[Any]:
    """What damage may make of a value."""
    others: list[Any] = [None, "text", [], -1, 2.5, True]
    others += [{}] * (value != {})
    if isinstance(value, torch.Tensor):
        wide = value.double() if value.dtype != torch.float64 else value.float()
        others += [value.reshape(-1)[:-1], value[None], wide, value.long().bool()]
        if value.is_floating_point():
            others.append(torch.full_like(value, torch.nan))
    return others


def damaged_states(state: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The state with one part missing, or of another kind, and where that is."""
    for key, value in state.items():
        yield f"no {key}", {k: v for k, v in state.items() if k != key}
        for other in spoiled_values(value):
            yield f"{key}: {other!r:.60}", state | {key: other}
        if isinstance(value, dict):
            for place, part in damaged_states(value):
                yield f"{key}, {place}", state | {key: part}


def fuzzed(rank: int, _: int, rule: str) -> tuple[int, list[str]]:
    """Damaged states, each loaded: how many were refused, and what was not."""
    module, optimizer, local = make(rank, Job(rule, torch.float32))
    with local:
        descend(module, optimizer, 2 * (2 + rank))
    descend(module, optimizer, 1)
    state, refused, accepted = local.state_dict(), 0, []
    for place, other in damaged_states(state):
        try:
            local.load_state_dict(other)
        except DataError:
            refused += 1
        else:
            accepted.append(place)
            local.load_state_dict(state)
        same(state, local.state_dict())
    return refused, accepted


@pytest.mark.parametrize("rule", ["exact", "variate"])
def test_a_damaged_state_is_one_error_and_changes_nothing(
    pool: Pool, rule: str
) -> None:
    """Of a missing part of this rank the rest is loaded: the rank joins."""
    for rank, (refused, accepted) in enumerate(pool.run(fuzzed, 2, rule)):
        assert refused > 150
        own = f"rank {rank} of 2"
        allowed = {f"no {own}", "aggregator: 'text'", f"{own}, work, total_step: 2.5"}
        switches = [f"{own}, work, {k}" for k in ("leaving", "finite", "uncounted")]
        allowed |= {f"{k}: True" for k in [*switches, "variates_initialised"]}
        allowed |= {
            f"{own}, vectors, {name}: {torch.full((SIZE,), torch.nan)!r:.60}"
            for name in ("parameters float32", "variate float32")
        }
        assert set(accepted) - allowed == set()


def same(one: Any, other: Any) -> None:
    """That two states are equal, tensors to the bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            same(value, other[key])
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


def test_states_of_other_jobs_are_refused_before_anything_is_written(
    pool: Pool,
) -> None:
    form, layout, *damaged = pool.run(refusals, 2)[0]
    assert form == f"the state has format {FORMAT - 1}; this reads {FORMAT}"
    assert "the state is of another job: its model is 5" in layout
    for text, what in zip(damaged, ("memory", "anchor", "parameters"), strict=True):
        start = f"the state is damaged: its {what} float32 is missing or of another"
        assert text.startswith(start)


def twice(rank: int, _: int, rule: str) -> list[bytes]:
    """Two rounds from one state, three times; torch's optimisers need a copy each."""
    job = Job(rule, torch.float32)
    module, optimizer, local = make(rank, job)
    ends = []
    with local:
        descend(module, optimizer, 2 * (2 + rank))
        parts = (module, optimizer, local)
        held = [copy.deepcopy(part.state_dict()) for part in parts]
        for _ in range(3):
            module.load_state_dict(held[0])
            optimizer.load_state_dict(copy.deepcopy(held[1]))
            local.load_state_dict(held[2])
            descend(module, optimizer, 2 * (2 + rank))
            ends.append(flat(module).tobytes())
    return ends


@pytest.mark.parametrize("rule", ["exact", "variate"])
def test_a_state_may_be_loaded_twice(pool: Pool, rule: str) -> None:
    """Training goes on in memory of its own, the server momentum's included."""
    for first, *others in pool.run(twice, 2, rule):
        assert others == [first, first]


def leaves_a_state(rank: int, _: int, rule: str, folder: str) -> Array:
    """Two rounds and a step; what all ranks share, and a file of each rank."""
    module, optimizer, local = make(rank, Job(rule, torch.float32))
    local.__enter__()  # never left: the process is killed at this point
    descend(module, optimizer, 2 * (2 + rank) + 1)
    torch.save(local.state_dict(), Path(folder, f"{rank}.pt"))
    return shared_part(local)


def shared_part(local: HewLocalSGD) -> Array:
    common = local.state_dict()["common"]
    parts = [tensor.reshape(-1).double() for tensor in common.values()]
    values: Array = torch.cat(parts).numpy()
    return values


def joins(rank: int, _: int, rule: str, folder: str) -> tuple[Array, Array, Array, int]:
    """From the file of rank 1 of a job of another size; then two rounds more."""
    module, optimizer, local = make(rank, Job(rule, torch.float32))
    local.load_state_dict(torch.load(Path(folder, "1.pt"), weights_only=True))
    began, model = shared_part(local), flat(module)
    with local:
        descend(module, optimizer, 2 * (2 + rank))
    return began, model, flat(module), local.rounds


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("rule", ["exact", "variate"])
def test_a_job_goes_on_with_more_or_fewer_ranks(
    pool: Pool, tmp_path: Path, rule: str, ranks: int
) -> None:
    """Model, server momentum and the server's variate are those that were left."""
    left = pool.run(leaves_a_state, 3, rule, str(tmp_path))
    results = pool.run(joins, ranks, rule, str(tmp_path))
    for began, model, end, rounds in results:
        assert began.tobytes() == left[0].tobytes()
        assert model.tobytes() == results[0][1].tobytes()
        assert end.tobytes() == results[0][2].tobytes()
        assert rounds == 4
    assert left[0].tobytes() == left[2].tobytes()


def other_options(rank: int, _: int, rule: str, folder: str) -> Any:
    """The state of another aggregator, in buckets of another length."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    options = replace(OPTIONS, bucket_bytes=100)
    local = HewLocalSGD(module, optimizer, 3, make_aggregator(rule), None, options)
    local.load_state_dict(torch.load(Path(folder, f"{rank}.pt"), weights_only=True))
    names = ("anchor float32", "memory float32")
    shared = [local.state_dict()["common"][name].tolist() for name in names]
    steps = local._steps.work.steps
    with local:
        descend(module, optimizer, 3)
    return local.rounds, shared, steps, flat(module).tobytes()


@pytest.mark.parametrize("rule", ["sieve", "variate"])
def test_another_aggregator_loads_what_all_ranks_share(
    pool: Pool, tmp_path: Path, rule: str
) -> None:
    left = pool.run(leaves_a_state, 2, "exact", str(tmp_path))
    results = pool.run(other_options, 2, rule, str(tmp_path))
    for rounds, shared, steps, end in results:
        assert (rounds, steps) == (3, 0)
        assert np.concatenate(shared).tobytes() == left[0].tobytes()
        assert end == results[0][3]


def checkpointed(rank: int, _: int, folder: str) -> list[bytes]:
    """One checkpoint of all ranks, by torch.distributed.checkpoint; both ends."""
    job, ends = Job("variate", torch.float32), []
    for is_loaded in (False, True):
        module = Quadratic(rank, (job.dtype,))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
        local = HewLocalSGD(
            module, optimizer, 3, make_aggregator(job.rule), None, OPTIONS
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about itself
            if is_loaded:
                dcp.load({"local": local}, checkpoint_id=folder)
            else:
                with local:  # the block ends with a round of what is pending
                    descend(module, optimizer, 4)
                descend(module, optimizer, 1)  # outside: moved, and not counted
                dcp.save({"local": local}, checkpoint_id=folder)
        with local:
            descend(module, optimizer, 3)
        ends.append(flat(module).tobytes())
    return ends


def test_ranks_may_write_one_checkpoint_together(pool: Pool, tmp_path: Path) -> None:
    """The part of each rank has its own key; what all share is saved once."""
    for whole, cut in pool.run(checkpointed, 2, str(tmp_path / "all")):
        assert whole == cut


def regrouped(rank: int, ranks: int, folder: str) -> tuple[int, bytes, bytes]:
    """Saved by three ranks, loaded by two of them with another number of parts."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    options = SyncOptions(server_step=ServerStep(0.7, 0.9))
    local = HewLocalSGD(module, optimizer, 3, make_aggregator("variate"), None, options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about itself
        if ranks == 3:
            with local:
                descend(module, optimizer, 6)
            dcp.save({"local": local}, checkpoint_id=folder)
        else:
            planner = DefaultLoadPlanner(allow_partial_load=True)
            dcp.load({"local": local}, checkpoint_id=folder, planner=planner)
    memory = local.state_dict()["common"]["memory float32"].numpy().tobytes()
    return local.rounds, flat(module).tobytes(), memory


def test_another_number_of_ranks_reads_one_checkpoint(
    pool: Pool, tmp_path: Path
) -> None:
    saved = pool.run(regrouped, 3, str(tmp_path / "all"))
    results = pool.run(regrouped, 2, str(tmp_path / "all"))
    assert results == [saved[0]] * 2
    assert saved[0][0] == 2
