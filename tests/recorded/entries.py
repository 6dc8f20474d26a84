"""Every method of hewfl as entries of one comparison, with constants that are literals.

A checkpoint holds the `repr` of its entries: a constant computed on another processor
could differ in its last bit, and the checkpoint would be refused.
"""

from typing import Any

from hewfl import (
    Entry,
    FedAdp,
    FedAvg,
    FedAvgM,
    FedAWARE,
    FedExP,
    FedMGDAPlus,
    FedNova,
    FedProx,
    HewControl,
    HewFixed,
    HewHet,
    HewHom,
    MinibatchSGD,
    OnlineCurvature,
    ProblemBounds,
    QFedAvg,
    Scaffold,
    ServerStep,
    StepWeighted,
    UniformLocalSGD,
)


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
        HewFixed(L, 0.8, variance=variance),
        HewFixed(L, 0.8, power=0.0, corrected=True),
        HewFixed(L, 0.8, power=0.5, corrected=True, start="zero"),
        OnlineCurvature(HewHom(L, 0.8)),
        OnlineCurvature(HewHet(L, 0.8), 0.5, 0.1),
    ]


def rivals(L: float) -> list[Any]:
    """The baselines in all their forms."""
    return [
        UniformLocalSGD(L, 0.3),
        FedAvg(L, 0.3),
        FedAvgM(L, 0.3, momentum=0.5),
        FedProx(L, 0.3, 0.1),
        FedNova(L, 0.3),
        FedNova(L, 0.3, by_size=False),
        Scaffold(L, 0.3),
        Scaffold(L, 0.3, 0.9, start="gradient"),
        MinibatchSGD(L, 0.3),
        StepWeighted(L, 0.3),
        QFedAvg(L, 0.3, 0.0),
        QFedAvg(L, 0.3, 1.5),
        FedExP(L, 0.3),
        FedAdp(L, 0.3),
        FedAWARE(L, 0.3),
        FedAWARE(L, 0.3, 0.7, 0.2, unit=True),
        FedMGDAPlus(L, 0.3),
        FedMGDAPlus(L, 0.3, 0.1, 0.9, by_size=False),
        FedMGDAPlus(L, 0.3, 0.05, 0.1, relative=False),
    ]


def outer(L: float) -> list[Any]:
    """Methods under a step size and momentum at the server."""
    return [
        Entry(HewHet(L, 0.8), ServerStep(0.9, 0.5)),
        Entry(
            HewHom(L, 0.8), ServerStep(0.7, 0.9, nesterov=True), "DiLoCo's server step"
        ),
        Entry(Scaffold(L, 0.3), ServerStep(0.5)),
        Entry(FedAWARE(L, 0.3), ServerStep(0.7, 0.5, nesterov=True)),
        FedAvgM(L, 0.3, step=0.5),
    ]


def with_memory(L: float) -> list[Any]:
    """One of each kind of state that a checkpoint must bring back."""
    return [
        # as it was written out when the half-way runs were stopped
        HewControl(ProblemBounds(L, 3.0, 1e-3, 1.0), 0.5, tracking=0.0),
        HewHet(L, 0.8),
        HewHom(L, 0.8),
        HewFixed(L, 0.8, corrected=True),
        OnlineCurvature(HewHet(L, 0.8)),
        Entry(Scaffold(L, 0.3), ServerStep(0.7, 0.5, nesterov=True)),
        FedAdp(L, 0.3),
        FedAWARE(L, 0.3),
        FedAvgM(L, 0.3),
        FedAvg(L, 500.0),  # diverges
        QFedAvg(L, 0.3, 0.1),  # refuses where losses are lowered
    ]
