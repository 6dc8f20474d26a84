"""Angle mixing and root weights: closed forms, hostile clients, degenerate rounds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.conformance.rounds import make_cohort
from tests.simulation.unchecked import unchecked

from hewfl import (
    ALIE,
    IPM,
    Federation,
    FixedSteps,
    InvalidInputError,
    LocalSGD,
    Method,
    RootSet,
    ScaledUpdates,
    Scenario,
    Sleeper,
    simulate,
)
from hewfl.aggregators import AngleMix, Mean, Pipeline, RootWeights, make
from hewfl.aggregators.hostile import (
    angle_map,
    bounded_length,
    root_trust,
    voted_weights,
    weighted_median,
)
from hewfl.data import dirichlet_partition, load
from hewfl.displacements.dense import DenseDisplacements, matrix_round
from hewfl.displacements.mapped import MappedDisplacements
from hewfl.displacements.sketched_displacements import (
    SketchedDisplacements,
    SketchedVector,
)
from hewfl.problems import softmax_from_arrays

Array = NDArray[np.float64]
ROOT = -np.array([1.0, 0.0, 0.0])


def fleet(rng: np.random.Generator, bad: int = 8, d: int = 40) -> tuple[Array, Array]:
    """Twenty updates with noise, the last ones the opposite of the mean; −mean."""
    honest = 1.0 + 2 * rng.standard_normal((20 - bad, d))
    mean = honest.mean(axis=0)
    return np.vstack([honest, np.tile(-mean, (bad, 1))]), -mean


# ------------------ angle mixing


def test_angle_mixing_by_hand() -> None:
    rows = np.array([[2.0, 0.0], [1.0, 1.0], [-1.0, 2.0]])
    # acute: 1 with 2 and 2 with 3; 1 and 3 are obtuse
    M = np.array([[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 2, 1 / 2]])
    np.testing.assert_allclose(angle_map(rows @ rows.T, np.ones(3)), M @ M)
    lengths = np.sqrt([4.0, 2.0, 5.0])
    decision, _ = Pipeline(AngleMix(), Mean())(rows)
    scale = np.minimum(1, 2.0 / lengths)
    np.testing.assert_allclose(decision.weights, (M @ M).mean(axis=0) * scale)


def test_an_update_that_is_at_no_acute_angle_is_mixed_with_none() -> None:
    rows = np.vstack([np.eye(3), [[-1.0, -1.0, -1.0]]])
    np.testing.assert_array_equal(angle_map(rows @ rows.T, np.ones(4)), np.eye(4))


def test_forty_percent_that_undo_the_mean_have_no_weight(
    rng: np.random.Generator,
) -> None:
    rows, root = fleet(rng)
    mixed, _ = make("angle-mix+geometric-median")(rows)
    plain, _ = make("geometric-median")(rows)
    assert mixed.weights[12:].sum() < 0.05
    assert plain.weights[12:].sum() > 0.3
    assert mixed.step @ -root > 0.8 * root @ root


# ------------------ root weights


def test_root_weights_of_two_clients_by_hand() -> None:
    rows = np.array([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0]])
    decision, state = RootWeights()(rows, root=ROOT)
    np.testing.assert_allclose(decision.weights, 0.5, atol=1e-9)
    np.testing.assert_allclose(state.descent, 1 / np.sqrt(2))
    np.testing.assert_allclose(state.steepness, 1.0)
    # across the root the second is nothing: not mixed, and the geometric median of
    # two points is their mean
    short = np.array([[1.0, 1.0, 0.0], [2.0, 0.0, 0.0]])
    bound = np.median([np.sqrt(2), 2.0])
    half = np.array([0.5, 0.5])
    w, gap = voted_weights(short @ short.T, short @ -ROOT, half, bound)
    scaled = short * np.array([1.0, bound / 2.0])[:, None]
    z = scaled.mean(axis=0)
    t = 0.25 * z - 0.75 * np.linalg.norm(z) * ROOT
    ridge = (scaled**2).sum(axis=1).mean()
    # over w_1: the projection of t on the segment, and of w_1 on 1/2
    e = scaled[0] - scaled[1]
    first = ((t - scaled[1]) @ e + ridge) / (e @ e + 2 * ridge)
    longer = np.minimum([np.sqrt(2), 2.0], 2 * bound).sum() / (np.sqrt(2) + bound)
    expected = longer * np.array([first, (1 - first) * bound / 2.0])
    np.testing.assert_allclose(w, expected, rtol=1e-6)
    assert 0 <= gap < 1e-9


def test_the_weighted_median_is_the_median_where_shares_are_equal(
    rng: np.random.Generator,
) -> None:
    for n in range(1, 12):
        x = rng.standard_normal(n)
        for shares in (np.ones(n), np.full(n, 1 / n)):
            assert weighted_median(x, shares) == pytest.approx(np.median(x), abs=1e-15)
        whole = rng.integers(1, 5, n)
        repeated = np.median(np.repeat(x, whole))
        assert weighted_median(x, whole / 7) == pytest.approx(repeated, abs=1e-15)


def test_the_length_at_most_doubles_and_what_is_remembered_at_most_halves() -> None:
    for exponent in (-400, 0, 400):
        unit = 2.0**exponent
        assert bounded_length(3.0, np.inf, exponent) == (3.0, 3 * unit)
        assert bounded_length(3.0, 1.0 * unit, exponent) == (2.0, 2 * unit)
        assert bounded_length(3.0, 2.0 * unit, exponent) == (3.0, 3 * unit)
        # one round of tiny updates does not hold up the next one
        assert bounded_length(1e-9, 3.0 * unit, exponent) == (1e-9, 1.5 * unit)
    # far below what can be told from zero in this unit: not bounded
    assert bounded_length(1.0, 1e-300, 900)[0] > 0
    assert bounded_length(1.0, 5e-324, 1000)[0] > 0


def test_trust_is_full_from_half_of_the_median_cosine_on() -> None:
    cosines = np.array([-0.4, 0.1, 0.4, 0.5, 0.8])
    steep, still = np.full(5, 3.0), np.zeros(5)
    # the median of the positive ones is 0.45
    expected = np.array([0, 0.1 / 0.225, 1, 1, 1])
    np.testing.assert_allclose(root_trust(3.0 * cosines, steep, still), expected)
    # who goes uphill now as far as the median goes down has none
    now = np.array([0.0, 0.0, -0.09, -0.45, -0.9])
    turned = root_trust(3.0 * cosines, steep, now)
    np.testing.assert_allclose(turned, [0, 0.1 / 0.225, 0.8, 0, 0], atol=1e-15)


def test_the_judgement_is_remembered_by_steepness_and_by_client() -> None:
    rule, rows = RootWeights(memory=0.5), np.diag([1.0, 2.0, 3.0])
    root = -np.array([1.0, 1.0, 0.0])
    _, state = rule(rows, root=root, clients=[4, 1, 7])
    _, state = rule(-rows[:2], state, root=10 * root, clients=[7, 1])
    # client 1: first +1, then −10; client 4 keeps its memory; 7: 0, then −10
    np.testing.assert_allclose(state.descent[[1, 4, 7]], [0.5 - 10, 1.0, -10.0])
    steep = np.sqrt(2) * np.array([10.5, 1.0, 10.5])
    np.testing.assert_allclose(state.steepness[[1, 4, 7]], steep)
    assert len(state.descent) == 8
    # of the recent cosines the sizes of the root do not matter
    np.testing.assert_allclose(
        state.recent[[1, 4, 7]], [0.0, 0.5**0.5, -(0.5**1.5)], atol=1e-15
    )


def test_trust_of_many_rounds_is_lost_in_two(rng: np.random.Generator) -> None:
    """Eight sleepers send the honest mean for twenty rounds, then its opposite."""
    rule, state = RootWeights(), None
    for t in range(25):
        honest = 1.0 + 2 * rng.standard_normal((12, 40))
        mean = honest.mean(axis=0)
        rows = np.vstack([honest, np.tile(mean if t < 20 else -mean, (8, 1))])
        decision, state = rule(rows, state, root=-mean + rng.standard_normal(40))
        if t in (5, 19):
            assert decision.weights[12:].sum() > 0.2
        if t == 20:
            assert 0.2 * mean @ mean < decision.step @ mean < 0.9 * mean @ mean
        if t >= 21:
            assert decision.weights[12:].sum() < 0.2
            assert decision.step @ mean > 0.6 * mean @ mean


def test_who_goes_down_with_the_root_cannot_add_anything_else(
    rng: np.random.Generator,
) -> None:
    """Eight of twenty go as far down as the mean, and undo the rest of it."""
    honest = np.full(60, 0.3) + rng.standard_normal((12, 60))
    honest[:, 0] += 1.0
    mean = honest.mean(axis=0)
    root = -np.eye(60)[0]
    bad = -2 * mean
    bad[0] = mean[0]
    decision, _ = RootWeights()(np.vstack([honest, np.tile(bad, (8, 1))]), root=root)
    assert (decision.weights[12:] > 0).all()
    assert decision.step[0] > 0.3 * mean[0]
    assert decision.step[1:] @ mean[1:] > 0.1 * mean[1:] @ mean[1:]


def test_whom_the_root_distrusts_still_has_half_a_vote(
    rng: np.random.Generator,
) -> None:
    """Half of the honest clients go uphill on the root; six attackers know it."""
    honest = np.full(60, 0.3) + rng.standard_normal((14, 60))
    honest[:7, 0] = -2.0
    honest[7:, 0] = 2.0
    mean = honest.mean(axis=0)
    bad = -2 * mean
    bad[0] = 2.0
    root = -np.eye(60)[0]
    decision, _ = RootWeights()(np.vstack([honest, np.tile(bad, (6, 1))]), root=root)
    assert decision.status == "the root trusts 13 of 20"
    assert decision.weights[:7].sum() > 0.05
    assert decision.step[1:] @ mean[1:] > 0.1 * mean[1:] @ mean[1:]


def test_colluders_of_sixty_percent_do_not_turn_the_step(
    rng: np.random.Generator,
) -> None:
    rows, root = fleet(rng, bad=12)
    decision, _ = RootWeights()(rows, root=root)
    plain, _ = make("angle-mix+geometric-median")(rows)
    assert decision.status == "the root trusts 8 of 20"
    assert decision.step @ -root > 0.2 * root @ root
    assert plain.step @ -root < 0


def test_a_trusted_majority_cannot_be_long_in_one_round(
    rng: np.random.Generator,
) -> None:
    """Twelve of twenty send the honest mean, then its opposite, twenty times it."""
    rule, state = RootWeights(), None
    for t in range(4):
        honest = np.full(60, 0.3) + rng.standard_normal((8, 60))
        mean = honest.mean(axis=0)
        sent = mean if t < 3 else -20 * mean
        rows = np.vstack([honest, np.tile(sent, (12, 1))])
        before = state
        root = -mean + 0.5 * rng.standard_normal(60)
        decision, state = rule(rows, state, root=root)
    assert before is not None
    assert before.length / 2 <= state.length <= 2 * before.length
    assert np.linalg.norm(decision.step) < 2 * np.linalg.norm(mean)
    unbounded = replace(before, length=np.inf)
    free, _ = rule(rows, unbounded, root=root)
    assert np.linalg.norm(free.step) > 1.2 * np.linalg.norm(decision.step)


def test_honest_clients_get_the_length_back_that_clipping_took(
    rng: np.random.Generator,
) -> None:
    base = 1.0 + 0.3 * rng.standard_normal((9, 30))
    rows = base * np.linspace(0.6, 1.7, 9)[:, None]
    mean = rows.mean(axis=0)
    decision, _ = RootWeights()(rows, root=-mean)
    assert decision.step @ mean == pytest.approx(mean @ mean, rel=0.12)


@pytest.mark.parametrize("kind", ["trusted", "uphill"])
def test_the_length_of_a_bad_row_has_no_effect_beyond_the_bound(
    rng: np.random.Generator, kind: str
) -> None:
    rows, root = fleet(rng, bad=4)
    if kind == "trusted":
        rows[16:] = np.abs(rng.standard_normal((4, 40)))
    steps = []
    for factor in (1e2, 1e4, 1e7):
        loud = rows.copy()
        loud[16:] *= factor
        steps.append(RootWeights()(loud, root=root)[0].step)
    for step in steps[1:]:
        np.testing.assert_allclose(step, steps[0], rtol=1e-4, atol=1e-4)
    lengths = np.linalg.norm(rows[:16], axis=1)
    assert np.linalg.norm(steps[0]) <= 2 * lengths.max()


def test_degenerate_rounds_say_what_was_done(rng: np.random.Generator) -> None:
    rows, root = fleet(rng, bad=0)
    uphill, _ = RootWeights()(-np.abs(rows), root=-np.ones(40))
    np.testing.assert_array_equal(uphill.weights, 0.0)
    np.testing.assert_array_equal(uphill.step, 0.0)
    assert uphill.status == "no client is trusted: all go uphill"
    still, state = RootWeights()(0 * rows, root=root)
    np.testing.assert_array_equal(still.weights, 0.05)
    assert still.status == "no client moved"
    flat, _ = RootWeights()(rows, root=0 * root)
    assert flat.status == "the root trusts 20 of 20"
    assert flat.step @ rows.mean(axis=0) > 0
    after, _ = RootWeights()(rows, state, root=root)
    assert np.isfinite(after.step).all()
    some = rows.copy()
    some[:3] = 0.0
    decision, _ = RootWeights()(some, root=root)
    np.testing.assert_array_equal(decision.weights[:3], 0.0)
    alone, _ = RootWeights()(rows[:1], root=-rows[0])
    np.testing.assert_allclose(alone.weights, 1.0)
    with pytest.raises(InvalidInputError, match="`root` must be given"):
        RootWeights()(rows)


def test_units_of_updates_and_of_the_root_do_not_matter(
    rng: np.random.Generator,
) -> None:
    rows, root = fleet(rng, bad=5)
    expected, _ = RootWeights()(rows, root=root)
    for unit, steep in ((1e-120, 1.0), (1e120, 1e-20), (1.0, 1e90)):
        scaled, _ = RootWeights()(unit * rows, root=steep * root)
        np.testing.assert_allclose(scaled.weights, expected.weights, atol=1e-9)


def test_products_are_enough(rng: np.random.Generator) -> None:
    """From sketches that are exact, and through a map, the weights are the same."""
    rows, root = fleet(rng, bad=5)
    expected, _ = RootWeights()(rows, root=root)
    rule = Method(LocalSGD(0.1), RootWeights())

    cohort = make_cohort([1] * 20)
    state = rule.init(20, 40, None)
    dense = matrix_round(np.zeros(40), rows, cohort, rule.plan(cohort, state))
    sketches: Any = SketchedDisplacements(20, 10**6, rows)
    with unchecked():
        sketched = replace(dense, displacements=sketches, root=SketchedVector(root))
    turned, _ = np.linalg.qr(rng.standard_normal((20, 20)))
    base = DenseDisplacements(turned.T @ rows, np, 20, 40)
    mapped = replace(dense, displacements=MappedDisplacements(base, turned), root=root)
    for round_ in (sketched, mapped):
        decision, _ = rule.decide(round_, state)
        np.testing.assert_allclose(decision.weights, expected.weights, atol=1e-6)


# ------------------ training under attack


ATTACKS: dict[str, Any] = {
    "none": None,
    "IPM": IPM(0.4, search="inner"),
    "ALIE": ALIE(0.4, search="inner"),
    "ten times the opposite": ScaledUpdates(0.4, -10.0),
    "sleeper": Sleeper(IPM(0.4, 0.5), 6, "mean"),
}


@pytest.fixture(scope="module")
def digits() -> Any:
    data = load("digits")
    X, y = np.asarray(data.features, dtype=np.float64), np.asarray(data.labels)
    X = np.column_stack([(X - X.mean(axis=0)) / 8, np.ones(len(X))])
    parts = dirichlet_partition(y, 20, alpha=0.5, seed=1)
    return softmax_from_arrays(X, y, parts, l2=1e-4)


@pytest.mark.parametrize("name", ATTACKS)
def test_training_survives_forty_percent(digits: Any, name: str) -> None:
    attack = ATTACKS[name]
    scenario = Scenario(() if attack is None else (attack,))
    rules = [make(n) for n in ("oracle", "root-weights", "angle-mix+geometric-median")]
    trace = simulate(
        digits,
        Federation(FixedSteps(4), 16, scenario=scenario, root=RootSet(100)),
        [Method(LocalSGD(0.3), rule) for rule in rules],
        rounds=20,
        seed=0,
        evaluate_every=20,
    )
    oracle, rooted, mixed = [r.objective or np.inf for r in trace.records[-3:]]
    assert rooted < 1.35 * oracle
    assert mixed < (1.15 if attack is None else 2.5) * oracle


def test_a_root_beyond_the_range_is_not_remembered(rng: np.random.Generator) -> None:
    rows = 1.0 + 0.1 * rng.standard_normal((4, 6))
    rule, root = RootWeights(), -np.ones(6)
    first, state = rule(rows, root=root)
    _, after = rule(rows, state, root=1e200 * root)
    again, _ = rule(rows, after, root=root)
    assert np.isfinite(after.steepness).all()
    assert (first.weights > 0).all()
    assert (again.weights > 0).all()


def test_a_root_of_zero_judges_no_new_client() -> None:
    rows, rule = np.ones((4, 3)), RootWeights()
    _, state = rule(rows[:2], root=-np.ones(3), clients=[0, 1])
    decision, _ = rule(rows, state, root=np.zeros(3), clients=[0, 1, 2, 3])
    np.testing.assert_allclose(decision.weights, 0.25)
