from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.conformance.rounds import make_cohort, step_of
from tests.theory.appendix.central_rounds import (
    central_round_hypotheses,
    symmetric_exact_hypotheses,
)

from hewfl import (
    ClientProfile,
    HewControl,
    HewHet,
    HewHom,
    InvalidInputError,
    ProblemBounds,
    UpperState,
)
from hewfl.control.certificate import (
    VARIANTS,
    Variant,
    gain,
    round_bound,
    situation_of,
    variance_bound,
)
from hewfl.core.algorithm import Algorithm
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.displacements.control_variates import ControlVariates, correction
from hewfl.displacements.dense import matrix_round
from hewfl.problems.quadratic import Quadratic
from hewfl.simulation.branches import run_branches_plain
from hewfl.simulation.draws import draw
from hewfl.solver.threshold import threshold_weights
from hewfl.theory.appendix.special_cases import (
    central_path,
    effective_amplitude,
    slice_excess,
)
from hewfl.theory.statement import all_hold

Array = NDArray[np.floating[Any]]

N, D, ROUNDS = 4, 5, 3
ROUNDING = 1e-12


def identical_clients(rng: np.random.Generator, *, noise: float = 0.0) -> Quadratic:
    """F_i = F for all i; two samples per client, ± the same noise."""
    B = rng.standard_normal((D, D))
    A, center = B @ B.T / D + np.eye(D), rng.standard_normal(D)
    xi = noise * rng.standard_normal((N, 1, D)) * np.array([[[1.0], [-1.0]]])
    return Quadratic(
        np.stack([A] * N), np.stack([center] * N), xi.reshape(-1, D), np.full(N, 2)
    )


def start(problem: Quadratic, algorithm: Algorithm[Any], x: Array) -> Any:
    gradients = problem.full_gradients(x[None])[0]
    return algorithm.init(N, D, gradients if algorithm.demands.gradients else None)


def play(
    problem: Quadratic, algorithm: Algorithm[Any], cohort: Cohort, x: Array, state: Any
) -> tuple[Round, Decision, Any]:
    plan = algorithm.plan(cohort, state)
    draws = draw(0, 0, cohort, problem.offsets)
    moved = run_branches_plain(problem, x, cohort, plan, draws)
    round_ = matrix_round(x, moved, cohort, plan)
    decision, following = algorithm.decide(round_, state)
    return round_, decision, following


def cohort_of(horizon: int) -> Cohort:
    return make_cohort([horizon] * N, data_sizes=[2] * N)


def mean_gradient(problem: Quadratic, x: Array) -> Array:
    gradient: Array = problem.full_gradients(x[None])[0, 0]
    return gradient


def algorithms(problem: Quadratic) -> list[Algorithm[Any]]:
    L = problem.smoothness
    bounds = ProblemBounds(L, 10.0, 0.3, 0.3)  # the common-amplitude slice
    return [HewControl(bounds, 1.0), HewHet(L, 0.3), HewHom(L, 0.3)]


def variates_of(state: Any) -> ControlVariates | None:
    state = getattr(state, "variates", state)
    return state if isinstance(state, ControlVariates) else None


# rounds that run


@pytest.mark.parametrize("which", [0, 1, 2], ids=["control", "het", "hom"])
@pytest.mark.parametrize("horizon", [1, 3, 8])
def test_rounds_are_central_microsteps(
    rng: np.random.Generator, which: int, horizon: int
) -> None:
    """G.2, G.3, G.4, G.8: real controllers, reference branches, several rounds."""
    problem = identical_clients(rng)
    algorithm, cohort = algorithms(problem)[which], cohort_of(horizon)
    x = rng.standard_normal(D)
    state = start(problem, algorithm, x)
    for _ in range(ROUNDS):
        before = variates_of(state)
        regime = symmetric_exact_hypotheses(
            cohort, problem.full_gradients(x[None]), variates=before
        )
        assert all_hold(regime)
        round_, decision, state = play(problem, algorithm, cohort, x, state)
        path = central_path(
            lambda z: mean_gradient(problem, z), x, 0.3, problem.smoothness, horizon
        )
        after, reference = variates_of(state), None
        if after is None:
            per_step = round_.plan.step_sizes * cohort.horizons
            reference = (-round_.displacements.matrix() / per_step[:, None]).mean(
                axis=0
            )
        any_weights = rng.dirichlet(np.ones(N))
        for weights in (decision.weights, any_weights):
            result = central_round_hypotheses(
                round_, weights, path, variates=after, reference=reference
            )
            assert len(result) == 3
            assert all_hold(result), [(h.name, h.left, h.right) for h in result]
        following = x + step_of(decision, round_.displacements.matrix())
        np.testing.assert_allclose(following, path.points[-1], rtol=ROUNDING)
        if horizon == 1:
            g = mean_gradient(problem, x)
            step = x - 0.3 / problem.smoothness * g
            np.testing.assert_allclose(following, step, rtol=ROUNDING)
        x = following


def test_other_regimes_are_recognised(rng: np.random.Generator) -> None:
    """Each part of the assumption can fail, and the representation with it."""
    problem, cohort = identical_clients(rng, noise=1.0), cohort_of(3)
    x = rng.standard_normal(D)
    gradients = problem.full_gradients(x[None])
    absent = make_cohort([3, 3], clients=[0, 2], population=N, data_sizes=[2, 2])
    uneven = make_cohort([3, 3, 2, 3], data_sizes=[2] * N)
    other = gradients + rng.standard_normal((1, N, D))
    spread = ControlVariates(np.zeros(D), rng.standard_normal((N, D)))
    cases = [
        (symmetric_exact_hypotheses(absent, gradients), "full participation"),
        (symmetric_exact_hypotheses(uneven, gradients), "max H_i ≤ min H_i"),
        (symmetric_exact_hypotheses(cohort, other), "∇F_i all equal"),
        (symmetric_exact_hypotheses(cohort, gradients, used=other), "g_i = ∇F_i"),
        (symmetric_exact_hypotheses(cohort, gradients, variates=spread), "c_i all"),
    ]
    for result, broken in cases:
        assert [h.name.startswith(broken) for h in result if not h.holds] == [True]
    algorithm = HewHom(problem.smoothness, 0.3)
    round_, decision, _ = play(problem, algorithm, cohort, x, None)
    path = central_path(
        lambda z: mean_gradient(problem, z), x, 0.3, problem.smoothness, 3
    )
    noisy = central_round_hypotheses(round_, decision.weights, path)
    assert not any(h.holds for h in noisy)


def test_one_step_with_arbitrary_amplitudes(rng: np.random.Generator) -> None:
    """G.7: any weights, any amplitudes, H = 1; the variates stay equal."""
    problem, cohort = identical_clients(rng), cohort_of(1)
    L = problem.smoothness
    x: Array = rng.standard_normal(D)
    variates = ControlVariates(np.ones(D), np.ones((N, D)))
    for _ in range(ROUNDS):
        theta, w = rng.uniform(0.1, 1.0, N), rng.dirichlet(np.ones(N))
        plan = LocalPlan(theta / L, correction(variates, cohort))
        draws = draw(0, 0, cohort, problem.offsets)
        moved = run_branches_plain(problem, x, cohort, plan, draws)
        g = mean_gradient(problem, x)
        step = np.asarray(x - effective_amplitude(w, theta) / L * g)
        np.testing.assert_allclose(x + w @ moved, step, rtol=ROUNDING)
        variates = variates.after(matrix_round(x, moved, cohort, plan))
        np.testing.assert_allclose(variates.clients, np.stack([g] * N), rtol=1e-11)
        np.testing.assert_allclose(variates.server, g, rtol=1e-11)
        x = step
    np.testing.assert_allclose(
        effective_amplitude(np.full((2, N), 1 / N), theta), theta.mean(), rtol=1e-15
    )


def test_paths_of_many_configurations(rng: np.random.Generator) -> None:
    A = np.diag(np.arange(1.0, D + 1))
    x, theta = rng.standard_normal((3, D)), np.array([0.1, 0.5, 1.0])
    many = central_path(lambda z: z @ A, x, theta, 5.0, 4)
    assert many.points.shape == (5, 3, D)
    for i in range(3):
        one = central_path(lambda z: z @ A, x[i], theta[i], 5.0, 4)
        np.testing.assert_allclose(many.displacement[i], one.displacement, rtol=1e-14)
        shrink = (1 - theta[i] / 20 * np.diag(A)) ** 4
        np.testing.assert_allclose(one.points[-1], shrink * x[i], rtol=1e-13)
        np.testing.assert_allclose(
            -theta[i] / 5 * one.mean_gradient, one.displacement, rtol=1e-11
        )
    with pytest.raises(InvalidInputError, match="`horizon` must be at least 1; got 0"):
        central_path(lambda z: z, x, 0.1, 1.0, 0)


# the certificate


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_certificate_degenerates(
    rng: np.random.Generator, variant: Variant
) -> None:
    """G.6: J = U♯ − μ + (Lκ/2)Σw², least at uniform weights."""
    profile, state = ClientProfile(4, 8, 2.0), UpperState(0.6, 0.01)
    bounds, theta = ProblemBounds(2.0, 1.5, 0.01, 1.0), 0.2
    alike = ClientProfile([4] * N, [8] * N, [2.0] * N)
    w = rng.dirichlet(np.ones(N), 20)
    J = round_bound(w, np.full(N, theta), alike, state, bounds, variant=variant)
    setting, at = (theta, profile, state, bounds), situation_of(profile, state, bounds)
    one = np.asarray(theta)
    mu, kappa = gain(one, at, variant), variance_bound(one, at, variant)
    stated = 0.6 - mu + bounds.smoothness * kappa / 2 * (w**2).sum(-1)
    np.testing.assert_allclose(stated, J, rtol=1e-13)
    uniform = np.full(N, 1 / N)
    least = round_bound(
        uniform, np.full(N, theta), alike, state, bounds, variant=variant
    )
    excess = slice_excess(w, *setting, variant=variant)
    assert (excess > 0).all()
    np.testing.assert_allclose(J - least, excess, atol=1e-14)
    assert slice_excess(uniform, *setting, variant=variant) == 0
    np.testing.assert_allclose(
        threshold_weights(np.full(N, 0.1), np.full(N, 0.3)).weights, uniform
    )


def test_without_risk_all_weights_are_equal(rng: np.random.Generator) -> None:
    """G.6 (ii): κ = 0 where U = Q = v = 0."""
    setting = (
        0.2,
        ClientProfile(4, 8, 0.0),
        UpperState(0.0, 0.0),
        ProblemBounds(2.0, 1.5, 0.01, 1.0),
    )
    w = rng.dirichlet(np.ones(N), 20)
    np.testing.assert_array_equal(slice_excess(w, *setting), 0.0)
