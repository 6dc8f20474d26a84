"""Weights that minimise the quadratic model of a round, over the simplex."""

import numpy as np
from jaxtyping import Float64

from hewfl.aggregate.post_local import post_local_weights
from hewfl.core.algorithm import RoundModel
from hewfl.core.checks import Array
from hewfl.core.displacements import OwnSum
from hewfl.core.round import Decision, Round
from hewfl.solver.simplex import solve_gram


def least_model(round_: Round, model: RoundModel, *, null: bool) -> Decision:
    """Weights of the least quadratic model; with `null` standing still is one more."""
    endpoints, reference = round_.displacements, model.reference
    if null:
        endpoints = endpoints.with_null()
        if isinstance(reference, OwnSum):
            reference = OwnSum(np.append(reference.weights, 0.0))
    solution = post_local_weights(endpoints, reference, model.curvature)
    weights = solution.weights[: len(round_.roster.clients)]
    gap, value = float(solution.gap), float(solution.value)
    return Decision(weights, solution.status, gap, value=value)


def least_cross_fitted(
    round_: Round, judges: Float64[Array, "n n"], curvature: float, *, null: bool
) -> Decision:
    """Weights that minimise Σ w_iq_i + (Λ/2)‖Σ w_iΔ_i‖², q_i = ⟨Δ_i, Σ_j V_ijΔ_j⟩.

    All of it comes from the Gram matrix. The decision has no `value`: what is minimised
    is no function of the step.

    Args:
        round_: with the endpoints to choose from.
        judges: V, row i without an entry at i.
        curvature: Λ.
        null: whether standing still is one more endpoint; nobody is judged by it.
    """
    endpoints = round_.displacements
    if null:
        endpoints, judges = endpoints.with_null(), np.pad(judges, (0, 1))
    problem = endpoints.products().judged_by(judges, curvature)
    solution = solve_gram(problem, curvature)
    weights = solution.weights[: len(round_.roster.clients)]
    status = f"{solution.status}; slopes from the other clients"
    return Decision(weights, status, float(solution.gap))
