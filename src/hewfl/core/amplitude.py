"""Best amplitudes, client by client: all scalar problems of a federation at once.

In units where L = R = 1 a client's gain and risk need only a few constants,

    A = θ(1 − aθ²)/2,           s = A u²/(1 + A u),
    μ = s − c₁θ − c₃ E θ³,      κ = k₂θ² + k₄ E θ⁴,      E = e^{gθ},

and three questions are asked of them, each the root of a balance in log θ:

    which θ is best alone?         μ′(θ) = 0
    which θ for weight w?          μ′(θ) = ½ w κ′(θ)
    which θ at threshold λ?        λ = ℓ(θ) := μ − 2κμ′/κ′

The last maximises (μ − λ)/√κ. μ is concave and κ has an elasticity θκ′/κ ≥ 2 that grows,
so ℓ increases up to the best θ alone: the answer exists, is unique and grows with λ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from hewfl.core.certificate import Variant, check_variant, horizon_factors, noise
from hewfl.core.checks import Array, invalid
from hewfl.core.records import ClientProfile, ProblemBounds, UpperState


TINY = float(np.finfo(np.float64).tiny)

@final
@dataclass(frozen=True, slots=True)
class Coefficients:
    """Gain and risk of n clients in units where L = R = 1: J and s, ρ over LR², κ over R².

    Attributes:
        u: U♯.
        g: 2 in the paper, else 0: exponent of E = e^{gθ}.
        c1: linear cost of stale control variates.
        a: descent lost to drift, per client.
        c3: cubic cost of drift and noise, per client.
        k2: quadratic risk of noise, per client.
        k4: quartic risk, per client.
    """

    u: float
    g: float
    c1: float
    a: Float64[Array, " n"]
    c3: Float64[Array, " n"]
    k2: Float64[Array, " n"]
    k4: Float64[Array, " n"]

    def take(self, lanes: NDArray[np.intp]) -> "Coefficients":
        """The same for some of the clients."""
        per_client = (self.a, self.c3, self.k2, self.k4)
        return Coefficients(self.u, self.g, self.c1, *(c[lanes] for c in per_client))

    def gain(self, theta: Float64[Array, " n"]) -> Float64[Array, " n"]:
        """μ = s − c₁θ − c₃ E θ³."""
        s, _, _ = self._descent(theta)
        return s - self.c1 * theta - self.c3 * self._cube(theta)

    def risk(self, theta: Float64[Array, " n"]) -> Float64[Array, " n"]:
        """κ = k₂θ² + k₄ E θ⁴."""
        return self.k2 * theta**2 + self.k4 * self._cube(theta) * theta

    def gain_slopes(
        self, theta: Float64[Array, " n"]
    ) -> tuple[Float64[Array, " n"], Float64[Array, " n"]]:
        """What pushes θ up and what pushes it down: θμ′ = up − down, both nonnegative.

        θμ′ = θs′ − c₁θ − c₃(3 + gθ) E θ³
        """
        _, up, lost = self._descent(theta)
        steep = self.c3 * (3 + self.g * theta) * self._cube(theta)
        return up, lost + self.c1 * theta + steep

    def risk_slope(self, theta: Float64[Array, " n"]) -> Float64[Array, " n"]:
        """½θκ′ = k₂θ² + k₄(2 + gθ/2) E θ⁴."""
        quartic = self.k4 * (2 + 0.5 * self.g * theta) * self._cube(theta) * theta
        return self.k2 * theta**2 + quartic

    def threshold(self, theta: Float64[Array, " n"]) -> Float64[Array, " n"]:
        """ℓ = μ − θμ′/e, the threshold at which θ is best; e = θκ′/(2κ).

        Grouped so that nothing cancels:

            e ℓ = (s − θs′) + (e − 1)(s − c₁θ) + (3 + gθ − e) c₃ E θ³.
        """
        u, cube = self.u, self._cube(theta)
        s, _, _ = self._descent(theta)
        A = 0.5 * theta * (1 - self.a * theta**2)
        quartic = self.k4 * cube
        share = quartic / np.maximum(self.k2 * theta + quartic, TINY)
        e = 1 + (1 + 0.5 * self.g * theta) * share
        bend = u * u * (self.a * theta**3 + A * A * u) / (1 + A * u) ** 2
        steep = (3 + self.g * theta - e) * self.c3 * cube
        return (bend + (e - 1) * (s - self.c1 * theta) + steep) / e

    def _cube(self, theta):
        """E θ³."""
        return np.exp(self.g * theta) * theta**3 if self.g else theta**3

    def _descent(self, theta):
        """s, and θs′ as a rising and a falling part."""
        u, lost = self.u, self.a * theta**2
        A = 0.5 * theta * (1 - lost)
        s = np.where(A < 0, 2 * A * u, A * u * u / (1 + A * u))
        up = 0.5 * theta * np.where(A < 0, 2 * u, (u / (1 + A * u)) ** 2)
        return s, up, 3 * lost * up


def coefficients(profiles, state, bounds, variant):
    L, R = bounds.smoothness, bounds.radius
    LR2 = L * R * R
    u, q, m = state.gap / LR2, state.tracking / LR2 / L, noise(profiles) / LR2 / L
    h1, h2 = horizon_factors(profiles)
    u_sharp = min(u, 0.5)
    h1, h2, m = (np.ascontiguousarray(v) for v in np.broadcast_arrays(h1, h2, np.atleast_1d(m)))
    z = np.zeros_like(m)
    if variant == "paper":
        c3 = 32 * u + 64 * q + 8 * m
        return Coefficients(u_sharp, 2.0, 16 * q, z, c3, 2 * m, c3 / 2)
    if variant == "sharp":
        return Coefficients(u_sharp, 0.0, 4 * q, z, 8 * h1 * u + 16 * h1 * q + 2 * h2 * m, m, z)
    return Coefficients(u_sharp, 0.0, 4 * q, 8 * h1, 16 * h1 * q + 2 * h2 * m, m, z)


def alone(c, theta, _):
    return c.gain_slopes(theta)

def at_weight(c, theta, w):
    up, down = c.gain_slopes(theta)
    return up, down + w * c.risk_slope(theta)

def at_threshold(c, theta, lam):
    return lam, c.threshold(theta)

EVALS=[0,0]
def balance(sides, c, theta, target):
    EVALS[0]+=1; EVALS[1]+=theta.size
    up, down = sides(c, theta, target)
    return (up - down) / np.maximum(np.abs(up) + np.abs(down), TINY)

def solve(sides, c, target, low, high):
    at_low = balance(sides, c, low, target) <= 0
    at_high = balance(sides, c, high, target) >= 0
    theta = np.where(at_low, low, high)
    lanes = np.flatnonzero(~(at_low | at_high))
    if lanes.size:
        t = target[lanes] if np.ndim(target) else target
        cc = c.take(lanes)
        f = lambda x: balance(sides, cc, np.exp(x), t)
        x = chandrupatla(f, np.log(low[lanes]), np.log(high[lanes]))
        theta[lanes] = np.clip(np.exp(x), low[lanes], high[lanes])
    return theta

def chandrupatla(f, low, high, tol=1e-14):
    a, fa, b, fb = high, f(high), low, f(low)
    t = np.full(a.shape, 0.5)
    for it in range(200):
        x = a + t * (b - a)
        fx = f(x)
        same = (fx > 0) == (fa > 0)
        c, fc = np.where(same, a, b), np.where(same, fa, fb)
        b, fb = np.where(same, b, a), np.where(same, fb, fa)
        a, fa = x, fx
        best = np.where(np.abs(fa) < np.abs(fb), a, b)
        width = np.abs(b - a)
        done = (width <= 2 * tol) | (fa == 0)
        if done.all():
            break
        with np.errstate(all="ignore"):
            tl = tol / width
            xi = (a - b) / (c - b)
            phi = (fa - fb) / (fc - fb)
            iqi = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
            tq = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
            t = np.where(iqi, tq, 0.5)
            t = np.where(done, 0.0, np.minimum(np.maximum(t, tl), 1 - tl))
    return best
