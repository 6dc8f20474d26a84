"""The methods to compare with, one file each, written from their papers.

Each is a frozen record of hyper-parameters after `hewfl.core.round.Algorithm`. All take
the smoothness constant L and a step scale s, and every client takes every step with
η = s/L. States are None or frozen records of arrays.
"""

from hewfl.baselines.agreement import Agreement
from hewfl.baselines.centred_clipping import CentredClipping
from hewfl.baselines.coordinate_median import CoordinateMedian
from hewfl.baselines.disagreement import Disagreement
from hewfl.baselines.equal_ground import EqualGround as EqualGround
from hewfl.baselines.fedadp import FedAdp
from hewfl.baselines.fedavg import FedAvg
from hewfl.baselines.fedaware import FedAWARE
from hewfl.baselines.fedexp import FedExP
from hewfl.baselines.fedmgda import FedMGDAPlus
from hewfl.baselines.fednova import FedNova
from hewfl.baselines.fedprox import FedProx
from hewfl.baselines.geometric_median import GeometricMedian
from hewfl.baselines.known_quality import KnownQuality
from hewfl.baselines.krum import Krum, MultiKrum
from hewfl.baselines.minibatch import MinibatchSGD
from hewfl.baselines.qfedavg import QFedAvg
from hewfl.baselines.scaffold import Scaffold
from hewfl.baselines.sieve import Sieve
from hewfl.baselines.step_weighted import StepWeighted
from hewfl.baselines.trimmed_mean import TrimmedMean
from hewfl.baselines.trust import Trust
from hewfl.baselines.uniform import UniformLocalSGD

__all__ = [
    "Agreement", "CentredClipping", "CoordinateMedian", "Disagreement", "FedAWARE",
    "FedAdp", "FedAvg", "FedExP", "FedMGDAPlus", "FedNova", "FedProx",
    "GeometricMedian", "KnownQuality", "Krum", "MinibatchSGD", "MultiKrum",
    "QFedAvg", "Scaffold", "Sieve", "StepWeighted", "TrimmedMean", "Trust",
    "UniformLocalSGD",
]  # fmt: skip
