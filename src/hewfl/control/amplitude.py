"""Best amplitudes, client by client: the scalar problems of a whole federation at once.

With μ and Lκ (here κ) in units of U♯, a client is described by a few constants:

    A = θ(1 − aθ²)/2,       s = A u/(1 + A u),
    μ = s − c₁θ − c₃ E θ³,      κ = k₂θ² + k₄ E θ⁴,      E = e^{gθ}.

Three problems depend on them; each solution balances two sides and is unique:

    which θ is best alone?        μ'(θ) = 0
    which θ for weight w?         μ'(θ) = ½ w κ'(θ)               (Alg. 4, l. 5)
    which θ at threshold λ?       λ = ℓ(θ),  ℓ := μ − 2κμ'/κ'     (PAPER.md, row R)

The last θ maximises (μ − λ)/√κ and grows with λ: μ is concave, and the elasticity
e = θκ'/(2κ) ∈ [1, 3] of √κ grows with θ, so ℓ increases up to the θ that is best alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from hewfl.control.certificate import (
    Variant,
    check_variant,
    horizon_factors,
    situation_of,
)
from hewfl.core.records import ClientProfile, ProblemBounds, UpperState
from hewfl.core.validation import Array, PerClient, invalid

PRECISION = 2.0**-46
"""Of log θ; the objective feels its square."""
_STEPS = 200
_TINY = float(np.finfo(np.float64).tiny)


@final
@dataclass(frozen=True, slots=True)
class Coefficients:
    """Gain and risk of n clients; the formulas are at the top of this file.

    Attributes:
        unit: what one unit of J is worth, U♯ (LR² where U♯ = 0).
        u: U♯ / (LR²), at most 1/2.
        g: exponent in E = e^{gθ}, 2 for the paper's constants and else 0.
        c1: linear cost, of stale control variates.
        a: descent lost to drift.
        c3: cubic cost, of drift and noise.
        k2: quadratic risk, of noise.
        k4: quartic risk.
    """

    unit: float
    u: float
    g: float
    c1: float
    a: PerClient
    c3: PerClient
    k2: PerClient
    k4: PerClient

    def take(self, clients: NDArray[np.intp]) -> "Coefficients":
        """The constants of some of the clients."""
        parts = [v[clients] for v in (self.a, self.c3, self.k2, self.k4)]
        return Coefficients(self.unit, self.u, self.g, self.c1, *parts)

    def gain_parts(self, theta: PerClient) -> tuple[PerClient, PerClient]:
        """Descent s = A u/(1 + A u), or 2A if A < 0, and cost ρ = c₁θ + c₃ E θ³.

        A < 0 is explained at `certificate.certified_decrease`.
        """
        u, A = self.u, self._descent(theta)
        s = np.where(A < 0, 2 * A, A * u / (1 + A * u))
        return s, self.c1 * theta + self.c3 * self._cube(theta)

    def gain(self, theta: PerClient) -> PerClient:
        """μ = s − ρ."""
        s, rho = self.gain_parts(theta)
        return s - rho

    def risk(self, theta: PerClient) -> PerClient:
        """κ = k₂θ² + k₄ E θ⁴."""
        return self.k2 * theta**2 + self.k4 * self._cube(theta) * theta

    def gain_slopes(self, theta: PerClient) -> tuple[PerClient, PerClient]:
        """The terms that raise θ and those that lower it, θμ' = up − down, both ≥ 0.

        θs' = ½θ(1 − 3aθ²) u/(1 + A u)²,        θρ' = c₁θ + c₃(3 + gθ) E θ³
        """
        u, A = self.u, self._descent(theta)
        up = 0.5 * theta * np.where(A < 0, 2.0, u / (1 + A * u) ** 2)
        cubic = self.c3 * (3 + self.g * theta) * self._cube(theta)
        return up, 3 * self.a * theta**2 * up + self.c1 * theta + cubic

    def risk_slope(self, theta: PerClient) -> PerClient:
        """½θκ' = k₂θ² + k₄(2 + gθ/2) E θ⁴."""
        quartic = self.k4 * (2 + 0.5 * self.g * theta) * self._cube(theta) * theta
        return self.k2 * theta**2 + quartic

    def threshold(self, theta: PerClient) -> PerClient:
        """ℓ = μ − θμ'/e, the threshold λ at which θ is best, e = θκ'/(2κ).

        Grouped so that nothing cancels where μ' ≥ 0:

            e ℓ = (s − θs') + (e − 1)(s − c₁θ) + (3 + gθ − e) c₃ E θ³,
            s − θs' = u(aθ³ + A²u)/(1 + A u)².
        """
        u, A, cube = self.u, self._descent(theta), self._cube(theta)
        quartic = self.k4 * cube
        share = quartic / np.maximum(self.k2 * theta + quartic, _TINY)
        extra = (1 + 0.5 * self.g * theta) * share
        e = 1 + extra
        bend = u * (self.a * theta * theta * theta + A**2 * u) / (1 + A * u) ** 2
        linear = extra * (A * u / (1 + A * u) - self.c1 * theta)
        cubic = (3 + self.g * theta - e) * self.c3 * cube
        threshold: Array = (bend + linear + cubic) / e
        return threshold

    def _descent(self, theta: PerClient) -> PerClient:
        """A = θ(1 − aθ²)/2."""
        return 0.5 * theta * (1 - self.a * theta**2)

    def _cube(self, theta: PerClient) -> PerClient:
        """E θ³."""
        cube = theta * theta * theta  # theta**3 would call pow
        return np.exp(self.g * theta) * cube if self.g else cube


def coefficients(
    profiles: ClientProfile, state: UpperState, bounds: ProblemBounds, variant: Variant
) -> Coefficients:
    """The constants of every client, for one of the three sets in `certificate`.

    Returns:
        Constants in units of U♯: gains and risks of ordinary rounds are then of size
        one, so the searches below need no scale.

    Raises:
        InvalidInputError: LR² leaves the number range, or the variant is unknown.
    """
    L, LR2 = bounds.smoothness, bounds.smoothness * bounds.radius * bounds.radius
    if not 0 < LR2 < np.inf:
        raise invalid("radius", "such that 0 < LR² < ∞", LR2)
    unit = min(state.gap, LR2 / 2) or LR2
    at = situation_of(profiles, state, bounds)
    h1, h2, M = _per_client(*horizon_factors(at.horizon), at.noise)
    x, q, m = state.gap / unit, state.tracking / L / unit, M / L / unit
    shared = (unit, min(state.gap / LR2, 0.5))
    zero = np.zeros_like(m)
    if check_variant(variant) == "paper":
        c3 = 32 * x + 64 * q + 8 * m
        return Coefficients(*shared, 2.0, 16 * q, zero, c3, 2 * m, c3 / 2)
    c3 = 16 * h1 * q + 2 * h2 * m
    if variant == "sharp":
        return Coefficients(*shared, 0.0, 4 * q, zero, 8 * h1 * x + c3, m, zero)
    drift = 8 * h1 if state.gap > 0 else zero  # no gap, no gradient, no drift
    return Coefficients(*shared, 0.0, 4 * q, drift, c3, m, zero)


def best_alone(c: Coefficients, low: PerClient, high: PerClient) -> PerClient:
    """θ_i ∈ argmax μ_i over [low_i, high_i]: also the choice for weight zero (E-11)."""
    return _solve_balance(lambda c, theta, _: c.gain_slopes(theta), c, low, low, high)


def best_at_weight(
    c: Coefficients, weights: PerClient, low: PerClient, high: PerClient
) -> PerClient:
    """θ_i ∈ argmin −w_i μ_i + ½ w_i² κ_i over [low_i, high_i].

    Args:
        c: constants of n clients.
        weights: w_i ≥ 0.
        low: least amplitudes, > 0.
        high: largest amplitudes, at most those of `best_alone`.
    """

    def sides(c: Coefficients, theta: Array, w: Array) -> tuple[Array, Array]:
        up, down = c.gain_slopes(theta)
        return up, down + w * c.risk_slope(theta)

    return _solve_balance(sides, c, weights, low, high)


def best_at_threshold(
    c: Coefficients, threshold: float, low: PerClient, high: PerClient
) -> PerClient:
    """θ_i ∈ argmax (μ_i − λ)/√κ_i over [low_i, high_i].

    Args:
        c: constants of n clients.
        threshold: λ.
        low: least amplitudes, > 0.
        high: largest amplitudes, at most those of `best_alone`.
    """

    def sides(c: Coefficients, theta: Array, lam: Array) -> tuple[Array, Array]:
        return lam, c.threshold(theta)

    return _solve_balance(sides, c, np.full_like(low, threshold), low, high)


Sides = Callable[[Coefficients, Array, Array], tuple[Array, Array]]


def _solve_balance(
    sides: Sides, c: Coefficients, target: Array, low: Array, high: Array
) -> Array:
    """θ where left = right, given left > right below and left < right above it.

    Solved for log θ on (left − right)/(left + right), which is nearly straight because
    both sides are close to monomials. Without a change of sign the nearer end is best.
    """

    def balance(c: Coefficients, theta: Array, target: Array) -> Array:
        left, right = sides(c, theta, target)
        size = np.maximum(np.abs(left) + np.abs(right), _TINY)
        ratio: Array = (left - right) / size
        return ratio

    at_low, at_high = balance(c, low, target), balance(c, high, target)
    theta = np.where(at_low > 0, high, low)
    inside = np.flatnonzero((at_low > 0) & (at_high < 0))
    if inside.size > 0:
        c, target, ends = c.take(inside), target[inside], (low[inside], high[inside])
        x = _bracketed_root(
            lambda x: balance(c, np.exp(x), target),
            (np.log(ends[0]), at_low[inside]),
            (np.log(ends[1]), at_high[inside]),
        )
        theta[inside] = np.clip(np.exp(x), *ends)
    return theta


def _bracketed_root(
    f: Callable[[Array], Array], low: tuple[Array, Array], high: tuple[Array, Array]
) -> Array:
    """Chandrupatla's method on all entries: inverse quadratic steps, else bisection.

    [Chandrupatla1997]. Both ends come with their values, of opposite sign.
    """
    (a, fa), (b, fb) = high, low
    t = np.full_like(a, 0.5)
    for _ in range(_STEPS):
        x = a + t * (b - a)
        fx = f(x)
        same = (fx > 0) == (fa > 0)
        c, fc = np.where(same, a, b), np.where(same, fa, fb)
        b, fb = np.where(same, b, a), np.where(same, fb, fa)
        a, fa = x, fx
        width = np.abs(b - a)
        done = (width <= 2 * PRECISION) | (fa == 0)
        if done.all():
            break
        with np.errstate(all="ignore"):  # entries that are done divide by zero
            xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
            smooth = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
            first = fa / (fb - fa) * fc / (fb - fc)
            second = (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
            least = PRECISION / width  # or a step beside the root never brackets it
            t = np.clip(np.where(smooth, first + second, 0.5), least, 1 - least)
        t[done] = 0.0  # an entry that is done keeps its bits
    return np.where(np.abs(fa) < np.abs(fb), a, b)


def _per_client(*values: Array) -> list[Array]:
    """One contiguous array of one common length each."""
    return [np.array(v) for v in np.broadcast_arrays(*np.atleast_1d(*values))]
