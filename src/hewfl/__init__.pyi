# The public names of hewfl and their modules: `__init__.py` loads them from this list.

from hewfl.aggregators import Aggregator, ExactWeights, Pipeline
from hewfl.aggregators.robustness import (
    RobustnessCertificate,
    robustness_certificate,
    worst_case_kappa,
)
from hewfl.algorithms.hew_control import HewControl
from hewfl.algorithms.hew_het import HewHet
from hewfl.algorithms.hew_hom import HewHom
from hewfl.algorithms.online_curvature import OnlineCurvature
from hewfl.control.joint_problem import predictive_control
from hewfl.core.algorithm import Algorithm, Demands, Traffic
from hewfl.core.displacements import Displacements, Products
from hewfl.core.records import (
    ClientProfile,
    ControlSolution,
    ProblemBounds,
    SimplexSolution,
    UpperState,
)
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.displacements.post_local import combine, data_gap, post_local_weights
from hewfl.errors import (
    DataError,
    HewError,
    InvalidInputError,
    MissingExtraError,
    RuleError,
    SolverError,
)
from hewfl.federation import (
    ChoiceSteps,
    EpochSteps,
    Federation,
    FixedSteps,
    FullParticipation,
    History,
    PoissonSteps,
    RandomParticipation,
    RootSet,
    RotatingParticipation,
    SampledParticipation,
    Scenario,
    TimedSteps,
)
from hewfl.federation.adversary import AttackView
from hewfl.federation.attacks import (
    ConstantUpdates,
    FlippedLabels,
    GrowingNoise,
    HiddenBatches,
    RandomLabels,
    RandomUpdates,
    ScaledUpdates,
    StaleUpdates,
)
from hewfl.federation.omniscient import (
    ALIE,
    IPM,
    Alternating,
    Drift,
    Gaussian,
    Mimic,
    MinMax,
    MinSum,
    Sleeper,
)
from hewfl.methods.method import LocalSGD, Method
from hewfl.methods.presets import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedNova,
    FedProx,
    FedYogi,
    HewFixed,
    MinibatchSGD,
    Scaffold,
    StepWeighted,
    UniformLocalSGD,
)
from hewfl.server.server_step import ServerStep
from hewfl.server.state import Entry
from hewfl.server.trace import Trace
from hewfl.simulation.engine import simulate
from hewfl.solver.simplex import solve_simplex_qp
from hewfl.solver.threshold import threshold_weights
from hewfl.version import __version__

__all__ = [
    "ALIE",
    "IPM",
    "Aggregator",
    "Algorithm",
    "Alternating",
    "AttackView",
    "ChoiceSteps",
    "ClientProfile",
    "Cohort",
    "ConstantUpdates",
    "ControlSolution",
    "DataError",
    "Decision",
    "Demands",
    "Displacements",
    "Drift",
    "Entry",
    "EpochSteps",
    "ExactWeights",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedNova",
    "FedProx",
    "FedYogi",
    "Federation",
    "FixedSteps",
    "FlippedLabels",
    "FullParticipation",
    "Gaussian",
    "GrowingNoise",
    "HewControl",
    "HewError",
    "HewFixed",
    "HewHet",
    "HewHom",
    "HiddenBatches",
    "History",
    "InvalidInputError",
    "LocalPlan",
    "LocalSGD",
    "Method",
    "Mimic",
    "MinMax",
    "MinSum",
    "MinibatchSGD",
    "MissingExtraError",
    "OnlineCurvature",
    "Pipeline",
    "PoissonSteps",
    "ProblemBounds",
    "Products",
    "RandomLabels",
    "RandomParticipation",
    "RandomUpdates",
    "RobustnessCertificate",
    "RootSet",
    "RotatingParticipation",
    "Round",
    "RuleError",
    "SampledParticipation",
    "Scaffold",
    "ScaledUpdates",
    "Scenario",
    "ServerStep",
    "SimplexSolution",
    "Sleeper",
    "SolverError",
    "StaleUpdates",
    "StepWeighted",
    "TimedSteps",
    "Trace",
    "Traffic",
    "UniformLocalSGD",
    "UpperState",
    "__version__",
    "combine",
    "data_gap",
    "post_local_weights",
    "predictive_control",
    "robustness_certificate",
    "simulate",
    "solve_simplex_qp",
    "threshold_weights",
    "worst_case_kappa",
]  # fmt: skip
