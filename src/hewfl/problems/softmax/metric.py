"""Metrics near the Hessian of a softmax regression: variables in which it is round.

A metric M = LLᵀ serves two ends. In the variables V = Lᵀ W quasi-Newton methods see a
Hessian near the identity, and M⁻¹ preconditions conjugate gradients. All directions are
projected on Σ_k v_k = 0, where the minimiser lies.
"""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import scipy.linalg
from jaxtyping import Float64

from hewfl.core.checks import Array
from hewfl.problems.softmax.weighted_sum import Point, WeightedSoftmax

DENSE = 1000
"""Parameters up to which the Hessian is formed whole."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """M = LLᵀ, in blocks along the diagonal.

    Attributes:
        factors: L of each block, lower triangular; together they have d rows.
    """

    factors: tuple[Float64[Array, "q q"], ...]

    def variables(self, W: Float64[Array, "c p"]) -> Float64[Array, " d"]:
        """V = Lᵀ W."""
        parts = zip(self.factors, W.reshape(len(self.factors), -1), strict=True)
        return np.concatenate([L.T @ w for L, w in parts])

    def model(self, V: Float64[Array, " d"], classes: int) -> Float64[Array, "c p"]:
        """W = L⁻ᵀ V, projected."""
        return centred(self._solved(V, "T").reshape(classes, -1))

    def slope(self, G: Float64[Array, "c p"]) -> Float64[Array, " d"]:
        """The gradient in V of a function with gradient G in W: L⁻¹ G, projected."""
        return self._solved(centred(G).reshape(-1), "N")

    def solve(self, R: Float64[Array, "c p"]) -> Float64[Array, "c p"]:
        """M⁻¹ R between projections."""
        return self.model(self.slope(R), len(R))

    def _solved(
        self, v: Float64[Array, " d"], trans: Literal["N", "T"]
    ) -> Float64[Array, " d"]:
        parts = zip(self.factors, v.reshape(len(self.factors), -1), strict=True)
        return np.concatenate(
            [
                scipy.linalg.solve_triangular(
                    L, part, lower=True, trans=trans, check_finite=False
                )
                for L, part in parts
            ]
        )


def metric_at_zero(f: WeightedSoftmax) -> Metric:
    """The Hessian at W = 0: (1/c) Σ_j ω_j a_j a_jᵀ + λI in every class."""
    L = np.linalg.cholesky(f.gram(f.weights / f.classes))
    return Metric((L,) * f.classes)


def metric_at(f: WeightedSoftmax, point: Point) -> Metric:
    """The Hessian at a point: whole where parameters are few, else its class blocks.

    Raises:
        LinAlgError: a class without curvature.
    """
    if point.W.size <= DENSE:
        return Metric((np.linalg.cholesky(f.hessian(point.probabilities)),))
    blocks = f.class_blocks(point.probabilities)
    return Metric(tuple(np.linalg.cholesky(block) for block in blocks))


def centred(V: Float64[Array, "c p"]) -> Float64[Array, "c p"]:
    """V projected on Σ_k v_k = 0.

    A vector common to all classes changes no probability. Without penalty the Hessian
    is singular along it, and conjugate gradients would wander off.
    """
    return np.asarray(V - V.mean(axis=0))
