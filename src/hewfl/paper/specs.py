"""The paper's experiments as specs: the only place that knows figure numbers.

Section 5: Covertype and MNIST, softmax regression, 20 clients, batches of 32, full
participation, 90 rounds, 7 seeds, zero start; H = 4, or drawn once from {1, 2, 4, 8};
shuffled shards or Dirichlet 0.2. Where the text is silent: λ = 1e-4, the least shard of
a Dirichlet partition is one batch, trials are judged by (1/n) Σ F_i, and "HEW" is run
by both post-local algorithms (erratum E-28).
"""

from dataclasses import replace
from typing import Any

from hewfl.experiments.methods import MethodSpec
from hewfl.experiments.sections import ClientsSpec, DataSpec, ProblemSpec, TuneSpec
from hewfl.experiments.spec import Spec

DATA = ("covertype", "mnist")
REGIMES: dict[str, tuple[str, Any]] = {
    "hom-equal": ("iid", 4),
    "hom-random": ("iid", {"kind": "ChoiceHorizons", "choices": [1, 2, 4, 8]}),
    "het-random": ("dirichlet", {"kind": "ChoiceHorizons", "choices": [1, 2, 4, 8]}),
    "het-equal": ("dirichlet", 4),
}
"""Partition and horizons; the paper's figure shows the first three."""
FIGURE_1 = ("hom-equal", "hom-random", "het-random")
FIGURE_2 = ("hom-random", "het-random")
TITLES = {
    "hom-equal": "homogeneous, equal H",
    "hom-random": "homogeneous, random H",
    "het-random": "heterogeneous, random H",
    "het-equal": "heterogeneous, equal H",
}

AMPLITUDES = (0.5, 1.0, 2.0, 4.0, 8.0)
RATIOS = (1.1, 1.25, 1.5, 1.75, 2.0)
SCALES = (0.2, 0.4, 0.8, 1.6)
PROXIMAL = (0.01, 0.1)

MOMENTA = (0.0, 0.5, 0.8, 0.9)
WIDE_AMPLITUDES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
WIDE_RATIOS = (1.1, 1.5, 2.0)
WIDE_SCALES = (0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
"""Of the extended comparison: the paper has no momentum, and with its grids nearly
every method's best value lies at the edge."""

HEW_PLAIN, HEW_CORRECTED = "HEW (Alg. 3)", "HEW (Alg. 2)"


def hew_of(regime: str) -> str:
    """The algorithm that stands for HEW: 3 where data are homogeneous, else 2."""
    return HEW_PLAIN if regime.startswith("hom") else HEW_CORRECTED


def main_methods() -> tuple[MethodSpec, ...]:
    """The paper's methods with the paper's grids."""
    exact = {"amplitude": AMPLITUDES, "curvature_ratio": RATIOS}
    amplitudes, scales = {"amplitude": AMPLITUDES}, {"step_scale": SCALES}
    return (
        MethodSpec("HewHom", HEW_PLAIN, {}, exact),
        MethodSpec("HewHet", HEW_CORRECTED, {}, exact),
        MethodSpec("HewFixed", "HEW-Fixed (uniform)", {"power": 0.0}, amplitudes),
        MethodSpec("HewFixed", "HEW-Fixed (horizon)", {"power": 1.0}, amplitudes),
        MethodSpec("UniformLocalSGD", "Uniform", {}, scales),
        MethodSpec("FedAvg", "FedAvg", {}, scales),
        MethodSpec("FedNova", "FedNova", {}, scales),
        MethodSpec("Scaffold", "SCAFFOLD", {}, scales),
        MethodSpec("FedProx", "FedProx", {}, scales | {"proximal": PROXIMAL}),
        MethodSpec("MinibatchSGD", "minibatch SGD", {}, scales),
    )


def rivals() -> tuple[MethodSpec, ...]:
    """The adaptive rivals, tuned over the same step sizes."""
    scales = {"step_scale": SCALES}
    return (
        MethodSpec("FedMGDAPlus", "FedMGDA+", {}, scales),
        MethodSpec("FedAWARE", "FedAWARE", {}, scales),
        MethodSpec("FedExP", "FedExP", {}, scales),
        MethodSpec("FedAdp", "FedAdp", {}, scales),
        MethodSpec("QFedAvg", "q-FedAvg", {"q": 0.1}, scales),
        MethodSpec("StepWeighted", "step-weighted", {}, scales),
    )


def main_spec(data: str, regime: str) -> Spec:
    """One panel of the main grid."""
    partition, horizons = REGIMES[regime]
    return Spec(
        name=f"{data}-{regime}",
        methods=main_methods(),
        rounds=90,
        seeds=tuple(range(7)),
        evaluate_every=3,  # 31 points of a curve; evaluation costs more than the rounds
        audit_every=30,
        data=DataSpec(name=data),
        problem=ProblemSpec(l2=1e-4),
        clients=ClientsSpec(
            n=20,
            partition=partition,  # type: ignore[arg-type]  # one of the known ones
            alpha=0.2,
            minimum=32 if partition == "dirichlet" else 1,
            batch_size=32,
            horizons=horizons,
        ),
        tune=TuneSpec(rounds=20, seeds=(0, 1, 2), by="objective"),
    )


def under_momentum(label: str, beta: float) -> str:
    """What the extended comparison calls a method under outer momentum β."""
    return f"{label}, momentum {beta:g}" if beta else label


def extended_spec(data: str, regime: str) -> Spec:
    """One panel of the extended comparison: outer momentum, wider grids and the rivals.

    Momentum is not tuned but shown: every method once for each value, its own grid
    searched anew under it. Evaluated every tenth round.
    """
    spec = main_spec(data, regime)
    wide = {
        "amplitude": WIDE_AMPLITUDES,
        "curvature_ratio": WIDE_RATIOS,
        "step_scale": WIDE_SCALES,
    }
    methods = tuple(
        MethodSpec(
            m.method,
            under_momentum(m.label, beta),
            {**m.parameters, "momentum": beta} if beta else m.parameters,
            {name: wide.get(name, values) for name, values in m.grid.items()},
        )
        for m in (*main_methods(), *rivals())
        for beta in MOMENTA
    )
    return replace(
        spec,
        name=f"{spec.name}-extended",
        methods=methods,
        evaluate_every=10,
        audit_every=0,
    )


def quick(spec: Spec) -> Spec:
    """A small version of a spec, for a first look.

    Fewer samples, rounds and seeds; of every list of values the ends and the middle.
    """
    return replace(
        spec,
        name=f"{spec.name}-quick",
        methods=tuple(
            replace(m, grid={name: _thinned(values) for name, values in m.grid.items()})
            for m in spec.methods
        ),
        rounds=10,
        seeds=spec.seeds[:2],
        data=replace(spec.data, subsample=4000),
        tune=replace(spec.tune, rounds=4, seeds=spec.tune.seeds[:1]),
    )


def _thinned(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return (
        values if len(values) < 4 else (values[0], values[len(values) // 2], values[-1])
    )
