"""Simulation: rounds of many methods in lockstep on shared draws.

`hewfl.simulate` runs them. Observers of it are here: `pathwise_audit` and
`control_audit` compare the methods' certificates with the true objective. A `Step` is
the argument of an observer.
"""

from hewfl.simulation.audit import control_audit, pathwise_audit
from hewfl.simulation.rounds import Step

__all__ = ["Step", "control_audit", "pathwise_audit"]
