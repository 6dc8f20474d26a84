"""Norms and second moment of samples, from which the constants of a problem follow."""

from typing import Any

import numpy as np
from jaxtyping import Float, Float64

from hewfl.aggregate.memory import to_host
from hewfl.core.checks import Array

POWER_TOLERANCE, POWER_STEPS = 1e-6, 5000
"""Residual ‖Mv − θv‖/θ of the power iteration; θ is off by about its square."""
BLOCK = 2**20
"""Numbers that are widened to float64 at a time: a copy of all need not fit."""


def squared_norms(features: Float[Any, "m p"]) -> Float64[Array, " m"]:
    """‖a_j‖² of every sample, in float64 and on the host."""
    return np.concatenate([(A**2).sum(axis=1) for A in _wide_parts(features)])


def second_moment(features: Float[Any, "m p"]) -> Float64[Array, "p p"]:
    """(1/m) Σ_j a_j a_jᵀ, in float64 and on the host."""
    total = sum(A.T @ A for A in _wide_parts(features))
    return np.asarray(total / features.shape[0])


def largest_eigenvalue(M: Float64[Array, "p p"]) -> float:
    """θ of a positive semidefinite matrix by power iteration, approached from below."""
    v = np.random.default_rng(0).standard_normal(len(M))  # generic but fixed
    top = 0.0
    for _ in range(POWER_STEPS):
        v /= np.linalg.norm(v)
        w = M @ v
        top = float(v @ w)
        if np.linalg.norm(w - top * v) <= POWER_TOLERANCE * top:
            break
        v = w
    return top


def _wide_parts(features: Float[Any, "m p"]) -> Any:
    X = to_host(features)
    parts = np.array_split(X, -(-X.size // BLOCK))
    return (A.astype(np.float64) for A in parts)
