"""A federation of Flower and the engine: the same model, to rounding."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord

from hewfl import (
    ChoiceSteps,
    FedAvg,
    Federation,
    FedNova,
    FedProx,
    HewControl,
    HewFixed,
    HewHet,
    HewHom,
    LocalSGD,
    Method,
    MinibatchSGD,
    ProblemBounds,
    SampledParticipation,
    Scaffold,
    ServerStep,
    simulate,
)
from hewfl.aggregators import (
    Agreement,
    CenteredClipping,
    CoordinateMedian,
    Disagreement,
    FedAdp,
    FedAWARE,
    GeometricMedian,
    Krum,
    MultiKrum,
    TrimmedMean,
    Trust,
)
from hewfl.federation.participation import RotatingParticipation
from hewfl.flower import AlgorithmStrategy
from hewfl.server.state import Entry, as_entry
from tests.flower.federation import StubGrid, app_of
from tests.simulation.toy import least_squares

ROUNDS, SEED = 6, 3
PROBLEM = least_squares(1, n=6, d=5)
L = PROBLEM.smoothness
NOISE = (1.0, 2.0, 4.0, 0.5, 3.0, 0.1)
METHODS: list[Any] = [
    HewHom(L, 0.4),
    HewHet(L, 0.4),
    HewHet(L, 0.4, start="zero", null_endpoint=True),
    HewFixed(total=0.4 / L, variates="gradient"),
    FedNova(0.2 / L),
    Scaffold(0.2 / L, server_learning_rate=0.7),
    FedAvg(0.2 / L),
    FedProx(0.2 / L, prox=0.5),
    MinibatchSGD(0.2 / L),
    HewFixed(total=0.4 / L, variance=NOISE),
    Method(LocalSGD(0.2 / L), FedAWARE()),
    Method(LocalSGD(0.2 / L), FedAdp()),
    Method(LocalSGD(0.2 / L), Disagreement()),
    Method(LocalSGD(0.2 / L), Agreement()),
    Method(LocalSGD(0.2 / L), GeometricMedian()),
    Method(LocalSGD(0.2 / L), CoordinateMedian()),
    Method(LocalSGD(0.2 / L), TrimmedMean()),
    Method(LocalSGD(0.2 / L), Krum()),
    Method(LocalSGD(0.2 / L), MultiKrum()),
    Method(LocalSGD(0.2 / L), CenteredClipping()),
    Method(LocalSGD(total=0.4 / L), Trust()),
]


def name(method: Any) -> str:
    return f"{method.name} {getattr(method, 'start', '')}".strip()


def flower(method: Any, dtype: Any = np.float64, **options: Any) -> AlgorithmStrategy:
    strategy = AlgorithmStrategy(
        method,
        population=6,
        local_steps=ChoiceSteps(every_round=True),
        seed=SEED,
        fraction_evaluate=0.0,
        **options,
    )
    grid = StubGrid(app_of(PROBLEM, SEED), 6)
    model = ArrayRecord([np.zeros((2, 2), dtype), np.zeros(1, dtype)])
    strategy.start(grid, model, ROUNDS)
    return strategy


def engine(method: Any, dtype: Any = np.float64, **options: Any) -> Any:
    law = options.get("participation")
    extra = {} if law is None else {"participation": law}
    federation = Federation(ChoiceSteps(every_round=True), 4, **extra)
    step = options.get("server_step")
    entry = as_entry(method) if step is None else Entry(method, step)
    return simulate(PROBLEM, federation, [entry], rounds=ROUNDS, seed=SEED, dtype=dtype)


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_flower_and_the_engine_give_the_same_model(method: Any) -> None:
    found, known = flower(method), engine(method)
    assert np.abs(known.anchors[0]).max() > 0.1
    np.testing.assert_allclose(found.state.anchor, known.anchors[0], rtol=1e-11)


@pytest.mark.parametrize("method", METHODS[:5], ids=name)
def test_in_single_precision_too(method: Any) -> None:
    found, known = flower(method, np.float32), engine(method, np.float32)
    rounding = 2.0**-24  # of single precision, for entries of size one
    np.testing.assert_allclose(
        found.state.anchor, known.anchors[0], rtol=2e-5, atol=rounding
    )


def test_with_sampled_clients_and_momentum() -> None:
    extra = {
        "participation": SampledParticipation(3),
        "server_step": ServerStep(0.9, momentum=0.5, nesterov=True),
    }
    fixed = HewFixed(total=0.3 / L, variance=NOISE)
    for method in (HewHet(L, 0.3), Scaffold(0.1 / L), fixed):
        found, known = flower(method, **extra), engine(method, **extra)
        np.testing.assert_allclose(found.state.anchor, known.anchors[0], rtol=1e-10)


@final
@dataclass(frozen=True)
class Decay:
    """first/(1 + t), not below `least`."""

    first: float
    least: float = 0.0

    def __call__(self, t: int) -> float:
        return max(self.least, self.first / (1 + t))


def test_with_schedules_and_a_law_that_looks_at_the_past() -> None:
    extra: dict[str, Any] = {"participation": RotatingParticipation(4)}
    bounds = ProblemBounds(L, 5.0, 1e-3, 0.5)
    for method in (
        HewHet(L, Decay(0.5), Decay(4.0, 1.2)),
        HewHom(L, Decay(0.5), Decay(4.0, 1.2)),
        HewControl(bounds, Decay(2.0), "sharp", tracking=0.0),
    ):
        found, known = flower(method, **extra), engine(method, **extra)
        np.testing.assert_allclose(found.state.anchor, known.anchors[0], rtol=1e-10)
