"""The compiled branches of softmax regression: the same numbers as the plain twin."""

from typing import Any

import numpy as np
import pytest

from hewfl import Federation, FixedSteps, HewHet, HewHom, UniformLocalSGD, simulate
from hewfl.core import native
from hewfl.core.round import Cohort, LocalPlan
from hewfl.problems import Softmax
from hewfl.problems.softmax.kernel import LIBRARY
from hewfl.problems.softmax.passes import losses, losses_and_hits
from hewfl.simulation.branches import run_branches, run_branches_plain
from hewfl.simulation.draws import Draws, draw

pytestmark = pytest.mark.skipif(
    LIBRARY is None, reason="the compiled kernels were not built or are switched off"
)
N = 6


def softmax(p: int, c: int, dtype: str) -> Softmax:
    rng = np.random.default_rng(p * c)
    X, y = rng.standard_normal((N * 30, p)).astype(dtype), rng.integers(0, c, N * 30)
    return Softmax(X, y, np.arange(N) * 30, np.full(N, 30), c, 0.02)


def make_plans(rng: np.random.Generator, d: int) -> list[LocalPlan]:
    eta = rng.uniform(0.01, 0.1, N)
    return [
        LocalPlan(eta),
        LocalPlan(eta, rng.standard_normal((N, d))),
        LocalPlan(eta / 2, None, proximal=0.7),
        LocalPlan(eta, None, hold=True),
        LocalPlan(eta, rng.standard_normal((N, d)), proximal=0.1, hold=True),
    ]


def setting(
    problem: Softmax, batches: list[int], horizons: list[int]
) -> tuple[Cohort, Draws]:
    federation = Federation(FixedSteps(horizons), batches)
    cohort = federation.cohort(3, 0, problem.data_sizes)
    return cohort, draw(3, 0, cohort, problem.offsets)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("p", "c"),
    [(1, 2), (7, 3), (16, 4), (33, 5), (55, 7), (64, 10), (785, 10), (5, 23)],
)
def test_compiled_branches_equal_the_plain_twin(
    p: int, c: int, dtype: str, rng: np.random.Generator
) -> None:
    problem = softmax(p, c, dtype)
    cohort, draws = setting(problem, [1, 5, 8, 32, 3, 11], [1, 2, 4, 8, 3, 1])
    plans = make_plans(rng, problem.d)
    anchors = rng.standard_normal((len(plans), problem.d)).astype(dtype)
    fast = run_branches(problem, anchors, cohort, plans, draws)
    assert fast.dtype == dtype
    for k, plan in enumerate(plans):
        slow = run_branches_plain(problem, anchors[k], cohort, plan, draws)
        eps = np.finfo(dtype).eps  # scores of size √p are rounded to eps √p
        rounding = 40 * eps * (1 + np.sqrt(p)) * np.abs(slow).max()
        assert np.abs(fast[k] - slow).max() <= rounding
        assert np.abs(slow).max() > 1e-3


def test_a_model_has_the_same_bits_alone_and_among_others(
    rng: np.random.Generator,
) -> None:
    problem = softmax(20, 6, "float32")
    cohort, draws = setting(problem, [4] * N, [5, 1, 2, 2, 1, 3])
    plans = make_plans(rng, problem.d)
    anchors = rng.standard_normal((len(plans), problem.d)).astype(np.float32)
    together = run_branches(problem, anchors, cohort, plans, draws)
    for k, plan in enumerate(plans):
        alone = run_branches(problem, anchors[k : k + 1], cohort, [plan], draws)
        np.testing.assert_array_equal(alone[0], together[k])


@pytest.mark.parametrize("spread", [1e-3, 1e3, 1e30])
def test_scores_of_any_size_give_probabilities(spread: float) -> None:
    problem = softmax(12, 5, "float32")
    cohort, draws = setting(problem, [8] * N, [1] * N)
    anchor = np.linspace(-spread, spread, problem.d).astype(np.float32)
    plan = LocalPlan(np.full(N, 0.1))
    fast = run_branches(problem, anchor[None], cohort, [plan], draws)[0]
    slow = run_branches_plain(problem, anchor, cohort, plan, draws)
    assert np.isfinite(fast).all()
    if spread <= 1e3:  # beyond, rounding of the scores decides which class wins
        assert np.abs(fast - slow).max() <= 1e-5 * max(1, spread) * np.abs(slow).max()


def test_a_model_that_is_not_finite_is_seen(rng: np.random.Generator) -> None:
    problem = softmax(12, 5, "float32")
    cohort, draws = setting(problem, [8] * N, [2] * N)
    anchors = rng.standard_normal((3, problem.d)).astype(np.float32)
    anchors[1, 7], anchors[2, 0] = np.nan, np.inf
    with np.errstate(all="ignore"):
        moved = run_branches(
            problem, anchors, cohort, [LocalPlan(np.full(N, 0.1))] * 3, draws
        )
    assert np.isfinite(moved[0]).all()
    assert not np.isfinite(moved[1:]).all(axis=2).any()


def test_samples_out_of_range_are_refused() -> None:
    problem = softmax(4, 3, "float64")
    cohort, draws = setting(problem, [2] * N, [1] * N)
    samples = draws.samples.copy()
    samples[0, 2, 1] = len(problem.labels)
    with pytest.raises(ValueError, match="out of range"):
        problem.branches(
            np.zeros((1, problem.d)), cohort, [LocalPlan(np.full(N, 0.1))], samples
        )


def test_whole_runs_agree_with_and_without_the_kernel() -> None:
    problem = softmax(9, 4, "float64")
    L = problem.smoothness
    methods: list[Any] = [UniformLocalSGD(0.4 / L), HewHom(L, 0.4), HewHet(L, 0.4)]
    federation = Federation(FixedSteps([1, 2, 4, 4, 8, 1]), 4)
    fast = simulate(problem, federation, methods, rounds=5, seed=2)
    with native.disabled():
        slow = simulate(problem, federation, methods, rounds=5, seed=2)
    for a, b in zip(fast.anchors, slow.anchors, strict=True):
        assert np.abs(a - b).max() <= 1e-11


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("models", "c", "b"), [(1, 2, 1), (3, 7, 255), (2, 10, 600)])
def test_compiled_losses_equal_the_plain_twin(
    models: int, c: int, b: int, dtype: str, rng: np.random.Generator
) -> None:
    """Small and large scores, ties, and scores far below the largest."""
    labels = rng.integers(0, c, b)
    for scale in (0.0, 1e-8, 1.0, 30.0, 1e4):
        scores = (scale * rng.standard_normal((models, c, b))).astype(dtype)
        fast = losses(scores, labels)
        with native.disabled():
            plain = losses(scores, labels)
        size = 1 + np.abs(plain).max()
        assert np.abs(fast - plain).max() <= 2 * np.finfo(np.float64).eps * size


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compiled_hits_are_those_of_argmax(
    dtype: str, rng: np.random.Generator
) -> None:
    """Whole numbers, so that many scores are equal: the first of them counts."""
    labels = rng.integers(0, 4, 700)
    scores = rng.integers(-2, 2, (3, 4, 700)).astype(dtype)
    lost, hits = losses_and_hits(scores, labels)
    assert (hits == (np.argmax(scores, axis=1) == labels)).all()
    assert (lost == losses(scores, labels)).all()
    with native.disabled():
        _, plain = losses_and_hits(scores, labels)
    assert (hits == plain).all()


def test_compiled_losses_name_what_is_not_finite(rng: np.random.Generator) -> None:
    scores, labels = rng.standard_normal((2, 3, 40)), rng.integers(0, 3, 40)
    scores[0, 1, 7], scores[1, 2, 9] = np.nan, np.inf
    lost = ~np.isfinite(losses(scores, labels))
    assert np.argwhere(lost).tolist() == [[0, 7], [1, 9]]


def test_compiled_losses_check_their_buffers() -> None:
    assert LIBRARY is not None
    scores, losses, none = np.zeros((1, 3, 4)), np.zeros((1, 4)), np.zeros(0, bool)
    for labels in ([0, 1, 2, 3], [0, -1, 2, 1]):
        with pytest.raises(ValueError, match="label is out of range"):
            LIBRARY.losses(8, 3, scores, np.array(labels), losses, none)
    fine = np.zeros(4, dtype=np.int64)
    for size, given, hits in (
        (8, np.zeros(5, dtype=np.int64), none),
        (4, fine, none),
        (8, fine, np.zeros(3, bool)),
    ):
        with pytest.raises(ValueError, match="wrong length"):
            LIBRARY.losses(size, 3, scores, given, losses, hits)


def test_client_losses_do_not_depend_on_the_kernel(rng: np.random.Generator) -> None:
    """Blocks that cut through clients, and clients that share rows."""
    problem = softmax(55, 7, "float64")
    pooled = Softmax(
        problem.features, problem.labels, np.zeros(2, int), np.full(2, 180), 7, 0.02
    )
    for each in (problem, pooled):
        models = 0.1 * rng.standard_normal((9, each.d))
        fast = each.client_losses(models)
        with native.disabled():
            plain = each.client_losses(models)
        assert fast == pytest.approx(plain, rel=1e-13)
