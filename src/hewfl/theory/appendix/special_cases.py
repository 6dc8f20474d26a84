"""Special cases: where the three algorithms are gradient descent.

With identical clients, exact gradients and one horizon, every branch takes the same
H gradient steps of size ϑ/(LH), whatever the weights. Functions named
`*_hypotheses` compare a round that was run with the statement, and return each
comparison with its numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hewfl.control.certificate import (
    Variant,
    check_amplitudes,
    clipped_gap,
    gain,
    situation_of,
    variance_bound,
)
from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.records import ClientProfile, ProblemBounds, UpperState
from hewfl.core.round import Cohort, Round
from hewfl.core.validation import (
    Array,
    ArrayLike,
    as_float64,
    invalid,
    nonnegatives,
    positives,
)
from hewfl.displacements.control_variates import ControlVariates
from hewfl.theory.noise import simplex_weights
from hewfl.theory.statement import Hypothesis, at_most

ROUNDING = 1e-12
"""Two vectors are the same if they differ by this much of the longer one."""


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
def symmetric_exact_hypotheses(
    cohort: Cohort,
    gradients: ArrayLike,
    *,
    used: ArrayLike | None = None,
    variates: ControlVariates | None = None,
) -> tuple[Hypothesis, ...]:
    """The regime of this module, as far as numbers show it.

    (ass:symmetric_exact_regime)

    `gradients` are ∇F_i at some points, shape (*points, n, d): equal over i. `used` are
    the stochastic gradients taken there: equal to ∇F_i. `variates` are equal over i.
    """
    exact = as_float64("gradients", gradients)
    if exact.ndim < 2:
        raise invalid("gradients", "of shape (*points, n, d)", f"shape {exact.shape}")
    n, S = cohort.population, len(cohort.clients)
    H = cohort.horizons.astype(np.float64)
    hypotheses = [
        at_most("full participation", n, S),
        at_most("max H_i ≤ min H_i", H.max(initial=0.0), H.min(initial=np.inf)),
        _equality("∇F_i all equal", exact, exact[..., :1, :]),
    ]
    if used is not None:
        hypotheses.append(_equality("g_i = ∇F_i", as_float64("used", used), exact))
    if variates is not None:
        first = variates.clients[:1]
        hypotheses.append(_equality("c_i all equal", variates.clients, first))
    return tuple(hypotheses)


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
def central_round_hypotheses(
    round_: Round,
    weights: ArrayLike,
    path: CentralPath,
    *,
    variates: ControlVariates | None = None,
    reference: ArrayLike | None = None,
) -> tuple[Hypothesis, ...]:
    """One round is the central path and the weights do not matter.

    (prop:corrected_exact_microsteps, prop:plain_exact_microsteps)

    All displacements equal z_H − x, so Ψ is constant on the simplex and every weight
    vector minimises it; the step is z_H − x too.

    `path` starts from the same anchor. All `variates` after a round of corrected
    branches equal its mean gradient, and so does the `reference` ḡ of plain ones.
    """
    moved, step = round_.displacements.matrix(), path.displacement
    w = as_float64("weights", weights)
    hypotheses = [
        _equality("Δ_i = z_H − x", moved, step),
        _equality("Σ w_iΔ_i = z_H − x", w @ moved, step),
    ]
    if variates is not None:
        both = np.vstack([variates.clients, variates.server])
        hypotheses.append(
            _equality("c_i = c = mean gradient", both, path.mean_gradient)
        )
    if reference is not None:
        g = as_float64("reference", reference)
        hypotheses.append(_equality("ḡ = mean gradient", g, path.mean_gradient))
    return tuple(hypotheses)


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
def gradient_step(
    anchor: ArrayLike, gradient: ArrayLike, amplitude: ArrayLike, smoothness: ArrayLike
) -> Float64[Array, "*c d"]:
    """The whole round when H = 1: x − (ϑ/L)∇F(x)  (cor:exact_reduction_gd)."""
    x, g = as_float64("anchor", anchor), as_float64("gradient", gradient)
    L = positives("smoothness", smoothness)
    step = np.asarray(nonnegatives("amplitude", amplitude) / L)
    return np.asarray(x - step[..., None] * g)


@broadcasting
def slice_hypotheses(
    profiles: ClientProfile, amplitudes: ArrayLike
) -> tuple[Hypothesis, ...]:
    """All clients alike: H, b, v² and θ (ass:symmetric_certificate_slice)."""
    fields = {
        "H": profiles.horizon,
        "b": profiles.batch_size,
        "v²": profiles.variance,
        "θ": nonnegatives("amplitudes", amplitudes),
    }
    return tuple(
        at_most(f"max {name}_i ≤ min {name}_i", np.max(value), np.min(value))
        for name, value in fields.items()
    )


@broadcasting
def slice_bound(
    weights: ArrayLike,
    amplitude: ArrayLike,
    profile: ClientProfile,
    state: UpperState,
    bounds: ProblemBounds,
    *,
    variant: Variant = "paper",
) -> Float64[Array, "*c"]:
    """J when all clients are alike (prop:local_control_degeneration).

        J(w) = U♯ − μ + (Lκ/2) Σ w_i²

    ϑ and the profile are those of every client.
    """
    w = simplex_weights("weights", weights)
    theta, at = check_amplitudes(amplitude), situation_of(profile, state, bounds)
    mu, kappa = gain(theta, at, variant), variance_bound(theta, at, variant)
    risk = bounds.smoothness * kappa / 2 * (w**2).sum(axis=-1)
    return np.asarray(clipped_gap(state, bounds) - mu + risk)


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
    """J(w) − J(1/n) = (Lκ/2) Σ (w_i − 1/n)² ≥ 0: uniform weights minimise J.

    Zero at other weights only where κ = 0 (prop:local_control_degeneration).
    """
    w = simplex_weights("weights", weights)
    theta, at = check_amplitudes(amplitude), situation_of(profile, state, bounds)
    kappa = variance_bound(theta, at, variant)
    spread = ((w - 1 / w.shape[-1]) ** 2).sum(axis=-1)
    return np.asarray(bounds.smoothness * kappa / 2 * spread)


def _equality(name: str, one: ArrayLike, other: ArrayLike) -> Hypothesis:
    """Largest distance between vectors, against what rounding may do to them."""
    left, right = np.broadcast_arrays(as_float64(name, one), as_float64(name, other))
    away = np.linalg.norm(left - right, axis=-1).max(initial=0.0)
    size = np.linalg.norm(np.stack([left, right]), axis=-1).max(initial=0.0)
    return at_most(name, away, ROUNDING * size)
