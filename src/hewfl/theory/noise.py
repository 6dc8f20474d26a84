"""Noise under fixed weights, and the weights of least noise.

With M_i = v_i²/(H_i b_i), weights a cost a round's bound p V₁(a) + q V₂(a):

    V₁(a) = Σ a_i M_i,     V₂(a) = Σ a_i² M_i,     V̄₁ = V₁(1/n),     V_u = V₂(1/n).

V₁ is the mean noise of the branches, V₂ the noise of their mean.
"""

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Reals,
    as_float64,
    broadcast,
    invalid,
    nonnegatives,
)
from hewfl.solver.threshold import threshold_weights
from hewfl.theory.systems import System


@broadcasting
def mean_noise(system: System, weights: ArrayLike) -> Reals:
    """V₁(a) = Σ a_i M_i, for weights a with clients last."""
    a = simplex_weights("weights", weights)
    return np.asarray((a * system.noise).sum(-1))


@broadcasting
def noise_of_mean(system: System, weights: ArrayLike) -> Reals:
    """V₂(a) = Σ a_i² M_i, for weights a with clients last."""
    a = simplex_weights("weights", weights)
    return np.asarray((a * (a / system.multiplicity * system.noise)).sum(-1))


def uniform_mean_noise(system: System) -> Reals:
    """V̄₁ = (1/n) Σ M_i."""
    return np.asarray((system.multiplicity * (system.noise / system.n)).sum(-1))


def uniform_noise_of_mean(system: System) -> Reals:
    """V_u = (1/n²) Σ M_i."""
    m, n = system.multiplicity, float(system.n)
    return np.asarray((m * (system.noise / n**2)).sum(-1))


def noise_optimal(system: System) -> Float64[Array, "... n"]:
    """The weights of least V₂ (eq:realized-het-positive-v).

        a*_i = α / M_i ∝ H_i b_i / v_i²

    Clients without noise, where there are any, share all the weight equally: V₁ and V₂
    are then zero, as they are for any other split among them (erratum E-15).

    Args:
        system: the constants.

    Returns:
        a*, clients last.
    """
    ratio = system.multiplicity * _relative_precision(system)
    return np.asarray(ratio / ratio.sum(-1, keepdims=True))


def noise_optimal_level(system: System) -> Reals:
    """α = (Σ H_i b_i / v_i²)⁻¹, so that V₂(a*) = α and V₁(a*) = nα.

    Zero where a client has no noise. With it the noise term at a* reads
    (pn + q) α (eq:realized-het-rate-astar).
    """
    quiet = system.multiplicity * _relative_precision(system)
    return np.asarray(system.noise.min(-1) / quiet.sum(-1))


@broadcasting
def best_comparator(linear: ArrayLike, quadratic: ArrayLike) -> Float64[Array, "... n"]:
    """The weights of least noise term, by the threshold law (erratum E-15).

        a = argmin over a ∈ Δ_n of  Σ a_i l_i + a_i² q_i,     q ≥ 0, clients last

    For δ^het(a) = p V₁(a) + q V₂(a) take l_i = p M_i and q_i = q M_i: never worse than
    a*, which is best for V₂ alone.
    """
    first, second = as_float64("linear", linear), nonnegatives("quadratic", quadratic)
    both = broadcast({"linear": first, "quadratic": second})
    return threshold_weights(-both["linear"], 2 * both["quadratic"]).weights


@broadcasting
def noise_term(weights: ArrayLike, linear: ArrayLike, quadratic: ArrayLike) -> Reals:
    """Σ a_i l_i + a_i² q_i, the value that `best_comparator` makes least."""
    a = simplex_weights("weights", weights)
    first, second = as_float64("linear", linear), as_float64("quadratic", quadratic)
    return np.asarray((a * (first + a * second)).sum(-1))


def simplex_weights(name: str, weights: ArrayLike) -> Float64[Array, "... n"]:
    """Require weights on the simplex, clients last."""
    w = as_float64(name, weights)
    if w.ndim == 0 or (w < 0).any() or not np.allclose(w.sum(-1), 1, rtol=0, atol=1e-9):
        raise invalid(name, "nonnegative and summing to one", repr(weights)[:80])
    return w


def _relative_precision(system: System) -> Float64[Array, "... n"]:
    """min_j M_j / M_i ∈ [0, 1]: in this unit no inverse overflows, and 0/0 is 1."""
    M = system.noise
    least = M.min(-1, keepdims=True)
    ratio: Array = np.divide(least, M, out=np.ones(M.shape), where=least < M)
    return ratio
