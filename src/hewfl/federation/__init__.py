"""The federation: client sampling, local steps, batch sizes, attacks and faults.

federation      the clients of each round; samples that the server owns
local_steps     samplers of the local steps H_i
participation   samplers of the clients of a round
attacks         oblivious faults of clients: labels, updates, hidden batch sizes
adversary       the protocol of attacks that see everything
omniscient      such attacks: ALIE, IPM, mimic, min-max, min-sum, drift, sleeper
scenario        assignment of faults and attacks to clients
rng             random streams
"""

from hewfl.federation.federation import Federation, RootSet
from hewfl.federation.local_steps import (
    ChoiceSteps,
    EpochSteps,
    FixedSteps,
    LocalSteps,
    PoissonSteps,
    TimedSteps,
)
from hewfl.federation.participation import (
    AnyParticipation,
    FullParticipation,
    History,
    Participation,
    PastParticipation,
    RandomParticipation,
    RotatingParticipation,
    SampledParticipation,
)
from hewfl.federation.rng import generator
from hewfl.federation.scenario import Scenario

__all__ = [
    "AnyParticipation",
    "ChoiceSteps",
    "EpochSteps",
    "Federation",
    "FixedSteps",
    "FullParticipation",
    "History",
    "LocalSteps",
    "Participation",
    "PastParticipation",
    "PoissonSteps",
    "RandomParticipation",
    "RootSet",
    "RotatingParticipation",
    "SampledParticipation",
    "Scenario",
    "TimedSteps",
    "generator",
]
