"""Same seed, same bits, whatever the order of arrival and the ids of the nodes."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord

from hewfl import ChoiceSteps, HewHet, HewHom, SampledParticipation, Scaffold
from hewfl.flower import AlgorithmStrategy
from hewfl.flower.messages import TRAIN
from tests.flower.federation import StubGrid, app_of
from tests.simulation.toy import least_squares

PROBLEM = least_squares(3, n=7, d=4)
L = PROBLEM.smoothness


def run(arrivals: int, method: Any, **options: Any) -> tuple[AlgorithmStrategy, Any]:
    told: dict[str, Any] = {"population": 7, "local_steps": ChoiceSteps()}
    strategy = AlgorithmStrategy(method, fraction_evaluate=0.0, **told, **options)
    grid = StubGrid(app_of(PROBLEM), 7, seed=arrivals)
    strategy.start(grid, ArrayRecord([np.zeros(4, np.float32)]), 5)
    return strategy, grid


@pytest.mark.parametrize("method", [HewHom(L, 0.4), HewHet(L, 0.4), Scaffold(0.1 / L)])
def test_arrival_and_node_ids_do_not_matter(method: Any) -> None:
    known, _ = run(0, method)
    for arrivals in (1, 2, 3):
        found, _ = run(arrivals, method)
        assert found.state.anchor.tobytes() == known.state.anchor.tobytes()


def test_the_seed_draws_the_same_clients_whatever_their_ids() -> None:
    def asked(arrivals: int, seed: int) -> list[int]:
        law = SampledParticipation(3)
        _, grid = run(arrivals, HewHom(L, 0.4), participation=law, seed=seed)
        kinds = [m for m in grid.sent if m.metadata.message_type == TRAIN]
        return [grid.partition_of(message) for message in kinds]

    assert asked(0, 5) == asked(1, 5)
    assert asked(0, 5) != asked(0, 6)
    assert len(asked(0, 5)) == 15


def test_a_restarted_node_goes_on_with_its_variate() -> None:
    known, _ = run(0, HewHet(L, 0.4))
    strategy = AlgorithmStrategy(
        HewHet(L, 0.4), population=7, local_steps=ChoiceSteps(), fraction_evaluate=0.0
    )
    grid = StubGrid(app_of(PROBLEM), 7)

    def restart(server_round: int, arrays: ArrayRecord) -> None:
        del arrays, server_round
        grid.disconnect(2)
        grid.connect(2)

    begin = ArrayRecord([np.zeros(4, np.float32)])
    strategy.start(grid, begin, 5, evaluate_fn=restart)
    assert strategy.state.anchor.tobytes() == known.state.anchor.tobytes()
