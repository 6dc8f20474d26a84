"""Bounds of other methods against worst cases and exact expectations."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hewfl import InvalidInputError
from hewfl.theory import Case, System, design, literature
from hewfl.theory.theorem_table import Form

Array = NDArray[np.float64]


def huber(slope: float) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """F and ∇F for L = 1: |x| beyond the slope, x²/2 inside; the slope may be ∞."""

    def value(x: Array) -> Array:
        bent = slope * np.abs(x) - slope**2 / 2 if np.isfinite(slope) else x**2 / 2
        return np.where(np.abs(x) <= slope, x**2 / 2, bent)

    return value, lambda x: np.clip(x, -slope, slope)


@pytest.mark.parametrize("rounds", [1, 3, 40])
@pytest.mark.parametrize("theta", [0.05, 0.6, 3.0])
def test_no_weights_beat_the_lower_bound_and_huber_attains_it(
    rounds: int, theta: float
) -> None:
    """Algorithms 1 to 3 with exact gradients, random H_i and random weights."""
    rng = np.random.default_rng(0)
    case = Case(System(1.0, 1.0, [1, 3, 4], 1, 0.0))
    row = literature(case, 0.1, rounds=rounds, amplitude=theta)[-1]
    value, gradient = huber(1 / (2 * theta * rounds + 1))
    for amplitudes in (np.full(3, theta), theta * rng.uniform(0.1, 1, 3)):
        x = np.ones(1)
        for _ in range(rounds):
            ends = []
            for H, amplitude in zip((1, 3, 4), amplitudes, strict=True):
                y = x
                for _ in range(H):
                    y = y - amplitude / H * gradient(y)
                ends.append(y)
            x = np.asarray(rng.dirichlet(np.ones(3)) @ np.array(ends))
        assert value(x)[0] >= row.value * (1 - 1e-12)
        if (amplitudes == theta).all():
            assert value(x)[0] == pytest.approx(row.value, rel=1e-12)


def test_the_rounds_of_the_lower_bound_are_its_inverse() -> None:
    case = Case(System(2.0, 1.5, [2, 2], 4, 0.0))
    for eps in (1.0, 0.3, 0.01):
        T = int(literature(case, eps, amplitude=0.7)[-1].rounds_to_target)
        assert literature(case, eps, rounds=T, amplitude=0.7)[-1].value <= eps
        if T > 1:
            before = literature(case, eps, rounds=T - 1, amplitude=0.7)[-1]
            assert before.value > eps


@pytest.mark.parametrize("slope", [0.05, 0.2, 0.6, np.inf])
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.5])
@pytest.mark.parametrize(("n", "H", "T"), [(1, 1, 6), (2, 1, 4), (2, 3, 2), (3, 2, 2)])
def test_upper_bounds_hold_over_all_draws(
    slope: float, noise: float, n: int, H: int, T: int
) -> None:
    """Every path of two-point noise, for minibatch and Local SGD at the best step."""
    value, gradient = huber(slope)
    case = Case(System(1.0, 1.0, [H] * n, 1, noise**2), sampling="one objective")
    descent, minibatch, local, _ = literature(case, 0.1, rounds=T)
    signs = np.array(list(product((-1.0, 1.0), repeat=n * T)))
    signs = signs.reshape(-1, T, n) * noise / np.sqrt(H)  # means of H samples
    x, total = np.ones(len(signs)), np.zeros(len(signs))
    for t in range(T):
        x = x - minibatch.step * (gradient(x) + signs[:, t].mean(-1))
        total = total + x
    assert value(total / T).mean() <= minibatch.value * (1 + 1e-12)
    if noise == 0:
        assert value(x).mean() <= descent.value == minibatch.value
    else:
        assert np.isnan(descent.value)
    signs = np.array(list(product((-1.0, 1.0), repeat=n * T * H)))
    signs = signs.reshape(-1, T, H, n) * noise
    x, total = np.ones(len(signs)), np.zeros(len(signs))
    for t in range(T):
        y = np.repeat(x[:, None], n, axis=1)
        for k in range(H):
            total = total + y.mean(-1)
            y = y - local.step * (gradient(y) + signs[:, t, k])
        x = y.mean(-1)
    assert value(total / (T * H)).mean() <= local.value * (1 + 1e-12)


def test_the_step_is_the_best_and_the_rounds_are_the_fewest() -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        n, H = int(rng.integers(1, 9)), int(rng.integers(1, 9))
        L, v2, eps = 10 ** rng.uniform(-1, 1), 10 ** rng.uniform(-6, 2), 0.05
        case = Case(System(L, 1.0, [H] * n, 4, v2 * L), sampling="fresh draws")
        eps = 0.1 * float(case.system.cap)
        h = np.geomspace(1e-9, 1, 4001)
        V, s = v2 * L / (4 * H * n), v2 * L / 4
        noises = (
            h * (1 + h) * V / (2 * L),
            h * s / (2 * L * n) + (1 - 1 / n) * (H - 1) * h**2 * s / (4 * L),
        )
        for k, noise, steps in zip((1, 2), noises, (1, H), strict=True):
            row = literature(case, eps, rounds=50)[k]
            grid = (L / (2 * h * 50 * steps) + noise).min()
            assert row.value <= grid * (1 + 1e-12)
            assert row.value == pytest.approx(grid, rel=1e-3)
            with np.errstate(divide="ignore"):
                fewest = L / (2 * h * steps) / np.maximum(eps - noise, 0)
            assert row.rounds_to_target <= np.ceil(fewest.min())
            T = int(row.rounds_to_target)
            assert literature(case, eps, rounds=T)[k].value <= eps * (1 + 1e-12)


def test_hypotheses_that_fail_give_nan_and_a_reason() -> None:
    case = Case(System(1.0, 1.0, [1, 2], 1, 0.1), active=1)
    for row in literature(case, 0.1)[:3]:
        assert np.isnan(row.value)
        assert "full participation" in {h.name for h in row.hypotheses if not h.holds}
    near = literature(replace(case, gap=1e-9), 0.1, rounds=1)[-1]
    assert np.isnan(near.value)
    with pytest.raises(InvalidInputError, match="`amplitude` must be positive"):
        literature(case, 0.1, amplitude=0.0)


PAGE = Path(__file__).parents[2] / "docs" / "theory.md"


@pytest.mark.parametrize(
    ("name", "word", "variant"),
    [
        ("uniform controller, joint", "uniform", "joint"),
        ("the same, absorbed", "uniform", "absorbed"),
        ("the same, as in the paper", "uniform", "paper"),
        ("Algorithm 1, absorbed", "comparator", "absorbed"),
        ("Algorithm 2, sharp", "hew-het", "sharp"),
        ("Algorithm 3, joint", "hew-hom", "joint"),
        ("the same, sharp", "hew-hom", "sharp"),
    ],
)
def test_the_page_has_these_theorems(name: str, word: str, variant: Form) -> None:
    text = PAGE.read_text("utf-8")
    (line,) = (x for x in text.splitlines() if x.startswith(f"| {name}"))
    shown = [cell.strip().replace(",", "") for cell in line.split("|")[3:6]]
    for cell, v2 in zip(shown, (0.0, 1e-4, 0.01), strict=True):
        case = Case(System(1.0, 1.0, [4] * 10, 1, v2), sampling="one objective")
        rounds = design(word, case, 0.05, variant=variant).rounds
        assert cell == ("never" if np.isinf(rounds) else f"{rounds:.0f}")


def test_the_page_has_these_rounds() -> None:
    page = PAGE.read_text("utf-8")
    names = ("gradient descent, one", "minibatch SGD, the", "Local SGD, weights 1/n |")
    for k, name in enumerate((*names, "any weights, ϑ = 0.112")):
        (line,) = (x for x in page.splitlines() if x.startswith(f"| {name}"))
        shown = [cell.strip() for cell in line.split("|")[3:6]]
        for cell, v2 in zip(shown, (0.0, 1e-4, 0.01), strict=True):
            case = Case(System(1.0, 1.0, [4] * 10, 1, v2), sampling="one objective")
            rounds = literature(case, 0.05, amplitude=0.112)[k].rounds_to_target
            assert cell == ("" if np.isnan(rounds) else f"{rounds:.0f}")
