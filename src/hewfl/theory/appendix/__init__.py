"""Lemmas and appendices of the paper that no command needs, each callable by itself.

Lemmas of Appendices A to D and H:

    scalar_lemmas         gaps, the flow T_a, sums (A)
    radii                 how far a branch moves, and its drift (B, C, D)
    uniform_lemmas        the uniform controller: means, PL, common quadratics (C)
    post_local_lemmas     Algorithms 2 and 3: moments, slope errors, model values (D)
    surrogate             the system of bounds for the controls of a whole run (B, C)
    round_arithmetic      gradients and arithmetic of a round (H)
    special_cases         where the algorithms are gradient descent (G)

Appendix E, recursions S ← R_a(S) + bS + d + ε driven by any convex generator φ:

    generator             φ, its flow R_a, time coordinate χ and slope modulus L_a
    closed_forms          φ = κs², κs^{1+p}, ρs
    convex_flow           any other φ, by quadrature
    master                one step, floors, and closed bounds over many rounds
    bellman               the best of many controls, with its ε
    closure               product terms split by the Fenchel-Young inequality
"""

from hewfl.theory.absent_clients import propagated_tracking
from hewfl.theory.appendix.closed_forms import (
    ExponentialGenerator,
    PowerGenerator,
    QuadraticGenerator,
)
from hewfl.theory.appendix.convex_flow import ConvexGenerator
from hewfl.theory.appendix.generator import Generator
from hewfl.theory.appendix.master import (
    Terms,
    master_trajectory,
    noiseless_bounds,
    noiseless_rate,
    noisy_bounds,
    noisy_rate,
)
from hewfl.theory.appendix.round_arithmetic import round_work
from hewfl.theory.appendix.uniform_lemmas import safe_amplitude, safe_rate

__all__ = [
    "ConvexGenerator", "ExponentialGenerator", "Generator", "PowerGenerator",
    "QuadraticGenerator", "Terms", "master_trajectory", "noiseless_bounds",
    "noiseless_rate", "noisy_bounds", "noisy_rate", "propagated_tracking",
    "round_work", "safe_amplitude", "safe_rate",
]  # fmt: skip
