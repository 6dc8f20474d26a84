"""Trust learned over rounds: worked by hand, what it remembers and forgives."""

from typing import Any

import numpy as np
import pytest
from tests.conformance.rounds import make_cohort

from hewfl import InvalidInputError, LocalSGD, Method
from hewfl.aggregators import Trust
from hewfl.aggregators.trust import MAX_DISTANCE_RATIO, TrustState, relative_distances
from hewfl.displacements.dense import matrix_round

N = 7


def decide(
    rule: Method, rows: Any, state: TrustState | None = None, steps: Any = None
) -> tuple[Any, TrustState]:
    rows = np.asarray(rows, dtype=np.float64)
    cohort = make_cohort([1] * len(rows) if steps is None else steps)
    state = rule.init(len(rows), rows.shape[1], None) if state is None else state
    known = matrix_round(
        np.zeros(rows.shape[1]), rows, cohort, rule.plan(cohort, state)
    )
    return rule.decide(known, state)


def around(length: float, last: float) -> Any:
    """±e_k in three dimensions, and one vector along the first axis."""
    good = length * np.vstack([np.eye(3), -np.eye(3)])
    return np.vstack([good, [[last, 0.0, 0.0]]])


def test_distances_are_from_the_geometric_median_in_units_of_the_median_client() -> (
    None
):
    rows = np.array([[-2.0], [-1.0], [0.0], [1.0], [4.0]])  # the median is 0
    found = relative_distances(rows @ rows.T, np.ones(5, dtype=np.int64))
    assert found is not None
    # squared distances 4, 1, 0, 1, 16: the median of them is 1
    np.testing.assert_allclose(found, [4.0, 1.0, 0.0, 1.0, 16.0], atol=1e-6)


def test_weights_by_hand_in_the_first_round() -> None:
    rule = Method(LocalSGD(total=1.0), Trust())
    decision, state = decide(rule, [[-2.0], [-1.0], [0.0], [1.0], [4.0]])
    # e is the round's own; 0 is raised to 1/100 of the median
    e = np.array([4.0, 1.0, 0.01, 1.0, 16.0])
    c = np.exp(2 * np.log(4))  # |log e| = log 4, 0, log 100, 0, log 16
    expected = np.sqrt(1 / e) * np.minimum(1, c / e) ** 3
    expected = np.minimum(expected, 1.0)  # of the median client
    np.testing.assert_allclose(decision.weights, expected / expected.sum(), rtol=1e-5)
    np.testing.assert_array_equal(state.rounds, 1.0)


def test_nobody_is_distrusted_for_having_done_little() -> None:
    # noise averaged over 4 steps is half as long: all steps are equally good
    steps = [1, 1, 4, 4, 4, 4]
    rows = np.diag([2.0, 2.0, 1.0, 1.0, 1.0, 1.0])
    both = np.vstack([rows, -rows])  # the median is zero
    decision, _ = decide(Method(LocalSGD(total=1.0), Trust()), both, steps=steps * 2)
    long, short = decision.weights[2:4], decision.weights[:2]
    np.testing.assert_allclose(long / short, 2.0, rtol=1e-5)  # √(H_i/e_i)


def test_who_is_always_far_loses_more_than_who_is_far_once() -> None:
    rule, state = Method(LocalSGD(total=1.0), Trust()), None
    for _ in range(6):
        once, state = decide(rule, around(1.0, 1.0), state)
    once, _ = decide(rule, around(1.0, 3.0), state)
    for _ in range(6):
        always, state = decide(rule, around(1.0, 3.0), state)
    assert always.weights[-1] < 0.3 * once.weights[-1]
    assert once.weights[-1] < 0.7 / N


def test_without_memory_the_past_does_not_count() -> None:
    rule, state = Method(LocalSGD(total=1.0), Trust(memory=0.0)), None
    for far in (50.0, 50.0, 3.0):
        decision, state = decide(rule, around(1.0, far), state)
    fresh, _ = decide(rule, around(1.0, 3.0))
    np.testing.assert_allclose(decision.weights, fresh.weights, rtol=1e-9)


def test_the_pull_of_a_loud_client_vanishes_however_loud() -> None:
    pulls = []
    for far in (1e2, 1e4, 1e8):
        decision, _ = decide(Method(LocalSGD(total=1.0), Trust()), around(1.0, far))
        pulls.append(decision.weights[-1] * far)
    assert pulls[0] < 1e-4
    assert pulls[0] > pulls[1] > pulls[2]


def test_a_loud_client_is_forgiven() -> None:
    rule = Method(LocalSGD(total=1.0), Trust())
    _, state = decide(rule, around(1.0, 1e9))
    assert state.apart[-1] == MAX_DISTANCE_RATIO
    for _ in range(40):
        decision, state = decide(rule, around(1.0, 1.0), state)
    assert decision.weights[-1] > 0.9 / N


def test_those_who_were_not_there_keep_their_trust() -> None:
    rule = Method(LocalSGD(total=1.0), Trust())
    state = TrustState(np.array([1.0, 5.0, 1.0, 1.0]), np.array([3.0, 3.0, 3.0, 3.0]))
    cohort = make_cohort([1, 1, 1], clients=[0, 2, 3], population=4)
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    plan = rule.plan(cohort, state)
    _, following = rule.decide(matrix_round(np.zeros(2), rows, cohort, plan), state)
    assert following.apart[1] == 5.0
    np.testing.assert_array_equal(following.rounds, [4.0, 3.0, 4.0, 4.0])


def test_most_clients_that_send_the_same_weigh_the_same() -> None:
    """Their distances to the centre are rounding: it must not tell them apart."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        moved = rng.standard_normal((150, 50))
        twins = rng.permutation(150)[:100]
        moved[twins] = moved[twins[0]]
        weights = Trust()(moved)[0].weights
        assert np.ptp(weights[twins]) <= 1e-9 * weights.max()


def test_nothing_is_learned_where_all_agree() -> None:
    rule = Method(LocalSGD(total=1.0), Trust())
    decision, state = decide(rule, np.ones((4, 2)))
    np.testing.assert_array_equal(decision.weights, 0.25)
    np.testing.assert_array_equal(state.rounds, 0.0)


def test_colluders_near_the_centre_buy_no_weight_before_they_strike() -> None:
    """Eight of twenty send the honest mean for ten rounds, then its opposite."""
    rng, state = np.random.default_rng(5), None
    rule = Method(LocalSGD(total=1.0), Trust())
    for t in range(14):
        honest = 1.0 + 3 * rng.standard_normal((12, 40))
        mean = honest.mean(axis=0)
        rows = np.vstack([honest, np.tile(mean if t < 10 else -mean, (8, 1))])
        decision, state = decide(rule, rows, state)
        weights = decision.weights
        assert weights.max() <= np.median(weights) * (1 + 1e-12)
        assert weights[12:].sum() < 0.45  # without the cap 0.8
        step = weights @ rows
        if t >= 10:
            assert step @ mean > 0


def test_bad_numbers_are_refused() -> None:
    for given, text in (
        ({"memory": 1.0}, "`memory` must be from 0 to below 1; got 1.0"),
        ({"threshold": 0.0}, "`threshold` must be a positive finite number; got 0.0"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            Trust(**given)
