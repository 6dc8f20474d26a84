"""The uniform controller: all clients take part, with one H, b and ϑ and weights 1/n.

    g⁺ ≤ g − a g² + β g + γ q + δ,     q⁺ ≤ A + B g + C q          (th:direct-bellman)

for the expected gap g and the worst expected squared tracking error q. Averaging
cancels the mismatch of the control variates, so q costs ϑ³ here and ϑ in general.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from hewfl.control.certificate import Variant, check_variant, horizon_factors
from hewfl.control.tracking import Tracking, predictable_tracking
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, Reals, positives
from hewfl.theory.recursion import Recursion
from hewfl.theory.statement import Hypothesis, at_most, below
from hewfl.theory.systems import System


@final
@dataclass(frozen=True, slots=True, eq=False)
class UniformController:
    """The uniform controller on a system, with the coefficients of its recursions.

    Attributes:
        amplitude: ϑ, shape (*c) like all that follows.
        variant: the set of constants.
        noise: M = v²/(Hb) with v² = max v_i².
        recursion: of (g, q); its hypotheses are those of ass:uniform-special.
    """

    amplitude: Reals
    variant: Variant
    noise: Reals
    recursion: Recursion

    @property
    def system(self) -> System:
        """The constants."""
        return self.recursion.system


@broadcasting
def uniform_coefficients(
    system: System, amplitude: ArrayLike, *, variant: Variant = "paper"
) -> UniformController:
    """Coefficients of the uniform controller (th:direct-bellman, prop:direct-q).

        a = ϑ/(2LR²),   β = 48ϑ³ + 32ϑ⁴/n,   γ = 96ϑ³/L + 64ϑ⁴/(Ln),
        δ = (16ϑ³ + 16ϑ²/n) M/L,   A_q = 6M,   B_q = 144Lϑ²,   C_q = 288ϑ²      paper

        β = 2h₁ϑ³,   γ = h₁ϑ³/L,   δ = (h₂ϑ³ + ϑ²/(2n)) M/L                     sharp
        the same with β = 0 and a = ϑ(1 − 2h₁ϑ²)/(2LR²)                      absorbed

    and tracking by `predictable_tracking`. The last two sets are T5: T1 to T3 joined
    with lem:cancellation, for ϑ ≤ 1. The mean move is
    −(ϑ/L)∇F + r̄, so by T2 it gains −(ϑ/2L)‖∇F‖² + (L/2ϑ)‖r̄‖². By T3

        E‖r̄‖² ≤ mean E‖r_i‖² ≤ (ϑ⁴/L²)(2h₁ mean‖∇F + δ_i‖² + 2h₂M),
        mean‖∇F + δ_i‖² = ‖∇F‖² + mean‖δ_i‖² ≤ ‖∇F‖² + mean‖e_i‖²,

    since Σδ_i = 0 and δ_i is the mean of all e less e_i. Independent noises of variance
    at most ϑ²M/L² average to the term with 1/n. What is left of ‖∇F‖², (h₁ϑ³/L) of it,
    is bounded by 2Lg ("sharp") or set off against the descent ("absorbed").

    Args:
        system: the constants; H and b must be common to the clients.
        amplitude: ϑ > 0, shape (*c).
        variant: the set of constants.

    Returns:
        The controller with its recursion of (g, q).
    """
    theta, n, L, R = positives("amplitude", amplitude), system.n, system.L, system.R
    h1, h2 = (h.max(-1) for h in horizon_factors(np.asarray(system.horizon)))
    M = system.noise.max(-1)
    sigma = theta / (2 * L)
    if check_variant(variant) == "paper":
        beta = 48 * theta**3 + 32 * theta**4 / n
        gamma = (96 * theta**3 + 64 * theta**4 / n) / L
        delta = (16 * theta**3 + 16 * theta**2 / n) / L * M
    else:
        beta, gamma = 2 * h1 * theta**3, h1 * theta**3 / L
        delta = (h2 * theta**3 + theta**2 / (2 * n)) / L * M
    if variant == "absorbed":
        sigma, beta = sigma * (1 - 2 * h1 * theta**2), 0 * beta
    track = predictable_tracking(
        theta, system.noise, system.horizon, L, variant=variant
    )
    numbers = (sigma / R / R, beta, gamma, delta)
    a, beta, gamma, delta = (np.asarray(x) for x in numbers)
    met = _hypotheses(system, theta, variant, track)
    recursion = Recursion(
        "th:direct-bellman",
        system,
        descent=a,
        growth=beta,
        staleness=gamma,
        noise=delta,
        tracking=track,
        hypotheses=met,
        slope=np.asarray(sigma),
    )
    return UniformController(theta, variant, np.asarray(M), recursion)


def _hypotheses(
    system: System, theta: Array, variant: Variant, track: Tracking
) -> tuple[Hypothesis, ...]:
    H, b = np.asarray(system.horizon), np.asarray(system.batch_size)
    if variant == "paper":
        small = below("288ϑ² < 1", track.tracking, 1.0)
    else:
        small = at_most("ϑ ≤ 1", theta, 1.0)
    return (
        small,
        at_most("H_i = H", H.max(-1), H.min(-1)),
        at_most("b_i = b", b.max(-1), b.min(-1)),
    )
