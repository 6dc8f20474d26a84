"""The same app on Flower's simulation runtime and in a federation of processes."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord, Message
from safetensors.numpy import load_file

from hewfl import Federation as Engine
from hewfl import FixedSteps, simulate
from hewfl.flower import AlgorithmStrategy
from tests.flower.app.quadratic.apps import BATCH, HORIZONS, method_of, problem_of
from tests.flower.federation import StubGrid, app_of
from tests.flower.masked.masked.apps import MOVES
from tests.flower.runtime import MASKED, Federation, federation, wait_until

pytestmark = pytest.mark.flower
together = pytest.mark.xdist_group("processes")
"""Tests of one worker, in order: they share a federation."""
NODES = 3
LIMIT = 900
"""Seconds after which a run has failed: a machine may be busy with other work."""


def model_in(folder: Path) -> Any:
    """The model of the last round kept in a folder."""
    state = next(folder.glob("seed-*/state-*.safetensors"))
    return load_file(state)[".anchor"]


def records_in(folder: Path) -> list[dict[str, Any]]:
    trace = folder / "seed-0" / "trace.jsonl"
    return [json.loads(line) for line in trace.read_text().splitlines()]


def rounds_in(folder: Path) -> int:
    manifest = folder / "seed-0" / "manifest.json"
    return json.loads(manifest.read_text())["round"] if manifest.exists() else -1


def known(method: str, n: int, rounds: int) -> Any:
    """What the engine says."""
    problem = problem_of(n)
    scenario = Engine(FixedSteps(HORIZONS[:n]), BATCH)
    entries = [method_of(method, problem.smoothness)]
    return simulate(problem, scenario, entries, rounds=rounds, seed=0).anchors[0]


def finished(
    process: subprocess.Popen[bytes], log: Any, seconds: float = LIMIT
) -> None:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the run did not end within {seconds} s:\n{log()[-3000:]}")


def test_simulation_runtime(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="flwr[simulation] is not installed")
    with federation(tmp_path, simulation=True) as there:
        there.link()
        folder = tmp_path / "run"
        run = there.run("run", clients=4, rounds=4, folder=folder)
        finished(run, lambda: there.log("run"))
        assert rounds_in(folder) == 4, there.log("run")[-3000:]
    np.testing.assert_allclose(model_in(folder), known("HewHet", 4, 4), rtol=1e-11)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink and three SuperNodes, for both tests below: starting them is slow."""
    with federation(tmp_path_factory.mktemp("processes")) as there:
        there.link()
        for i in range(NODES):
            there.node(i, NODES)
        yield there


@together
def test_secure_aggregation_in_a_federation_of_processes(
    processes: Federation, tmp_path: Path
) -> None:
    """Masked sums of three SuperNodes, weighed by sketches."""
    kept = tmp_path / "found.json"
    run = processes.run("masked", MASKED, clients=NODES, folder=kept)
    finished(run, lambda: processes.log("masked"), 2 * LIMIT)  # five messages to each
    assert kept.exists(), processes.log("masked")[-3000:]
    found = json.loads(kept.read_text())
    step = sum(np.array(w) for w in found["weights"]) @ MOVES[:NODES]
    np.testing.assert_allclose(found["model"], step, atol=1e-4)


@together
def test_processes_that_die_and_come_back(
    processes: Federation, tmp_path: Path
) -> None:
    """A node is killed and comes back, then the whole server side; nothing is lost."""
    n, folder, there = NODES, tmp_path / "run", processes
    told: dict[str, Any] = {"clients": n, "folder": folder, "timeout": 20.0}
    there.run("first", pause=0.5, rounds=1000, **told)  # killed long before
    wait_until(lambda: rounds_in(folder) >= 1, LIMIT, "a first round")
    there.kill("node-2")
    there.node(2, n)
    wait_until(lambda: heard_again(folder, 2), LIMIT, "a round with it again")
    for name in ("link", "first"):  # the ServerApp is a child of the SuperLink
        there.kill(name)
    rounds = rounds_in(folder) + 2
    assert rounds > 4
    there.link()
    for i in range(n):  # nodes leave with their SuperLink
        there.kill(f"node-{i}")
        there.node(i, n)
    second = there.run("second", rounds=rounds, **told)
    finished(second, lambda: there.log("second"))
    log = there.log("second")
    records = records_in(folder)
    assert [r["round"] for r in records] == list(range(rounds + 1)), log[-3000:]
    assert "resuming after round" in log
    assert records[-1]["clients"] == [0, 1, 2]
    left_out = {r["round"]: r["excluded"] for r in records if r["excluded"]}
    assert any(2 in out for out in left_out.values())  # a slow machine loses more
    np.testing.assert_array_equal(model_in(folder), replayed(n, rounds, left_out))


def heard_again(folder: Path, client: int) -> bool:
    """Whether a client that was left out took part later."""
    records = records_in(folder)
    out = [r["round"] for r in records if client in r["excluded"]]
    return bool(out) and client in records[-1]["clients"]


def replayed(n: int, rounds: int, left_out: dict[int, list[int]]) -> Any:
    """The model of a run in one process with the same answers missing."""
    problem = problem_of(n)
    grid = StubGrid(app_of(problem, 0, BATCH), n)

    def tamper(question: Message, answer: Message) -> list[Message]:
        config = question.content.config_records.get("config", {})
        t = int(config.get("server-round", 0))
        return [] if grid.partition_of(question) in left_out.get(t, ()) else [answer]

    grid.tamper = tamper
    horizons = FixedSteps(HORIZONS[:n])
    method = method_of("HewHet", problem.smoothness)
    strategy = AlgorithmStrategy(
        method, population=n, local_steps=horizons, fraction_evaluate=0.0
    )
    strategy.start(grid, ArrayRecord([np.zeros(problem.d)]), rounds)
    return strategy.state.anchor
