"""What Algorithms 2 and 3 share: their controls, and bounds along every path.

Weights are chosen after the local steps. Path by path (th:realized-het-one-step,
th:realized-hom-one-step), for every Λ > L and every step d = Σ w_i Δ_i,

    F(x + d) − F* ≤ f + Ψ(w) + ‖∇F − c‖²/(2(Λ − L)),     Ψ = ⟨c, d⟩ + (Λ/2)‖d‖².
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from hewfl.core.checks import (
    Array,
    ArrayLike,
    Reals,
    as_float64,
    invalid,
    nonnegatives,
    positives,
)
from hewfl.core.shapes import broadcasting
from hewfl.theory.statement import Hypothesis, at_most, below
from hewfl.theory.systems import System

if TYPE_CHECKING:
    Sampling = Literal["one objective", "fresh draws", "fixed shards"]
else:  # run-time type checks let a wrong name through to a text with the choices
    Sampling = str
_SAMPLINGS = {"one objective": True, "fresh draws": True, "fixed shards": False}


@final
@dataclass(frozen=True, slots=True, eq=False)
class PostLocal:
    """What a post-local controller fixes before a round, or for every round.

    Attributes:
        amplitude: ϑ > 0, shape (*c), or (rounds, *c) for a schedule.
        curvature: Λ > L, likewise.
    """

    amplitude: ArrayLike
    curvature: ArrayLike

    def against(self, system: System) -> tuple[Reals, Reals]:
        """Checked ϑ and Λ.

        Raises:
            InvalidInputError: ϑ ≤ 0 or Λ ≤ L.
        """
        theta = positives("amplitude", self.amplitude)
        return theta, above_smoothness(self.curvature, system.L)


@broadcasting
def post_local_hypotheses(
    theta: ArrayLike, Lambda: ArrayLike, L: ArrayLike
) -> tuple[Hypothesis, ...]:
    """Conditions of all post-local bounds in expectation; tuned runs break them (E-02).

    They imply ϑ < 1/2.
    """
    named = (("theta", theta), ("Lambda", Lambda), ("L", L))
    th, lam, smooth = (positives(name, value) for name, value in named)
    return (
        below("L < Λ", smooth, lam),
        at_most("Λ ≤ 2L", lam, 2 * smooth),
        at_most("Λϑ ≤ L/2", lam * th, smooth / 2),
    )


def above_smoothness(curvature: ArrayLike, L: Array) -> Reals:
    """Checked Λ > L."""
    Lambda = positives("curvature", curvature)
    low = np.broadcast_arrays(Lambda, L)[0][Lambda <= L]
    if low.size:
        raise invalid("curvature", "above the smoothness L", low.flat[0])
    return Lambda


@broadcasting
def pathwise_bound(
    gap: ArrayLike,
    model_value: ArrayLike,
    sq_mismatch: ArrayLike,
    curvature: ArrayLike,
    smoothness: ArrayLike,
) -> Reals:
    """Bound on the next gap along every path (th:realized-het-one-step).

        f + Ψ(w) + ‖∇F(x) − c‖²/(2(Λ − L))

    True for any step, any reference c and any Λ > L, whatever the amplitudes; with the
    mean local gradient ḡ for c it is th:realized-hom-one-step.

    Args:
        gap: f = F(x) − F*.
        model_value: Ψ(w) at the weights played; for an ε-minimiser that of the weights
            it returned, or the minimum plus ε (E-31).
        sq_mismatch: ‖∇F(x) − c‖².
        curvature: Λ.
        smoothness: L.

    Returns:
        The bound, shape (*c).

    Raises:
        InvalidInputError: Λ ≤ L.
    """
    L = positives("smoothness", smoothness)
    spread = above_smoothness(curvature, L) - L
    error = nonnegatives("sq_mismatch", sq_mismatch) / 2 / spread
    f, psi = nonnegatives("gap", gap), as_float64("model_value", model_value)
    return np.asarray(f + psi + error)


@broadcasting
def uniform_model_value(
    amplitude: ArrayLike,
    curvature: ArrayLike,
    smoothness: ArrayLike,
    sq_slope: ArrayLike,
) -> Reals:
    """Ψ at uniform weights, where d = −(ϑ/L)ḡ (eq:realized-hom-id).

    Ψ(1/n) = −(ϑ/L)(1 − Λϑ/(2L)) ‖ḡ‖²
    """
    L = positives("smoothness", smoothness)
    theta = positives("amplitude", amplitude)
    Lambda = above_smoothness(curvature, L)
    decrease = theta / L * (1 - Lambda * theta / 2 / L)
    return np.asarray(-decrease * nonnegatives("sq_slope", sq_slope))


@broadcasting
def plain_advantage(uniform_value: ArrayLike, model_value: ArrayLike) -> Reals:
    """Γ = Ψ(1/n) − Ψ(w), what exact weights gain over uniform ones; ≥ 0 for them."""
    uniform = as_float64("uniform_value", uniform_value)
    return np.asarray(uniform - as_float64("model_value", model_value))


def is_homogeneous(sampling: Sampling, *, printed: bool = False) -> bool:
    """Whether plain branches see ∇F itself (lem:postlocal-hom-sufficient).

    "one objective": F_i = F for all clients. "fresh draws": every batch is drawn anew
    from the pool that F averages. "fixed shards": the pool is shuffled and dealt once;
    given its shard a client sees ∇F_i ≠ ∇F, and no number of rounds averages that out
    (erratum E-14). The printed lemma counts shards as sufficient.

    Args:
        sampling: where batches come from.
        printed: the paper's lemma, which is false for shards.

    Returns:
        True where E[batch gradient] = ∇F for every client in every round.

    Raises:
        InvalidInputError: an unknown sampling.
    """
    if sampling not in _SAMPLINGS:
        raise invalid("sampling", f"one of {', '.join(_SAMPLINGS)}", repr(sampling))
    return printed or _SAMPLINGS[sampling]
