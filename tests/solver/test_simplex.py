"""The exact solver: proofs attached, relations, degenerate cases, second opinions."""

import clarabel
import numpy as np
import piqp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import nnls
from tests import known_solutions as problems
from tests.known_solutions import QPInstance
from tests.tolerances import (
    COMPONENTWISE,
    GAP,
    HIDDEN,
    PERMUTATION,
    SECOND_OPINION,
    WEIGHTS,
)

from hewfl import (
    InvalidInputError,
    SimplexSolution,
    solve_simplex_qp,
    threshold_weights,
)

Array = NDArray[np.floating]


pytestmark = pytest.mark.usefixtures("path")


def prepared(instance: QPInstance) -> tuple[Array, Array, float]:
    """Gram matrix and slope shifted by the shortest row, as hewfl forms them."""
    D = instance.displacements
    r = D[int(np.argmin(np.einsum("ij,ij->i", D, D)))]
    C = D - r
    slope = instance.reference + np.longdouble(instance.curvature) * r
    return C @ C.T, C @ slope.astype(np.float64), instance.curvature


def solve(instance: QPInstance) -> SimplexSolution:
    gram, linear, curvature = prepared(instance)
    return solve_simplex_qp(gram, linear, curvature=curvature)


def frank_wolfe_gap(gram: Array, linear: Array, curvature: float, w: Array) -> float:
    gradient = curvature * (gram @ w) + linear
    return float(np.max(w @ gradient - gradient))


def scale(gram: Array, linear: Array, curvature: float) -> float:
    return float(curvature * np.diagonal(gram).max() + np.ptp(linear)) or 1.0


def assert_proved(
    solution: SimplexSolution, gram: Array, linear: Array, curvature: float
) -> None:
    """The certificate is right and small; weights are on the simplex."""
    w = solution.weights
    assert w.min() >= 0
    assert abs(w.sum() - 1) < 1e-13
    unit = scale(gram, linear, curvature)
    recomputed = frank_wolfe_gap(gram, linear, curvature, w)
    assert float(solution.gap) <= GAP * unit
    assert abs(recomputed - float(solution.gap)) <= GAP * unit
    value = float(linear @ w + 0.5 * curvature * (w @ gram @ w))
    assert float(solution.value) == pytest.approx(value, abs=1e-13 * unit + 1e-300)
    assert float(w @ solution.multipliers) == pytest.approx(float(solution.gap))
    assert (solution.multipliers >= 0).all()
    assert np.array_equal(solution.support, w > 0)


DEGENERATE = problems.degenerate_instances()
TIES = problems.tie_instances()


@pytest.mark.parametrize("instance", DEGENERATE + TIES, ids=lambda i: i.name)
def test_degenerate_instances_are_solved_and_settled(instance: QPInstance) -> None:
    solution = solve(instance)
    assert problems.relative_gap(instance, solution.weights) <= GAP
    assert problems.componentwise_gap(instance, solution.weights) <= COMPONENTWISE
    if instance.weights is not None:
        error = np.abs(solution.weights - instance.weights).max()
        assert error <= instance.tolerance * instance.weights.max()


@pytest.mark.parametrize("instance", TIES, ids=lambda i: i.name)
def test_ties_do_not_depend_on_the_order_of_clients(
    instance: QPInstance, rng: np.random.Generator
) -> None:
    first = solve(instance).weights
    order = rng.permutation(instance.n)
    again = solve(problems.permuted(instance, order)).weights
    loose = 1e-8 if "1e6" in instance.name else PERMUTATION
    assert np.abs(again - first[order]).max() <= loose * first.max()


@given(seed=st.integers(0, 10_000))
def test_fuzzed_degenerate_problems(seed: int) -> None:
    instance = problems.random_degenerate(np.random.default_rng(seed))
    solution = solve(instance)
    assert problems.relative_gap(instance, solution.weights) <= GAP
    # wrong weights among ordinary columns must not hide behind a long one
    assert problems.componentwise_gap(instance, solution.weights) <= HIDDEN


@given(seed=st.integers(0, 10_000), n=st.integers(1, 40), share=st.floats(0.05, 1.0))
def test_chosen_minimisers_are_found(seed: int, n: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    support = max(1, round(share * n))
    instance = problems.constructed_instance(rng, n, n + 20, support)
    assert instance.weights is not None
    solution = solve(instance)
    assert_proved(solution, *prepared(instance))
    assert np.abs(solution.weights - instance.weights).max() <= WEIGHTS


@given(seed=st.integers(0, 10_000), n=st.integers(1, 30))
def test_permuting_clients_permutes_weights(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    instance = problems.gaussian_instance(rng, n, 12)
    order = rng.permutation(n)
    first = solve(instance).weights
    again = solve(problems.permuted(instance, order)).weights
    assert np.abs(again - first[order]).max() <= WEIGHTS * first.max()


@given(seed=st.integers(0, 10_000), decade=st.integers(-150, 150))
def test_scaling_the_objective_changes_nothing(seed: int, decade: int) -> None:
    rng = np.random.default_rng(seed)
    gram, linear, curvature = prepared(problems.gaussian_instance(rng, 15, 30))
    first = solve_simplex_qp(gram, linear, curvature=curvature)
    factor = 2.0 ** round(decade / np.log10(2.0))
    again = solve_simplex_qp(gram * factor, linear * factor, curvature=curvature)
    assert np.array_equal(again.weights, first.weights)
    assert float(again.value) == pytest.approx(float(first.value) * factor)


@given(seed=st.integers(0, 10_000), shift=st.floats(-1e6, 1e6))
def test_a_constant_in_the_linear_term_changes_nothing(seed: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    gram, linear, curvature = prepared(problems.gaussian_instance(rng, 15, 30))
    first = solve_simplex_qp(gram, linear, curvature=curvature)
    again = solve_simplex_qp(gram, linear + shift, curvature=curvature)
    assert np.abs(again.weights - first.weights).max() <= 1e-6


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 30),
    copies=st.integers(2, 4),
)
def test_a_repeated_client_shares_its_weight(seed: int, n: int, copies: int) -> None:
    rng = np.random.default_rng(seed)
    instance = problems.gaussian_instance(rng, n, n + 10)
    single = solve(instance).weights
    repeated = problems.repeated(instance, np.full(n, copies))
    shared = solve(repeated).weights.reshape(n, copies)
    assert np.abs(shared - single[:, None] / copies).max() <= WEIGHTS
    assert np.ptp(shared, axis=1).max() <= PERMUTATION


def test_identical_clients_get_the_uniform_vector() -> None:
    for n in (1, 2, 3, 17, 100, 300):
        weights = solve_simplex_qp(np.ones((n, n)), np.full(n, 0.3)).weights
        assert np.abs(weights - 1 / n).max() <= 1e-14


@given(seed=st.integers(0, 10_000), n=st.integers(1, 60))
def test_diagonal_problems_follow_the_threshold_law(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    gains, risks = rng.normal(size=n), rng.uniform(0.1, 5.0, n)
    qp = solve_simplex_qp(np.diag(risks), -gains)
    law = threshold_weights(gains, risks)
    assert np.abs(qp.weights - law.weights).max() <= 1e-12
    assert float(qp.value) == pytest.approx(float(law.value), abs=1e-13)


def test_vanishing_and_exploding_curvature_reach_their_limits(
    rng: np.random.Generator,
) -> None:
    instance = problems.gaussian_instance(rng, 12, 30)
    G, q = instance.gram, instance.linear
    best = solve_simplex_qp(G, q, curvature=1e-12).weights
    assert best[np.argmin(q)] == 1.0
    shortest = solve_simplex_qp(G, np.zeros(12)).weights
    limit = solve_simplex_qp(G, q, curvature=1e12).weights
    assert np.abs(limit - shortest).max() <= 1e-9


@pytest.mark.parametrize("n", [257, 400, 700])
@pytest.mark.parametrize("kind", ["wide", "narrow", "few", "ties"])
def test_large_problems_on_every_route(
    n: int, kind: str, rng: np.random.Generator
) -> None:
    d = {"wide": 3 * n, "narrow": 60, "few": 3 * n, "ties": 60}[kind]
    D = rng.standard_normal((n, d))
    g = rng.standard_normal(d)
    if kind == "wide":  # nearly all clients carry weight
        g = -0.9 * D.mean(axis=0)
    if kind == "ties":  # the target lies inside the hull: a face of minimisers
        g = -D[: n // 2].mean(axis=0)
    G, q = D @ D.T, D @ g
    solution = solve_simplex_qp(G, q)
    assert_proved(solution, G, q, 1.0)
    count = int(solution.support.sum())
    assert {
        "wide": count > 0.5 * n,
        "narrow": count <= 61,
        "few": True,
        "ties": count > 61,
    }[kind]
    warm = solve_simplex_qp(G, q, start=solution.weights)
    assert np.abs(warm.weights - solution.weights).max() <= WEIGHTS


@pytest.mark.parametrize("shape", [(), (1,), (25,), (3, 4)])
def test_a_stack_equals_its_problems(
    shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    n = 20
    D = rng.standard_normal((*shape, n, 30))
    D[..., 1, :] = D[..., 0, :]  # a tie in every problem
    G, q = D @ D.swapaxes(-1, -2), rng.standard_normal((*shape, n))
    q[..., 1] = q[..., 0]
    lam = rng.uniform(0.5, 2.0, shape)
    stack = solve_simplex_qp(G, q, curvature=lam)
    assert stack.weights.shape == (*shape, n)
    assert stack.value.shape == stack.gap.shape == stack.iterations.shape == shape
    for index in np.ndindex(shape):
        one = solve_simplex_qp(G[index], q[index], curvature=float(lam[index]))
        assert np.abs(one.weights - stack.weights[index]).max() <= 1e-13
        assert float(one.gap) == pytest.approx(float(stack.gap[index]), abs=1e-13)


def test_a_warm_start_changes_the_time_not_the_answer(rng: np.random.Generator) -> None:
    gram, linear, lam = prepared(problems.gaussian_instance(rng, 40, 60))
    cold = solve_simplex_qp(gram, linear, curvature=lam)
    for start in (cold.weights, rng.dirichlet(np.ones(40)), np.eye(40)[3]):
        kept = start.copy()
        warm = solve_simplex_qp(gram, linear, curvature=lam, start=start)
        assert np.array_equal(start, kept)
        assert np.abs(warm.weights - cold.weights).max() <= WEIGHTS
    assert warm.iterations >= 0
    again = solve_simplex_qp(gram, linear, curvature=lam, start=cold.weights)
    assert int(again.iterations) <= 2


def test_arguments_are_left_alone(rng: np.random.Generator) -> None:
    gram, linear, lam = prepared(problems.gaussian_instance(rng, 20, 30))
    before = gram.copy(), linear.copy()
    solve_simplex_qp(gram, linear, curvature=lam)
    assert np.array_equal(gram, before[0])
    assert np.array_equal(linear, before[1])


def test_float32_and_lists_are_welcome(rng: np.random.Generator) -> None:
    D = rng.standard_normal((8, 50)).astype(np.float32)
    single = solve_simplex_qp(D @ D.T, D @ D[0])
    double = solve_simplex_qp((D @ D.T).astype(float), (D @ D[0]).astype(float))
    assert np.array_equal(single.weights, double.weights)
    assert solve_simplex_qp([[2, 0], [0, 2]], [0, 0]).weights.tolist() == [0.5, 0.5]


# ------------------------------------------------------------------ second opinions


def by_piqp(H: Array, c: Array) -> Array:
    n = len(c)
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = 1e-10
    bounds = {"x_l": np.zeros(n), "x_u": np.full(n, np.inf)}
    solver.setup(H, c, np.ones((1, n)), np.ones(1), **bounds)
    solver.solve()
    return np.asarray(solver.result.x)


def by_clarabel(H: Array, c: Array) -> Array:
    n = len(c)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    A = sparse.csc_matrix(np.vstack([np.ones((1, n)), -np.eye(n)]))
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n)]
    b = np.concatenate([[1.0], np.zeros(n)])
    P = sparse.csc_matrix(np.triu(H))
    return np.asarray(clarabel.DefaultSolver(P, c, A, b, cones, settings).solve().x)


def by_nnls(H: Array, c: Array) -> Array:
    """‖(F − z1ᵀ)y‖² + (1ᵀy − 1)² over y ≥ 0 has the minimiser's direction."""
    n = len(c)
    lifted = H + np.trace(H) / n
    values, vectors = np.linalg.eigh(lifted)
    root = np.sqrt(np.maximum(values, 1e-14 * values[-1]))
    F = root[:, None] * vectors.T
    z = -(vectors.T @ c) / root
    y, _ = nnls(np.vstack([F - z[:, None], np.ones((1, n))]), np.eye(n + 1)[-1])
    return np.asarray(y / y.sum())


@pytest.mark.parametrize("judge", [by_piqp, by_clarabel, by_nnls])
@pytest.mark.parametrize("n", [3, 20, 80])
def test_independent_libraries_agree(
    judge: object, n: int, rng: np.random.Generator
) -> None:
    assert callable(judge)
    for instance in (
        problems.gaussian_instance(rng, n, n + 10),
        problems.sgd_round(rng, n, 40, skew=0.3),
    ):
        gram, linear, lam = prepared(instance)
        unit = scale(gram, linear, lam)
        H, c = lam * gram / unit, linear / unit
        other = np.maximum(judge(H, c), 0)
        other /= other.sum()
        ours = solve_simplex_qp(gram, linear, curvature=lam)
        value = float(c @ other + 0.5 * other @ H @ other)
        mine = float(ours.value) / unit
        assert mine <= value + 1e-15  # nobody is better
        assert value - mine <= SECOND_OPINION  # and they are nearly as good
        assert value - mine >= -float(ours.gap) / unit - 1e-15  # the gap was honest


# ------------------------------------------------------------------ bad input


GOOD = np.eye(3)


@pytest.mark.parametrize(
    ("gram", "linear", "keywords", "text"),
    [
        (np.full((3, 3), np.nan), np.zeros(3), {}, "`gram` must be finite; got nan"),
        (GOOD, [0, np.inf, 0], {}, "`linear` must be finite; got inf at index"),
        (np.ones((2, 3)), np.zeros(2), {}, "`gram` must be square"),
        (np.ones(3), np.zeros(3), {}, "`gram` must be square"),
        (np.zeros((0, 0)), np.zeros(0), {}, "`gram` must be square"),
        (GOOD, np.zeros(2), {}, "`linear` must be of shape"),
        (
            GOOD + np.eye(3, k=1),
            np.zeros(3),
            {},
            "`gram` must be symmetric; got 1.0 at",
        ),
        (-GOOD, np.zeros(3), {}, "`gram` must be positive semidefinite; got"),
        ([[1, 2], [2, 1]], np.zeros(2), {}, "`gram` must be positive semidefinite"),
        (GOOD - 0.6, np.zeros(3), {}, "`gram` must be positive semidefinite"),
        (
            GOOD,
            np.zeros(3),
            {"curvature": -1.0},
            "`curvature` must be a positive finite",
        ),
        (
            GOOD,
            np.zeros(3),
            {"curvature": 0.0},
            "`curvature` must be a positive finite",
        ),
        (
            GOOD,
            np.zeros(3),
            {"curvature": np.nan},
            "`curvature` must be finite; got nan",
        ),
        (
            GOOD,
            np.zeros(3),
            {"curvature": [1.0, 2.0]},
            "`curvature` must be one number",
        ),
        (GOOD, ["a", "b", "c"], {}, "`linear` must be an array of real numbers"),
        (GOOD * 1j, np.zeros(3), {}, "`gram` must be an array of real numbers"),
        (GOOD, np.zeros(3), {"start": [1.0, 0.0]}, "`start` must be of shape"),
        (GOOD, np.zeros(3), {"start": [1.0, -1.0, 1.0]}, "`start` must be nonnegative"),
        (GOOD * 1e300, np.zeros(3), {"curvature": 1e300}, "`curvature` must be such"),
    ],
)
def test_bad_input_is_named(
    gram: object, linear: object, keywords: dict[str, object], text: str
) -> None:
    with pytest.raises(InvalidInputError, match=text):
        solve_simplex_qp(gram, linear, **keywords)  # type: ignore[arg-type]  # on purpose


def test_large_bad_input_is_named(rng: np.random.Generator) -> None:
    n = 300
    D = rng.standard_normal((n, 400))
    G = D @ D.T
    skewed = G.copy()
    skewed[5, 9] += 1.0
    with pytest.raises(InvalidInputError, match="`gram` must be symmetric"):
        solve_simplex_qp(skewed, np.zeros(n))
    with pytest.raises(InvalidInputError, match="positive semidefinite"):
        solve_simplex_qp(G - 50 * np.eye(n), np.zeros(n))
    hidden = np.eye(n) - 2.0 / n  # indefinite along the ones vector only
    with pytest.raises(InvalidInputError, match="positive semidefinite"):
        solve_simplex_qp(hidden, np.zeros(n))
    with pytest.raises(InvalidInputError, match=r"positive semidefinite.*problem 1"):
        solve_simplex_qp(np.stack([G, -G]), np.zeros((2, n)))
