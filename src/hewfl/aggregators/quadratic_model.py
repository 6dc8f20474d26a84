"""The quadratic model of a round, and the weights that minimise it over the simplex.

The model is ⟨g, d⟩ + (Λ/2)‖d‖² of a step d = Σ w_iΔ_i. Along the mean update
m = (1/S) Σ Δ_i it is least at

    a·m,   a = −⟨g, m⟩/(Λ‖m‖²),   so that   Λ = κ · (−⟨g, m⟩)/‖m‖²   means   a = 1/κ.

In Algorithm 3 with an equal total step s = η_iH_i the reference is g = −m/s. Then
Λ = κ/s, and up to a constant the model is (Λ/2)‖d − m/κ‖²: exact weights are the
projection of the mean update, divided by κ, onto the hull of the updates. κ = 1 gives
equal weights, κ → ∞ the point of least norm. κ has no units; it needs no L, and
nothing is certified.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from hewfl.core.algorithm import Need, RoundModel
from hewfl.core.array_types import Float64
from hewfl.core.displacements import Displacements, LinearCombination, Products
from hewfl.core.round import Cohort, Decision, Round
from hewfl.core.validation import Array, PerClient, Schedule, at_round, invalid
from hewfl.displacements.post_local import post_local_weights, reference_at
from hewfl.solver.simplex import solve_gram


def minimise_model(round_: Round, model: RoundModel, *, null: bool) -> Decision:
    """Weights that minimise the model; with `null` a zero update is one more choice."""
    endpoints: Products = round_.displacements
    reference = model.reference
    if null:
        endpoints = endpoints.append_zero()
        if isinstance(reference, LinearCombination):
            reference = LinearCombination(np.append(reference.weights, 0.0))
    solution = post_local_weights(endpoints, reference, model.curvature)
    weights = solution.weights[: len(round_.cohort.clients)]
    gap, value = float(solution.gap), float(solution.value)
    return Decision(weights, solution.status, gap, value=value)


def minimise_cross_fitted(
    round_: Round, slopes: Float64[Array, "n n"], curvature: float, *, null: bool
) -> Decision:
    """Weights that minimise Σ w_iq_i + (Λ/2)‖Σ w_iΔ_i‖², q_i = ⟨Δ_i, Σ_j V_ijΔ_j⟩.

    All of it comes from the Gram matrix. The decision has no `value`: what is minimised
    is no function of the step.

    Args:
        round_: with the endpoints to choose from.
        slopes: V, row i without an entry at i.
        curvature: Λ.
        null: whether a zero update is one more choice; no slope refers to it.
    """
    endpoints: Products = round_.displacements
    if null:
        endpoints, slopes = endpoints.append_zero(), np.pad(slopes, (0, 1))
    problem = endpoints.products().cross_fitted(slopes, curvature)
    solution = solve_gram(problem, curvature)
    weights = solution.weights[: len(round_.cohort.clients)]
    status = f"{solution.status}; slopes from the other clients"
    return Decision(weights, status, float(solution.gap))


RATIO = 1.25
"""Λ/L where an L is given and nothing is said of Λ."""
SAME_TOTAL = 1e-12
"""Relative difference of η_iH_i that is the rounding of ϑ/(L H_i) · H_i."""
EPS = float(np.finfo(np.float64).eps)
LEAST_NORM = RoundModel(None, 1.0, None)
"""Without a slope: the shortest combination of displacements, whatever Λ is."""


STEP_NEEDS: frozenset[Need] = frozenset({"steps", "step_sizes"})
"""What Algorithms 2 and 3 look at beside products: η_iH_i."""


def check_ratio(ratio: Schedule) -> None:
    """Require Λ/L > 1; a function of the round is checked when it is called."""
    if not callable(ratio):
        ratio_at(ratio, 0)


def ratio_at(ratio: Schedule, t: int) -> float:
    """Λ_t/L in round t."""
    value = at_round("curvature_ratio", ratio, t)
    if not value > 1:
        raise invalid("curvature_ratio", "above 1 (Λ > L)", value)
    return value


def step_sizes(
    smoothness: float, amplitude: Schedule, cohort: Cohort
) -> Float64[Array, " s"]:
    """One total step for all: η_i = ϑ_t/(L H_i)."""
    theta = at_round("amplitude", amplitude, cohort.round)
    return np.asarray(theta / (smoothness * cohort.horizons))


def unit_lengths(round_: Round) -> Float64[Array, " s"]:
    """‖Δ_i‖, by which displacements become directions; one where it is zero."""
    sq_lengths = np.diagonal(round_.displacements.gram())
    return np.sqrt(np.where(sq_lengths > 0, sq_lengths, 1.0))


def kappa_model(
    round_: Round,
    reference: Any,
    kappa: Schedule,
    total_step: Float64[Array, " s"] | None = None,
) -> RoundModel:
    """The model about a reference with Λ = κ · (−⟨g, m⟩)/‖m‖², m the mean displacement.

    Where the reference sees no descent along the mean (⟨g, m⟩ ≥ 0, or m = 0) or the
    quotient is beyond float64, there is no such Λ: the model is then that of the point
    of least norm, as for κ → ∞. With c_0 = 0 this is the first round of Algorithm 2.

    Args:
        round_: with the displacements.
        reference: g, a vector of the round's space or a `LinearCombination`.
        kappa: κ, a number or a function of t.
        total_step: s_i, if the reference is −(1/S) Σ Δ_i/s_i.

    Raises:
        InvalidInputError: κ of this round is not a positive finite number.
    """
    value, D = at_round("kappa", kappa, round_.cohort.round), round_.displacements
    if total_step is not None and np.ptp(total_step) <= SAME_TOTAL * total_step[0]:
        return RoundModel(reference, value / float(total_step[0]), None)  # g = −m/s
    with np.errstate(all="ignore"):
        slope, sq_norm = _along_mean(D, reference)
        curvature = float(np.float64(value) * slope / sq_norm)
    if not 0 < curvature < np.inf:
        return LEAST_NORM
    return RoundModel(reference, curvature, None)


def _along_mean(D: Displacements, reference: Any) -> tuple[float, float]:
    """−⟨g, m⟩ and ‖m‖², times one positive number."""
    p = np.full(D.n, 1 / D.n)
    products = D.products()
    K = replace(products, exponent=0).uncentred_gram()  # unscaled: no overflow
    sq_norm = float(p @ K @ p)
    if sq_norm <= D.n * EPS * np.diagonal(K).max():  # m is zero but for rounding
        return 0.0, 0.0
    if not isinstance(reference, LinearCombination):
        slope = -float(p @ D.inner(reference_at(reference, D)))
        return float(np.ldexp(slope, -products.exponent)), sq_norm
    return -float(reference.weights @ K @ p), sq_norm


def leave_one_out_weights(shares: PerClient) -> Float64[Array, "n n"]:
    """Row i: the weights of a mean without client i.

        P_ij = p_j / Σ_{k≠i} p_k for j ≠ i,   P_ii = 0

    Args:
        shares: p ≥ 0 of at least two clients. Where all of it lies on i, the others
            share alike.
    """
    n = len(shares)
    P = np.tile(shares, (n, 1))
    np.fill_diagonal(P, 0.0)
    P[P.sum(axis=1) == 0] = 1.0
    np.fill_diagonal(P, 0.0)
    return np.asarray(P / P.sum(axis=1, keepdims=True))
