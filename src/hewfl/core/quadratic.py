"""One prepared problem: the quadratic in units of its own size, and its certificate."""

from dataclasses import dataclass
from typing import Self, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from hewfl.core.active_set import error_scale
from hewfl.core.checks import Array


@final
@dataclass(frozen=True, slots=True)
class Quadratic:
    """⟨c, w⟩ + ½ wᵀHw, times 2^exponent; H and c are of size one.

    Attributes:
        H: Λ G scaled.
        c: q scaled.
        exponent: the power of two taken out, so that nothing over- or underflows.
    """

    H: Float64[Array, "n n"]
    c: Float64[Array, " n"]
    exponent: int

    @classmethod
    def of(cls, G: Array, q: Array, curvature: float) -> Self:
        """Scale ΛG and q by the power of two next to the larger of them."""
        mantissa, e = np.frexp(curvature)
        top, size = np.diagonal(G).max(), np.abs(q).max()
        sizes = [int(np.frexp(top)[1]) + int(e)] if top > 0 else []
        k = max([*sizes, int(np.frexp(size)[1])] if size > 0 else sizes, default=0)
        shift = int(e) - k
        if abs(shift) < 1000:
            return cls(G * np.ldexp(mantissa, shift), np.ldexp(q, -k), k)
        return cls(np.ldexp(G * mantissa, shift), np.ldexp(q, -k), k)

    def _gradient(self, w: Float64[Array, " n"]) -> tuple[Array, float]:
        """Gradient up to a constant, the constant: c is centred where the weight is."""
        S = np.flatnonzero(w)
        shift = self.c[np.argmax(w)]
        return self.H[S].T @ w[S] + (self.c - shift), float(shift)

    def reduced_costs(
        self, w: Float64[Array, " n"]
    ) -> tuple[Float64[Array, " n"], Float64[Array, " n"]]:
        """∇_i − ⟨w, ∇⟩, negative where a client should enter, and its error scale e_i."""
        gradient, shift = self._gradient(w)
        scale = error_scale(np.sqrt(np.diagonal(self.H)), self.c - shift, w)
        return gradient - w @ gradient, np.maximum(scale, 1e-300)

    def certificate(
        self, w: Float64[Array, " n"]
    ) -> tuple[Float64[Array, " n"], NDArray[np.float64], NDArray[np.float64]]:
        """Multipliers ∇_i − min ∇, value, gap = Σ w_i multipliers_i, in given units."""
        gradient, shift = self._gradient(w)
        multipliers = gradient - gradient.min()
        value = 0.5 * (w @ (gradient + self.c) + shift)
        k = self.exponent
        return (
            np.ldexp(multipliers, k),
            np.ldexp(value, k),
            np.ldexp(w @ multipliers, k),
        )
