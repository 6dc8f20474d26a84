"""The geometric median of the displacements, with a certificate (RFA)."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.distances import central_distance, sq_distances, sq_distances_to
from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.array_types import Float64
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, Count, PerClient, Positive

RESOLVED = 1e-15
"""Distances below this × the largest are rounding: the smoothing is never finer."""
SETTLED = 1e-14
"""Weights that change by less than this have arrived."""


@final
@dataclass(frozen=True, slots=True)
class GeometricMedian(Memoryless):
    """The point with the least sum of distances to the displacements [Pillutla2022].

        z = argmin Σ_i α_i h(‖z − Δ_i‖),    h(t) = t for t ≥ ν, else t²/(2ν) + ν/2
        c_i = α_i / max(ν, ‖z − Δ_i‖),      z ← Σ_i c_iΔ_i / Σ_i c_i

    The second line is the smoothed Weiszfeld step, from the mean Σ α_iΔ_i on. z is a
    combination of the displacements at every step, so distances are quadratic forms of
    their products and the data are read once.

    `gap` is certified. With the c_i of a point z and the next point z⁺, the multipliers
    u_i = κ c_i (z⁺ − Δ_i) sum to zero, and κ ≤ 1 makes ‖u_i‖ ≤ α_i, so

        least value ≥ κ Σ_i c_i d_i² − (ν/2) κ² Σ_i c_i² d_i²/α_i + ν/2,
                      d_i = ‖z⁺ − Δ_i‖

    and the gap is the value at z⁺ minus that bound: a length, as the value is. The
    smoothed value is above the plain sum of distances by at most ν/2.

    The paper stops after a few steps, as each of them is a secure sum over the clients;
    here the products are at hand, and the steps go on until weights rest. It weighs
    clients by data size; sizes are the clients' own claims, so here they count only
    with `by_size`. Its ν is a length; here it is relative.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        smoothing: ν > 0 in units of the least radius around one client that holds half
            of the others; 1e-6 is the number of public implementations, where it is a
            length.
        iterations: Weiszfeld steps at most.
        by_size: α_i = m_i/Σ_{j∈S} m_j as in the paper; otherwise 1/S.
    """

    smoothing: Positive = 1e-6
    iterations: Count = 1000
    by_size: bool = False

    name: ClassVar[str] = "Geometric median"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = c_i/Σc_j at the last point, and the certified gap."""
        m, products = round_.cohort.data_sizes, round_.displacements.products()
        alpha = m / m.sum() if self.by_size else np.full(len(m), 1 / len(m))
        apart = sq_distances(products.gram)
        if apart.max() == 0:
            return Decision(alpha, "all displacements agree"), state
        rounding = RESOLVED * np.sqrt(apart.max())
        nu = max(self.smoothing * central_distance(apart), float(rounding))

        c, change = weiszfeld(products.gram, alpha, nu, self.iterations)
        weights = c / c.sum()
        distances = np.sqrt(sq_distances_to(products.gram, weights))
        gap = fermat_weber_gap(distances, c, alpha, nu)
        rest = "" if change <= SETTLED else f", weights still moving by {change:.0e}"
        gap = float(np.ldexp(gap, products.exponent // 2))  # exponents are even
        return Decision(weights, f"geometric median{rest}", gap), state


def weiszfeld(
    gram: Float64[Array, "n n"], alpha: PerClient, nu: float, iterations: int
) -> tuple[PerClient, float]:
    """Smoothed Weiszfeld steps from the mean on, until the weights rest.

    Args:
        gram: G, products around any common vector.
        alpha: α > 0, of sum one.
        nu: ν > 0, in the units of √G.
        iterations: at most so many steps.

    Returns:
        c_i = α_i/max(ν, ‖z − Δ_i‖) at the last point but one, which the last point is
        the mean of; and by how much the weights c/Σc changed in the last step.
    """
    weights = alpha
    for _ in range(iterations):
        before = weights
        c = alpha / np.maximum(nu, np.sqrt(sq_distances_to(gram, before)))
        weights = c / c.sum()
        change = float(np.abs(weights - before).max())
        if change <= SETTLED:
            break
    return c, change


def fermat_weber_gap(
    distances: PerClient, c: PerClient, alpha: PerClient, nu: float
) -> float:
    """How far the smoothed sum of distances can be above its least value, at most.

    Args:
        distances: d_i, of z⁺ = Σ c_iΔ_i/Σ c_i to the displacements.
        c: positive factors, c_i = α_i/max(ν, ‖z − Δ_i‖) for the z before.
        alpha: α > 0, of sum one.
        nu: ν > 0.
    """
    smooth = np.where(distances >= nu, distances, distances**2 / (2 * nu) + nu / 2)
    lengths = c * distances  # of the multipliers before κ
    kappa = 1 / max(1.0, float((lengths / alpha).max()))
    linear = kappa * lengths @ distances
    quadratic = kappa**2 * (lengths**2 / alpha).sum()
    least = linear - nu / 2 * quadratic + nu / 2
    return max(0.0, float(alpha @ smooth - least))
