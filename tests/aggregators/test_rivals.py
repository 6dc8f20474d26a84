"""Adaptive rivals: two-client cases worked by hand, and their known limits."""

import math

import numpy as np
import pytest
from tests.conformance.rounds import decide, make_cohort, make_round, step_of

from hewfl import InvalidInputError, LocalSGD, Method
from hewfl.aggregators import FedAdp, FedAWARE, FedExP, FedMGDAPlus, QFedAvg

ROUNDING = 1e-14
TWO = make_cohort([1, 1])


# ------------------------------------------------------------------ FedExP


def test_fedexp_extrapolates_when_clients_disagree() -> None:
    # Δ̄ = 1, Σ‖Δ‖² = 9 + 1 = 10, 2S(‖Δ̄‖² + ε) = 4 (1 + ¼) = 5: η_g = 2, w = 1, 1
    moved = [[3.0, 0.0], [-1.0, 0.0]]
    decision, _ = decide(Method(LocalSGD(1.0), FedExP(epsilon=0.25)), TWO, moved)
    np.testing.assert_allclose(decision.weights, [1.0, 1.0], rtol=ROUNDING)
    np.testing.assert_allclose(step_of(decision, moved), [2.0, 0.0], rtol=ROUNDING)


def test_fedexp_with_a_large_epsilon_is_the_mean() -> None:
    # mean of ‖Δ‖² is 5: the ratio is 5/(2 (1 + ε)), above one only while ε < 3/2
    moved = [[3.0, 0.0], [-1.0, 0.0]]
    for epsilon, weight in ((1.25, 5 / 9), (1.5, 0.5), (100.0, 0.5)):
        decision, _ = decide(Method(LocalSGD(1.0), FedExP(epsilon)), TWO, moved)
        np.testing.assert_allclose(decision.weights, weight, rtol=ROUNDING)


def test_fedexp_never_shortens_the_mean() -> None:
    # equal clients: the ratio is ½‖Δ‖²/(‖Δ‖² + ε) < 1
    decision, _ = decide(Method(LocalSGD(1.0), FedExP()), TWO, [[2.0], [2.0]])
    np.testing.assert_array_equal(decision.weights, [0.5, 0.5])


# ------------------------------------------------------------------ q-FedAvg


@pytest.mark.parametrize(
    ("q", "losses", "weights"),
    [
        # η = ½ and ‖Δ_i‖ = 1, so ‖Δw_i‖² = 4:  h = q F^{q−1} 4 + 2 F^q, w = 2 F^q/Σh
        (0.0, (1.0, 3.0), (1 / 2, 1 / 2)),  # h = 2, 2
        (1.0, (1.0, 3.0), (2 / 16, 6 / 16)),  # h = 4 + 2, 4 + 6
        (2.0, (1.0, 3.0), (2 / 52, 18 / 52)),  # h = 8 + 2, 24 + 18
        (0.5, (1.0, 4.0), (2 / 9, 4 / 9)),  # h = 2 + 2, 1 + 4
        (0.5, (0.0, 4.0), (0.0, 4 / 5)),  # h = 0 (the limit), 1 + 4
        (0.0, (0.0, 4.0), (1 / 2, 1 / 2)),
        (1.0, (0.0, 0.0), (0.0, 0.0)),
    ],
)
def test_qfedavg_by_hand(
    q: float, losses: tuple[float, float], weights: tuple[float, float]
) -> None:
    moved = [[1.0, 0.0], [0.0, -1.0]]
    decision, _ = decide(
        Method(LocalSGD(1.0 / 2.0), QFedAvg(q)), TWO, moved, losses=losses
    )
    np.testing.assert_allclose(decision.weights, weights, rtol=ROUNDING)


def test_qfedavg_step_is_the_papers() -> None:
    # D = F^q Δw = (1·(−2, 0), 3·(0, 2)); x⁺ − x = −ΣD/16 = (1/8, −3/8)
    moved = [[1.0, 0.0], [0.0, -1.0]]
    decision, _ = decide(
        Method(LocalSGD(1.0 / 2.0), QFedAvg(1.0)), TWO, moved, losses=(1.0, 3.0)
    )
    np.testing.assert_allclose(step_of(decision, moved), [1 / 8, -3 / 8])


def test_qfedavg_takes_the_inverse_step_for_lipschitz() -> None:
    # L = 2, s = ½: η = ¼, so ‖Δw_i‖² = 16, h = 16 + 4F = 20, 28; w = 4F/48
    moved = [[1.0, 0.0], [0.0, -1.0]]
    decision, _ = decide(
        Method(LocalSGD(0.5 / 2.0), QFedAvg(1.0)), TWO, moved, losses=(1.0, 3.0)
    )
    np.testing.assert_allclose(decision.weights, [4 / 48, 12 / 48], rtol=ROUNDING)


@pytest.mark.parametrize("scale", [0.25, 1.0])
def test_qfedavg_after_one_step_sees_gradients(scale: float) -> None:
    # F = 1, 3 with ∇F = (2, 0), (0, 4) and L = 2: Δ = −η∇F, D = F∇F = (2, 0), (0, 12),
    # h = ‖∇F‖² + F/η = 4 + 16 + (1 + 3)/η: the step is −(2, 12)/(20 + 4/η)
    eta = scale / 2
    moved = -eta * np.array([[2.0, 0.0], [0.0, 4.0]])
    decision, _ = decide(
        Method(LocalSGD(scale / 2.0), QFedAvg(1.0)), TWO, moved, losses=(1.0, 3.0)
    )
    expected = -np.array([2.0, 12.0]) / (20 + 4 / eta)
    np.testing.assert_allclose(step_of(decision, moved), expected, rtol=ROUNDING)


def test_qfedavg_survives_large_powers() -> None:
    # the highest loss decides: w → (0, 2/(2 + q·4/F)), h over F_2^q is q·4/F_2 + 2
    losses = (1.0, 1e5)
    decision, _ = decide(
        Method(LocalSGD(1.0 / 2.0), QFedAvg(100.0)), TWO, [[1.0], [1.0]], losses=losses
    )
    np.testing.assert_allclose(decision.weights, [0.0, 2 / (2 + 100 * 4 / 1e5)])


@pytest.mark.parametrize("losses", [None, (1.0, -0.5), (1.0, math.nan)])
def test_qfedavg_wants_nonnegative_losses(losses: tuple[float, float] | None) -> None:
    with pytest.raises(InvalidInputError, match=r"`losses` must be (given|nonneg)"):
        decide(
            Method(LocalSGD(1.0 / 2.0), QFedAvg(1.0)),
            TWO,
            [[1.0], [1.0]],
            losses=losses,
        )


# ------------------------------------------------------------------ FedAdp


def gompertz(theta: float) -> float:
    return 5 * (1 - math.exp(-math.exp(-5 * (theta - 1))))


def test_fedadp_over_three_rounds_by_hand() -> None:
    # m = 3, 1 and Δ = e_1, e_2: Δ̄ = (¾, ¼), θ = atan ⅓, atan 3 = 0.322, 1.249;
    # f = 5.000, 1.251; w_2 = e^1.251/(3 e^5.000 + e^1.251) = 0.00778
    algorithm, cohort = (
        Method(LocalSGD(1.0), FedAdp()),
        make_cohort([1, 1], [3, 1], population=3),
    )
    decision, state = decide(algorithm, cohort, [[1.0, 0.0], [0.0, 1.0]])
    first = math.atan(1 / 3), math.atan(3)
    f = [gompertz(theta) for theta in first]
    share = math.exp(f[1]) / (3 * math.exp(f[0]) + math.exp(f[1]))
    np.testing.assert_allclose(decision.weights, [1 - share, share], rtol=1e-12)
    assert round(share, 5) == 0.00778
    np.testing.assert_allclose(state.angles, [*first, 0.0], rtol=ROUNDING)

    # both along e_1: θ = 0, so angles halve; f_2 = 4.993, w_2 = 0.2486
    both = [[1.0, 0.0], [2.0, 0.0]]
    decision, state = decide(algorithm, cohort, both, state=state)
    np.testing.assert_allclose(state.angles[:2], np.array(first) / 2, rtol=ROUNDING)
    assert round(float(decision.weights[1]), 4) == 0.2486

    # alone: θ = 0 whatever the displacement; the third of three for this client only
    alone = make_cohort([1], clients=[1], population=3)
    decision, state = decide(algorithm, alone, [[0.0, -5.0]], state=state)
    np.testing.assert_array_equal(decision.weights, [1.0])
    np.testing.assert_array_equal(state.counts, [2, 3, 0])
    expected = [first[0] / 2, first[1] / 3, 0.0]
    np.testing.assert_allclose(state.angles, expected, rtol=ROUNDING)


def test_fedadp_remembers_the_plain_mean_angle(rng: np.random.Generator) -> None:
    # θ̃(t) = ((t − 1) θ̃(t − 1) + θ(t))/t from θ̃(1) = θ(1): the mean of θ(1), …, θ(t)
    algorithm, seen = Method(LocalSGD(1.0), FedAdp()), []
    state = algorithm.init(2, 3, None)
    for _ in range(5):
        moved = rng.standard_normal((2, 3))
        mean = moved.mean(axis=0)
        lengths = np.linalg.norm(moved, axis=1) * np.linalg.norm(mean)
        seen.append(np.arccos(moved @ mean / lengths))
        _, state = decide(algorithm, TWO, moved, state=state)
    np.testing.assert_allclose(state.angles, np.mean(seen, axis=0), rtol=1e-12)


def test_fedadp_takes_a_right_angle_where_there_is_none() -> None:
    decision, state = decide(
        Method(LocalSGD(1.0), FedAdp()), TWO, [[0.0, 0.0], [1.0, 0.0]]
    )
    np.testing.assert_array_equal(state.angles, [math.pi / 2, 0.0])
    assert decision.weights[0] < decision.weights[1]
    _, state = decide(Method(LocalSGD(1.0), FedAdp()), TWO, [[1.0], [-1.0]])
    np.testing.assert_array_equal(state.angles, [math.pi / 2, math.pi / 2])


def test_fedadp_resolves_small_angles() -> None:
    tilt = 1e-9  # its cosine is one in float64
    _, state = decide(Method(LocalSGD(1.0), FedAdp()), TWO, [[1.0, tilt], [1.0, -tilt]])
    np.testing.assert_allclose(state.angles, [tilt, tilt], rtol=1e-6)


# ------------------------------------------------------------------ FedMGDA+


def test_fedmgda_by_hand() -> None:
    # u = e_1, e_2: λ = ½, ½. η = 1 · (2 + 1)/2: w = ¾/2, ¾/1, step (¾, ¾)
    moved = [[2.0, 0.0], [0.0, 1.0]]
    decision, _ = decide(Method(LocalSGD(1.0), FedMGDAPlus()), TWO, moved)
    np.testing.assert_allclose(decision.weights, [3 / 8, 3 / 4], rtol=ROUNDING)
    np.testing.assert_allclose(step_of(decision, moved), [0.75, 0.75], rtol=ROUNDING)
    # as a length: η = 1, step (½, ½)
    decision, _ = decide(Method(LocalSGD(1.0), FedMGDAPlus(relative=False)), TWO, moved)
    np.testing.assert_allclose(step_of(decision, moved), [0.5, 0.5], rtol=ROUNDING)


@pytest.mark.parametrize(
    ("epsilon", "by_size", "step"),
    [
        (0.0, True, (0.75, 0.25)),  # λ⁰ = ¾, ¼
        (0.1, True, (0.65, 0.35)),  # towards ½, ½ until the box ends
        (0.3, True, (0.5, 0.5)),  # the box contains it
        (1.0, True, (0.5, 0.5)),
        (0.0, False, (0.5, 0.5)),
    ],
)
def test_fedmgda_stays_near_the_given_weights(
    epsilon: float, by_size: bool, step: tuple[float, float]
) -> None:
    algorithm = Method(
        LocalSGD(1.0),
        FedMGDAPlus(epsilon, relative=False, by="size" if by_size else "equal"),
    )
    moved = [[2.0, 0.0], [0.0, 1.0]]
    decision, _ = decide(algorithm, make_cohort([1, 1], [3, 1]), moved)
    np.testing.assert_allclose(step_of(decision, moved), step, rtol=ROUNDING)
    assert decision.gap < 1e-13


def test_fedmgda_keeps_to_the_upper_end_of_the_box() -> None:
    # u = e_1, e_1, e_2 would weigh ¼, ¼, ½; with |λ − ⅓| ≤ 1/12 it is 7/24, 7/24, 5/12
    moved = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    decision, _ = decide(
        Method(LocalSGD(1.0), FedMGDAPlus(1 / 12)), make_cohort([1] * 3), moved
    )
    np.testing.assert_allclose(decision.weights, [7 / 24, 7 / 24, 5 / 12])


def test_fedmgda_with_opposed_clients_stays() -> None:
    moved = [[2.0, 0.0], [-1.0, 0.0]]  # λ = ½, ½ and the unit vectors cancel
    for epsilon in (0.2, 1.0):
        decision, _ = decide(Method(LocalSGD(1.0), FedMGDAPlus(epsilon)), TWO, moved)
        np.testing.assert_allclose(step_of(decision, moved), 0.0, atol=ROUNDING)


def test_fedmgda_hurts_nobody_to_first_order(rng: np.random.Generator) -> None:
    # ⟨Σλu, u_i⟩ ≥ ‖Σλu‖² for every client: the optimality condition itself
    moved = rng.standard_normal((8, 12)) * rng.uniform(0.1, 10, (8, 1))
    decision, _ = decide(
        Method(LocalSGD(1.0), FedMGDAPlus(relative=False)), make_cohort([1] * 8), moved
    )
    step = step_of(decision, moved)
    along = moved @ step / np.linalg.norm(moved, axis=1)
    assert along.min() >= step @ step - 1e-12


# ------------------------------------------------------------------ FedAWARE


def test_fedaware_over_two_rounds_by_hand() -> None:
    algorithm = Method(LocalSGD(1.0), FedAWARE(alpha=0.5, step_size=3.0))
    cohort = make_cohort([1, 1], clients=[0, 1], population=3)
    # m = (2, 0), (0, 2): λ = ½, ½, the shortest point is (1, 1)
    decision, state = decide(algorithm, cohort, [[2.0, 0.0], [0.0, 2.0]])
    np.testing.assert_allclose(decision.weights, [0.5, 0.5], rtol=ROUNDING)
    np.testing.assert_allclose(step_of(decision, None), [3.0, 3.0], rtol=ROUNDING)
    # client 1 alone: m_1 = ½ (0, 2) + ½ (0, 4) = (0, 3), m_0 stays (2, 0);
    # λ_0 = 9/13, λ_1 = 4/13, the shortest point is (18, 12)/13
    alone = make_cohort([1], clients=[1], population=3)
    decision, state = decide(algorithm, alone, [[0.0, 4.0]], state=state)
    np.testing.assert_allclose(decision.weights, [4 / 13], rtol=ROUNDING)
    np.testing.assert_allclose(step_of(decision, None), [54 / 13, 36 / 13])
    np.testing.assert_array_equal(state.memory, [[2, 0], [0, 3], [0, 0]])
    np.testing.assert_array_equal(state.seen, [True, True, False])


def test_fedaware_on_unit_memories_by_hand() -> None:
    algorithm = Method(LocalSGD(1.0), FedAWARE(alpha=0.5, step_size=2.0, unit=True))
    # u = e_1, e_2 whatever the lengths: λ = ½, ½ and the step is 2 (½, ½)
    decision, state = decide(algorithm, TWO, [[4.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(decision.weights, [0.5, 0.5], rtol=ROUNDING)
    np.testing.assert_allclose(step_of(decision, None), [1.0, 1.0], rtol=ROUNDING)
    np.testing.assert_array_equal(state.memory, [[4, 0], [0, 1]])  # lengths are kept
    # m_1 = ½ (0, 1) + ½ (6, 7) = (3, 4), u_1 = (0.6, 0.8); two unit vectors always
    # share alike: u_0 + u_1 = (1.6, 0.8) and the step is 2 · ½ of it
    alone = make_cohort([1], clients=[1], population=2)
    decision, _ = decide(algorithm, alone, [[6.0, 7.0]], state=state)
    np.testing.assert_allclose(decision.weights, [0.5], rtol=ROUNDING)
    np.testing.assert_allclose(step_of(decision, None), [1.6, 0.8], rtol=ROUNDING)


def test_fedaware_stays_where_a_client_is_at_rest() -> None:
    for unit in (False, True):
        algorithm = Method(LocalSGD(1.0), FedAWARE(unit=unit))
        decision, _ = decide(algorithm, TWO, [[0.0, 0.0], [1.0, 0.0]])
        np.testing.assert_allclose(decision.weights, [1.0, 0.0], atol=ROUNDING)
        np.testing.assert_allclose(step_of(decision, None), 0.0, atol=ROUNDING)


def test_fedaware_without_memory_is_the_shortest_endpoint() -> None:
    algorithm = Method(LocalSGD(1.0), FedAWARE(alpha=1.0))
    moved = np.array([[1.0, 1.0], [1.0, 3.0]])  # the second adds nothing
    state = algorithm.init(2, 2, None)
    _, state = algorithm.decide(make_round(algorithm, TWO, 7 * moved, state), state)
    decision, _ = algorithm.decide(make_round(algorithm, TWO, moved, state), state)
    np.testing.assert_allclose(decision.weights, [1.0, 0.0], atol=ROUNDING)
    np.testing.assert_allclose(step_of(decision, moved), [1.0, 1.0], rtol=ROUNDING)
