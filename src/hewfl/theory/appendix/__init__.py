"""Appendix E: recursions S ← R_a(S) + bS + d + ε driven by any convex generator φ.

generator       φ, its flow R_a, time coordinate χ and slope modulus L_a
closed_forms    φ = κs², κs^{1+p}, ρs
convex_flow     any other φ, by quadrature
scaled          products beyond the range of floats
drift           the terms a, b, d, ε and one step
floors          where the recursion rests, how fast it contracts
master          closed bounds over many rounds
bellman         the best of many controls, with its ε
closure         product terms split by the Fenchel-Young inequality
"""

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

__all__ = [
    "ConvexGenerator", "ExponentialGenerator", "Generator", "PowerGenerator",
    "QuadraticGenerator", "Terms", "master_trajectory", "noiseless_bounds",
    "noiseless_rate", "noisy_bounds", "noisy_rate",
]  # fmt: skip
