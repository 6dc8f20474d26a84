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

LONG = {
    "amplitude": tuple(2.0**k for k in range(-3, 13)),
    "step_scale": tuple(0.2 * 2.0**k for k in range(-5, 9)),
    "curvature_ratio": (1.01, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 1e4),
    "proximal": (0.0, 0.001, 0.01, 0.1, 1.0, 10.0),
    "momentum": (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98),
}
"""Lists that hold their best value inside, or end at a bound of the parameter itself.
In the paper's own lists nearly every best value is the last one. Ratios end where the
weights are those of the shortest combination and no longer change."""

HEW_PLAIN, HEW_CORRECTED = "HEW (Alg. 3)", "HEW (Alg. 2)"
FIXED_CORRECTED = (
    "HEW-Fixed (uniform, corrected)",
    "HEW-Fixed (horizon, corrected)",
)
ONE_STEP = "minibatch SGD (one step)"


def hew_of(regime: str) -> str:
    """The algorithm that stands for HEW: 3 where data are homogeneous, else 2."""
    return HEW_PLAIN if regime.startswith("hom") else HEW_CORRECTED


def main_methods(regime: str = "het-random") -> tuple[MethodSpec, ...]:
    """The paper's methods with the paper's grids, and their fair forms.

    The paper names HEW-Fixed and minibatch SGD without defining them, and FedNova
    weighs by data size where methods are judged by the mean over clients. So HEW-Fixed
    stands beside Algorithm 2 with the same control variates as well, FedNova with equal
    p_i, and minibatch SGD both with H steps' gradients at the anchor, each counted in
    full, and with one step along their mean. Forms that a regime makes equal to another
    method are left out: those by size where shards are even, those by H where H = 4.
    """
    exact = {"amplitude": AMPLITUDES, "curvature_ratio": RATIOS}
    amplitudes, scales = {"amplitude": AMPLITUDES}, {"step_scale": SCALES}
    fixed = {"power": 0.0, "corrected": True}
    fair: tuple[MethodSpec, ...] = ()
    if regime.startswith("het"):
        fair = (MethodSpec("HewFixed", FIXED_CORRECTED[0], fixed, amplitudes),)
    if regime == "het-random":
        by_steps = fixed | {"power": 1.0}
        fair += (
            MethodSpec("HewFixed", FIXED_CORRECTED[1], by_steps, amplitudes),
            MethodSpec("FedNova", "FedNova (uniform)", {"by_size": False}, scales),
        )
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
        MethodSpec("MinibatchSGD", "minibatch SGD (H steps)", {}, scales),
        MethodSpec("MinibatchSGD", ONE_STEP, {"ground": "equal"}, scales),
        *fair,
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
        methods=main_methods(regime),
        rounds=90,
        seeds=tuple(range(7)),
        evaluate_every=5,  # 19 points of a curve; evaluation costs more than the rounds
        audit_every=45,
        data=DataSpec(name=data),
        problem=ProblemSpec(l2=1e-4),
        clients=ClientsSpec(
            n=20,
            partition=partition,
            alpha=0.2,
            minimum=32 if partition == "dirichlet" else 1,
            batch_size=32,
            horizons=horizons,
        ),
        tune=TuneSpec(rounds=20, seeds=(0, 1, 2), by="objective"),
    )


def wide_spec(data: str, regime: str) -> Spec:
    """One panel of the main grid with lists long enough to hold their best value."""
    spec = main_spec(data, regime)
    return replace(
        spec,
        name=f"{spec.name}-wide",
        methods=tuple(_long(method) for method in spec.methods),
        evaluate_every=10,
        audit_every=0,
        tune=replace(spec.tune, search="climb"),
    )


def extended_spec(data: str, regime: str) -> Spec:
    """One panel of the extended comparison: long lists, outer momentum, averaging.

    Every method of the grid and the rivals, with momentum as one more list. The
    server's averaged model is what counts: in tuning, and in comparisons. The iterate
    is measured beside it.
    """
    spec = wide_spec(data, regime)
    momentum = {"momentum": LONG["momentum"]}
    methods = tuple(
        MethodSpec(
            m.method,
            m.label,
            {**m.parameters, "average": "ema"},
            {**_long(m).grid, **momentum},
        )
        for m in (*spec.methods, *rivals())
        if m.label != ONE_STEP  # all it lacks is a longer step, which the other has
    )
    name = f"{data}-{regime}-extended"
    return replace(spec, name=name, methods=methods, judge="averaged")


def _long(method: MethodSpec) -> MethodSpec:
    """A method with long lists for short ones."""
    return replace(
        method, grid={name: LONG.get(name, v) for name, v in method.grid.items()}
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
