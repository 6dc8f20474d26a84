"""Baselines whose weights do not look at the displacements: hand-worked cases."""

import numpy as np
import pytest
from tests.conformance.rounds import decide, make_cohort, step_of

from hewfl import (
    FedAvg,
    FedNova,
    FedProx,
    Method,
    MinibatchSGD,
    StepWeighted,
    UniformLocalSGD,
)

ROUNDING = 1e-15
L, S = 4.0, 0.8  # so that η = 0.2


@pytest.mark.parametrize(
    "algorithm",
    [
        UniformLocalSGD(S / L),
        FedAvg(S / L),
        FedProx(S / L, prox=0.1),
        FedNova(S / L),
        MinibatchSGD(S / L),
        StepWeighted(S / L),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_every_client_takes_every_step_with_s_over_l(
    algorithm: Method,
) -> None:
    plan = algorithm.plan(make_cohort([1, 8, 2]), None)
    np.testing.assert_array_equal(plan.step_sizes, [0.2, 0.2, 0.2])
    assert plan.correction is None


def test_uniform_is_the_plain_mean() -> None:
    moved = [[2.0, 0.0], [0.0, 4.0]]
    decision, _ = decide(UniformLocalSGD(S / L), make_cohort([1, 8], [9, 1]), moved)
    np.testing.assert_array_equal(step_of(decision, moved), [1.0, 2.0])


def test_fedavg_weighs_by_data_size() -> None:
    moved = [[2.0, 0.0], [0.0, 4.0]]
    decision, _ = decide(FedAvg(S / L), make_cohort([1, 8], [3, 1]), moved)
    np.testing.assert_array_equal(decision.weights, [0.75, 0.25])
    np.testing.assert_array_equal(step_of(decision, moved), [1.5, 1.0])


def test_fedavg_divides_by_the_sizes_of_those_present() -> None:
    cohort = make_cohort([1, 1], [3, 1], clients=[4, 70], population=100)
    decision, _ = decide(FedAvg(S / L), cohort, [[1.0], [1.0]])
    assert decision.weights.sum() == 1.0


def test_fedprox_is_fedavg_with_a_pull() -> None:
    algorithm, cohort = FedProx(S / L, prox=0.1), make_cohort([1, 8], [3, 1])
    assert algorithm.plan(cohort, None).proximal == 0.1
    decision, _ = decide(algorithm, cohort, [[2.0], [4.0]])
    np.testing.assert_array_equal(decision.weights, [0.75, 0.25])


def test_minibatch_holds_its_branches_at_the_anchor() -> None:
    algorithm, cohort = MinibatchSGD(S / L), make_cohort([1, 8])
    assert algorithm.plan(cohort, None).hold
    decision, _ = decide(algorithm, cohort, [[2.0], [4.0]])
    np.testing.assert_array_equal(decision.weights, [0.5, 0.5])


def test_step_weighted_counts_steps() -> None:
    decision, _ = decide(StepWeighted(S / L), make_cohort([1, 3]), [[2.0], [4.0]])
    np.testing.assert_array_equal(decision.weights, [0.25, 0.75])


# ------------------------------------------------------------------ FedNova


def test_fednova_with_one_and_nine_steps_gives_7_22() -> None:
    # p = ½, ½; τ_eff = ½·1 + ½·9 = 5; w = 5·½/1, 5·½/9; both clients moved by −1:
    # 10 − 5 (½ + ½/9) = 10 − 25/9 = 7.222…; fluke-fl 0.8.1 answers 25.0
    decision, _ = decide(FedNova(S / L), make_cohort([1, 9]), [[-1.0], [-1.0]])
    end = 10.0 + step_of(decision, [[-1.0], [-1.0]])
    np.testing.assert_allclose(end, [65 / 9], rtol=ROUNDING)
    assert round(float(end[0]), 2) == 7.22


def test_fednova_with_ten_of_a_hundred_identical_clients_gives_9() -> None:
    # τ_eff = H, w = 1/10, so 10 − 1; FedLab 1.3.0 answers 0.0 (a factor n/S too many)
    clients = list(range(3, 100, 10))
    cohort = make_cohort([4] * 10, [7] * 10, clients, population=100)
    moved = [[-1.0]] * 10
    decision, _ = decide(FedNova(S / L), cohort, moved)
    np.testing.assert_allclose(10.0 + step_of(decision, moved), [9.0], rtol=ROUNDING)


def test_fednova_weighs_by_data_size_or_equally() -> None:
    # m = 3, 1 and H = 1, 2: p = ¾, ¼; τ_eff = 5/4; w = 15/16, 5/32
    cohort = make_cohort([1, 2], [3, 1])
    decision, _ = decide(FedNova(S / L), cohort, [[1.0], [1.0]])
    np.testing.assert_allclose(decision.weights, [15 / 16, 5 / 32], rtol=ROUNDING)
    # p = ½, ½: τ_eff = 3/2; w = ¾, 3/8
    decision, _ = decide(FedNova(S / L, by="equal"), cohort, [[1.0], [1.0]])
    np.testing.assert_allclose(decision.weights, [3 / 4, 3 / 8], rtol=ROUNDING)


def test_fednova_is_consistent_where_averages_are_not() -> None:
    # One gradient per client, g and −g, whatever the number of steps: the mean gradient
    # is zero and FedNova stays; plain averaging drifts to whoever worked more.
    cohort = make_cohort([1, 9])
    moved = [[-0.2 * 1], [0.2 * 9]]
    stays, _ = decide(FedNova(S / L), cohort, moved)
    drifts, _ = decide(UniformLocalSGD(S / L), cohort, moved)
    np.testing.assert_allclose(step_of(stays, moved), [0.0], atol=ROUNDING)
    np.testing.assert_allclose(step_of(drifts, moved), [0.8], rtol=ROUNDING)
