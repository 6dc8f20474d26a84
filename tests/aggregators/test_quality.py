"""Weights by disagreement and by agreement: cases worked by hand, and their limits."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.conformance.rounds import decide, make_cohort, step_of

from hewfl import LocalSGD, Method
from hewfl.aggregators import Agreement, Disagreement, MajoritySieve, Sieve, make
from hewfl.aggregators.similarity import mean_cosines
from hewfl.core.round import LocalPlan, Round
from hewfl.displacements.chunked import ChunkedDisplacements
from hewfl.errors import InvalidInputError

ROUNDING = 1e-14
THREE = make_cohort([1] * 3)


# ------------------------------------------------------------------ disagreement


def test_disagreement_by_hand() -> None:
    # numbers 0, 1, 3: squared distances 1, 9, 4; n − 2 = 1, so r = 10, 5, 13 and
    # Σr/4 = 7: σ² = 3, max(−2, 10⁻³ · 28/3), 6
    decision, _ = decide(
        Method(LocalSGD(1.0), Disagreement()), THREE, [[0.0], [1.0], [3.0]]
    )
    inverse = np.array([1 / 3, 3 / 0.028, 1 / 6])
    np.testing.assert_allclose(decision.weights, inverse / inverse.sum(), rtol=1e-13)


def test_disagreement_finds_variances_that_are_there_exactly() -> None:
    # orthogonal noises of squared length σ²: ‖Δ_i − Δ_j‖² = σ_i² + σ_j² to the digit
    variances = np.array([1.0, 2.0, 4.0, 8.0])
    moved = np.hstack([np.full((4, 1), 5.0), np.diag(np.sqrt(variances))])
    decision, _ = decide(
        Method(LocalSGD(1.0), Disagreement()), make_cohort([1] * 4), moved
    )
    expected = np.array([8.0, 4.0, 2.0, 1.0]) / 15
    np.testing.assert_allclose(decision.weights, expected, rtol=1e-13)


def test_disagreement_keeps_its_digits_beside_a_large_common_part() -> None:
    # around a short vector; in the plain products 10¹² would leave no digit of 1
    variances = np.array([1.0, 2.0, 4.0, 8.0])
    moved = np.hstack([np.full((4, 1), 1e12), np.diag(np.sqrt(variances))])
    decision, _ = decide(
        Method(LocalSGD(1.0), Disagreement()), make_cohort([1] * 4), moved
    )
    expected = np.array([8.0, 4.0, 2.0, 1.0]) / 15
    np.testing.assert_allclose(decision.weights, expected, rtol=1e-13)


@pytest.mark.parametrize("n", [3, 4, 5])
@pytest.mark.parametrize("d", [1, 40])
def test_disagreement_has_neither_scale_nor_origin(n: int, d: int) -> None:
    """Floored variances included, which one dimension has in every round of three."""
    rng = np.random.default_rng(n)
    moved, rule = rng.standard_normal((n, d)), Method(LocalSGD(1.0), Disagreement())
    known, _ = decide(rule, make_cohort([1] * n), moved)
    other = 1e-7 * (moved @ np.linalg.qr(rng.standard_normal((d, d)))[0] - 3.0)
    found, _ = decide(rule, make_cohort([1] * n), other)
    np.testing.assert_allclose(found.weights, known.weights, rtol=1e-9)
    if (n, d) == (3, 1):  # the one between the two others
        assert known.weights[np.argsort(moved[:, 0])[1]] > 0.98


@pytest.mark.parametrize("moved", [[[7.0]], [[1.0], [-5.0]], [[2.0], [2.0], [2.0]]])
def test_disagreement_without_variances_is_equal(moved: list[list[float]]) -> None:
    n = len(moved)
    decision, _ = decide(
        Method(LocalSGD(1.0), Disagreement()), make_cohort([1] * n), moved
    )
    np.testing.assert_array_equal(decision.weights, np.full(n, 1 / n))
    assert decision.status.startswith("equal weights")


def test_disagreement_damps_a_far_client_but_does_not_drop_it() -> None:
    # n = 5, R → ∞: σ² = R² of the far one, all others at the floor
    # 10⁻³ · 2 (n − 1) R²/(n (n − 2)) = 8R²/15000: w = 8/15000 over 4 + 8/15000
    moved = np.vstack([np.eye(4), np.full((1, 4), 1e8)])
    decision, _ = decide(
        Method(LocalSGD(1.0), Disagreement()), make_cohort([1] * 5), moved
    )
    share = 8 / 15000
    np.testing.assert_allclose(decision.weights[4], share / (4 + share), rtol=1e-6)
    np.testing.assert_allclose(decision.weights[:4], 1 / (4 + share), rtol=1e-6)


# ------------------------------------------------------------------ agreement


def test_agreement_by_hand() -> None:
    # angles 0, 60°, 180°: cosines ½ (1, 2), −1 (1, 3), −½ (2, 3);
    # a = −¼, 0, −¾: nobody agrees
    half = math.sqrt(0.75)
    moved = [[1.0, 0.0], [0.5, half], [-1.0, 0.0]]
    decision, _ = decide(Method(LocalSGD(1.0), Agreement()), THREE, moved)
    np.testing.assert_array_equal(decision.weights, np.full(3, 1 / 3))
    assert "no client agrees" in decision.status
    # angles 0, 60°, 90°: cosines ½, 0, ½√3; a = ¼, (1 + √3)/4, √3/4
    moved = [[3.0, 0.0], [0.5, half], [0.0, 7.0]]
    agreed = np.array([1.0, 1 + math.sqrt(3), math.sqrt(3)])
    for power in (0.5, 1.0, 2.0):
        decision, _ = decide(Method(LocalSGD(1.0), Agreement(power)), THREE, moved)
        expected = agreed**power / (agreed**power).sum()
        np.testing.assert_allclose(decision.weights, expected, rtol=1e-13)


def test_agreement_gives_nothing_to_a_flipped_client(rng: np.random.Generator) -> None:
    moved = np.ones((6, 8)) + 0.1 * rng.standard_normal((6, 8))
    moved[2] *= -20
    decision, _ = decide(
        Method(LocalSGD(1.0), Agreement()), make_cohort([1] * 6), moved
    )
    assert decision.weights[2] == 0
    np.testing.assert_allclose(np.delete(decision.weights, 2), 0.2, rtol=0.02)


def test_agreement_does_not_see_lengths(rng: np.random.Generator) -> None:
    moved = 1 + rng.standard_normal((5, 6))
    lengths = 10.0 ** rng.integers(-6, 6, (5, 1))
    cohort = make_cohort([1] * 5)
    one, _ = decide(Method(LocalSGD(1.0), Agreement()), cohort, moved)
    other, _ = decide(Method(LocalSGD(1.0), Agreement()), cohort, moved * lengths)
    np.testing.assert_allclose(other.weights, one.weights, rtol=1e-9)


def test_agreement_judges_by_the_others_alone() -> None:
    # a client orthogonal to all others has cosine 1 with itself, and no weight
    moved = [[1.0, 0.0], [1.0, 0.0], [0.0, 100.0]]
    decision, _ = decide(Method(LocalSGD(1.0), Agreement()), THREE, moved)
    np.testing.assert_allclose(decision.weights, [0.5, 0.5, 0.0], atol=ROUNDING)


def test_agreement_survives_large_powers_and_clients_at_rest() -> None:
    moved = [[1.0, 0.0], [0.9, 0.1], [0.8, 0.3], [0.0, 0.0]]
    decision, _ = decide(
        Method(LocalSGD(1.0), Agreement(5000.0)), make_cohort([1] * 4), moved
    )
    np.testing.assert_allclose(decision.weights, [0.0, 1.0, 0.0, 0.0], atol=1e-6)
    still = np.zeros((2, 3))
    decision, _ = decide(
        Method(LocalSGD(1.0), Agreement()), make_cohort([1] * 2), still
    )
    np.testing.assert_array_equal(decision.weights, [0.5, 0.5])
    decision, _ = decide(Method(LocalSGD(1.0), Agreement()), make_cohort([1]), [[-3.0]])
    np.testing.assert_array_equal(decision.weights, [1.0])


def test_mean_cosines_need_no_common_scale() -> None:
    from hewfl.displacements.dense import as_dense  # noqa: PLC0415 - this test alone

    moved = np.array([[1.0, 0.0], [1.0, 1.0]])
    for scale in (1e-200, 1.0, 1e200):
        found, _ = mean_cosines(as_dense("moved", scale * moved))
        np.testing.assert_allclose(found, math.sqrt(0.5), rtol=1e-12)


# ------------------------------------------------------------------ both


@pytest.mark.parametrize(
    "algorithm",
    [Method(LocalSGD(1.0), Disagreement()), Method(LocalSGD(1.0), Agreement())],
)
@pytest.mark.parametrize("scale", [1e-160, 1e-9, 1e9, 1e160])
def test_weights_have_no_unit(
    algorithm: Method, scale: float, rng: np.random.Generator
) -> None:
    moved = 1 + rng.standard_normal((6, 5))
    cohort = make_cohort([1] * 6)
    one, _ = decide(algorithm, cohort, moved)
    other, _ = decide(algorithm, cohort, scale * moved)
    np.testing.assert_allclose(other.weights, one.weights, rtol=1e-9)
    step = step_of(other, scale * moved)
    np.testing.assert_allclose(step, scale * step_of(one, moved), rtol=1e-9)


# ------------------------------------------------------------------ sieve

SIZES = replace(make_cohort([1] * 4), data_sizes=np.array([5, 1, 2, 7]))


def test_a_sieve_is_fedavg_where_nobody_turns_back() -> None:
    moved = np.array([[1.0, 0.0], [0.8, 0.1], [0.9, -0.2], [1.0, 0.1]])
    decision, _ = decide(Method(LocalSGD(1.0), Sieve()), SIZES, moved)
    np.testing.assert_allclose(decision.weights, np.array([5, 1, 2, 7]) / 15)


@pytest.mark.parametrize(
    ("tolerance", "kept"),
    [(0.0, 0.0), (0.5, 0.0), (2.0, 0.5), (1e9, 1.0), (None, 0.0)],
)
def test_a_client_that_turns_back_loses_weight_by_its_cosine(
    tolerance: float | None, kept: float
) -> None:
    moved = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    decision, _ = decide(Method(LocalSGD(1.0), Sieve(tolerance)), SIZES, moved)
    sizes = np.array([5, 1, 2, 7 * kept])
    np.testing.assert_allclose(decision.weights, sizes / sizes.sum())


def test_a_step_longer_than_the_clip_counts_as_one_of_that_length() -> None:
    moved = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [20.0, 0.0]])
    decision, _ = decide(
        Method(LocalSGD(1.0), Sieve(clip=2.0)), make_cohort([1] * 4), moved
    )
    np.testing.assert_allclose(decision.weights, [1 / 4, 1 / 4, 1 / 4, 0.1 / 4])


def test_a_sieve_that_leaves_nobody_is_fedavg() -> None:
    two = replace(make_cohort([1] * 2), data_sizes=np.array([1, 3]))
    for moved in ([[1.0], [-1.0]], [[0.0], [0.0]]):
        decision, _ = decide(Method(LocalSGD(1.0), Sieve(0.2)), two, moved)
        np.testing.assert_allclose(decision.weights, [0.25, 0.75])


@pytest.mark.parametrize("n", [3, 4, 6])
def test_steps_that_cancel_keep_fedavgs_weights(n: int) -> None:
    """At the end of a training: the corners of a simplex around its centre."""
    sizes = np.arange(1, n + 1)
    cohort = replace(make_cohort([1] * n), data_sizes=sizes)
    decision, _ = decide(Method(LocalSGD(1.0), Sieve()), cohort, np.eye(n) - 1 / n)
    np.testing.assert_allclose(decision.weights, sizes / sizes.sum())
    one_apart, _ = decide(Method(LocalSGD(1.0), Sieve()), cohort, np.eye(n) - 0.9 / n)
    assert one_apart.weights.min() > 0.9 / sizes.sum()


def test_a_tolerance_is_checked() -> None:
    with pytest.raises(InvalidInputError, match="tolerance"):
        Method(LocalSGD(1.0), Sieve(tolerance=-0.1))


# ------------------------------------------------------------------ majority sieve


def colluding(reach: float = 1.0) -> Any:
    """Sixteen clients of one mean and much noise, and four against their mean."""
    rng = np.random.default_rng(4)
    honest = 1 + 2 * rng.standard_normal((16, 200))
    return np.vstack([honest, np.tile(-reach * honest.mean(axis=0), (4, 1))])


@pytest.mark.parametrize("reach", [0.5, 2.0])
def test_colluders_do_not_vouch_for_each_other(reach: float) -> None:
    moved = colluding(reach)
    assert Sieve()(moved)[0].weights[16:].sum() > 0.05
    decision, _ = MajoritySieve()(moved)
    assert decision.weights[16:].sum() == 0
    np.testing.assert_allclose(decision.weights[:16], np.full(16, 1 / 16), rtol=1e-9)


def test_all_vote_where_nobody_is_faulty() -> None:
    moved = colluding()[:18]
    ours = MajoritySieve(f=0, clip=1e9)(moved)[0].weights
    np.testing.assert_allclose(ours, Sieve(clip=1e9)(moved)[0].weights, rtol=1e-12)


def test_lengths_are_compared_with_what_one_honest_client_must_have() -> None:
    """Of eight clients two may be faulty: the third longest is at most honest."""
    lengths = np.array([1.0, 1.0, 1.0, 2.0, 3.0, 4.0, 8.0, 80.0])
    moved = np.outer(lengths, np.ones(3))
    decision, _ = MajoritySieve()(moved)
    expected = np.array([1.0] * 7 + [0.1]) / 8
    np.testing.assert_allclose(decision.weights, expected)
    two, _ = MajoritySieve()(moved[-2:])  # of two the shorter one is taken at its word
    np.testing.assert_allclose(two.weights, [0.5, 0.5 * 16 / 80])


def test_reported_steps_excuse_a_length_only_where_directions_agree() -> None:
    horizons = np.array([2, 2, 2, 2, 2, 2, 2, 40])
    moved = np.outer(horizons, np.ones(3))
    fair, _ = MajoritySieve()(moved, steps=horizons)
    np.testing.assert_allclose(fair.weights, np.full(8, 1 / 8))
    moved[7] *= [-0.02, 1.0, -1.1]  # turned by more than a right angle
    turned, _ = MajoritySieve()(moved, steps=horizons)
    silent, _ = MajoritySieve()(moved)
    np.testing.assert_allclose(turned.weights, silent.weights)
    assert turned.weights[7] < 0.02


def test_clients_that_send_the_same_have_one_weight() -> None:
    """Ties at the border of those who vote: none of them is out alone."""
    rng = np.random.default_rng(2)
    moved = np.repeat(rng.standard_normal((4, 30)) + 0.3, [3, 3, 3, 3], axis=0)
    weights = MajoritySieve(tolerance=0.3)(moved)[0].weights.reshape(4, 3)
    np.testing.assert_allclose(weights, np.tile(weights[:, :1], (1, 3)), rtol=1e-9)


def test_copies_count_as_one_client() -> None:
    """Four of twenty send one direction where nobody else points."""
    moved = colluding()
    moved[16:] = (
        40 * np.random.default_rng(7).standard_normal(200) * [[1], [1], [2], [1]]
    )
    decision, _ = MajoritySieve()(moved)
    assert Sieve(clip=1e9)(moved)[0].weights[16:].sum() == pytest.approx(0.2)
    np.testing.assert_allclose(decision.weights[:16], np.full(16, 1 / 17), rtol=1e-9)
    assert decision.weights[16:].sum() < 1 / 17
    alike = 1 + 0.01 * np.random.default_rng(3).standard_normal((20, 50))
    same, _ = MajoritySieve()(alike)  # where all are alike nobody is a copy
    assert same.weights.min() > 0.5 / 20


def test_a_size_above_the_median_needs_agreement() -> None:
    rng, sizes = np.random.default_rng(6), np.full(10, 100)
    moved = 1 + rng.standard_normal((10, 400))
    sizes[0] = 225  # a fifth of the sum
    honest, _ = MajoritySieve()(moved, sizes=sizes)
    np.testing.assert_allclose(honest.weights, sizes / sizes.sum())
    for lie in (-0.02 * moved[0], rng.standard_normal(400)):
        found, _ = MajoritySieve()(np.vstack([lie, moved[1:]]), sizes=sizes)
        assert found.weights[0] <= 1 / 10 + 1e-12


# ------------------------------------------------------------------ known lengths


def test_known_lengths_spare_the_gram_matrix(rng: np.random.Generator) -> None:
    x = rng.standard_normal(300).astype(np.float32)
    common = rng.standard_normal(300)
    ends = x + 0.1 * (common + 3.0 * rng.standard_normal((6, 300)))
    ends[4] = x - 0.3 * common  # turns back
    ends = ends.astype(np.float32)
    ends[2] = x  # did not move
    data = ChunkedDisplacements((tuple(ends),), x)
    known, lengths = mean_cosines(data)
    measured = replace(data, sq_lengths=lengths**2)

    def refused(*_: object) -> None:
        pytest.fail("the Gram matrix was formed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChunkedDisplacements, "products", refused)
        found, same = mean_cosines(measured)
    np.testing.assert_allclose(found, known, atol=1e-12)
    np.testing.assert_allclose(same, lengths, rtol=1e-15)
    assert found[2] == 0
    some = np.array([0, 4, 5])
    part = mean_cosines(measured.take(some))[0]
    np.testing.assert_allclose(part, mean_cosines(data.take(some))[0], atol=1e-12)


def test_single_cosines_of_long_updates_are_taken_from_some_entries(
    rng: np.random.Generator,
) -> None:
    d, cuts = 60_000, [11, 20_000, 20_007]
    x = rng.standard_normal(d).astype(np.float32)
    ends = (x + 1 + 3 * rng.standard_normal((12, d))).astype(np.float32)
    ends[9:] = x - 1  # three of one mind
    parts = tuple(tuple(piece) for piece in zip(*(np.split(y, cuts) for y in ends)))  # noqa: B905 - as many cuts
    data = ChunkedDisplacements(parts, x)
    rows = data.matrix()
    assert data.spread(d).shape == data.shape
    np.testing.assert_array_equal(data.spread(d), rows)
    some = data.spread(4096)
    assert 3500 < some.shape[1] < 4500
    np.testing.assert_array_equal(some, rows[:, :: d // 4096 | 1])
    cohort = make_cohort([1] * 12)
    method = Method(LocalSGD(1.0), MajoritySieve())
    exact, _ = decide(method, cohort, rows)
    measured = replace(data, sq_lengths=(rows**2).sum(axis=1))
    round_ = Round(x.astype(np.float64), measured, cohort, LocalPlan(np.ones(12)))
    sampled, _ = MajoritySieve().decide(round_, None)
    np.testing.assert_allclose(sampled.weights, exact.weights, atol=0.01)
    assert sampled.weights[9:].sum() < 0.05  # a quarter in FedAvg


def test_relative_sieve_spares_clients_that_all_oppose_each_other() -> None:
    """As clients with classes of their own do; a bad one among good ones goes."""
    rng = np.random.default_rng(3)
    u = rng.normal(size=(2, 40))
    apart = rng.normal(size=(4, 40)) + np.outer([1.5, -1.5, -1.5, 0.3], u[0])
    cohort, plain = make_cohort([8] * 4), Sieve(tolerance=0.2, by="equal")
    relative = replace(plain, relative=True)

    def weights(rule: Sieve, rows: Any) -> Any:
        return decide(Method(LocalSGD(1.0), rule), cohort, rows)[0].weights

    fair = weights(relative, apart)
    assert fair.min() > 0.5 * fair.max()
    assert weights(plain, apart).min() == 0
    agreeing = 1 + 0.5 * rng.normal(size=(4, 40))
    agreeing[2] *= -1
    for rule in (plain, relative):
        assert weights(rule, agreeing)[2] == 0
    np.testing.assert_array_equal(weights(plain, agreeing), weights(relative, agreeing))


def test_sieve_per_step_leaves_fast_and_slow_clients_whole() -> None:
    """Steps 16, 4, 2, 1 along one direction: each has moved as far as its steps."""
    horizons, u = [16, 4, 2, 1], np.ones(5)
    moved = np.outer(horizons, u)
    rule, cohort = Sieve(by="equal", per_step=True), make_cohort(horizons)
    clipped, _ = decide(Method(LocalSGD(1.0), Sieve(by="equal")), cohort, moved)
    assert clipped.weights == pytest.approx([0.09375, 0.25, 0.25, 0.25])
    fair, _ = decide(Method(LocalSGD(1.0), rule), cohort, moved)
    assert fair.weights == pytest.approx([0.25] * 4)
    noisy = np.outer(np.sqrt(horizons), u)  # long per step where steps are few
    fair, _ = decide(Method(LocalSGD(1.0), rule), cohort, noisy)
    assert fair.weights == pytest.approx([0.25] * 4)
    moved[0] *= 10  # ten times per step, and 53 times the median length
    bad, _ = decide(Method(LocalSGD(1.0), rule), cohort, moved)
    assert bad.weights == pytest.approx([0.05, 0.25, 0.25, 0.25])


def test_claimed_steps_do_not_buy_weight(rng: np.random.Generator) -> None:
    """A long update is not shortened for its steps, but not for steps of any number."""
    rows = np.vstack([np.ones((10, 9)), 90 * np.ones((1, 9))])
    rows += 0.1 * rng.standard_normal(rows.shape)
    eight = np.full(11, 8)

    def influence(claim: int) -> float:
        steps = eight.copy()
        steps[-1] = claim
        decision, _ = MajoritySieve()(rows, steps=steps)
        return float(90 * decision.weights[-1])

    assert influence(8) < 0.3
    assert influence(80) == pytest.approx(influence(10**6))
    assert influence(10**6) < 2


def test_what_comes_before_a_rule_leaves_it_its_own_clip() -> None:
    rule = make("nnm+majority-sieve")
    assert rule.clips
    assert not make("nnm+mean").clips
