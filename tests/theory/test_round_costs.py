from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.delegation import delegating
from tests.simulation.toy import LeastSquares, least_squares

from hewfl import (
    Federation,
    FixedSteps,
    HewControl,
    HewHet,
    HewHom,
    InvalidInputError,
    ProblemBounds,
    Traffic,
)
from hewfl.core.round import LocalPlan
from hewfl.server.communication import round_communication
from hewfl.simulation.branches import run_branches_plain
from hewfl.simulation.draws import draw
from hewfl.theory.round_costs import Algorithm, communication, round_work
from hewfl.theory.systems import System

BOUNDS = ProblemBounds(2.0, 1.0, 0.1, 0.5)
CASES: list[tuple[Algorithm, Traffic]] = [
    ("control", HewControl(BOUNDS, 1.0).demands.traffic),
    ("het", HewHet(2.0, 0.4).demands.traffic),
    ("hom", HewHom(2.0, 0.4).demands.traffic),
]


@pytest.mark.parametrize(("name", "traffic"), CASES)
def test_the_ledger_counts_the_same(name: Algorithm, traffic: Traffic) -> None:
    for S in (0, 1, 7, 100):
        for d in (1, 10, 593_668):
            bill = round_communication(traffic, S, d)
            assert communication(name, S, d) == bill.scalars
            printed = communication(name, S, d, printed=True)
            if S > 0:
                assert printed == bill.paper_scalars
            else:  # E-06: the paper's formula charges a broadcast to nobody
                assert bill.paper_scalars == 0
                assert printed == traffic.down * d + traffic.common_scalars


def test_the_counts_are_the_formulas() -> None:
    S, d, n = 5, 11, 9
    assert communication("control", S, d, printed=True) == 2 * d + 2 * d * S + S
    assert communication("control", S, d, proxies=S, printed=True) == (
        2 * d + 2 * d * S + S + S
    )
    assert communication("control", S, d, proxies=3) == 2 * d + d * S + S + 3
    assert communication("het", S, d, printed=True) == 2 * d + 1 + 2 * d * S
    assert communication("het", S, d) == 2 * d + 1 + d * S
    assert communication("hom", n, d) == d + 1 + d * n
    assert communication("control", 0, d) == 0


def test_proxies_sent_by_clients_are_charged_by_the_ledger_too() -> None:
    traffic = replace(HewControl(BOUNDS, 1.0).demands.traffic, up_scalars=1)
    assert (
        communication("control", 4, 7, proxies=4)
        == round_communication(traffic, 4, 7).scalars
    )


def test_counts_broadcast() -> None:
    got = communication("hom", np.array([[0], [3]]), np.array([2, 5]))
    np.testing.assert_array_equal(got, [[0, 0], [9, 21]])


@delegating(LeastSquares, "problem")
class Counting:
    """A problem that remembers how many gradients it was asked for."""

    def __init__(self, problem: LeastSquares) -> None:
        self.problem, self.calls, self.samples = problem, 0, 0

    def minibatch_gradients(
        self,
        models: NDArray[np.floating[Any]],
        samples: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> NDArray[np.floating[Any]]:
        self.calls += len(counts)
        self.samples += int(counts.sum())
        return self.problem.minibatch_gradients(models, samples, counts)


def test_clients_compute_exactly_as_many_gradients() -> None:
    problem: Any = Counting(least_squares())
    H, b = [1, 2, 4, 8, 3, 1], [4, 1, 2, 3, 5, 1]
    sizes = problem.problem.data_sizes
    cohort = Federation(FixedSteps(H), b).cohort(0, 0, sizes)
    plan = LocalPlan(np.full(6, 0.01))
    draws = draw(0, 0, cohort, problem.problem.offsets)
    run_branches_plain(problem, np.zeros(5), cohort, plan, draws)
    work = round_work(System(1.0, 1.0, H, b, 1.0), 5)
    assert problem.calls == work.minibatch_gradients.sum()
    assert problem.samples == work.sample_gradients.sum()


def test_orders_of_the_arithmetic() -> None:
    system = System(1.0, 1.0, [1, 2, 4], 8, 1.0)
    work = round_work(system, [10, 20], [True, False, True])
    np.testing.assert_array_equal(work.minibatch_gradients, [[1, 0, 4]] * 2)
    np.testing.assert_array_equal(work.sample_gradients, [[8, 0, 32]] * 2)
    np.testing.assert_array_equal(work.client_order, [[10, 0, 40], [20, 0, 80]])
    np.testing.assert_allclose(work.weight_order, 2 * np.log(2))
    np.testing.assert_array_equal(work.amplitude_problems, [2, 2])
    np.testing.assert_array_equal(work.server_order, [20, 40])
    nobody = round_work(system, 10, [False, False, False])
    assert nobody.weight_order == nobody.server_order == 0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: communication("fedavg", 1, 1),  # type: ignore[arg-type]  # wrong
            "`algorithm` must be one of control, het, hom; got 'fedavg'",
        ),
        (
            lambda: communication("het", -1, 1),
            "`active` must be a whole number of at least 0; got -1",
        ),
        (
            lambda: communication("het", 1, 1.5),
            "`dimension` must be a whole number of at least 1; got 1.5",
        ),
        (
            lambda: communication("hom", 1, 1, proxies=1),
            "`proxies` must be 0 for het and hom; got 1",
        ),
    ],
)
def test_bad_input_is_named(make: Callable[[], object], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        make()
