"""Scalar lemmas of Appendix A that no rate calls: gaps, the flow T_a, sums.

A trajectory is the largest sequence that obeys a recursion with "≤": where the map has
a maximum, everything beyond it is bounded by that maximum.
"""

import numpy as np

from hewfl.control.certificate import flow_decrease
from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Reals,
    invalid,
    nonnegatives,
    positives,
)
from hewfl.theory.recursion import Whole, one_whole
from hewfl.theory.scalar import flow, quadratic_coefficients


@broadcasting
def largest_gap(gradient_norm: ArrayLike, radius: ArrayLike) -> Reals:
    """Gap on the ball by its gradient: f ≤ R‖∇F‖, so ‖∇F‖² ≥ f²/R² (lem:gap)."""
    slope, R = nonnegatives("gradient_norm", gradient_norm), positives("radius", radius)
    return np.asarray(R * slope)


@broadcasting
def largest_sq_gradient(gap: ArrayLike, smoothness: ArrayLike) -> Reals:
    """Gradient by the gap: ‖∇F‖² ≤ 2L f (lem:gap); the cap f̄ is `System.cap`."""
    f, L = nonnegatives("gap", gap), positives("smoothness", smoothness)
    return np.asarray(2 * L * f)


@broadcasting
def flow_slope(a: ArrayLike, u: ArrayLike) -> Reals:
    """Slope T_a'(u) = 1/(1 + a u)² ∈ (0, 1] (lem:Ta-Lip)."""
    with np.errstate(over="ignore"):
        x = np.asarray(nonnegatives("a", a) * nonnegatives("u", u))
        return np.asarray(1 / (1 + x) / (1 + x))


@broadcasting
def flow_excess(a: ArrayLike, u: ArrayLike) -> Reals:
    """By how much T_a lies above quadratic descent (lem:Ta-majorizes).

    T_a(u) − (u − a u²) = a²u³/(1 + a u) = a u (u − T_a(u)) ≥ 0
    """
    A, U = nonnegatives("a", a), nonnegatives("u", u)
    return np.asarray(A * U * flow_decrease(A, U))


@broadcasting
def telescoping_bound(
    start: ArrayLike, a: ArrayLike, b: ArrayLike
) -> Float64[Array, "steps ..."]:
    """Bound on z_1, ..., z_H if z_{ℓ+1} ≤ T_{a_ℓ}(z_ℓ) + b_ℓ (lem:telescope).

        z_ℓ ≤ T_{a_0 + ... + a_{ℓ−1}}(z_0) + b_0 + ... + b_{ℓ−1}

    a_ℓ ≥ 0 and b_ℓ ≥ 0 have the steps first.
    """
    total_a, total_b = (
        np.cumsum(nonnegatives(name, x), axis=0) for name, x in (("a", a), ("b", b))
    )
    return np.asarray(flow(total_a, nonnegatives("start", start)) + total_b)


@broadcasting
def scalar_trajectory(
    start: ArrayLike, a: ArrayLike, beta: ArrayLike, delta: ArrayLike, rounds: Whole
) -> Float64[Array, "rounds_1 ..."]:
    """Largest x_0, ..., x_T with x_{t+1} ≤ x_t − ax_t² + βx_t + δ (lem:scalar)."""
    A, B, D = quadratic_coefficients(a, beta, delta)
    top = (1 + B) / 2 / A
    x = [np.broadcast_arrays(nonnegatives("start", start), top, D)[0]]
    for _ in range(one_whole("rounds", rounds)):
        at = np.minimum(x[-1], top)
        x.append(np.asarray(at * (1 + B - A * at) + D))
    return np.stack(x)


@broadcasting
def linear_trajectory(
    start: ArrayLike, a: ArrayLike, delta: ArrayLike, rounds: Whole
) -> Float64[Array, "rounds_1 ..."]:
    """Largest x_0, ..., x_T with x_{t+1} ≤ (1 − a)x_t + δ, a ≤ 1 (lem:lin-scalar)."""
    A, D = positives("a", a), nonnegatives("delta", delta)
    x = [np.broadcast_arrays(nonnegatives("start", start), A, D)[0]]
    for _ in range(one_whole("rounds", rounds)):
        x.append(np.asarray(np.maximum(1 - A, 0) * x[-1] + D))
    return np.stack(x)


@broadcasting
def cumulative_gronwall(
    a: ArrayLike, beta: ArrayLike, *, exponential: bool = False
) -> Float64[Array, "steps ..."]:
    """Bound on x_ℓ if x_ℓ ≤ a_ℓ + β(x_0 + ... + x_{ℓ−1}) (lem:cum-gronwall).

        x_ℓ ≤ a_ℓ(1 + β)^ℓ ≤ a_ℓ e^{βℓ}

    a_ℓ ≥ 0 has the steps first and does not fall. `exponential` gives the second bound,
    which the radius lemmas use.
    """
    A, B = np.atleast_1d(nonnegatives("a", a)), nonnegatives("beta", beta)
    if (np.diff(A, axis=0) < 0).any():
        raise invalid("a", "nondecreasing along its first axis", repr(a)[:80])
    step = np.arange(len(A)).reshape(-1, *[1] * (A.ndim - 1))
    return np.asarray(A * np.exp(step * (B if exponential else np.log1p(B))))
