"""The robustness study as specs: panels × scenarios × rules × momenta.

Twenty clients hold MNIST (homogeneous, Dirichlet 0.2) or Covertype (homogeneous) and do
1, 2, 4 or 8 local steps, drawn anew every round; ten hold Fashion-MNIST for a CNN. The
seed decides which clients are faulty. Every rule is tuned in every scenario and under
every momentum, on seeds that are not judged: by the objective of the honest clients,
the CNN by the worst validation loss of three seeds after as many rounds as are judged.
Every run also keeps the average of its iterates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, final

from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.spec import Spec
from hewfl.experiments.spec_sections import ClientsSpec, DataSpec, ProblemSpec, TuneSpec

Key = tuple[str, str]
"""A panel and a scenario."""
SEEDS, TUNE_SEEDS = tuple(range(7)), {False: (7,), True: (7, 8, 9)}
"""Those judged, and those tuned with: for softmax panels and for modules."""
MOMENTA = {False: (0.0, 0.5, 0.8), True: (0.8,)}
"""Of the server, for softmax panels and for modules, which are worse without."""
ORACLE, OURS = "knows who is bad", "Trust"


class Part(StrEnum):
    """Halves of the study: the convex panels want cores, the CNN wants a GPU."""

    convex = "convex"
    cnn = "cnn"


@final
@dataclass(frozen=True, slots=True)
class NamedScenario:
    """A scenario and what tables call it.

    Attributes:
        title: a few words.
        faults: as a spec writes them; none where all clients are good.
    """

    title: str
    faults: tuple[Mapping[str, Any], ...] = ()


SCENARIOS = {
    "clean": NamedScenario("all clients good"),
    "hidden": NamedScenario(
        "hidden batch sizes 1 to 32",
        ({"kind": "HiddenBatches", "choices": [1, 2, 8, 32]},),
    ),
    "labels": NamedScenario(
        "random labels, 25 %", ({"kind": "RandomLabels", "share": 0.25},)
    ),
    "many": NamedScenario(
        "random labels, 40 %", ({"kind": "RandomLabels", "share": 0.4},)
    ),
    "mirrored": NamedScenario(
        "flipped labels, 25 %", ({"kind": "FlippedLabels", "share": 0.25},)
    ),
    "signs": NamedScenario(
        "flipped signs, 15 %",
        ({"kind": "ScaledUpdates", "share": 0.15, "factor": -1.0},),
    ),
    "loud": NamedScenario(
        "flipped and 10 times as long, 15 %",
        ({"kind": "ScaledUpdates", "share": 0.15, "factor": -10.0},),
    ),
    "constant": NamedScenario(
        "one common direction, 15 %",
        ({"kind": "ConstantUpdates", "share": 0.15, "length": 3.0},),
    ),
    "stale": NamedScenario(
        "old updates again, 25 %",
        ({"kind": "StaleUpdates", "share": 0.25, "every": 10},),
    ),
    "noise": NamedScenario(
        "slowly growing noise, 25 %",
        ({"kind": "GrowingNoise", "share": 0.25, "growth": 0.1},),
    ),
}
DEEP_SCENARIOS = ("clean", "hidden", "labels", "signs")
"""Of the CNN."""


@final
@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the tables.

    Attributes:
        label: what tables call it.
        method: its class.
        given: hyper-parameters that are not tuned.
        is_deep: whether the CNN runs it as well.
    """

    label: str
    method: str
    given: Mapping[str, Any] = field(default_factory=dict)
    is_deep: bool = False

    @property
    def step(self) -> str:
        """The hyper-parameter that is tuned: the rule's step size."""
        return "step_scale" if self.method == "FedAvg" else "amplitude"


VARIATE = {"reference": "variate", "variates": "gradient", "kappa": 2.0}
EXACT = {"normalize": "total_step", "cross_fit": False}
RULES = (
    Rule(ORACLE, "oracle", is_deep=True),
    Rule("uniform", "HewFixed", {"power": 0.0}),
    Rule("horizon", "HewFixed", {"power": 1.0}),
    Rule("FedAvg", "FedAvg", is_deep=True),
    Rule("HEW (Alg. 3), kappa 2", "exact", EXACT | {"kappa": 2.0}, is_deep=True),
    Rule("HEW (Alg. 3), kappa 10", "exact", EXACT | {"kappa": 10.0}, is_deep=True),
    Rule("HEW (Alg. 3), cross-fitted", "exact", {"normalize": "total_step"}),
    Rule("HEW (Alg. 2), kappa 2", "exact", VARIATE),
    Rule("disagreement", "disagreement", is_deep=True),
    Rule("agreement", "agreement", is_deep=True),
    Rule("geometric median", "geometric-median", is_deep=True),
    Rule("coordinate median", "coordinate-median", is_deep=True),
    Rule("trimmed mean", "trimmed-mean", is_deep=True),
    Rule("multi-Krum", "multi-krum", is_deep=True),
    Rule("centred clipping", "centered-clipping", is_deep=True),
    Rule(OURS, "trust", is_deep=True),
    Rule("Trust without memory", "trust", {"memory": 0.0}),
)
"""The first is no rule but a yardstick."""
AMPLITUDES = tuple(2.0**k for k in range(-2, 10))
SCALES = tuple(0.05 * 2.0**k for k in range(12))
RATES = tuple(2.0**k for k in range(6))
"""Without momentum; under momentum β a step goes 1/(1 − β) times as far, so that lists
are multiplied by 1 − β. They are climbed, not tried whole; those of modules, `RATES`,
go on beyond their ends where the best value lies there."""


@final
@dataclass(frozen=True, slots=True)
class Panel:
    """Data and how clients hold them.

    Attributes:
        title: a few words.
        data: which samples.
        partition: `iid` or `dirichlet`.
        part: which half of the study it belongs to.
    """

    title: str
    data: DataSpec
    partition: str
    part: Part = Part.convex


PANELS = {
    "mnist-hom": Panel("MNIST, homogeneous", DataSpec("mnist"), "iid"),
    "mnist-het": Panel("MNIST, heterogeneous", DataSpec("mnist"), "dirichlet"),
    "covertype-hom": Panel(
        "Covertype, homogeneous", DataSpec("covertype", subsample=120_000), "iid"
    ),
    "fashion-cnn": Panel(
        "Fashion-MNIST, CNN, iid",
        DataSpec("fashion_mnist", subsample=20_000, validation_fraction=0.1),
        "iid",
        Part.cnn,
    ),
}


def under_momentum(label: str, beta: float) -> str:
    """What the study calls a rule under server momentum β."""
    return f"{label}, momentum {beta:g}" if beta else label


def study_keys(part: Part | None = None) -> tuple[Key, ...]:
    """Panels and scenarios of one half of the study, or of both."""
    return tuple(
        (panel, scenario)
        for panel, about in PANELS.items()
        if part in (None, about.part)
        for scenario in (SCENARIOS if about.part == Part.convex else DEEP_SCENARIOS)
        if scenario in SCENARIOS
    )


def name_of_run(key: Key, *, is_quick: bool = False) -> str:
    """What the run of a panel and a scenario is called."""
    return f"robustness-{key[0]}-{key[1]}" + ("-quick" if is_quick else "")


def robustness_specs(part: Part | None, *, is_quick: bool = False) -> dict[Key, Spec]:
    """The specs of one half of the study, or of both."""
    specs = {key: _spec(*key) for key in study_keys(part)}
    return {k: _quick(spec) if is_quick else spec for k, spec in specs.items()}


def _spec(panel: str, scenario: str) -> Spec:
    about, faults = PANELS[panel], SCENARIOS[scenario].faults
    is_deep = about.part == Part.cnn
    clients = ClientsSpec(
        n=10 if is_deep else 20,
        partition=about.partition,
        alpha=0.2,
        min_samples=32 if about.partition == "dirichlet" else 1,
        batch_size=32,
        local_steps={
            "kind": "ChoiceSteps",
            "choices": [1, 2, 4, 8],
            "every_round": True,
        },
        scenario={"faults": [dict(fault) for fault in faults]} if faults else None,
    )
    rounds = 40 if is_deep else 90
    # a CNN may diverge late, and for some seeds: trials are whole, the worst one counts
    how = TuneSpec(rounds=30, seeds=TUNE_SEEDS[is_deep], local_search=True)
    if is_deep:
        how = replace(
            how,
            rounds=rounds,
            metric="validation_loss",
            max_extensions=6,
            seed_reduction="worst",
        )
    return Spec(
        name=name_of_run((panel, scenario)),
        methods=_methods(is_deep=is_deep),
        rounds=rounds,
        seeds=SEEDS,
        evaluate_every=rounds,  # of all entries it costs as much as ten rounds
        evaluate_model="averaged",
        data=about.data,
        problem=_problem(is_deep=is_deep),
        clients=clients,
        tune=how,
    )


def _problem(*, is_deep: bool) -> ProblemSpec:
    if not is_deep:
        return ProblemSpec(l2=1e-4, solve_optimum=False)
    # several processes share a GPU: none may take its memory for itself
    return ProblemSpec(
        model="medium_cnn",
        learning_rate=0.1,
        reference_steps=3.75,
        clip=1.0,
        client_chunk=200,
    )


def _methods(*, is_deep: bool) -> tuple[MethodSpec, ...]:
    """Every rule under every momentum, with its grid of step sizes."""
    return tuple(
        _method(rule, beta, is_deep=is_deep)
        for rule in RULES
        for beta in MOMENTA[is_deep]
        if rule.is_deep or not is_deep
    )


def _method(rule: Rule, beta: float, *, is_deep: bool) -> MethodSpec:
    given = {**rule.given, "average": "ema"} | ({"momentum": beta} if beta else {})
    lists: dict[str, tuple[float, ...]] = {
        "amplitude": AMPLITUDES,
        "step_scale": SCALES,
    }
    name, values = rule.step, lists[rule.step]
    if is_deep:
        values = RATES
    grid = tuple(round((1 - beta) * value, 10) for value in values)
    return MethodSpec(
        rule.method, under_momentum(rule.label, beta), given, {name: grid}
    )


def _quick(spec: Spec) -> Spec:
    """A first look on the CPU: few samples, rounds, seeds and candidates."""
    methods = tuple(
        replace(m, grid={name: values[3:6] for name, values in m.grid.items()})
        for m in spec.methods
    )
    return replace(
        spec,
        name=f"{spec.name}-quick",
        methods=methods,
        rounds=6,
        evaluate_every=6,
        seeds=spec.seeds[:2],
        data=replace(spec.data, subsample=2000),
        tune=replace(spec.tune, rounds=3),
    )
