"""Squared distances between displacements, and to their combinations, from products.

Everything here takes G_ij = ⟨c_i, c_j⟩, the products around a short vector r that
`Displacements.products()` gives, c_i = Δ_i − r. A distance does not see r. The plain
products ⟨Δ_i, Δ_j⟩ would do on paper, but a part that all displacements share is then
squared into every entry and takes the digits of their differences.
"""

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array, PerClient


def sq_distances(gram: Float64[Array, "n n"]) -> Float64[Array, "n n"]:
    """‖Δ_i − Δ_j‖² = G_ii + G_jj − 2G_ij, never below zero."""
    lengths = np.diagonal(gram)
    apart = np.maximum(lengths + lengths[:, None] - 2 * gram, 0.0)
    np.fill_diagonal(apart, 0.0)
    return np.asarray(0.5 * (apart + apart.T))


def sq_distances_to(gram: Float64[Array, "n n"], weights: PerClient) -> PerClient:
    """‖Δ_i − Σ_j w_jΔ_j‖² = G_ii − 2(Gw)_i + wᵀGw for Σw_j = 1, never below zero.

    The form in pairwise distances, Σ_j w_j‖Δ_i − Δ_j‖² − …, is not used: one far client
    with a small weight would put the square of its distance into every entry.
    """
    against = gram @ weights
    apart = np.diagonal(gram) - 2 * against + weights @ against
    return np.asarray(np.maximum(apart, 0.0))


def central_distance(apart: Float64[Array, "n n"]) -> float:
    """The least radius around one of the vectors that holds half of the others.

    A scale that fewer than half of the clients cannot make large. The median over all
    pairs is none: with three far clients of ten most pairs are far.
    """
    nearest = np.sort(apart, axis=1)[:, 1:]  # without itself
    return float(np.sqrt(nearest[:, (len(apart) - 2) // 2].min()))
