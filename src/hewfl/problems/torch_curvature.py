"""Curvature seen along the server's own path, where no L is known.

    ℓ_t = ‖g_t − g_{t−1}‖ / ‖x_t − x_{t−1}‖,     g_t = −(1/|S|) Σ_i Δ_i/(η_i H_i)

the secant of the mean local gradient, which every round brings anyway. Without noise it
is the curvature met on the way, in the convex theory at most L. Noise of variance V in
each g adds 2V/‖x_t − x_{t−1}‖² to its square, so it errs upwards: to a larger Λ, which
is the cautious side. Where noise outweighs the change of the gradient, as with few
sampled clients and short steps, it measures noise and not curvature.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array, invalid, positive
from hewfl.core.round import Round

STILL = 1e-12
"""A move shorter than this share of the model is rounding, not a step."""


@final
@dataclass(frozen=True, slots=True)
class Curvature:
    """What is known of the curvature after some rounds.

    Attributes:
        value: the estimate; the guess it started from until two rounds were seen.
        anchor: x of the last round seen, or None.
        gradient: g of that round, or None.
    """

    value: float
    anchor: Float64[Array, " d"] | None = None
    gradient: Float64[Array, " d"] | None = None


def mean_local_gradient(round_: Round) -> Float64[Array, " d"]:
    """−(1/|S|) Σ_i Δ_i/(η_i H_i), as in Algorithm 3, l. 9."""
    ground = round_.plan.step_sizes * round_.roster.horizons
    weights = -1 / (ground * len(ground))
    return np.asarray(weights @ round_.displacements, dtype=np.float64)


def updated_curvature(
    known: Curvature, round_: Round, *, memory: float = 0.9, most: float = 2.0
) -> Curvature:
    """The estimate after one more round.

        value ← value^β · clip(ℓ_t, value/κ, κ value)^(1−β)

    A geometric mean, so that halvings and doublings weigh the same; one round moves the
    estimate by a factor of κ^(1−β) at most, however noisy. A round whose server step or
    secant is zero or not finite changes the last point alone.

    Args:
        known: from the rounds before; `Curvature(1 / learning_rate)` at the start.
        round_: what the server saw.
        memory: β in [0, 1).
        most: κ > 1.

    Raises:
        InvalidInputError: a number is out of range.
    """
    positive("value", known.value)
    if not 0 <= memory < 1:
        raise invalid("memory", "at least 0 and below 1", memory)
    if not most > 1:
        raise invalid("most", "above 1", most)
    x, g = round_.anchor, mean_local_gradient(round_)
    if known.anchor is None or known.gradient is None:
        return Curvature(known.value, x, g)
    step = float(np.linalg.norm(x - known.anchor))
    change = float(np.linalg.norm(g - known.gradient))
    secant = change / step if step > STILL * float(np.linalg.norm(x)) else 0.0
    if not (np.isfinite(secant) and secant > 0):
        return Curvature(known.value, x, g)
    seen = min(max(secant, known.value / most), known.value * most)
    return Curvature(known.value**memory * seen ** (1 - memory), x, g)
