"""Clients whose constants are known by construction.

Two samples per client, told apart by the sign of a shift of the gradient:

    φ_i±(x) = Σ_k ℓ(⟨a_ik, x⟩ − z_ik) − ⟨t, x⟩ ± ⟨ξ_i, x⟩,      0 ≤ ℓ'' ≤ 1

so v_i² = ‖ξ_i‖² at every x. The shift t is chosen such that x* = 0. Because v_i² holds
everywhere, the proofs of the recursions use the ball at the anchors only: R, taken as
the largest distance of an anchor that any path reaches, makes the strictest test.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from hewfl.core.validation import Array


@final
@dataclass(frozen=True, slots=True)
class Link:
    """ℓ with two derivatives, 0 ≤ ℓ'' ≤ 1, and how fast ℓ'' changes at most."""

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    bend: Callable[[Array], Array]
    bend_lipschitz: float


LINKS = {
    "quadratic": Link(lambda s: s * s / 2, lambda s: s, np.ones_like, 0.0),
    "huber": Link(
        lambda s: np.where(np.abs(s) < 1, s * s / 2, np.abs(s) - 0.5),
        lambda s: np.clip(s, -1, 1),
        lambda s: (np.abs(s) < 1) * 1.0,
        np.inf,
    ),
    "softplus": Link(
        lambda s: 4 * np.logaddexp(0, s),
        lambda s: 2 + 2 * np.tanh(s / 2),
        lambda s: 1 - np.tanh(s / 2) ** 2,
        2 / (3 * np.sqrt(3)),
    ),
}


@final
@dataclass(frozen=True)  # no slots: L and t are kept once known
class Scenario:
    """The clients above; x* = 0.

    Attributes:
        link: ℓ.
        rows: a_ik, shape (n, k, d).
        offsets: z_ik, shape (n, k).
        shifts: ξ_i, shape (n, d).
    """

    link: Link
    rows: Array
    offsets: Array
    shifts: Array

    @property
    def n(self) -> int:
        return len(self.shifts)

    @property
    def variance(self) -> Array:
        """v_i²."""
        return np.asarray((self.shifts**2).sum(-1))

    @cached_property
    def smoothness(self) -> float:
        """L, the largest eigenvalue of all Σ_k a_ik a_ikᵀ."""
        most = np.einsum("nkd,nke->nde", self.rows, self.rows)
        return float(np.linalg.eigvalsh(most).max())

    @property
    def hessians(self) -> Array:
        """∇²F_i(x*), shape (n, d, d)."""
        bends = self.link.bend(-self.offsets)
        return np.asarray(np.einsum("nk,nkd,nke->nde", bends, self.rows, self.rows))

    @cached_property
    def tilt(self) -> Array:
        """The shift t, the mean gradient at zero without it."""
        gradients = np.einsum("nk,nkd->nd", self.link.slope(-self.offsets), self.rows)
        return np.asarray(gradients.mean(0))

    def gradients(self, x: Array) -> Array:
        """∇F_i(x), shape (*c, n, d) for x of shape (*c, d)."""
        s = np.einsum("nkd,...d->...nk", self.rows, x) - self.offsets
        slopes = np.einsum("...nk,nkd->...nd", self.link.slope(s), self.rows)
        return np.asarray(slopes - self.tilt)

    def gap(self, x: Array) -> Array:
        """F(x) − F*, kept from falling below zero by rounding."""
        s = np.einsum("nkd,...d->...nk", self.rows, x) - self.offsets
        losses = self.link.value(s) - self.link.value(-self.offsets)
        return np.asarray(np.maximum(losses.sum(-1).mean(-1) - x @ self.tilt, 0))


def random_scenario(
    rng: np.random.Generator, kind: str, *, homogeneous: bool = False, noise: float = 1
) -> Scenario:
    """Two clients in the plane at a random scale; one objective if homogeneous."""
    rows = rng.normal(size=(2, 3, 2)) * 10 ** rng.uniform(-0.5, 0.5)
    offsets = 0.7 * rng.normal(size=(2, 3))
    if homogeneous:
        rows, offsets = rows[[0, 0]], offsets[[0, 0]]
    shifts = noise * rng.normal(size=(2, 2)) * 10 ** rng.uniform(-2, 0, (2, 1))
    return Scenario(LINKS[kind], rows, offsets, shifts)
