"""Simulation: rounds of many methods in lockstep on shared draws.

`hewfl.simulate` runs them. Its observers are here: `pathwise_audit` and `control_audit`
hold the methods' certificates against what came, and `Step` is what an observer sees.
"""

from hewfl.simulation.audit import control_audit, pathwise_audit
from hewfl.simulation.rounds import Step

__all__ = ["Step", "control_audit", "pathwise_audit"]
