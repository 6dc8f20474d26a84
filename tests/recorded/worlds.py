"""Small fixed scenarios in the simulator, built from public names alone.

A scenario is a function from an empty folder to the files it leaves. Names of inner
modules may change at any time; the one line that needs one is marked.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hewfl import (
    ChoiceSteps,
    Entry,
    EpochSteps,
    FedAvg,
    Federation,
    FixedSteps,
    HewControl,
    HewHet,
    HewHom,
    LocalSGD,
    Method,
    PoissonSteps,
    ProblemBounds,
    RandomParticipation,
    SampledParticipation,
    Scaffold,
    ServerStep,
    TimedSteps,
    UniformLocalSGD,
)
from hewfl.aggregators import FedAdp, FedAWARE, FedExP, FedMGDAPlus, QFedAvg
from hewfl.data import load
from hewfl.problems import (
    Quadratic,
    Softmax,
    random_quadratic,
    softmax_common_pool,
    softmax_from_arrays,
)
from hewfl.simulation.audit import control_audit, pathwise_audit  # an inner module
from tests.recorded.entries import hew, outer, rivals, with_memory
from tests.recorded.faulty import Faulty
from tests.recorded.files import Files, Scenario, simulated

L_DIGITS, L = 6.0, 1.0
"""Smoothness told to the entries: of the digits below, and of the quadratics."""
VARIANCE = (0.5, 0.2, 0.3, 0.1)


@cache
def rows() -> tuple[Any, Any]:
    """120 digits 0, 1 and 2, of their 64 pixels the 12 in the middle; a bias."""
    digits = load("digits")
    chosen = np.flatnonzero(digits.labels < 3)[:120]
    middle = [row * 8 + column for row in (2, 3, 4) for column in (2, 3, 4, 5)]
    X = digits.features[chosen][:, middle].astype(np.float64) / 16
    return np.hstack([X, np.ones((len(X), 1))]), digits.labels[chosen]


def digits(dtype: str) -> Softmax:
    """Four clients with 10, 20, 30 and 40 rows, and 20 rows to test on; d = 39."""
    X, y = rows()
    order = np.argsort(y[:100], kind="stable")  # unlike clients
    shards = np.split(order, [10, 30, 60])
    test = (X[100:], y[100:])
    return softmax_from_arrays(X, y, shards, l2=0.01, test=test, dtype=dtype)


def quadratic() -> Quadratic:
    """Four clients, five parameters, unequal noise."""
    return random_quadratic(
        3, 4, 5, samples=[6, 8, 10, 12], noise=np.sqrt(VARIANCE), heterogeneity=0.7
    )


MIXED = Federation(FixedSteps([1, 2, 4, 3]), [2, 3, 4, 2])
SAMPLED = Federation(ChoiceSteps(every_round=True), 4, SampledParticipation(3))
RANDOM = Federation(ChoiceSteps((1, 3)), 2, RandomParticipation(0.35))


# ------------------------------------------------------- every method, nothing amiss


def digits_float64(folder: Path) -> Files:
    entries = [*hew(L_DIGITS, 2.0), *rivals(L_DIGITS)]
    given = (digits("float64"), MIXED, entries)
    return simulated(folder, *given, rounds=3, seed=11)


def digits_float32_sampled(folder: Path) -> Files:
    entries = [*hew(L_DIGITS, 2.0), *rivals(L_DIGITS)]
    given = (digits("float32"), SAMPLED, entries)
    return simulated(folder, *given, rounds=2, seed=12, dtype=np.float32)


def digits_float32_common_pool(folder: Path) -> Files:
    """One pool for all clients; branches in float32 on rows in float64."""
    X, y = rows()
    problem = softmax_common_pool(X, y, 3, l2=0.01)
    entries = [HewHom(L_DIGITS, 0.8), HewHet(L_DIGITS, 0.8), FedAvg(0.3 / L_DIGITS)]
    federation = Federation(FixedSteps([1, 5, 2]), 8)
    more: dict[str, Any] = {"dtype": np.float32, "evaluate_every": 2}
    return simulated(folder, problem, federation, entries, rounds=5, seed=13, **more)


def quadratic_full(folder: Path) -> Files:
    entries = [*hew(L, VARIANCE), *rivals(L)]
    start = np.linspace(-1, 1, 5)
    return simulated(
        folder, quadratic(), MIXED, entries, rounds=3, seed=14, start=start
    )


def quadratic_random(folder: Path) -> Files:
    """Rounds of nobody, of one client and of several."""
    entries = [*hew(L, VARIANCE), *rivals(L)]
    return simulated(folder, quadratic(), RANDOM, entries, rounds=4, seed=24)


def many_clients(folder: Path) -> Files:
    """More clients than parameters: minimisers that are not unique."""
    problem = random_quadratic(4, 70, 3, samples=2, noise=0.3)
    federation = Federation(ChoiceSteps((1, 2, 4)), 1)
    entries = [HewHom(L, 0.8), HewHet(L, 0.8)]
    return simulated(folder, problem, federation, entries, rounds=2, seed=25)


def equal_clients(folder: Path) -> Files:
    """Displacements that are all the same."""
    problem = random_quadratic(
        6, 3, 4, samples=2, noise=0.0, heterogeneity=0.0, common_hessian=True
    )
    federation = Federation(FixedSteps(2), 1)
    entries = [
        *hew(L, 1.0)[3:8],
        Method(LocalSGD(0.3 / L), FedAdp()),
        Method(LocalSGD(0.3 / L), FedAWARE()),
        Method(LocalSGD(0.3 / L), FedExP()),
    ]
    entries += [
        Method(LocalSGD(0.3 / L), FedMGDAPlus()),
        HewControl(ProblemBounds(L, 3.0, 1e-3, 1.0), 0.0),
    ]
    return simulated(folder, problem, federation, entries, rounds=2, seed=26)


def outer_steps(folder: Path) -> Files:
    return simulated(folder, quadratic(), SAMPLED, outer(L), rounds=6, seed=15)


def audits(folder: Path) -> Files:
    """Observers of the certificates."""
    problem = quadratic()
    box = ProblemBounds(L, 3.0, 1e-3, 1.0)
    entries = [
        HewControl(box, VARIANCE, source="oracle"),
        HewControl(box, VARIANCE),
        HewHet(L, 0.8),
        Entry(HewHom(L, 0.8), ServerStep(0.9, 0.3)),
        FedAvg(0.3 / L),
    ]
    observers = [pathwise_audit, control_audit(problem)]
    more: dict[str, Any] = {"observers": observers}
    return simulated(folder, problem, MIXED, entries, rounds=4, seed=16, **more)


LAWS: dict[str, Any] = {
    "fixed": FixedSteps(3),
    "choice": ChoiceSteps(),
    "poisson": PoissonSteps(),
    "epochs": EpochSteps((0.5, 1.0, 2.0)),
    "timed": TimedSteps(2.0, (0.3, 1.0, 2.0, 3.5), jitter=0.4),
}


def horizons_of(law: str) -> Scenario:
    def scenario(folder: Path) -> Files:
        entries = [HewHom(L, 0.8), HewHet(L, 0.8), UniformLocalSGD(0.2 / L)]
        federation = Federation(LAWS[law], 2)
        return simulated(folder, quadratic(), federation, entries, rounds=4, seed=17)

    return scenario


# ------------------------------------------------------------------ what goes wrong


def lost_clients(folder: Path) -> Files:
    """Clients 1 and 3 draw rows without a finite gradient in some rounds."""
    problem = Faulty(quadratic(), bad_rows=(7, 30))
    entries = [
        *hew(L, VARIANCE),
        *with_memory(L)[5:9],
        Method(LocalSGD(0.3 / L), QFedAvg(1.0)),
    ]
    return simulated(folder, problem, MIXED, entries, rounds=4, seed=20)


def silent_start(folder: Path) -> Files:
    """Client 1 has no finite gradient at the start, and is there in round 1."""
    problem = Faulty(quadratic(), bad_rows=(7,))
    entries = [
        HewHet(L, 0.8),
        Scaffold(0.3 / L, start="gradient"),
        HewControl(ProblemBounds(L, 3.0, 1e-3, 1.0), 0.5),
        HewHom(L, 0.8),
    ]
    return simulated(folder, problem, MIXED, entries, rounds=4, seed=34)


def stopped_entries(folder: Path) -> Files:
    """Lanes that diverge in three ways, one that refuses, one that goes on."""
    problem = Faulty(quadratic(), lowered=0.6)
    entries = [
        FedAvg(1000.0 / L),  # its objective leaves all bounds
        HewHet(L, 1e160),  # no displacement is finite
        Scaffold(1e80 / L),
        Method(LocalSGD(0.3 / L), QFedAvg(0.1)),  # refuses a negative loss
        HewHom(L, 0.8),
    ]
    return simulated(folder, problem, MIXED, entries, rounds=5, seed=18)


def unseen_divergence_float32(folder: Path) -> Files:
    """Without evaluation a entry is stopped by its displacements alone."""
    entries = [FedAvg(1e8 / L), HewHom(L, 1e9), HewHom(L, 0.8)]
    more: dict[str, Any] = {"dtype": np.float32, "evaluate_every": None}
    return simulated(folder, quadratic(), MIXED, entries, rounds=6, seed=19, **more)


# ------------------------------------------------------------------ stop and go on


def interrupted(folder: Path, rounds: int) -> Files:
    """All kinds of state, in a folder that may hold the first rounds already."""
    problem = Faulty(quadratic(), bad_rows=(7,), lowered=0.6)
    given = (problem, SAMPLED, with_memory(L))
    return simulated(folder, *given, rounds=rounds, seed=30)


WORLDS: dict[str, Scenario] = {
    "digits_float64": digits_float64,
    "digits_float32_sampled": digits_float32_sampled,
    "digits_float32_common_pool": digits_float32_common_pool,
    "quadratic_full": quadratic_full,
    "quadratic_random": quadratic_random,
    "many_clients": many_clients,
    "equal_clients": equal_clients,
    "outer_steps": outer_steps,
    "audits": audits,
    **{f"horizons_{law}": horizons_of(law) for law in LAWS},
    "lost_clients": lost_clients,
    "silent_start": silent_start,
    "stopped_entries": stopped_entries,
    "unseen_divergence_float32": unseen_divergence_float32,
}
