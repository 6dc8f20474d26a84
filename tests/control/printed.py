"""The certificate of the paper and of the errata in 40 digits, and settings to try."""

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from mpmath import mp, mpf

from hewfl import ClientProfile, ProblemBounds, UpperState
from hewfl.control.certificate import VARIANTS, Variant

RELATIVE = 1e-12
"""Error of a coefficient against 40 digits, over the sum of its terms."""
Setting = tuple[float, float, float, float, float, float, float]

variants = pytest.mark.parametrize("variant", VARIANTS)


class Printed:
    """The formulas of the paper and of the errata in 40 digits, one client."""

    def __init__(self, setting: Setting, variant: Variant) -> None:
        H, b, v2, U, Q, L, R = (mpf(x) for x in setting)
        self.variant, self.H, self.U, self.Q, self.L, self.R = variant, H, U, Q, L, R
        self.M = v2 / (H * b)
        self.u = min(U, L * R**2 / 2)
        self.h1 = (H - 1) * (2 * H - 1) / (6 * H**2)
        self.h2 = (H - 1) / (2 * H)

    def descent(self, t: Any) -> Any:
        lost = 8 * self.h1 * t**2 if self.variant == "absorbed" else 0
        return t * (1 - lost) / (2 * self.L * self.R**2)

    def s(self, t: Any) -> Any:
        A, u = self.descent(t), self.u
        return u - u / (1 + A * u) if A >= 0 else 2 * self.L * self.R**2 * A * u

    def rho(self, t: Any) -> Any:
        U, Q, L, M, h1, h2 = self.U, self.Q, self.L, self.M, self.h1, self.h2
        if self.variant == "paper":
            e = mp.exp(2 * t)
            stale = (16 * t + 64 * e * t**3) / L * Q
            return 32 * e * t**3 * U + stale + 8 * e * t**3 * M / L
        drift = 8 * h1 * t**3 * U if self.variant == "sharp" else 0
        return drift + (4 * t + 16 * h1 * t**3) * Q / L + 2 * h2 * t**3 * M / L

    def kappa(self, t: Any) -> Any:
        U, Q, L, M = self.U, self.Q, self.L, self.M
        if self.variant != "paper":
            return t**2 * M / L**2
        e = mp.exp(2 * t)
        drift = 16 * e * t**4 * U / L + 32 * e * t**4 * Q / L**2
        return drift + (2 * t**2 + 4 * e * t**4) * M / L**2

    def mu(self, t: Any) -> Any:
        return self.s(t) - self.rho(t)


@st.composite
def settings(draw: st.DrawFn) -> Setting:
    """H, b, v², U, Q, L, R over many decades."""
    decade = st.floats(-12, 12)
    H = draw(st.sampled_from([1.0, 2.0, 3.0, 8.0, 1000.0]))
    b = draw(st.sampled_from([1.0, 32.0]))
    v2, U, Q, L, R = (10.0 ** draw(decade) for _ in range(5))
    return H, b, v2 * draw(st.sampled_from([0.0, 1.0])), U, Q, L, R


amplitude = st.one_of(
    st.sampled_from([1.0, 0.5, 1e-3]), st.floats(-8, 0).map(lambda x: 10**x)
)


def records(setting: Setting) -> tuple[ClientProfile, UpperState, ProblemBounds]:
    H, b, v2, U, Q, L, R = setting
    return ClientProfile(H, b, v2), UpperState(U, Q), ProblemBounds(L, R, 1e-9, 1.0)


def close(value: Any, exact: Any, size: Any = None) -> bool:
    scale = abs(exact if size is None else size)
    return bool(abs(mpf(float(np.asarray(value).item())) - exact) <= RELATIVE * scale)
