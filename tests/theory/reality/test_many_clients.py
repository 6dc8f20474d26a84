"""The joint bounds against rounds of up to six clients, without noise.

Walking all draws is possible for two clients; without noise one path is the law.
Linear terms that cancel make the clients' gradients as different as one likes.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import pytest
from tests.theory.reality.enumeration import ROUNDING, slack
from tests.theory.reality.scenario import LINKS, Link

from hewfl.core.validation import Array
from hewfl.theory import System, one_step, situation
from hewfl.theory.statement import Constants, all_hold
from hewfl.theory.uniform import uniform_coefficients

pytestmark = pytest.mark.unchecked
TRIALS = 200
SMALLEST = 1e-9
"""Gaps below this one are rounding errors of their two parts."""


@final
@dataclass(frozen=True, slots=True)
class Clients:
    """F_i(x) = Σ_k ℓ(⟨a_ik, x⟩ − z_ik) + ⟨b_i − t, x⟩ with Σ b_i = 0 and x* = 0."""

    link: Link
    rows: Array
    offsets: Array
    linear: Array

    @property
    def smoothness(self) -> float:
        most = np.einsum("nkd,nke->nde", self.rows, self.rows)
        return float(np.linalg.eigvalsh(most).max())

    def gradients(self, x: Array) -> Array:
        def bent(x: Array) -> Array:
            s = np.einsum("nkd,d->nk", self.rows, x) - self.offsets
            return np.asarray(np.einsum("nk,nkd->nd", self.link.slope(s), self.rows))

        return np.asarray(bent(x) - bent(0 * x).mean(0) + self.linear)

    def gap(self, x: Array) -> float:
        s = np.einsum("nkd,d->nk", self.rows, x) - self.offsets
        losses = self.link.value(s) - self.link.value(-self.offsets)
        slope = np.einsum("nk,nkd->nd", self.link.slope(-self.offsets), self.rows)
        return max(float(losses.sum(1).mean() - x @ slope.mean(0)), 0.0)


def random_clients(rng: np.random.Generator, link: Link) -> Clients:
    n, d = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    linear = rng.normal(size=(n, d)) * 10 ** rng.uniform(-2, 1)
    offsets = rng.normal(size=(n, 3)) * 10 ** rng.uniform(-2, 1)
    return Clients(link, rng.normal(size=(n, 3, d)), offsets, linear - linear.mean(0))


def play(
    clients: Clients, x: Array, variates: Array, H: list[int], theta: Array, w: Array
) -> tuple[Array, Array]:
    """The next anchor and the renewed control variates."""
    ends, renewed = np.tile(x, (len(w), 1)), np.zeros_like(variates)
    for i, steps in enumerate(H):
        for _ in range(steps):
            g = clients.gradients(ends[i])[i]
            renewed[i] += g / steps
            eta = theta[i] / (clients.smoothness * steps)
            ends[i] -= eta * (g - variates[i] + variates.mean(0))
    return np.asarray(x + w @ (ends - x)), renewed


@pytest.mark.parametrize("kind", list(LINKS))
@pytest.mark.parametrize("is_uniform", [False, True])
def test_the_joint_bounds_hold_for_many_clients(kind: str, is_uniform: bool) -> None:
    rng = np.random.default_rng(15)
    rooms: list[float] = []
    for _ in range(TRIALS):
        clients = random_clients(rng, LINKS[kind])
        x = np.asarray(rng.normal(size=clients.linear[0].shape))
        x = np.asarray(x * 10 ** rng.uniform(-1, 1))
        gap, gradients = clients.gap(x), clients.gradients(x)
        n, slope = len(gradients), np.abs(gradients.mean(0)).max()
        error = slope * 10 ** rng.uniform(-2, 0.7) * rng.integers(0, 2)
        variates = gradients + error * rng.normal(size=gradients.shape)
        if gap < SMALLEST:
            continue
        H = [int(steps) for steps in rng.integers(1, 7, n)]
        top = float(rng.choice([0.03, 0.2, 0.5, 1.0]))
        theta, w = np.full(n, top), np.full(n, 1 / n)
        if not is_uniform:
            theta, w = top * rng.uniform(0.05, 1, n), rng.dirichlet(np.ones(n))
        after, renewed = play(clients, x, variates, H, theta, w)
        q = ((variates - gradients) ** 2).sum(1).max()
        R = max(float(np.linalg.norm(y)) for y in (x, after))
        system = System(clients.smoothness, R, H, 1, 0.0)
        step = one_step((w, theta), situation(system, gap, q), variant="joint")
        rooms.append(float(slack(step.value, clients.gap(after))))
        assert rooms[-1] >= -ROUNDING
        variants: tuple[Constants, ...] = ("sharp", "absorbed", "joint")
        for variant in variants if is_uniform else ():
            k = uniform_coefficients(system, top, variant=variant).recursion
            assert all_hold(k.hypotheses)
            g, chi = k.step((gap, q))
            missed = ((renewed - clients.gradients(after)) ** 2).sum(1).max()
            assert slack(g, clients.gap(after)) >= -ROUNDING
            assert slack(chi, missed) >= -ROUNDING
    assert min(rooms) < 0.01
