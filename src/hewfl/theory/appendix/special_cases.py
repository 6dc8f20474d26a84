"""Special cases: where the three algorithms are gradient descent.

With identical clients, exact gradients and one horizon, every branch takes the same
H gradient steps of size ϑ/(LH), whatever the weights: all displacements are that of
`central_path`, all control variates and ḡ its mean gradient, and Ψ is constant on the
simplex (prop:corrected_exact_microsteps, prop:plain_exact_microsteps).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hewfl.control.certificate import (
    Variant,
    check_amplitudes,
    situation_of,
    variance_bound,
)
from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.records import ClientProfile, ProblemBounds, UpperState
from hewfl.core.validation import (
    Array,
    ArrayLike,
    as_float64,
    invalid,
    nonnegatives,
    positives,
)
from hewfl.theory.noise import simplex_weights


@final
@dataclass(frozen=True, slots=True, eq=False)
class CentralPath:
    """H central gradient steps z_0 = x, ..., z_H, and (1/H) Σ ∇F(z_ℓ) over ℓ < H."""

    points: Float64[Array, "steps *c d"]
    mean_gradient: Float64[Array, "*c d"]

    @property
    def displacement(self) -> Float64[Array, "*c d"]:
        """z_H − x."""
        return np.asarray(self.points[-1] - self.points[0])


@broadcasting
def central_path(
    gradient: Callable[..., Any],
    anchor: ArrayLike,
    amplitude: ArrayLike,
    smoothness: ArrayLike,
    horizon: int,
) -> CentralPath:
    """z_{ℓ+1} = z_ℓ − (ϑ/(LH))∇F(z_ℓ)  (cor:exact_horizon_representation).

    The anchor x has shape (*c, d); H = 1 is gradient descent (cor:exact_reduction_gd).
    """
    if horizon < 1:
        raise invalid("horizon", "at least 1", horizon)
    L = positives("smoothness", smoothness)
    eta = np.asarray(positives("amplitude", amplitude) / (L * horizon))[..., None]
    z = as_float64("anchor", anchor)
    z = np.broadcast_to(z, np.broadcast_shapes(z.shape, eta.shape))
    total = np.zeros_like(z)
    points = [z]
    for _ in range(horizon):
        g = np.asarray(gradient(z))
        z, total = np.asarray(z - eta * g), np.asarray(total + g)
        points.append(z)
    return CentralPath(np.stack(points), np.asarray(total / horizon))


@broadcasting
def effective_amplitude(
    weights: ArrayLike, amplitudes: ArrayLike
) -> Float64[Array, "*c"]:
    """ϑ_eff = Σ w_iθ_i, clients last  (prop:alg1_H1_general).

    With H = 1 a round of Algorithm 1 is x − (ϑ_eff/L)∇F(x), for any weights on the
    simplex and any amplitudes.
    """
    w = simplex_weights("weights", weights)
    theta = nonnegatives("amplitudes", amplitudes)
    return np.asarray((w * theta).sum(axis=-1))


@broadcasting
def slice_excess(
    weights: ArrayLike,
    amplitude: ArrayLike,
    profile: ClientProfile,
    state: UpperState,
    bounds: ProblemBounds,
    *,
    variant: Variant = "paper",
) -> Float64[Array, "*c"]:
    """J(w) − J(1/n) where all clients are alike (prop:local_control_degeneration).

        J(w) = U♯ − μ + (Lκ/2) Σ w_i²,     J(w) − J(1/n) = (Lκ/2) Σ (w_i − 1/n)² ≥ 0

    So uniform weights minimise J, and others do where κ = 0. ϑ and the profile are
    those of every client (ass:symmetric_certificate_slice).
    """
    w = simplex_weights("weights", weights)
    theta, at = check_amplitudes(amplitude), situation_of(profile, state, bounds)
    kappa = variance_bound(theta, at, variant)
    spread = ((w - 1 / w.shape[-1]) ** 2).sum(axis=-1)
    return np.asarray(bounds.smoothness * kappa / 2 * spread)
