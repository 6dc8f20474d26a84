"""ServerStep steps and averages against their formulas, and runs that keep them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hewfl import (
    Entry,
    FedAdagrad,
    FedAdam,
    FedAvg,
    Federation,
    FedYogi,
    FixedSteps,
    HewHom,
    InvalidInputError,
    SampledParticipation,
    ServerStep,
    Trace,
    simulate,
)
from hewfl.problems import random_quadratic
from hewfl.server.server_step import add_iterate, average_weight
from hewfl.server.trace import AVERAGED
from tests.simulation.unchecked import unchecked

S = np.array([[0.5, -2.0, 0.0], [1.0, 0.25, 0.0], [-0.5, 1.0, 3.0]])
"""Three steps of three entries."""
TAU, BETA, BETA2, GAMMA = 0.5, 0.25, 0.75, 0.1


def played(server_step: ServerStep) -> tuple[list[Any], Any]:
    """The moves of the three steps, and the memory after them."""
    memory = np.repeat(np.array(server_step.memory)[:, None], 3, axis=1)
    moves = []
    for s in S:
        move, memory = server_step.apply(s, memory)
        moves.append(move)
    return moves, memory


def test_momentum_follows_its_formulas() -> None:
    s, m = np.array([1.0, 2.0]), np.array([10.0, 0.0])
    move, memory = ServerStep(0.5).apply(s, m)
    assert move.tolist() == [0.5, 1.0]
    assert memory is m
    move, memory = ServerStep(2.0, 0.5).apply(s, m)
    assert memory.tolist() == [6.0, 2.0]
    assert move.tolist() == [12.0, 4.0]
    move, memory = ServerStep(1.0, 0.5, nesterov=True).apply(s, m)
    assert memory.tolist() == [6.0, 2.0]
    assert move.tolist() == [4.0, 3.0]


def test_adam_in_closed_form() -> None:
    """v_3 = β₂³τ² + (1 − β₂) Σ β₂^(3−t) s_t², and m likewise: all sums by hand."""
    server_step = ServerStep(GAMMA, BETA, adapt="adam", beta2=BETA2, tau=TAU)
    moves, memory = played(server_step)
    powers = np.array([2, 1, 0])
    m = (1 - BETA) * (BETA**powers) @ S
    v = BETA2**3 * TAU**2 + (1 - BETA2) * (BETA2**powers) @ S**2
    assert memory[0] == pytest.approx(m, rel=1e-14)
    assert memory[1] == pytest.approx(v, rel=1e-14)
    assert moves[-1] == pytest.approx(GAMMA * m / (np.sqrt(v) + TAU), rel=1e-14)


def test_adagrad_in_closed_form() -> None:
    moves, memory = played(ServerStep(GAMMA, adapt="adagrad", tau=TAU))
    v = TAU**2 + (S**2).sum(axis=0)
    assert memory[1] == pytest.approx(v, rel=1e-14)
    assert moves[-1] == pytest.approx(GAMMA * S[-1] / (np.sqrt(v) + TAU), rel=1e-14)


def test_yogi_in_closed_form() -> None:
    """τ² = 1/4 equals the first square of the first entry: its sign is zero there."""
    _, memory = played(ServerStep(GAMMA, BETA, adapt="yogi", beta2=BETA2, tau=TAU))
    rest = 1 - BETA2
    first = 0.25 + rest * 1.0 - rest * 0.25  # 0.25 = v, 1 > v, 0.25 < v
    second = 0.25 + rest * 4.0 - rest * 0.0625 - rest * 1.0
    third = 0.25 + rest * 9.0
    assert memory[1] == pytest.approx([first, second, third], rel=1e-14)


def test_server_steps_are_the_same_on_tensors() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    for adapt in ("adam", "yogi", "adagrad"):
        server_step = ServerStep(GAMMA, BETA, adapt=adapt, tau=TAU)
        moves, memory = played(server_step)
        stored = torch.tensor(server_step.memory)[:, None].repeat(1, 3).double()
        for s, move in zip(S, moves, strict=True):
            result, stored = server_step.apply(torch.tensor(s), stored)
            assert result.dtype == torch.float64
            assert result.numpy() == pytest.approx(move, rel=1e-14)
        assert stored.numpy() == pytest.approx(memory, rel=1e-14)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"adapt": "sgd"}, "`adapt` must be one of adam, yogi, adagrad"),
        ({"adapt": "adam", "nesterov": True}, "`nesterov` must be left out with"),
        ({"beta2": 0.9}, "`beta2` must be left out without"),
        ({"adapt": "adagrad", "beta2": 0.9}, "`beta2` must be left out without"),
        ({"adapt": "adam", "beta2": 1.0}, "`beta2` must be from 0 to below 1; got 1.0"),
        ({"tau": 0.1}, "`tau` must be left out without `adapt`"),
        ({"adapt": "yogi", "tau": 0.0}, "`tau` must be a positive finite number"),
        ({"average": "mean"}, "`average` must be one of ema, tail"),
        ({"average_decay": 0.5}, "`average_decay` must be left out without"),
        (
            {"average": "ema", "average_decay": 1.0},
            "`average_decay` must be from 0 to below 1",
        ),
        ({"average": "ema", "average_from": 3}, "`average_from` must be left out"),
        ({"average": "tail", "average_from": 0}, "`average_from` must be at least 1"),
    ],
)
def test_fields_without_effect_are_refused(given: dict[str, Any], text: str) -> None:
    with unchecked(), pytest.raises(InvalidInputError) as caught:
        ServerStep(**given)
    assert text in str(caught.value)


# ------------------------------------------------------------------ averages


def average_of(server_step: ServerStep, iterates: Any) -> Any:
    """a after all iterates, by the formula of the module."""
    a = np.full_like(iterates[0], 7.0)  # the start: it must not count
    for t, x in enumerate(iterates):
        a = add_iterate(average_weight(server_step, t), a, x)
    return a


def test_a_tail_average_is_the_mean_of_the_last_iterates() -> None:
    X = np.random.default_rng(0).standard_normal((9, 4))
    for first in (1, 4, 9):
        result = average_of(ServerStep(average="tail", average_from=first), X)
        assert result == pytest.approx(X[first - 1 :].mean(axis=0), rel=1e-13)
    assert np.array_equal(
        average_of(ServerStep(average="tail", average_from=12), X), X[-1]
    )
    assert average_of(ServerStep(average="tail"), X) == pytest.approx(X.mean(axis=0))


def test_an_exponential_average_warms_up() -> None:
    """With β = 0.6 the warm-up t/(t + 5) is over at t = 8; weights add up to one."""
    server_step = ServerStep(average="ema", average_decay=0.6)
    decays = [min(0.6, t / (t + 5)) for t in range(12)]
    assert decays[7] < 0.6 == decays[8]
    weights = [(1 - b) * np.prod(decays[t + 1 :]) for t, b in enumerate(decays)]
    assert sum(weights) == pytest.approx(1.0)
    X = np.random.default_rng(1).standard_normal((12, 3))
    assert average_of(server_step, X) == pytest.approx(np.array(weights) @ X, rel=1e-12)
    assert average_weight(ServerStep(average="ema"), 10**6) == pytest.approx(0.1)


PROBLEM = random_quadratic(seed=3, n=5, d=4)
FEDERATION = Federation(FixedSteps([1, 2, 3, 2, 1]), 2, SampledParticipation(4))


def entries() -> list[Any]:
    L = PROBLEM.smoothness
    adam = FedAdam(0.2 / L, server_learning_rate=0.05)
    return [
        Entry(FedAvg(0.2 / L)),
        Entry(FedAvg(0.2 / L), ServerStep(average="tail", average_from=3)),
        Entry(HewHom(L, 0.5), ServerStep(1.0, 0.5, average="ema")),
        replace(adam, server_step=replace(adam.server_step, average="ema")),
        FedYogi(0.2 / L, server_learning_rate=0.05),
        FedAdagrad(0.2 / L, server_learning_rate=0.05),
    ]


def run(rounds: int, **more: Any) -> Trace:
    return simulate(PROBLEM, FEDERATION, entries(), rounds=rounds, seed=4, **more)


def test_both_models_are_evaluated_and_handed_out() -> None:
    trace = run(6)
    plain, tail, hew, *_ = range(6)
    assert np.array_equal(trace.anchors[plain], trace.anchors[tail])  # no other iterate
    assert np.array_equal(trace.averages[plain], trace.anchors[plain])
    iterates = [run(t).anchors[tail] for t in (3, 4, 5, 6)]
    assert trace.averages[tail] == pytest.approx(np.mean(iterates, axis=0), rel=1e-12)
    for entry in (tail, hew):
        last = trace.of(entry)[-1]
        values = PROBLEM.objectives(trace.averages[[entry]])[0]
        assert last.metrics["averaged_objective"] == pytest.approx(values[0])
        assert last.metrics["averaged_pooled"] == pytest.approx(values[1])
        gap = trace.curve(entry, "averaged_distance_to_optimum")
        assert gap[0] == trace.curve(entry, "distance_to_optimum")[0]
        assert not np.isnan(gap).any()
    assert not any(name.startswith(AVERAGED) for name in trace.of(plain)[-1].metrics)


def test_runs_with_memories_go_on_to_the_same_bytes(tmp_path: Path) -> None:
    whole = run(6, checkpoint=tmp_path / "whole")
    run(3, checkpoint=tmp_path / "cut")
    rest = run(6, checkpoint=tmp_path / "cut")
    assert rest.records == whole.records
    assert rest.anchors.tobytes() == whole.anchors.tobytes()
    assert rest.averages.tobytes() == whole.averages.tobytes()
    names = ("trace.jsonl", "state-00000006.safetensors")
    for name in names:
        cut = (tmp_path / "cut" / name).read_bytes()
        assert cut == (tmp_path / "whole" / name).read_bytes()


def test_a_round_of_nobody_gives_no_iterate() -> None:
    """Only client 0 exists in the law of round 1: others are drawn in other rounds."""
    alone = Entry(FedAvg(0.2 / PROBLEM.smoothness), ServerStep(average="tail"))

    class Nobody:
        def draw(self, seed: int, t: int, n: int) -> Any:  # noqa: ARG002
            return np.arange(n if t != 1 else 0)

    federation = Federation(FixedSteps(2), 2, Nobody())
    traces = [
        simulate(PROBLEM, federation, [alone], rounds=t, seed=1) for t in (1, 2, 3)
    ]
    first, second, third = (trace.anchors[0] for trace in traces)
    assert np.array_equal(first, second)
    assert traces[2].averages[0] == pytest.approx((first + third) / 2, rel=1e-13)
