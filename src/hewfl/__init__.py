"""Exact-weight aggregation for local SGD with unequal local work.

The server solves for the weights of a round instead of fixing them by a rule:

- `solve_simplex_qp`, `threshold_weights`: the exact weight problems;
- `post_local_weights`, `combine`: weights and step from the clients' displacements;
- `predictive_control`: weights and amplitudes before the round;
- `HewControl`, `HewHet`, `HewHom`: the paper's algorithms, beside their rivals;
- `simulate`: any set of methods on the same clients, work and minibatches.

Every answer carries a certificate that the caller can recompute.
"""

from hewfl.aggregate.post_local import combine, data_gap, post_local_weights
from hewfl.baselines import (
    Agreement,
    CentredClipping,
    CoordinateMedian,
    Disagreement,
    EqualGround,
    FedAdp,
    FedAvg,
    FedAWARE,
    FedExP,
    FedMGDAPlus,
    FedNova,
    FedProx,
    GeometricMedian,
    KnownQuality,
    Krum,
    MinibatchSGD,
    MultiKrum,
    QFedAvg,
    Scaffold,
    Sieve,
    StepWeighted,
    TrimmedMean,
    Trust,
    UniformLocalSGD,
)
from hewfl.controllers.control import HewControl
from hewfl.controllers.fixed import HewFixed
from hewfl.controllers.het import HewHet
from hewfl.controllers.hom import HewHom
from hewfl.controllers.mean import HewMean
from hewfl.controllers.online import OnlineCurvature
from hewfl.core.algorithm import Algorithm, Demands, Traffic
from hewfl.core.displacements import Displacements
from hewfl.core.records import (
    ClientProfile,
    ControlSolution,
    ProblemBounds,
    SimplexSolution,
    UpperState,
)
from hewfl.core.round import Decision, LocalPlan, Roster, Round
from hewfl.errors import (
    DataError,
    HewError,
    InvalidInputError,
    MissingExtraError,
    RuleError,
    SolverError,
)
from hewfl.predictive.control import predictive_control
from hewfl.server.faults import (
    ConstantUpdates,
    FlippedLabels,
    GrowingNoise,
    HiddenBatches,
    RandomLabels,
    RandomUpdates,
    ScaledUpdates,
    StaleUpdates,
)
from hewfl.server.federation import (
    ChoiceHorizons,
    EpochHorizons,
    Federation,
    FixedHorizons,
    FullParticipation,
    History,
    PoissonHorizons,
    RandomParticipation,
    RotatingParticipation,
    SampledParticipation,
    TimedHorizons,
    World,
)
from hewfl.server.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from hewfl.server.outer import Outer
from hewfl.server.state import Lane
from hewfl.server.trace import Trace
from hewfl.sim.engine import simulate
from hewfl.solver.simplex import solve_simplex_qp
from hewfl.solver.threshold import threshold_weights
from hewfl.version import __version__

__all__ = [
    "Agreement", "Algorithm", "CentredClipping", "ChoiceHorizons", "ClientProfile",
    "ConstantUpdates", "ControlSolution", "CoordinateMedian", "DataError",
    "Decision", "Demands", "Disagreement", "Displacements", "EpochHorizons",
    "EqualGround", "FedAWARE", "FedAdagrad", "FedAdam", "FedAdp", "FedAvg",
    "FedAvgM", "FedExP", "FedMGDAPlus", "FedNova", "FedProx", "FedYogi",
    "Federation", "FixedHorizons", "FlippedLabels", "FullParticipation",
    "GeometricMedian", "GrowingNoise", "HewControl", "HewError", "HewFixed",
    "HewHet", "HewHom", "HewMean", "HiddenBatches", "History", "InvalidInputError",
    "KnownQuality", "Krum", "Lane", "LocalPlan", "MinibatchSGD",
    "MissingExtraError", "MultiKrum", "OnlineCurvature", "Outer", "PoissonHorizons",
    "ProblemBounds", "QFedAvg", "RandomLabels", "RandomParticipation",
    "RandomUpdates", "Roster", "RotatingParticipation", "Round", "RuleError",
    "SampledParticipation", "Scaffold", "ScaledUpdates", "Sieve", "SimplexSolution",
    "SolverError", "StaleUpdates", "StepWeighted", "TimedHorizons", "Trace",
    "Traffic", "TrimmedMean", "Trust", "UniformLocalSGD", "UpperState", "World",
    "__version__", "combine", "data_gap", "post_local_weights",
    "predictive_control", "simulate", "solve_simplex_qp", "threshold_weights",
]  # fmt: skip
