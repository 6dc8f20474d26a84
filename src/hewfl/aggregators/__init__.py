"""The methods to compare with, one file each, written from their papers.

Each is a frozen record of hyper-parameters after `hewfl.core.round.Algorithm`. All take
the smoothness constant L and a step scale s, and every client takes every step with
η = s/L. States are None or frozen records of arrays.
"""

from hewfl.aggregators.agreement import Agreement
from hewfl.aggregators.centred_clipping import CentredClipping
from hewfl.aggregators.coordinate_median import CoordinateMedian
from hewfl.aggregators.disagreement import Disagreement
from hewfl.aggregators.equal_ground import EqualGround as EqualGround
from hewfl.aggregators.fedadp import FedAdp
from hewfl.aggregators.fedavg import FedAvg
from hewfl.aggregators.fedaware import FedAWARE
from hewfl.aggregators.fedexp import FedExP
from hewfl.aggregators.fedmgda import FedMGDAPlus
from hewfl.aggregators.fednova import FedNova
from hewfl.aggregators.fedprox import FedProx
from hewfl.aggregators.geometric_median import GeometricMedian
from hewfl.aggregators.known_quality import KnownQuality
from hewfl.aggregators.krum import Krum, MultiKrum
from hewfl.aggregators.minibatch import MinibatchSGD
from hewfl.aggregators.qfedavg import QFedAvg
from hewfl.aggregators.scaffold import Scaffold
from hewfl.aggregators.sieve import Sieve
from hewfl.aggregators.step_weighted import StepWeighted
from hewfl.aggregators.trimmed_mean import TrimmedMean
from hewfl.aggregators.trust import Trust
from hewfl.aggregators.uniform import UniformLocalSGD

__all__ = [
    "Agreement", "CentredClipping", "CoordinateMedian", "Disagreement", "FedAWARE",
    "FedAdp", "FedAvg", "FedExP", "FedMGDAPlus", "FedNova", "FedProx",
    "GeometricMedian", "KnownQuality", "Krum", "MinibatchSGD", "MultiKrum",
    "QFedAvg", "Scaffold", "Sieve", "StepWeighted", "TrimmedMean", "Trust",
    "UniformLocalSGD",
]  # fmt: skip
