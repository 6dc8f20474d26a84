"""The paper's experiments as specs: the only place that knows figure numbers.

Main grid (Section 5): Covertype and MNIST, softmax regression, 20 clients, batches of
32, full participation, 90 rounds, 7 seeds, zero start; H = 4, or drawn once from {1, 2,
4, 8}; shuffled shards or Dirichlet 0.2. Where the text is silent: λ = 1e-4, the least
shard of a Dirichlet partition is one batch, trials are judged by (1/n) Σ F_i, and "HEW"
is run by both post-local algorithms (erratum E-28).

Deep-learning lines (Appendix F). Line 1: Fashion-MNIST, a medium CNN, 40 clients,
Dirichlet 0.5 with at least 100 samples, 10 clients a round, H local epochs of 1 to 4,
160 rounds. Line 2: AG News, a trainable head on frozen 768-wide features, 30 clients,
Dirichlet 0.3 with at least 64, 10 clients a round, H from a mixture of Poisson laws
clipped to 1..12, 30 rounds. What the text leaves open, and what is taken here:

- The local optimiser. With plain SGD the printed rates (1e-3, 5e-4) teach next to
  nothing in the rounds given; rates, decay and multipliers are those of AdamW.
- What HEW is (erratum E-28). It tunes a multiplier of the learning rate and a "scale
  parameter" λ, 1.75 as selected, and has sparse weights: Algorithm 3, and for line 2
  Algorithm 2 as well, with λ for κ, the curvature in multiples of the mean's own, which
  needs no L. Every client takes its steps at one rate, as all methods do.
- The law of H in line 1. Figure 6 shows most clients at 1 and 2, some at 4, few at 3.

One total step for all clients, as Algorithms 2 and 3 set their step sizes, is an
ablation: the `equal` specs, in which H is counted in epochs (line 1) and in steps
(line 2).
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.spec import Spec
from hewfl.experiments.spec_sections import (
    ClientsSpec,
    DataSpec,
    ProblemSpec,
    Quantity,
    TuneSpec,
)

DATA = ("covertype", "mnist")
REGIMES: dict[str, tuple[str, Any]] = {
    "hom-equal": ("iid", 4),
    "hom-random": ("iid", {"kind": "ChoiceSteps", "choices": [1, 2, 4, 8]}),
    "het-random": ("dirichlet", {"kind": "ChoiceSteps", "choices": [1, 2, 4, 8]}),
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
    "prox": (0.0, 0.001, 0.01, 0.1, 1.0, 10.0),
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
    fixed = {"power": 0.0, "variates": "gradient"}
    fair: tuple[MethodSpec, ...] = ()
    if regime.startswith("het"):
        fair = (MethodSpec("HewFixed", FIXED_CORRECTED[0], fixed, amplitudes),)
    if regime == "het-random":
        by_steps = fixed | {"power": 1.0}
        fair += (
            MethodSpec("HewFixed", FIXED_CORRECTED[1], by_steps, amplitudes),
            MethodSpec("FedNova", "FedNova (uniform)", {"by": "equal"}, scales),
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
        MethodSpec("FedProx", "FedProx", {}, scales | {"prox": PROXIMAL}),
        MethodSpec("MinibatchSGD", "minibatch SGD (H steps)", {}, scales),
        MethodSpec("MinibatchSGD", ONE_STEP, {}, {"amplitude": SCALES}),
        *fair,
    )


def rivals() -> tuple[MethodSpec, ...]:
    """The adaptive rivals, tuned over the same step sizes."""
    scales = {"step_scale": SCALES}
    return (
        MethodSpec("fedmgda", "FedMGDA+", {}, scales),
        MethodSpec("fedaware", "FedAWARE", {}, scales),
        MethodSpec("fedexp", "FedExP", {}, scales),
        MethodSpec("fedadp", "FedAdp", {}, scales),
        MethodSpec("qfedavg", "q-FedAvg", {"q": 0.1}, scales),
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
            min_samples=32 if partition == "dirichlet" else 1,
            batch_size=32,
            local_steps=horizons,
        ),
        tune=TuneSpec(rounds=20, seeds=(0, 1, 2), metric="objective"),
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
        tune=replace(spec.tune, local_search=True),
    )


def extended_spec(data: str, regime: str) -> Spec:
    """One panel of the extended comparison: long lists, server momentum, averaging.

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
    return replace(spec, name=name, methods=methods, evaluate_model="averaged")


def _long(method: MethodSpec) -> MethodSpec:
    """A method with long lists for short ones.

    The total of a method with one step is its learning rate, and has that list.
    """
    lists = LONG | (
        {"amplitude": LONG["step_scale"]} if method.label == ONE_STEP else {}
    )
    grid = {name: lists.get(name, values) for name, values in method.grid.items()}
    return replace(method, grid=grid)


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


SEEDS = (42, 43, 44, 45)
HEW_FIXED = "HEW-Fixed"
MINIBATCH = "minibatch SGD"
RATES = (0.25, 0.5, 1.0, 1.5, 2.0, 4.0)
"""Multipliers of the learning rate; the paper selects from 1.25 to 2."""
WIDE = (*RATES, 8.0, 16.0, 32.0, 64.0)
"""Those of line 2: short trials want larger ones."""
KAPPAS = (0.1, 0.25, 0.5, 1.0, 1.75)
"""κ of HEW; the paper's selected value is 1.75."""
KAPPAS_EQUAL = (*KAPPAS, 3.5, 7.0)
"""At equal ground, where larger ones are chosen."""
EXTEND = 4
"""How often a list may grow at the end where its best value lies."""
EPOCHS = {"epochs": [1.0, 2.0, 3.0, 4.0], "probabilities": [0.4, 0.35, 0.1, 0.15]}
IN_EPOCHS = {"unit": "epochs"}
MEAN_EPOCHS, MEAN_STEPS = 2.0, 4.0
"""About the means of H: there a total step gives the plain learning rate."""
TIES: tuple[Quantity, ...] = ("test_accuracy", "scalars", "local_steps")
"""What decides after validation accuracy and loss, in the paper's order."""
Rates = tuple[float, ...]


def cnn_spec() -> Spec:
    """Line 1: Figures 5 and 6."""
    methods = (
        _hew(HEW_PLAIN, RATES, given=IN_EPOCHS),
        _scaled("UniformLocalSGD", "FedAvg", RATES),
        _scaled("MinibatchSGD", MINIBATCH, RATES, step=TOTAL),
    )
    return _cnn("fashion-cnn", methods)


def cnn_equal_spec() -> Spec:
    """Line 1 with one total step for all clients, H counted in epochs.

    Its lists are climbed by trials of 40 rounds; no longer trial follows.
    """
    methods = (
        _hew(HEW_PLAIN, RATES, KAPPAS_EQUAL, step=TOTAL, given=IN_EPOCHS),
        _scaled("UniformLocalSGD", "FedAvg", RATES, step=TOTAL, given=IN_EPOCHS),
    )
    spec = _cnn("fashion-cnn-equal-ground", methods)
    spec = replace(spec, problem=replace(spec.problem, reference_steps=MEAN_EPOCHS))
    how = replace(
        spec.tune, rounds=40, screen_rounds=0, screen_seeds=(0,), screen_top_k=3
    )
    how = replace(how, local_search=True)
    return replace(spec, tune=how)


def _cnn(name: str, methods: tuple[MethodSpec, ...]) -> Spec:
    return Spec(
        name=name,
        methods=methods,
        rounds=160,
        seeds=SEEDS,
        evaluate_every=5,
        data=DataSpec("fashion_mnist", split="published", validation_fraction=0.1),
        problem=_problem("medium_cnn", 1e-3, weight_decay=1e-4, clip=5.0, dropout=0.15),
        clients=ClientsSpec(
            n=40,
            partition="dirichlet",
            alpha=0.5,
            min_samples=100,
            batch_size=64,
            local_steps={"kind": "EpochSteps", **EPOCHS},
            participation=10,
        ),
        tune=_tune(
            160, (46, 47), screen_rounds=40, screen_seeds=(46, 47), screen_top_k=2
        ),
    )


def head_spec() -> Spec:
    """Line 2: Figures 3 and 4; two-stage tuning as in the text.

    FedProx with μ = 0, the bound of its list, is FedAvg.
    """
    plain = {
        "UniformLocalSGD": "Uniform",
        "FedAvg": "FedAvg",
        "FedProx": "FedProx",
        "FedNova": "FedNova",
        "Scaffold": "SCAFFOLD",
    }
    more = {"FedProx": {"prox": (0.0, 0.01, 0.05, 0.1)}}
    return _head(
        "agnews-head",
        (
            _hew(HEW_PLAIN, WIDE),
            _hew(HEW_CORRECTED, WIDE),
            _fixed(STEP),
            *(
                _scaled(method, label, WIDE, more.get(method, {}))
                for method, label in plain.items()
            ),
            _scaled("MinibatchSGD", MINIBATCH, WIDE, step=TOTAL),
        ),
    )


def head_equal_spec() -> Spec:
    """Line 2 with one total step for all clients, H counted in steps."""
    spec = _head(
        "agnews-head-equal-ground",
        (
            _hew(HEW_PLAIN, WIDE, KAPPAS_EQUAL, step=TOTAL),
            _hew(HEW_CORRECTED, WIDE, KAPPAS_EQUAL, step=TOTAL),
            _fixed(TOTAL),
            _scaled("UniformLocalSGD", "Uniform", WIDE, step=TOTAL),
        ),
    )
    return replace(spec, problem=replace(spec.problem, reference_steps=MEAN_STEPS))


def head_printed_spec() -> Spec:
    """Line 2 at the hyper-parameters that the paper prints, without tuning.

    The multiplier of the learning rate, FedProx's μ, and the λ of HEW and HEW-Fixed,
    which are κ and the power of H here, as in `head_spec`.
    """
    given = {
        HEW_PLAIN: {STEP: 1.5, "kappa": 1.75},
        HEW_CORRECTED: {STEP: 1.5, "kappa": 1.75},
        HEW_FIXED: {STEP: 2.0, "power": 1.0},
        "Uniform": {STEP: 1.5},
        "FedAvg": {STEP: 2.0},
        "FedProx": {STEP: 2.0, "prox": 0.05},
        "FedNova": {STEP: 1.25},
        "SCAFFOLD": {STEP: 2.0},
        MINIBATCH: {TOTAL: 2.0},
    }
    spec = head_spec()
    methods = tuple(
        replace(m, parameters={**m.parameters, **given[m.label]}, grid={})
        for m in spec.methods
    )
    name = f"{spec.name}-printed"
    return replace(spec, name=name, methods=methods, tune=TuneSpec())


def _head(name: str, methods: tuple[MethodSpec, ...]) -> Spec:
    return Spec(
        name=name,
        methods=methods,
        rounds=30,
        seeds=SEEDS,
        data=DataSpec("ag_news", split="published", validation_fraction=0.1),
        problem=_problem(
            "classifier_head", 5e-4, weight_decay=1e-2, clip=1.0, dropout=0.2
        ),
        clients=ClientsSpec(
            n=30,
            partition="dirichlet",
            alpha=0.3,
            min_samples=64,
            batch_size=16,
            local_steps={"kind": "PoissonSteps", "clipped": True},
            participation=10,
        ),
        tune=_tune(8, (42, 43), screen_rounds=4, screen_seeds=(42,), screen_top_k=3),
    )


def _problem(model: Any, rate: float, **more: float) -> ProblemSpec:
    return ProblemSpec(model=model, learning_rate=rate, optimiser="adamw", **more)  # type: ignore[arg-type]  # all are numbers


def _tune(rounds: int, seeds: tuple[int, ...], **screen: Any) -> TuneSpec:
    """By validation accuracy, with the tie-breaks of the text; lists without edges."""
    return TuneSpec(
        rounds=rounds,
        seeds=seeds,
        metric="validation_accuracy",
        tie_tolerance=0.002,
        tie_metrics=("validation_loss", *TIES),
        max_extensions=EXTEND,
        **screen,
    )


STEP, TOTAL = "step_scale", "amplitude"
"""One learning rate for every step, or one total step shared among a client's steps."""


def _hew(
    label: str,
    rates: Rates,
    kappas: Rates = KAPPAS,
    *,
    step: str = STEP,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> MethodSpec:
    """Algorithm 3, or 2, with κ for the curvature: exact weights without an L."""
    if label == HEW_CORRECTED:
        rule: dict[str, Any] = {"reference": "variate", "variates": "gradient"}
    else:
        rule = {"normalize": "total_step", "cross_fit": False}
    return MethodSpec(
        "exact", label, rule | dict(given), {step: rates, "kappa": kappas}
    )


def _fixed(step: str) -> MethodSpec:
    grid = {step: WIDE, "power": (0.5, 1.0, 1.75)}
    return MethodSpec("HewFixed", HEW_FIXED, {}, grid)


def _scaled(
    method: str,
    label: str,
    rates: Rates,
    more: Mapping[str, Rates] = MappingProxyType({}),
    *,
    step: str = STEP,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> MethodSpec:
    return MethodSpec(method, label, dict(given), {step: rates, **more})


def quick_deep(spec: Spec) -> Spec:
    """A small version for the CPU: few samples, clients, rounds and candidates."""
    methods = tuple(
        replace(m, grid={name: values[:1] for name, values in m.grid.items()})
        for m in spec.methods[:5]
    )
    return replace(
        spec,
        name=f"{spec.name}-quick",
        methods=methods,
        rounds=3,
        seeds=spec.seeds[:2],
        evaluate_every=1,
        data=replace(spec.data, split="shuffled", subsample=600),
        clients=replace(spec.clients, n=6, min_samples=20, participation=3),
        tune=replace(
            spec.tune,
            rounds=1,
            seeds=spec.seeds[:1],
            screen_rounds=0,
            screen_seeds=(0,),
            max_extensions=1,
        ),
    )
