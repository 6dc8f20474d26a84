from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hewfl import InvalidInputError
from hewfl.theory.appendix.generators import (
    ExponentialGenerator,
    Generator,
    QuadraticGenerator,
)
from hewfl.theory.appendix.master import (
    Terms,
    bellman_kernel,
    bellman_operator,
    box_selection,
    epsilon_selection,
    master_trajectory,
)
from hewfl.theory.statement import all_hold

Array = NDArray[np.floating[Any]]

STATES = np.array([0.0, 1e-3, 0.1, 1.0, 30.0])


def controls(rng: np.random.Generator, k: int = 40) -> Terms:
    return Terms(rng.uniform(0, 2, k), rng.uniform(0, 0.1, k), rng.uniform(0, 1, k))


def test_kernel_and_infimum_against_a_plain_loop(rng: np.random.Generator) -> None:
    g, u = QuadraticGenerator(0.7), controls(rng)
    alpha, beta, delta = (np.asarray(x) for x in (u.time, u.growth, u.offset))
    G = bellman_kernel(g, STATES, u)
    assert G.shape == (5, 40)
    for i, s in enumerate(STATES):
        plain = [
            s / (1 + 0.7 * a * s) + b * s + d
            for a, b, d in zip(alpha, beta, delta, strict=True)
        ]
        np.testing.assert_allclose(G[i], plain, rtol=1e-15)
        assert bellman_operator(g, STATES, u)[i] == min(G[i])
    assert bellman_operator(g, 1.0, u).shape == ()
    many = QuadraticGenerator(np.array([[0.7], [0.2]]))
    assert bellman_operator(many, [1.0, 1.0], u)[0] == bellman_operator(g, 1.0, u)


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.2, 10.0])
def test_the_first_control_within_epsilon(
    rng: np.random.Generator, epsilon: float
) -> None:
    g, u = QuadraticGenerator(0.7), controls(rng)
    chosen, G = (
        epsilon_selection(g, STATES, u, epsilon),
        bellman_kernel(g, STATES, u),
    )
    for i in range(len(STATES)):
        good = G[i] <= G[i].min() + epsilon
        assert good[chosen.index[i]]
        assert not good[: chosen.index[i]].any()
        assert chosen.value[i] == G[i, chosen.index[i]]
    assert (chosen.value <= chosen.bound).all()
    np.testing.assert_array_equal(chosen.bound, chosen.infimum + epsilon)


def test_playing_the_infimum_beats_every_comparator(rng: np.random.Generator) -> None:
    """thm:adaptive then thm:master: with ε slack, no fixed control does better."""
    g, u, epsilon = QuadraticGenerator(0.7), controls(rng), 1e-3
    alpha, beta, delta = (np.asarray(x) for x in (u.time, u.growth, u.offset))
    s, best = np.asarray(5.0), []
    for _ in range(20):
        chosen = epsilon_selection(g, s, u, epsilon)
        s = chosen.value
        best.append(float(s))
    for k in range(40):
        terms = Terms(np.full(20, alpha[k]), beta[k], delta[k], epsilon)
        fixed = master_trajectory(g, 5.0, terms)[1:]
        assert (np.array(best) <= fixed).all()


def amplitude_law(points: Array) -> Terms:
    """Isotone in an amplitude: time θ, growth θ³, offset θ²/10."""
    theta = points[:, 0]
    return Terms(theta, theta**3, theta**2 / 10)


@pytest.mark.parametrize("g", [QuadraticGenerator(1.0), ExponentialGenerator(1.0)])
def test_a_box_is_bracketed(g: Generator) -> None:
    fine = amplitude_law(np.linspace(0, 1, 200_001)[:, None])
    truth = bellman_operator(g, STATES, fine)
    gaps = []
    for cells in (64, 512):
        result = box_selection(g, STATES, amplitude_law, (0.0, 1.0), cells=cells)
        assert (result.infimum <= truth * (1 + 1e-15)).all()
        assert (truth <= result.value * (1 + 1e-9)).all()
        at = amplitude_law(result.control)
        again = np.diagonal(bellman_kernel(g, STATES, at))
        np.testing.assert_allclose(result.value, again, rtol=1e-15)
        assert all_hold(result.hypotheses)
        gaps.append((result.value - result.infimum)[1:])
    np.testing.assert_allclose(gaps[0] / gaps[1], 8.0, rtol=0.3)


def test_two_axes_and_a_law_that_is_not_isotone() -> None:
    g = QuadraticGenerator(1.0)

    def law(points: Array) -> Terms:
        return Terms(points[:, 0], points[:, 1], 0.1 * points.sum(axis=1))

    result = box_selection(g, 2.0, law, ([0.0, 0.0], [1.0, 0.5]), cells=32)
    assert result.control[1] == 0.0  # growth never helps
    assert result.infimum <= result.value
    assert result.value == pytest.approx(2 / 3 + 0.1, rel=1e-12)
    falling = box_selection(g, 2.0, lambda p: Terms(1 - p[:, 0]), (0.0, 1.0))
    assert not all_hold(falling.hypotheses)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Terms([1.0, -1.0]), "`time` must be nonnegative; got -1.0"),
        (lambda: Terms([]), "must be nonempty"),
        (lambda: Terms([1.0, 2.0], [1, 2, 3]), "must be arrays that broadcast"),
        (
            lambda: box_selection(
                QuadraticGenerator(1.0), 1.0, amplitude_law, (1.0, 0.0)
            ),
            "`box` must be two vectors of one length, low ≤ high",
        ),
        (
            lambda: box_selection(
                QuadraticGenerator(1.0), 1.0, amplitude_law, (0.0, 1.0), cells=2**21
            ),
            "`cells` must be at least 1",
        ),
    ],
)
def test_bad_input_is_named(make: Callable[[], object], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        make()
