"""Lemmas and appendices of the paper that no command needs, each callable by itself.

    lemmas                the lemmas of Appendices A to D
    surrogate             the system of bounds for the controls of a whole run (B, C)
    special_cases         where the algorithms are gradient descent (G)

Appendix E, recursions S ← R_a(S) + bS + d + ε driven by any convex generator φ:

    generators            φ, its flow R_a, time coordinate χ and slope modulus L_a
    master                one step, floors, closed bounds over many rounds, and the
                          best of many controls
    closure               product terms split by the Fenchel-Young inequality
"""

from hewfl.theory.absent_clients import propagated_tracking
from hewfl.theory.appendix.generators import (
    ConvexGenerator,
    ExponentialGenerator,
    Generator,
    PowerGenerator,
    QuadraticGenerator,
)
from hewfl.theory.appendix.lemmas import safe_amplitude, safe_rate
from hewfl.theory.appendix.master import (
    Terms,
    master_trajectory,
    noiseless_rate,
    noisy_rate,
)
from hewfl.theory.round_costs import round_work

__all__ = [
    "ConvexGenerator", "ExponentialGenerator", "Generator", "PowerGenerator",
    "QuadraticGenerator", "Terms", "master_trajectory", "noiseless_rate", "noisy_rate",
    "propagated_tracking", "round_work", "safe_amplitude", "safe_rate",
]  # fmt: skip
