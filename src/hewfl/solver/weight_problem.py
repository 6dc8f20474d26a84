"""One weight problem prepared for a solver, in units of its own size."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array
from hewfl.solver.active_set import error_scale
from hewfl.solver.columns import Index
from hewfl.solver.least_norm import levelled, row_space


@final
@dataclass(frozen=True, slots=True)
class WeightProblem:
    """The objective ⟨c, w⟩ + ½ wᵀHw, times 2^exponent; H and c are of size one.

    Attributes:
        H: Λ G scaled.
        c: q scaled.
        exponent: the power of two taken out, so that nothing over- or underflows.
    """

    H: Float64[Array, "n n"]
    c: Float64[Array, " n"]
    exponent: int

    @property
    def size(self) -> float:
        """Magnitude of the objective's variation over the simplex."""
        return float(np.diagonal(self.H).max() + np.ptp(self.c))

    def _gradient(self, w: Float64[Array, " n"]) -> tuple[Array, float]:
        """Gradient up to a constant, the constant: c is centred where the weight is.

        Reduced costs are differences of the gradient's entries: a constant far larger
        than they are would take their digits.
        """
        S = np.flatnonzero(w)
        shift = self.c[np.argmax(w)]
        return self.H[S].T @ w[S] + (self.c - shift), float(shift)

    def reduced_costs(
        self, w: Float64[Array, " n"]
    ) -> tuple[Float64[Array, " n"], Float64[Array, " n"]]:
        """∇_i − ⟨w, ∇⟩, negative where a client should enter; its error scale e_i."""
        gradient, shift = self._gradient(w)
        scale = error_scale(np.sqrt(np.diagonal(self.H)), self.c - shift, w)
        costs: Array = gradient - w @ gradient
        return costs, scale

    def level(self, w: Float64[Array, " n"]) -> Float64[Array, " n"]:
        """Weights w with the rounding errors of their face removed.

        Two Newton steps: the second sees a gradient that the first has made small.
        """
        S = np.flatnonzero(w)
        for _ in range(2):
            gradient, _shift = self._gradient(w)
            w = w.copy()
            w[S] = levelled(self.H[np.ix_(S, S)], gradient[S], w[S])
        level: Array = w / w.sum()
        return level

    def face_basis(self, members: Index) -> Float64[Array, "m r"] | None:
        """Row space of the columns on a face, None if they are independent."""
        return row_space(self.H[np.ix_(members, members)])

    def certificate(
        self, w: Float64[Array, " n"]
    ) -> tuple[Float64[Array, " n"], float, float]:
        """Multipliers ∇_i − min ∇, value, gap = Σ w_i multipliers_i, in given units."""
        gradient, shift = self._gradient(w)
        multipliers = gradient - gradient.min()
        value = 0.5 * (w @ (gradient + self.c) + shift)
        k = self.exponent
        with np.errstate(over="ignore"):  # an infinite value is refused by the caller
            gap = np.ldexp(w @ multipliers, k)
            return np.ldexp(multipliers, k), float(np.ldexp(value, k)), float(gap)


def scaled(
    G: Float64[Array, "n n"], q: Float64[Array, " n"], curvature: float
) -> WeightProblem:
    """Prepare a problem: ΛG and q over the power of two next to the larger of them.

    Args:
        G: Gram matrix; made symmetric.
        q: linear term.
        curvature: Λ > 0.

    Returns:
        The problem, exact up to the rounding of Λ G_ij.
    """
    # A power of two rounds nothing; without it squares of sizes near 1e200 overflow.
    if not np.array_equal(G, G.T):
        G = 0.5 * G + 0.5 * G.T
    mantissa, e = np.frexp(curvature)
    top, size = np.diagonal(G).max(), np.abs(q).max()
    sizes = [int(np.frexp(top)[1]) + int(e)] if top > 0 else []
    k = max([*sizes, int(np.frexp(size)[1])] if size > 0 else sizes, default=0)
    shift = int(e) - k
    if abs(shift) < 1000:
        return WeightProblem(G * np.ldexp(mantissa, shift), np.ldexp(q, -k), k)
    return WeightProblem(np.ldexp(G * mantissa, shift), np.ldexp(q, -k), k)
