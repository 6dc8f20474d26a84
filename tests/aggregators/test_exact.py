"""Exact weights without an L: κ, references, slopes from the other clients."""

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.simulation.unchecked import unchecked
from tests.tolerances import WEIGHTS

from hewfl import (
    Cohort,
    ExactWeights,
    FixedSteps,
    HewHom,
    InvalidInputError,
    LocalPlan,
    LocalSGD,
    Method,
    Round,
    simulate,
    solve_simplex_qp,
)
from hewfl.aggregators import FedMGDAPlus, Mean
from hewfl.aggregators.quadratic_model import leave_one_out_weights
from hewfl.displacements.dense import as_dense, matrix_round
from hewfl.experiments.method_spec import method_from_table
from hewfl.federation import Federation
from hewfl.problems.quadratic import random_quadratic
from hewfl.simulation.audit import pathwise_audit

N, D = 5, 9


def round_of(rows: Any, plan: LocalPlan, horizons: Any = None, t: int = 0) -> Round:
    n = len(rows)
    H = np.full(n, 3) if horizons is None else np.asarray(horizons)
    sizes = 10 * (1 + np.arange(n))
    cohort = Cohort(np.arange(n), H, np.ones(n, dtype=np.int64), sizes, n, t)
    return matrix_round(np.zeros(rows.shape[1]), rows, cohort, plan)


def equal_ground(rows: Any, s: float = 0.2) -> Round:
    return round_of(rows, LocalPlan(np.full(len(rows), s / 3)))


def weights(rule: Any, round_: Round, state: Any = None) -> Any:
    return rule.decide(round_, state)[0].weights


def exact(kappa: Any, *, cross_fit: bool = False) -> ExactWeights:
    """The weights of Algorithm 3, without an L."""
    return ExactWeights(kappa=kappa, normalize="total_step", cross_fit=cross_fit)


def common(rng: np.random.Generator) -> Any:
    """Displacements with something in common, as descents have."""
    return -1.0 + rng.standard_normal((N, D))


# ------------------------------------------------------------------ what kappa means


def test_one_gives_equal_weights(rng: np.random.Generator) -> None:
    rule = exact(1.0)
    found = weights(rule, equal_ground(common(rng)))
    assert found == pytest.approx(np.full(N, 1 / N), abs=WEIGHTS)


def test_a_large_one_gives_what_fedmgda_gives_of_unit_updates(
    rng: np.random.Generator,
) -> None:
    rows = common(rng)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    round_ = equal_ground(rows)
    least = weights(FedMGDAPlus(), round_)
    assert weights(
        exact(1e12),
        round_,
    ) == pytest.approx(least)
    assert weights(
        ExactWeights(kappa=1e12, by="size", cross_fit=False),
        round_,
    ) == pytest.approx(least)
    assert weights(
        exact(2.0),
        round_,
    ) != pytest.approx(least)


@pytest.mark.parametrize("kappa", [0.5, 1.3, 4.0])
def test_the_step_is_the_projection_of_the_mean_over_kappa(
    kappa: float, rng: np.random.Generator
) -> None:
    """‖d − z‖ is least on the hull where ⟨d − z, Δ_i − d⟩ ≥ 0 for all i."""
    rows = common(rng)
    w = weights(
        exact(kappa),
        equal_ground(rows),
    )
    step = w @ rows
    away = step - rows.mean(axis=0) / kappa
    assert ((rows - step) @ away).min() > -1e-10


@pytest.mark.parametrize("scale", [1e-3, 1e4])
def test_weights_have_no_units(scale: float, rng: np.random.Generator) -> None:
    """Neither the length of displacements matters nor that of steps."""
    rule, rows, H = (
        exact(2.0),
        common(rng),
        [1, 2, 3, 4, 5],
    )
    one = round_of(rows, LocalPlan(np.full(N, 0.1)), H)
    other = round_of(scale * rows, LocalPlan(np.full(N, 7.0)), H)
    assert weights(rule, one) == pytest.approx(weights(rule, other), abs=WEIGHTS)


def test_with_unequal_ground_lambda_is_kappa_times_the_curvature_of_the_mean(
    rng: np.random.Generator,
) -> None:
    rows, H = common(rng), np.array([1, 2, 3, 4, 5])
    round_, s = round_of(rows, LocalPlan(np.full(N, 0.1)), H), 0.1 * H
    g, m = -(rows / s[:, None]).mean(axis=0), rows.mean(axis=0)
    model = exact(3.0).model(round_, None)
    assert model.curvature == pytest.approx(3.0 * -(g @ m) / (m @ m))
    assert model.smoothness is None
    least = solve_simplex_qp(rows @ rows.T, rows @ g, curvature=model.curvature)
    found = weights(
        exact(3.0),
        round_,
    )
    assert found == pytest.approx(least.weights, abs=WEIGHTS)


def test_algorithm_2_takes_it_about_its_control_variate(
    rng: np.random.Generator,
) -> None:
    rows = common(rng)
    c = -rows.mean(axis=0) + 0.1 * rng.standard_normal(D)
    m, round_ = rows.mean(axis=0), replace(equal_ground(rows), variate=c)
    rule = ExactWeights("variate", kappa=2.0)
    lam = 2.0 * -(c @ m) / (m @ m)
    least = solve_simplex_qp(rows @ rows.T, rows @ c, curvature=lam)
    assert weights(rule, round_) == pytest.approx(least.weights, abs=WEIGHTS)


@pytest.mark.parametrize("uphill", [0.0, 1.0])
def test_without_descent_along_the_mean_the_shortest_step_is_taken(
    uphill: float, rng: np.random.Generator
) -> None:
    """A control variate of zero, and one that calls the mean a step uphill."""
    rows = common(rng)
    round_ = replace(equal_ground(rows), variate=uphill * rows.mean(axis=0))
    least = solve_simplex_qp(rows @ rows.T, np.zeros(N)).weights
    by_variate = weights(ExactWeights("variate", kappa=1.0), round_)
    assert by_variate == pytest.approx(least, abs=WEIGHTS)


def test_a_root_and_a_vector_are_references_too(rng: np.random.Generator) -> None:
    rows, g = common(rng), rng.standard_normal(D) + 1.0
    least = solve_simplex_qp(rows @ rows.T, rows @ g, curvature=3.0).weights
    round_ = replace(equal_ground(rows), root=g)
    by_root = weights(ExactWeights("root", curvature=3.0), round_)
    assert by_root == pytest.approx(least, abs=WEIGHTS)
    by_vector = weights(ExactWeights(g, curvature=3.0), equal_ground(rows))
    assert by_vector == pytest.approx(least, abs=WEIGHTS)
    with pytest.raises(InvalidInputError, match="root gradient"):
        weights(ExactWeights("root", curvature=3.0), equal_ground(rows))
    called, _ = ExactWeights("root", curvature=3.0)(rows, root=g)
    assert called.weights == pytest.approx(least, abs=WEIGHTS)
    with pytest.raises(InvalidInputError, match="`root` must be given"):
        ExactWeights("root")(rows)


def test_a_mean_of_zero_gives_a_step_of_zero(rng: np.random.Generator) -> None:
    v = rng.standard_normal(D)
    rows, H = np.stack([v, -v]), [1, 4]
    for round_ in (equal_ground(rows), round_of(rows, LocalPlan(np.full(2, 0.1)), H)):
        w = weights(
            exact(1.5),
            round_,
        )
        assert np.abs(w @ rows).max() < 1e-12


# ------------------------------------------------------------------ around the mean


def test_around_the_mean_one_is_averaging_itself(rng: np.random.Generator) -> None:
    rows, H = common(rng), [1, 2, 3, 4, 5]
    round_ = round_of(rows, LocalPlan(np.full(N, 0.1)), H)
    for by in ("size", "equal", "steps"):
        rule: Any = ExactWeights(by=by, cross_fit=False)
        expected = weights(Mean(by=by), round_)
        np.testing.assert_array_equal(weights(rule, round_), expected)
        near: Any = ExactWeights(kappa=1 + 1e-9, by=by, cross_fit=False)
        assert weights(near, round_) == pytest.approx(expected, abs=1e-6)


def test_around_an_equal_mean_it_is_algorithm_3(rng: np.random.Generator) -> None:
    round_ = equal_ground(common(rng))
    for kappa, fit in ((1.7, False), (1.0, True), (1.7, True)):
        mean = ExactWeights(kappa=kappa, by="equal", cross_fit=fit)
        plain = exact(kappa, cross_fit=fit)
        expected = weights(plain, round_)
        assert weights(mean, round_) == pytest.approx(expected, abs=WEIGHTS)


def test_by_length_every_client_is_one_direction(rng: np.random.Generator) -> None:
    """Whatever step sizes are said to be, and however long somebody went."""
    rows, rule = (
        common(rng),
        Method(
            LocalSGD(total=0.2),
            ExactWeights(kappa=1.5, normalize="length", cross_fit=False),
        ),
    )
    plan, H = LocalPlan(rng.uniform(0.1, 3.0, N)), [1, 9, 2, 7, 5]
    lengths = np.linalg.norm(rows, axis=1)
    g, m = -(rows / lengths[:, None]).mean(axis=0), rows.mean(axis=0)
    lam = 1.5 * -(g @ m) / (m @ m)
    least = solve_simplex_qp(rows @ rows.T, rows @ g, curvature=lam).weights
    found = weights(rule, round_of(rows, plan, H))
    assert found == pytest.approx(least, abs=WEIGHTS)


# ------------------------------------------------------------------ cross-fitting


def test_the_cross_fitted_slope_is_that_of_the_others(
    rng: np.random.Generator,
) -> None:
    rows, H = common(rng), np.array([1, 2, 3, 4, 5])
    round_, s, G = round_of(rows, LocalPlan(np.full(N, 0.1)), H), 0.1 * H, rows @ rows.T
    q = [-sum(G[i, j] / s[j] for j in range(N) if j != i) / (N - 1) for i in range(N)]
    rule = ExactWeights(curvature=2.5, normalize="total_step", cross_fit=True)
    least = solve_simplex_qp(G, q, curvature=2.5).weights
    assert weights(rule, round_) == pytest.approx(least, abs=WEIGHTS)
    p = 10.0 * (1 + np.arange(N))
    q = [-sum(p[j] * G[i, j] for j in range(N) if j != i) for i in range(N)]
    least = solve_simplex_qp(G, q / (p.sum() - p), curvature=1.5).weights
    rule_mean = ExactWeights(kappa=1.5, by="size", cross_fit=True)
    assert weights(rule_mean, round_) == pytest.approx(least, abs=WEIGHTS)


def expected_value(rows_of: Any, slopes: Any, w: Any) -> tuple[float, float]:
    """Means over all signs of the noises: of what is minimised, of the true error."""
    n = len(w)
    found, error = 0.0, 0.0
    for signs in itertools.product([-1.0, 1.0], repeat=n):
        rows, mean = rows_of(np.array(signs))
        P = as_dense("rows", rows).products().cross_fitted(slopes, 1.0)
        found += float(w @ P.linear + 0.5 * w @ P.gram @ w + P.offset) / 2**n
        away = w @ rows - mean
        error += 0.5 * float(away @ away) / 2**n
    return found, error


def test_what_is_minimised_is_unbiased(rng: np.random.Generator) -> None:
    """Over all outcomes of the noise, at any weights; the plain slope is not."""
    n, mean = 4, rng.standard_normal(D)
    noise = rng.standard_normal((n, D)) * np.array([0.1, 1.0, 3.0, 0.5])[:, None]
    w, p = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(n))

    def rows_of(signs: Any) -> tuple[Any, Any]:
        return mean + signs[:, None] * noise, mean

    fitted, error = expected_value(rows_of, -leave_one_out_weights(p), w)
    assert fitted + 0.5 * mean @ mean == pytest.approx(error, rel=1e-12)
    plain, _ = expected_value(rows_of, -np.tile(p, (n, 1)), w)
    reward = float((w * p) @ (noise**2).sum(axis=1))  # Σ w_i p_i ‖noise_i‖²
    assert plain + 0.5 * mean @ mean == pytest.approx(error - reward, rel=1e-12)


def test_a_noisy_client_gains_by_its_own_noise_unless_cross_fitted() -> None:
    """Noises orthogonal to all else: equal weights, then inverse variances."""
    rows = np.zeros((4, 6))
    rows[:, 0] = 1.0
    rows[np.arange(4), 1 + np.arange(4)] = [0.1, 0.1, 0.1, 2.0]
    round_ = equal_ground(rows)
    plain = weights(
        exact(1.0),
        round_,
    )
    fitted = weights(
        exact(1.0, cross_fit=True),
        round_,
    )
    assert plain == pytest.approx(np.full(4, 0.25), abs=WEIGHTS)
    worth = 1 / np.array([0.01, 0.01, 0.01, 4.0])
    assert fitted == pytest.approx(worth / worth.sum(), abs=WEIGHTS)


# ------------------------------------------------------------------ two ways, one error


@dataclass(frozen=True)
class Growing:
    first: float

    def __call__(self, t: int) -> float:
        return self.first * (1 + t)


def test_kappa_may_change_with_the_round(rng: np.random.Generator) -> None:
    rows, plan = common(rng), LocalPlan(np.full(N, 0.2 / 3))
    for t in (0, 3):
        fixed = weights(
            exact(1.0 + t),
            equal_ground(rows),
        )
        rule = exact(Growing(1.0))
        assert weights(rule, round_of(rows, plan, t=t)) == pytest.approx(fixed)
        around = ExactWeights(kappa=Growing(1.0), by="equal", cross_fit=False)
        found = weights(around, round_of(rows, plan, t=t))
        assert found == pytest.approx(fixed, abs=WEIGHTS)
    with pytest.raises(
        InvalidInputError, match="`kappa of round 0` must be a positive"
    ):
        weights(
            exact(Growing(-1.0)),
            equal_ground(rows),
        )


def test_shares_and_kappa_of_the_mean_are_checked() -> None:
    with (
        unchecked(),
        pytest.raises(InvalidInputError, match="`by` must be one of equal"),
    ):
        ExactWeights(by="data")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidInputError, match="`kappa` must be a positive"):
        ExactWeights(kappa=0.0)


def test_no_l_no_certificate() -> None:
    """Traces carry no terms of a bound, and the audit has nothing to say."""
    problem = random_quadratic(4, 3, 5)
    entries: list[Any] = [
        Method(
            LocalSGD(total=0.1),
            ExactWeights(kappa=2.0, normalize="total_step", cross_fit=False),
        ),
        HewHom(problem.smoothness, 0.1),
    ]
    federation = Federation(FixedSteps(2), 2)
    trace = simulate(
        problem, federation, entries, rounds=2, seed=1, observers=[pathwise_audit]
    )
    last = [record for record in trace.records if record.round == 2]
    assert not last[0].observed
    for record in last[1:]:
        assert record.observed["certificate_violated"] == 0.0


def test_a_spec_may_have_a_grid_of_it_in_units_of_the_data() -> None:
    table = {"method": "exact", "amplitude": 0.5, "grid": {"kappa": [1, 2.0]}}
    entries = [
        method.entry(4.0) for method in method_from_table(table, "m").candidates()
    ]
    known = [
        Method(LocalSGD(total=0.125), ExactWeights(kappa=kappa), name="exact")
        for kappa in (1.0, 2.0)
    ]
    assert [entry.algorithm for entry in entries] == known
    for wrong, text in (
        ({"learning_rate": 2.0}, "exactly one of learning_rate, step_scale"),
        ({"amplitude": "x"}, "exact.amplitude` must be a .*number; got 'x'"),
        ({"method": "HewHom"}, "kappa"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            method_from_table(table | wrong, "m")
    with pytest.raises(InvalidInputError, match="got none of them"):
        method_from_table({"method": "exact", "kappa": 2.0}, "m")
    with pytest.raises(InvalidInputError, match="is now called geometric-median"):
        method_from_table({"method": "GeometricMedian"}, "m")
