"""Every method of hewfl as entries of one comparison, with constants that are literals.

A checkpoint holds the `repr` of its entries: a constant computed on another processor
could differ in its last bit, and the checkpoint would be refused.
"""

from typing import Any

from hewfl import (
    Entry,
    FedAvg,
    FedAvgM,
    FedNova,
    FedProx,
    HewControl,
    HewFixed,
    HewHet,
    HewHom,
    LocalSGD,
    Method,
    MinibatchSGD,
    OnlineCurvature,
    ProblemBounds,
    Scaffold,
    ServerStep,
    StepWeighted,
    UniformLocalSGD,
)
from hewfl.aggregators import FedAdp, FedAWARE, FedExP, FedMGDAPlus, QFedAvg


def hew(L: float, variance: Any) -> list[Any]:
    """The paper's algorithms in all their forms."""
    box = ProblemBounds(L, 3.0, 1e-3, 1.0)
    return [
        HewControl(box, variance),
        HewControl(box, variance, variant="sharp", source="caps", tracking=1.0),
        HewControl(box, variance, variant="absorbed", source="oracle", start="zero"),
        HewHet(L, 0.8),
        HewHet(L, 0.8, start="zero"),
        HewHet(L, 0.8, 1.5, null_endpoint=True),
        HewHom(L, 0.8),
        HewHom(L, 0.8, 1.5, null_endpoint=True),
        HewFixed(total=0.8 / L, variance=variance),
        HewFixed(total=0.8 / L, variates="gradient", power=0.0),
        HewFixed(total=0.8 / L, variates="zero", power=0.5),
        OnlineCurvature(HewHom(L, 0.8)),
        OnlineCurvature(HewHet(L, 0.8), 0.5, 0.1),
    ]


def rivals(L: float) -> list[Any]:
    """The baselines in all their forms."""
    return [
        UniformLocalSGD(0.3 / L),
        FedAvg(0.3 / L),
        FedAvgM(0.3 / L, momentum=0.5),
        FedProx(0.3 / L, prox=0.1),
        FedNova(0.3 / L),
        FedNova(0.3 / L, by="equal"),
        Scaffold(0.3 / L),
        Scaffold(0.9 / (0.3 / L), start="gradient"),
        MinibatchSGD(0.3 / L),
        StepWeighted(0.3 / L),
        Method(LocalSGD(0.3 / L), QFedAvg(0.0)),
        Method(LocalSGD(0.3 / L), QFedAvg(1.5)),
        Method(LocalSGD(0.3 / L), FedExP()),
        Method(LocalSGD(0.3 / L), FedAdp()),
        Method(LocalSGD(0.3 / L), FedAWARE()),
        Method(LocalSGD(0.3 / L), Method(LocalSGD(0.2 / 0.7), FedAWARE(unit=True))),
        Method(LocalSGD(0.3 / L), FedMGDAPlus()),
        Method(LocalSGD(0.3 / L), Method(LocalSGD(0.9 / 0.1), FedMGDAPlus(by="equal"))),
        Method(
            LocalSGD(0.3 / L), Method(LocalSGD(0.1 / 0.05), FedMGDAPlus(relative=False))
        ),
    ]


def outer(L: float) -> list[Any]:
    """Methods under a step size and momentum at the server."""
    return [
        Entry(HewHet(L, 0.8), ServerStep(0.9, 0.5)),
        Entry(
            HewHom(L, 0.8), ServerStep(0.7, 0.9, nesterov=True), "DiLoCo's server step"
        ),
        Entry(Scaffold(0.3 / L), ServerStep(0.5)),
        Entry(
            Method(LocalSGD(0.3 / L), FedAWARE()), ServerStep(0.7, 0.5, nesterov=True)
        ),
        FedAvgM(0.3 / L, server_learning_rate=0.5),
    ]


def with_memory(L: float) -> list[Any]:
    """One of each kind of state that a checkpoint must bring back."""
    return [
        # as it was written out when the half-way runs were stopped
        HewControl(ProblemBounds(L, 3.0, 1e-3, 1.0), 0.5, tracking=0.0),
        HewHet(L, 0.8),
        HewHom(L, 0.8),
        HewFixed(total=0.8 / L, variates="gradient"),
        OnlineCurvature(HewHet(L, 0.8)),
        Entry(Scaffold(0.3 / L), ServerStep(0.7, 0.5, nesterov=True)),
        Method(LocalSGD(0.3 / L), FedAdp()),
        Method(LocalSGD(0.3 / L), FedAWARE()),
        FedAvgM(0.3 / L),
        FedAvg(500.0 / L),  # diverges
        Method(LocalSGD(0.3 / L), QFedAvg(0.1)),  # refuses where losses are lowered
    ]
