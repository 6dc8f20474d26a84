"""SCAFFOLD against its pseudo-code, client by client."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.conformance.rounds import make_cohort, step_of

from hewfl import InvalidInputError, Method, Scaffold
from hewfl.core.round import Cohort, LocalPlan
from hewfl.displacements.control_variates import ControlVariates
from hewfl.displacements.dense import matrix_round
from hewfl.methods.method import MethodState

Array = NDArray[np.floating[Any]]

ROUNDING = 1e-13
N, D = 4, 3
ETA, ETA_G = 0.05, 0.7
CURVATURES = np.array([1.0, 2.0, 0.5, 4.0])
ROUNDS = [([0, 1, 3], [5, 1, 2]), ([1, 2], [3, 8]), ([0, 1, 2, 3], [1, 2, 3, 4])]


def gradient(centres: Array, i: int, y: Array) -> Array:
    """∇F_i for F_i(y) = ½ a_i ‖y − b_i‖²."""
    slope: Array = CURVATURES[i] * (y - centres[i])
    return slope


def scaffold_as_printed(
    centres: Array, x: Array, c: Array, c_i: list[Array]
) -> tuple[Array, Array, list[Array]]:
    """The paper's loop, option II: each client sends Δy and Δc."""
    for clients, steps in ROUNDS:
        sent = []
        for i, K in zip(clients, steps, strict=True):
            y = x.copy()
            for _ in range(K):
                y = y - ETA * (gradient(centres, i, y) - c_i[i] + c)
            c_plus = c_i[i] - c + (x - y) / (K * ETA)
            sent.append((y - x, c_plus - c_i[i]))
            c_i[i] = c_plus
        x = x + ETA_G * sum(dy for dy, _ in sent) / len(sent)
        c = c + len(sent) / N * (sum(dc for _, dc in sent) / len(sent))
    return x, c, c_i


def run_branches(centres: Array, x: Array, cohort: Cohort, plan: LocalPlan) -> Array:
    """Displacements of clients that do as the plan says."""
    moved = np.zeros((len(cohort.clients), D))
    assert plan.correction is not None
    for k, i in enumerate(cohort.clients):
        y = x.copy()
        for _ in range(int(cohort.horizons[k])):
            y -= plan.step_sizes[k] * (gradient(centres, i, y) - plan.correction[k])
        moved[k] = y - x
    return moved


def decided(algorithm: Method, round_: Any, state: Any) -> tuple[Any, Any]:
    return algorithm.decide(round_, state)


def initial_state(algorithm: Method, n: int, d: int, gradients: Any) -> Any:
    return algorithm.init(n, d, gradients)


@pytest.mark.parametrize("start", ["zero", "gradient"])
def test_three_rounds_follow_the_pseudo_code(
    start: Any, rng: np.random.Generator
) -> None:
    centres, x0 = rng.standard_normal((N, D)), rng.standard_normal(D)
    gradients = np.stack([gradient(centres, i, x0) for i in range(N)])

    algorithm = Scaffold((4.0 * ETA) / 4.0, server_learning_rate=ETA_G, start=start)
    assert algorithm.demands.gradients == (start == "gradient")
    x, state = x0, initial_state(algorithm, N, D, gradients)
    for clients, steps in ROUNDS:
        cohort = make_cohort(steps, clients=clients, population=N)
        plan = algorithm.plan(cohort, state)
        moved = run_branches(centres, x, cohort, plan)
        decision, state = decided(
            algorithm, matrix_round(x, moved, cohort, plan), state
        )
        x = x + algorithm.server_step.step * step_of(decision, moved)

    first = gradients if start == "gradient" else np.zeros((N, D))
    x_ref, c_ref, c_i_ref = scaffold_as_printed(
        centres, x0, first.mean(axis=0), list(first)
    )
    np.testing.assert_allclose(x, x_ref, rtol=ROUNDING)
    np.testing.assert_allclose(
        state.variates.server, c_ref, rtol=ROUNDING, atol=ROUNDING
    )
    np.testing.assert_allclose(
        state.variates.clients, c_i_ref, rtol=ROUNDING, atol=ROUNDING
    )


def test_server_variate_stays_the_mean_of_the_clients(
    rng: np.random.Generator,
) -> None:
    algorithm = Scaffold(0.1, start="gradient")
    state = initial_state(algorithm, N, D, rng.standard_normal((N, D)))
    for clients, steps in ROUNDS:
        cohort = make_cohort(steps, clients=clients, population=N)
        plan = algorithm.plan(cohort, state)
        moved = rng.standard_normal((len(clients), D))
        _, state = decided(
            algorithm, matrix_round(np.zeros(D), moved, cohort, plan), state
        )
        mean = state.variates.clients.mean(axis=0)
        np.testing.assert_allclose(state.variates.server, mean, atol=ROUNDING)


def test_the_optimum_is_a_fixed_point_for_unequal_steps(
    rng: np.random.Generator,
) -> None:
    # ΣF_i is minimal at Σa_ib_i/Σa_i; with c_i = ∇F_i there and c = 0 nobody moves.
    centres = rng.standard_normal((N, D))
    x = CURVATURES @ centres / CURVATURES.sum()
    c_i = np.stack([gradient(centres, i, x) for i in range(N)])
    algorithm = Scaffold(0.4 / 4.0)
    cohort = make_cohort([1, 8, 2, 5])
    plan = algorithm.plan(
        cohort, MethodState(ControlVariates(c_i.mean(axis=0), c_i), None)
    )
    moved = run_branches(centres, x, cohort, plan)
    np.testing.assert_allclose(moved, 0.0, atol=ROUNDING)


def test_two_clients_by_hand() -> None:
    # η = ½, H = (1, 2), Δ = (−1, −2), c = c_i = 0:  c_0⁺ = 1/½ = 2, c_1⁺ = 2/(½·2) = 2,
    # and with n = 4 clients in all c⁺ = (2 + 2)/4 = 1.
    algorithm = Scaffold(0.5)
    state = initial_state(algorithm, 4, 1, None)
    cohort = make_cohort([1, 2], clients=[0, 1], population=4)
    round_ = matrix_round(
        np.zeros(1), np.array([[-1.0], [-2.0]]), cohort, algorithm.plan(cohort, state)
    )
    decision, state = decided(algorithm, round_, state)
    np.testing.assert_array_equal(decision.weights, [0.5, 0.5])
    np.testing.assert_array_equal(state.variates.clients[:, 0], [2.0, 2.0, 0.0, 0.0])
    np.testing.assert_array_equal(state.variates.server, [1.0])


def test_gradients_must_come_when_asked_for() -> None:
    with pytest.raises(InvalidInputError, match="`gradients` must be given"):
        Scaffold(0.5, start="gradient").init(2, 3, None)
