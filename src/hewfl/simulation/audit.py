"""Audits: certificates compared with the true objective, round by round.

For any step d and reference c (c_t in Algorithm 2, the mean local gradient ḡ_t in
Algorithm 3), with Λ > L,

    F(x + d) ≤ F(x) + ⟨c, d⟩ + (Λ/2)‖d‖² + ‖∇F(x) − c‖² / (2(Λ − L))

(th:realized-het-one-step, th:realized-hom-one-step). It holds for every step, so it is
checked for the move, momentum included. The slack is the right side minus
the left; it is never negative when L bounds the smoothness of F.
"""

from collections.abc import Mapping

import numpy as np

from hewfl.core.algorithm import Certified, Modelled
from hewfl.core.array_types import Float64
from hewfl.core.displacements import LinearCombination
from hewfl.core.validation import Array
from hewfl.problems.problem import Problem
from hewfl.simulation.rounds import Observer, Step

ROUNDING = 1e-9
"""A slack below −this, relative to the terms, counts as a violation."""


def pathwise_audit(step: Step) -> Mapping[str, float]:
    """Slack of the pathwise certificate; empty for methods without one.

    Args:
        step: one entry's round.

    Returns:
        `certificate_slack`, negative where the bound is broken, and
        `certificate_violated`, 1 where it is broken by more than rounding.
    """
    return _audit(step, {})


def pathwise_audit_of_all() -> Observer:
    """`pathwise_audit` for a whole run: entries at one point share its gradient.

    All entries start at one point, and a gradient over all samples costs as much as
    several rounds.
    """
    gradients: dict[bytes, Float64[Array, " d"]] = {}
    return lambda step: _audit(step, gradients)


def _audit(
    step: Step, gradients: dict[bytes, Float64[Array, " d"]]
) -> Mapping[str, float]:
    """The slack of a step; `gradients` caches ∇F at the last anchor."""
    algorithm, round_ = step.algorithm, step.round
    if not isinstance(algorithm, Modelled):
        return {}
    model = algorithm.model(round_, step.state)
    if model is None or model.smoothness is None:
        return {}
    reference = model.reference
    if reference is None:
        reference = np.zeros(len(round_.anchor))
    if isinstance(reference, LinearCombination):
        reference = round_.displacements.combine(reference.weights)
    x, d, problem = round_.anchor, step.move, step.problem
    before, after = problem.objectives(np.stack([x, x + d]))[:, 0]
    if x.tobytes() not in gradients:
        gradients.clear()
        rows = np.asarray(problem.full_gradients(x[None])[0], dtype=np.float64)
        gradients[x.tobytes()] = rows.mean(axis=0)
    error = gradients[x.tobytes()] - reference
    tracking = float(error @ error) / (2 * (model.curvature - model.smoothness))
    change = float(reference @ d + 0.5 * model.curvature * (d @ d))
    slack = float(before) + change + tracking - float(after)
    size = abs(float(before)) + abs(change) + tracking + abs(float(after))
    return {
        "certificate_slack": slack,
        "certificate_violated": float(slack < -ROUNDING * size),
    }


def control_audit(problem: Problem) -> Observer:
    """Algorithm 1's bound J on the expected next gap, beside the true next gap.

    The bound is on an expectation over minibatches: single rounds may exceed it, their
    mean over repetitions that share the participation may not (th:predictive-majorant,
    th:sur-system). It is about the plain server step: rounds with momentum or another
    step size at the server are left out, and so are runs with faulty clients.

    Args:
        problem: what is optimised; the audit solves for its minimum.

    Returns:
        An observer that gives `certified_gap`, `next_gap` and `mean_amplitude`.
    """
    best = problem.optimum().objective

    def observe(step: Step) -> Mapping[str, float]:
        algorithm, round_ = step.algorithm, step.round
        if step.faulty or not isinstance(algorithm, Certified):
            return {}
        plain = round_.displacements.combine(step.decision.weights)
        if np.linalg.norm(step.move - plain) > ROUNDING * np.linalg.norm(plain):
            return {}
        theta, J = algorithm.certified(round_, step.state, step.decision.weights)
        after = problem.objectives((round_.anchor + step.move)[None])[0, 0]
        return {
            "certified_gap": J,
            "next_gap": float(after) - best,
            "mean_amplitude": float(theta.mean()),
        }

    return observe
