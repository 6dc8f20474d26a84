"""The paper's statements as functions: bounds, with the conditions that make them true.

What a theorem is told, and what it returns:

    System, system_of         L, R and every client's H, b, v²; out of solver records
    PostLocal                 ϑ and Λ of Algorithms 2 and 3
    Rate, Bound, Hypothesis   a number, its floor, and each condition with its two sides
    Recursion, Trajectory     coefficients of a family; its bounds round by round

One family of theorems a line; *coefficients* build a `Recursion`, *recursion* iterates
it, *rate* is the closed form:

    situation, one_step, advantage, largest_descent_amplitude     one round (3, B)
    surrogate_system, surrogate_under                   controls of a whole run (B, C)
    comparator_coefficients, _recursion, _rate          fixed controls, convex (B, C)
    uniform_coefficients, uniform_trajectory            uniform weights (3, C)
    pl_rate, safe_rate, safe_amplitude                      under the PL condition
    higher_order, higher_order_trajectory               similar Hessians (3, C)
    best_iterate_rate, last_iterate_rate                rates under them
    pathwise_bound, is_homogeneous                      Algorithms 2 and 3, any path (D)
    corrected_coefficients, _recursion, _rate           Algorithm 2 in expectation
    plain_coefficients, _recursion, _rate, _pl_rate     Algorithm 3 in expectation
    noise_optimal, best_comparator                      weights of least noise
    propagated_tracking                                 clients that stay away (E-19)
    communication, round_work                           what a round costs (H)
    scalar_rate, linear_rate                            the two scalar lemmas (A)

From theorems to decisions:

    Case, certify, Certificate, Promise     everything known about one federation
    THEOREMS, theorem_curve, Curve          one theorem as a function of the rounds
    design, Design, rounds_to, certified_amplitudes     the amplitude for a target
    improvements, Improvement               what one change would do to the guarantee

Everything else is in the module of its part: `scalar` (A), `radii` (B, C, D), `noise`,
`pl`, `similar_hessians`, `post_local`, `degeneration` (G); Appendix E, on abstract
recursions, is the package `general`. On the right are the paper's sections and
appendices. All of it broadcasts over configurations; where a statement speaks of
clients, theirs is the last axis. No function is called like a module.
"""

from hewfl.theory.appendix.absent_clients import propagated_tracking
from hewfl.theory.appendix.surrogate import surrogate_system, surrogate_under
from hewfl.theory.case import Case
from hewfl.theory.certificates import Certificate, Promise, certify
from hewfl.theory.comparators import (
    comparator_coefficients,
    comparator_rate,
    comparator_recursion,
)
from hewfl.theory.designer import Design, certified_amplitudes, design
from hewfl.theory.heterogeneous import (
    corrected_coefficients,
    corrected_rate,
    corrected_recursion,
)
from hewfl.theory.homogeneous import (
    PostLocal,
    is_homogeneous,
    pathwise_bound,
    plain_coefficients,
    plain_pl_rate,
    plain_rate,
    plain_recursion,
)
from hewfl.theory.noise import best_comparator, noise_optimal
from hewfl.theory.one_step_bound import (
    advantage,
    largest_descent_amplitude,
    one_step,
    situation,
)
from hewfl.theory.pl import pl_rate, safe_amplitude, safe_rate
from hewfl.theory.recursion import Recursion
from hewfl.theory.round_costs import communication, round_work
from hewfl.theory.rounds_to_target import rounds_to
from hewfl.theory.scalar import linear_rate, scalar_rate
from hewfl.theory.sensitivity import Improvement, improvements
from hewfl.theory.similar_hessians import (
    best_iterate_rate,
    higher_order,
    higher_order_trajectory,
    last_iterate_rate,
)
from hewfl.theory.statement import Bound, Hypothesis, Rate
from hewfl.theory.systems import System, system_of
from hewfl.theory.theorems import THEOREMS, Curve, theorem_curve
from hewfl.theory.trajectories import Trajectory
from hewfl.theory.uniform_controller import uniform_coefficients, uniform_trajectory

__all__ = [
    "THEOREMS", "Bound", "Case", "Certificate", "Curve", "Design", "Hypothesis",
    "Improvement", "PostLocal", "Promise", "Rate", "Recursion", "System",
    "Trajectory", "advantage", "best_comparator", "best_iterate_rate",
    "certified_amplitudes", "certify", "communication", "comparator_coefficients",
    "comparator_rate", "comparator_recursion", "corrected_coefficients",
    "corrected_rate", "corrected_recursion", "design", "higher_order",
    "higher_order_trajectory", "improvements", "is_homogeneous",
    "largest_descent_amplitude", "last_iterate_rate", "linear_rate",
    "noise_optimal", "one_step", "pathwise_bound", "pl_rate", "plain_coefficients",
    "plain_pl_rate", "plain_rate", "plain_recursion", "propagated_tracking",
    "round_work", "rounds_to", "safe_amplitude", "safe_rate", "scalar_rate",
    "situation", "surrogate_system", "surrogate_under", "system_of",
    "theorem_curve", "uniform_coefficients", "uniform_trajectory",
]  # fmt: skip
