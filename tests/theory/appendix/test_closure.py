from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from numpy.typing import NDArray

from hewfl import InvalidInputError
from hewfl.theory.appendix import ExponentialGenerator
from hewfl.theory.appendix.closure import (
    Envelope,
    Product,
    YoungPair,
    closed_kernel,
    power_pair,
    raw_kernel,
    scalar_shadow,
    young_hypothesis,
)

Array = NDArray[np.floating[Any]]

mp.mp.dps = 50
ENTROPY = YoungPair(  # φ = β log β − β + 1 on β ≥ 0; its conjugate is e^α − 1
    lambda beta: (
        np.where(beta > 0, beta * np.log(np.where(beta > 0, beta, 1.0)), 0.0) - beta + 1
    ),
    np.expm1,
)
PAIRS: list[YoungPair] = [
    power_pair(),
    power_pair(2.0, 0.3),
    power_pair(1.25, 2.0),
    power_pair(4.0, 0.7),
    ENTROPY,
]
PAIR_IDS = ["square", "weak-square", "power-1.25", "power-4", "entropy"]


def test_power_pairs_in_high_precision(rng: np.random.Generator) -> None:
    for _ in range(200):
        q, c = float(1 + 10 ** rng.uniform(-1, 1)), float(10 ** rng.uniform(-3, 3))
        x = float(10 ** rng.uniform(-3, 3))
        Q, C, X = map(mp.mpf, (q, c, x))
        pair, dual = power_pair(q, c), Q / (Q - 1)
        for got, want in (
            (pair.primal(x), C * X**Q / Q),
            (pair.conjugate(x), C * (X / C) ** dual / dual),
        ):
            assert abs(mp.mpf(float(got)) - want) <= 1e-12 * want
    assert power_pair().primal(3.0) == 4.5
    assert power_pair(2.0, 4.0).conjugate(3.0) == 9 / 8


@pytest.mark.parametrize("pair", PAIRS, ids=PAIR_IDS)
def test_pairs_obey_young_and_are_conjugate(pair: YoungPair) -> None:
    """The inequality everywhere, equality at the best β."""
    alpha = np.linspace(0, 5, 41)[:, None]
    beta = np.concatenate([[0.0], np.geomspace(1e-12, 200, 100_001)])
    assert young_hypothesis(pair, alpha, beta).holds.all()
    attained = (alpha * beta - pair.primal(beta)).max(axis=1)
    np.testing.assert_allclose(attained, pair.conjugate(alpha[:, 0]), 1e-5, 1e-7)


def test_a_wrong_conjugate_is_found() -> None:
    wrong = YoungPair(np.square, np.square)  # the conjugate of β² is α²/4
    assert young_hypothesis(wrong, 1.0, 0.5).holds
    too_small = YoungPair(np.square, lambda a: a**2 / 8)
    assert not young_hypothesis(too_small, 1.0, 0.5).holds


def envelopes(pair: YoungPair) -> list[Envelope]:
    """Two coordinates: the first with two products, the second with none."""
    return [
        Envelope(
            lambda y, u: (1 - u) * y[..., 0] + u**2,
            (
                Product(lambda y, u: u + 0 * y[..., 0], lambda y: y[..., 1], pair),
                Product(lambda y, u: u * y[..., 1], lambda y: y[..., 0], pair),
            ),
        ),
        Envelope(lambda y, u: u * y.sum(axis=-1)),
    ]


@pytest.mark.parametrize("pair", PAIRS, ids=PAIR_IDS)
def test_the_kernel_is_what_the_theorem_says(
    pair: YoungPair, rng: np.random.Generator
) -> None:
    y, u = rng.exponential(1.0, (50, 2)), rng.uniform(0, 1, 50)
    closed = closed_kernel(envelopes(pair), y, u)
    assert closed.shape == (50, 2)
    first = (1 - u) * y[:, 0] + u**2
    first += pair.conjugate(u) + pair.conjugate(u * y[:, 1])
    first += pair.primal(y[:, 1]) + pair.primal(y[:, 0])
    np.testing.assert_allclose(closed[:, 0], first, rtol=1e-14)
    np.testing.assert_array_equal(closed[:, 1], u * y.sum(axis=1))
    raw = raw_kernel(envelopes(pair), y, u)
    products = u * y[:, 1] + u * y[:, 1] * y[:, 0]
    np.testing.assert_allclose(
        raw[:, 0], (1 - u) * y[:, 0] + u**2 + products, rtol=1e-14
    )
    assert (raw <= closed * (1 + 1e-14)).all()


def test_the_split_is_tight_at_the_balanced_weight() -> None:
    a, b = 0.7, 2.5
    for q in (1.5, 2.0, 3.0):
        pair = power_pair(q, a / b ** (q - 1))
        only = [
            Envelope(
                lambda y, _: 0 * y[..., 0],
                (Product(lambda y, _: a, lambda y: b, pair),),  # noqa: ARG005 - given
            )
        ]
        assert closed_kernel(only, [0.0], None)[0] == pytest.approx(a * b, rel=1e-14)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: power_pair(1.0), "`exponent` must be above 1; got 1.0"),
        (lambda: power_pair(2.0, 0.0), "`weight` must be positive; got 0.0"),
        (lambda: power_pair().primal(-1.0), "`level` must be nonnegative"),
        (
            lambda: closed_kernel(envelopes(power_pair()), [1.0], 0.5),
            "`state` must be of shape .*one entry per envelope",
        ),
        (
            lambda: closed_kernel(envelopes(power_pair()), [1.0, -1.0], 0.5),
            "`state` must be nonnegative; got -1.0",
        ),
        (
            lambda: closed_kernel([Envelope(lambda y, u: u - y[..., 0])], [1.0], 0.5),
            "`base` must be nonnegative; got -0.5",
        ),
    ],
)
def test_bad_input_is_named(make: Callable[[], object], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        make()


def test_the_gauge_of_a_vector_recursion(rng: np.random.Generator) -> None:
    """Y⁺ = e^{−ρα}Y + MY + q in two coordinates or more (prop:vector_scalar)."""
    generator = ExponentialGenerator(0.7)
    for m in (1, 2, 5):
        psi, M, q = rng.uniform(0.1, 2, m), rng.uniform(0, 0.3, (m, m)), rng.random(m)
        y, alpha = rng.random((20, m)), rng.random(20)
        after = np.exp(-0.7 * alpha)[:, None] * y + y @ M.T + q
        bound = scalar_shadow(generator, alpha, psi, (M, q), y)
        assert all(h.holds.all() for h in bound.hypotheses)
        assert (after @ psi <= bound.value * (1 + 1e-12)).all()
        # equality where ψ is a left eigenvector of M
        values, vectors = np.linalg.eig(M.T)
        left = np.abs(vectors[:, np.argmax(values.real)].real)
        exact = scalar_shadow(generator, alpha, left, (M, q), y)
        np.testing.assert_allclose(exact.value, after @ left, rtol=1e-12)


def test_a_map_out_of_the_cone_is_named() -> None:
    decay, terms = ExponentialGenerator(1.0), (-np.eye(2), [0.0, -1.0])
    bound = scalar_shadow(decay, 0.1, [1.0, 1.0], terms, [1.0, 1.0])
    assert [h.name for h in bound.hypotheses if not h.holds] == ["0 ≤ M", "0 ≤ q"]
    with pytest.raises(InvalidInputError, match="`terms` must be a matrix of shape"):
        scalar_shadow(decay, 0.1, [1.0], (np.eye(2), [0.0]), [1.0])
