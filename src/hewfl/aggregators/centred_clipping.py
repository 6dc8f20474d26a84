"""Centred clipping: the mean of updates that are clipped around the last aggregate."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.distances import sq_distances_to
from hewfl.aggregators.one_step_size import PlainBranches
from hewfl.core.algorithm import FirstGradients
from hewfl.core.array_types import Float64
from hewfl.core.displacements import Displacements
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, Count, Positive
from hewfl.displacements.backend import to_host


@final
@dataclass(frozen=True, slots=True)
class CentredClippingState:
    """What the server remembers.

    Attributes:
        previous: v, the step of the last round; zero before the first.
    """

    previous: Float64[Array, " d"]


@final
@dataclass(frozen=True, slots=True)
class CentredClipping(PlainBranches):
    """Nobody pulls the step away from the last one by more than τ [Karimireddy2021].

        v ← v + (1/n) Σ_i (Δ_i − v) min{1, τ/‖Δ_i − v‖}           several times
        step = v

    from v = the step of the last round, zero before the first. The paper sends momenta
    of the clients, (1 − β) g + β m; here displacements are clipped as they are, which
    is its form at β = 0. What the server step adds is not part of v.

    τ is relative unless told otherwise: `radius` times the median over clients of
    ‖Δ_i − v‖, anew for each pass, so that at radius 1 the nearer half is not clipped
    and nothing has a unit. `relative=False` makes τ a length, constant over the rounds,
    as in the paper.

    The step contains v, so it is given as such; `weights` holds the factors of the
    displacements in it, which sum to at most one: the rest is the last step's.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        radius: > 0, τ over the median distance, or τ itself; 1 is our choice.
        iterations: passes; 5 as in Blades; 1 in the authors' code.
        relative: whether `radius` is in units of the median distance.
    """

    radius: Positive = 1.0
    iterations: Count = 5
    relative: bool = True

    name: ClassVar[str] = "Centred clipping"

    def init(self, n: int, d: int, gradients: FirstGradients) -> CentredClippingState:
        """No step taken yet."""
        return CentredClippingState(np.zeros(d))

    def decide(
        self, round_: Round, state: CentredClippingState
    ) -> tuple[Decision, CentredClippingState]:
        """The clipped step, and its factors of the displacements."""
        D, v = round_.displacements, state.previous
        K, exponent = products_with_vector(D, v)
        length = float(np.ldexp(self.radius, -exponent // 2))  # exponents are even
        a = np.zeros(D.n + 1)
        a[-1] = 1.0  # v = a_{n+1} v_0 + Σ a_iΔ_i, and a sums to one
        for _ in range(self.iterations):
            far = np.sqrt(sq_distances_to(K, a))[:-1]
            tau = self.radius * float(np.median(far)) if self.relative else length
            share = np.minimum(
                1.0, np.divide(tau, far, out=np.ones_like(far), where=far > 0)
            )
            a *= 1 - share.mean()
            a[:-1] += share / D.n
        step = to_host(D.combine(a[:-1])) + a[-1] * v
        clipped = int((share < 1).sum())
        status = f"{clipped} of {D.n} clipped in the last pass"
        return Decision(a[:-1], status, step=step), CentredClippingState(step.copy())


def products_with_vector(
    displacements: Displacements, vector: Float64[Array, " d"]
) -> tuple[Float64[Array, "m m"], int]:
    """Products of the displacements and of one vector more, around a short one.

    With c_i = Δ_i − r and e = v − r it is the Gram matrix of c_1, …, c_n, e. The weight
    problem of g = −v and Λ = 1 holds all of it: q_i = ⟨c_i, r − v⟩ = −⟨c_i, e⟩ and
    2·offset + ‖v‖² = ‖r‖² − 2⟨v, r⟩ + ‖v‖² = ‖e‖².

    Returns:
        The matrix times 2^−exponent, of n + 1 rows, and the exponent.
    """
    found, n = displacements.products(-vector, 1.0), displacements.n
    length = displacements.from_matrix(vector[None, :]).dot(vector, vector)
    K = np.empty((n + 1, n + 1))
    K[:n, :n], K[n, :n], K[:n, n] = found.gram, -found.linear, -found.linear
    K[n, n] = max(0.0, 2 * found.offset + float(np.ldexp(length, -found.exponent)))
    return K, found.exponent
