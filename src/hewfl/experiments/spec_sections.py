"""The sections of a spec: data, problem, clients and tuning, each validated."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, final, get_args

import numpy as np

from hewfl.core.plugins import (
    check_name,
    check_parts,
    check_repr,
    is_user_code,
    load,
    make,
)
from hewfl.core.toml_records import (
    check_names,
    from_list,
    from_table,
    is_whole,
    one_of,
    rename_errors,
)
from hewfl.core.validation import (
    BelowOne,
    Nonnegative,
    Positive,
    check_fields,
    invalid,
)
from hewfl.data.partitions import GROUP, KINDS, PartitionSpec
from hewfl.federation import (
    AnyParticipation,
    ChoiceSteps,
    EpochSteps,
    FixedSteps,
    FullParticipation,
    LocalSteps,
    PoissonSteps,
    RandomParticipation,
    RootSet,
    RotatingParticipation,
    SampledParticipation,
    Scenario,
    TimedSteps,
)
from hewfl.federation.adversary import Attack
from hewfl.federation.attacks import (
    ConstantUpdates,
    Fault,
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

MODELS_GROUP, PROBLEMS_GROUP = "hewfl.models", "hewfl.problems"
LOCAL_STEPS_GROUP, PARTICIPATION_GROUP = "hewfl.local_steps", "hewfl.participation"
FAULTS_GROUP = "hewfl.faults"
"""Entry points by which installed packages offer models, problems, laws and faults."""


def _by_name(*laws: type[Any]) -> dict[str, type[Any]]:
    return {law.__name__: law for law in laws}


LOCAL_STEPS = _by_name(*(FixedSteps, ChoiceSteps, PoissonSteps, EpochSteps, TimedSteps))
PARTICIPATION = _by_name(
    *(FullParticipation, SampledParticipation, RandomParticipation),
    RotatingParticipation,
)

FAULTS = _by_name(
    *(HiddenBatches, RandomLabels, FlippedLabels, ScaledUpdates, RandomUpdates),
    *(ConstantUpdates, StaleUpdates, GrowingNoise),
    *(ALIE, IPM, Mimic, MinMax, MinSum, Gaussian, Drift, Sleeper, Alternating),
)
LITERATURE = {
    "labelflipping": "FlippedLabels",
    "signflipping": "ScaledUpdates with factor = -1.0",
    "scaling": "ScaledUpdates",
    "alittleisenough": "ALIE",
    "innerproductmanipulation": "IPM",
    "fallofempires": "IPM",
    "noise": "Gaussian, or RandomUpdates",
}
"""Names of faults and attacks in the literature, and ours."""
ZOO = ("mlp", "cnn", "resnet18", "transformer")
"""Networks made for the shape of the data (`hewfl.problems.module.zoo`)."""
MODELS = ("softmax", "medium_cnn", "classifier_head", *ZOO)
PARTITIONS = (*KINDS, "pool", "nodes")
LARGEST = 2**31 - 1
"""Upper limit of rounds, clients and samples: counts of draws stay exact below it."""
Quantity = Literal[
    "objective",
    "pooled",
    "validation_loss",
    "validation_accuracy",
    "test_loss",
    "test_accuracy",
    "scalars",
    "local_steps",
]


def check_count(name: str, value: int, *, least: int = 1) -> None:
    """Require a whole number from `least` to `LARGEST`."""
    if value < least:
        raise invalid(name, f"at least {least}", value)
    if value > LARGEST:
        raise invalid(name, f"at most {LARGEST}", value)


def check_seeds(name: str, seeds: tuple[int, ...]) -> None:
    """Require at least one seed, and different ones from 0 to 2^63 - 1."""
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise invalid(name, "different whole numbers from 0", list(seeds))
    if max(seeds) >= 2**63:
        raise invalid(name, "below 2^63", max(seeds))


Count = Annotated[int, check_count]
"""A whole number from 1."""
CountOrZero = Annotated[int, partial(check_count, least=0)]
Seeds = Annotated[tuple[int, ...], check_seeds]


@final
@dataclass(frozen=True, slots=True)
class DataSpec:
    """The data set and how it is prepared.

    Attributes:
        name: `digits`, or another name that `hewfl data list` prints; the path of a
            CSV, NPZ or Parquet file or of a folder of images, relative to the current
            folder; or "hf:" and a name of the Hugging Face hub.
        label_column: column of the labels in a CSV or Parquet file; the last by
            default.
        client_column: column that names the client of each row, for
            `clients.partition = "natural"`; it is not a feature. In an NPZ file the
            array "clients". `femnist` needs none.
        split: `shuffled` pools all published parts and splits them anew, by seed;
            `published` keeps the publisher's test part.
        test_fraction: share of rows held out by the shuffled split.
        subsample: number of rows to use, drawn by seed; all by default.
        validation_fraction: share of the training part held out for tuning; for
            modules.
        standardise: scale features to mean 0 and deviation 1 on the training part.
        bias: append a column of ones.
    """

    name: str = "digits"
    label_column: str | None = None
    client_column: str | None = None
    split: Literal["shuffled", "published"] = "shuffled"
    test_fraction: float = 0.2
    subsample: int | None = None
    validation_fraction: BelowOne = 0.0
    standardise: bool = True
    bias: bool = True

    def __post_init__(self) -> None:
        """Validate the fields."""
        check_fields(self)
        if not 0 < self.test_fraction < 1:
            raise invalid("test_fraction", "between 0 and 1", self.test_fraction)
        if not self.name:
            raise invalid("data.name", "a data set or a file", repr(self.name))
        if self.subsample is not None and self.subsample < 2:
            raise invalid("data.subsample", "at least 2 rows", self.subsample)


@final
@dataclass(frozen=True, slots=True)
class ProblemSpec:
    """The model and its objective: softmax regression, or a torch module.

    Attributes:
        model: `softmax`; or a module trained by PyTorch: `mlp` for any data, `cnn`,
            `resnet18` and `transformer` for images of any size, `medium_cnn` for 28 ×
            28 images, `classifier_head` for 768 features of a text encoder, or your
            own, as "my_models:Net". That is called with those of `features`, `shape`,
            `classes` and `seed` that it names, and with `options`, and returns a torch
            module.
        factory: your own problem instead of a model, as "my_problems:ridge". It is
            called with `data` (`hewfl.experiments.build_problem.ProblemData`) and
            `options`, and returns a `hewfl.problems.Problem`.
        options: further arguments of your own model or problem, or of `mlp` (width,
            depth), `cnn` (width, dense), `resnet18` (width, groups) and `transformer`
            (patch, width, depth, heads).
        l2: λ of (λ/2)‖W‖² for softmax; the paper does not print its value.
        smoothness: the L that normalises softmax step sizes: `estimate` by power
            iteration, as in the paper's experiments, or `bound`, the proven one.
        solve_optimum: solve softmax for F*, so that gaps can be reported; set it to
            false where l2 is zero.
        learning_rate: η of a module. A module has no known L; 1/η takes its place. A
            method with `step_scale` s steps with s η, one with `amplitude` ϑ with
            ϑ η h/H_i, where h is `reference_steps`. Λ of HewHom and HewHet is
            `curvature_ratio`/(η h).
        reference_steps: h, about the mean number of local steps.
        weight_decay: of a module.
        clip: norm that a module's minibatch gradients are clipped to; not clipped if
            absent.
        dropout: of `medium_cnn` and `classifier_head`.
        optimiser: of a module's local steps: `sgd`, or `adamw` with moments that start
            at zero in every round.
        precision: of a module's local steps: `full`, or `bfloat16` by autocast.
        client_chunk: largest number of module replicas stepped at once; `auto` for as
            many as fit into memory.
    """

    model: str = "softmax"
    factory: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    l2: Nonnegative = 1e-4
    smoothness: Literal["estimate", "bound"] = "estimate"
    solve_optimum: bool = True
    learning_rate: Positive = 1e-3
    reference_steps: Positive = 1.0
    weight_decay: float = 0.0
    clip: float | None = None
    dropout: float = 0.0
    optimiser: Literal["sgd", "adamw"] = "sgd"
    precision: Literal["full", "bfloat16"] = "full"
    client_chunk: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        """Validate the fields; code of the user's own is not loaded."""
        check_name(self.model, MODELS, MODELS_GROUP, "problem.model")
        if self.factory is not None:
            check_name(self.factory, (), PROBLEMS_GROUP, "problem.factory")
            if self.model != "softmax":
                rule = "left out beside problem.factory"
                raise invalid("problem.model", rule, repr(self.model))
        check_fields(self)

    @property
    def is_module(self) -> bool:
        """Whether PyTorch trains it."""
        return self.model != "softmax"

    @property
    def is_softmax(self) -> bool:
        """Whether it is hewfl's softmax regression."""
        return self.model == "softmax" and self.factory is None


@final
@dataclass(frozen=True, slots=True)
class ClientsSpec:
    """The clients: their data, their local work, and the faults of some of them.

    Attributes:
        n: number of clients; counted in the data under `natural`.
        partition: `iid` deals shuffled samples evenly; `dirichlet` skews classes;
            `classes` gives each client samples of `classes_per_client` classes,
            `shards` as many shards of the samples sorted by label; `quantity` skews
            sizes alone, `features` the regions of feature space; `natural` uses the
            column `data.client_column`; `pool` lets every client draw from all
            samples, which alone is homogeneous in the sense of the theory (erratum
            E-14); or a function of your own, as "my_parts:by_age"
            (`hewfl.data.PartitionSpec`). The record of a real federation says `nodes`.
        alpha: concentration of `dirichlet`, `quantity` and `features`.
        min_samples: least number of samples of a client under these.
        classes_per_client: classes, or shards, of each client.
        options: further arguments of a partition of your own.
        batch_size: samples of a local step.
        local_steps: a number, a list with one per client, or a table with `kind` =
            "FixedSteps", "ChoiceSteps", "PoissonSteps", "EpochSteps" or
            "TimedSteps" and its fields, listed in docs/experiments.md; or a law of
            your own, as kind = "my_laws:Weekdays".
        participation: "full", a number of clients sampled each round, or a table with
            `kind` and its fields.
        scenario: faults and attacks of some clients, hidden from every rule: a table
            with `faults`, a list of tables with `kind` and its fields, and `objective`,
            "honest" (the default) or "all"; a fault may be your own, as kind =
            "my_world:Pull". All clients are honest if absent.
        root: samples that the server owns, for methods that need a root gradient: a
            table with `size` and `without`, a list of classes that are left out. The
            server owns none if absent.
    """

    n: Count = 20
    partition: str = "iid"
    alpha: Positive = 0.2
    min_samples: Count = 1
    classes_per_client: Count = 2
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    batch_size: Count = 32
    local_steps: Any = 4
    participation: Any = "full"
    scenario: Any = None
    root: Any = None

    def __post_init__(self) -> None:
        """Validate the fields.

        Code of the user's own is not loaded: a spec can be read without running it.
        """
        check_name(self.partition, PARTITIONS, GROUP, "clients.partition")
        check_fields(self)
        if not is_own_law(self.local_steps, LOCAL_STEPS_GROUP):
            make_local_steps(self.local_steps)
        if not is_own_law(self.participation, PARTICIPATION_GROUP):
            make_participation(self.participation)
        read_scenario(self.scenario)
        make_root(self.root)
        # The record of a federation may list few of its nodes; natural clients are
        # counted later.
        if self.partition not in ("nodes", "natural"):
            self.check_number()

    def check_number(self) -> None:
        """Require laws that fit the number of clients, and one honest client."""
        with rename_errors({"faults": "clients.scenario.faults"}):
            read_scenario(self.scenario).assign(0, np.ones(self.n, dtype=np.int64))
        steps, who = self.local_steps, self.participation
        check_sizes(
            1 if is_own_law(steps, LOCAL_STEPS_GROUP) else steps,
            "full" if is_own_law(who, PARTICIPATION_GROUP) else who,
            self.n,
        )

    @property
    def sharing(self) -> PartitionSpec:
        """The partition of the samples."""
        return PartitionSpec(
            self.partition,
            self.n,
            self.alpha,
            self.min_samples,
            self.classes_per_client,
            self.options,
        )

    @property
    def partition_text(self) -> str:
        """The partition in words."""
        words = {"pool": "one pool for all", "nodes": "data as the nodes hold them"}
        return words.get(self.partition) or self.sharing.description


@final
@dataclass(frozen=True, slots=True)
class TuneSpec:
    """How hyper-parameters are chosen for methods with a grid.

    Attributes:
        rounds: length of a trial.
        seeds: of the trials.
        metric: the quantity that decides, after the last round.
        tie_tolerance: candidates this close to the best count as equal.
        tie_metrics: the quantities that decide between equals, one after the other;
            `scalars` counts the numbers sent, `local_steps` the steps of all clients.
        screen_rounds: length of a first, shorter trial of all candidates, after which
            only the best of each method go on; 0 for none.
        screen_seeds: of the first trial.
        screen_top_k: how many candidates of each method go on.
        local_search: false tries all points of a grid; true tries a few, and then the
            neighbours of the best until all of them were tried.
        max_extensions: how often a list of positive numbers may be extended, by the
            ratio of its last two, at the end where the best value lies.
        seed_reduction: `mean` or `worst` of the seeds decides; under `worst` a
            candidate that diverged for one seed is not chosen.
    """

    rounds: Count = 20
    seeds: Seeds = (0, 1, 2)
    metric: Quantity = "objective"
    tie_tolerance: Nonnegative = 0.0
    tie_metrics: tuple[Quantity, ...] = ("objective",)
    screen_rounds: CountOrZero = 0
    screen_seeds: Seeds = (0,)
    screen_top_k: Count = 3
    local_search: bool = False
    max_extensions: CountOrZero = 0
    seed_reduction: Literal["mean", "worst"] = "mean"

    def __post_init__(self) -> None:
        """Validate the fields."""
        check_fields(self)
        if not self.tie_metrics:
            raise invalid("tune.tie_metrics", "at least one quantity", "none")


def make_scenario(given: Any) -> Scenario:
    """The scenario of a spec: a table with a list of faults; code is loaded."""
    return _scenario(given, _fault)


def read_scenario(given: Any) -> Scenario:
    """The scenario of a spec, with a stand-in for each fault of the user's own.

    Nothing is loaded. The stand-in has the share of the table, so that shares are
    checked.
    """
    return _scenario(given, _read_fault)


def _scenario(given: Any, make_fault: Callable[[Any, str], Any]) -> Scenario:
    where = "clients.scenario"
    if given is None:
        return Scenario()
    if not isinstance(given, Mapping):
        raise invalid(where, "a table with `faults`", repr(given))
    check_names(given, ("faults", "objective"), where)
    listed = given.get("faults", ())
    if not isinstance(listed, list | tuple) or not listed:
        raise invalid(f"{where}.faults", "a list of tables", repr(listed))
    faults = [make_fault(f, f"{where}.faults[{k}]") for k, f in enumerate(listed)]
    objective = given.get("objective", "honest")
    if objective not in ("honest", "all"):
        raise invalid(f"{where}.objective", "one of honest, all", repr(objective))
    with rename_errors({"faults": f"{where}.faults"}):
        return Scenario(tuple(faults), objective)


def make_root(given: Any) -> RootSet | None:
    """The root set of a spec: a table with its fields."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise invalid("clients.root", "a table with `size`", repr(given))
    check_names(given, ("size", "without"), "clients.root")
    with rename_errors(
        {"size": "clients.root.size", "without": "clients.root.without"}
    ):
        return RootSet(**given)


def _fault(given: Any, where: str) -> Any:
    """A fault or an attack by its name, with its own fields; own code is loaded."""
    given = _fault_table(given, where)
    if given["kind"] in FAULTS:
        return _known_fault(given, where, _fault)
    contracts = (*get_args(Fault), Attack)
    return _own(given, where, FAULTS_GROUP, contracts, "a fault or an attack")


def _read_fault(given: Any, where: str) -> Any:
    """A fault of hewfl, or a stand-in with the share of a fault of the user's own."""
    given = _fault_table(given, where)
    if given["kind"] in FAULTS:
        return _known_fault(given, where, _read_fault)
    share = _law_fields(given, where).get("share", 0.0)
    return from_table(IPM, {"share": share}, where)


def _known_fault(
    given: Mapping[str, Any], where: str, make_fault: Callable[[Any, str], Any]
) -> Any:
    """A fault of hewfl, with the attack that it is made of, if there is one."""
    fields = _law_fields(given, where)
    if "base" in fields:
        fields["base"] = make_fault(fields["base"], f"{where}.base")
    return from_table(FAULTS[given["kind"]], fields, where)


def _fault_table(given: Any, where: str) -> Mapping[str, Any]:
    """The table of a fault, with a known kind or the name of code."""
    if not isinstance(given, Mapping):
        given = {"kind": given} if is_user_code(given, FAULTS_GROUP) else given
    if not isinstance(given, Mapping):
        raise invalid(where, "a table", repr(given))
    kind = given.get("kind")
    word = "".join(c for c in str(kind).lower() if c.isalpha())
    ours = {name.lower(): name for name in FAULTS} | LITERATURE
    if kind not in FAULTS and word in ours and not is_user_code(kind, FAULTS_GROUP):
        hint = f" (did you mean {ours[word]}?)"
        raise invalid(f"{where}.kind", one_of(tuple(FAULTS), ""), repr(kind) + hint)
    check_name(kind, tuple(FAULTS), FAULTS_GROUP, f"{where}.kind")
    return given


def make_local_steps(given: Any) -> LocalSteps:
    """The law of local steps of a spec."""
    where = "clients.local_steps"
    if isinstance(given, Mapping) or is_user_code(given, LOCAL_STEPS_GROUP):
        law: LocalSteps = _law(LOCAL_STEPS, given, where, LOCAL_STEPS_GROUP, LocalSteps)
        return law
    if isinstance(given, list | tuple):
        steps: Any = from_list(int, given, where)
    elif is_whole(given):
        steps = int(given)
    else:
        raise invalid(where, "a whole number, a list of them or a table", repr(given))
    with rename_errors({"steps": where}):
        return FixedSteps(steps)


def make_participation(given: Any) -> AnyParticipation:
    """The law of participation of a spec."""
    where = "clients.participation"
    if given == "full":
        return FullParticipation()
    if isinstance(given, Mapping) or is_user_code(given, PARTICIPATION_GROUP):
        law: AnyParticipation = _law(
            PARTICIPATION, given, where, PARTICIPATION_GROUP, AnyParticipation
        )
        return law
    if not is_whole(given):
        raise invalid(where, '"full", a whole number or a table', repr(given))
    with rename_errors({"count": where}):
        return SampledParticipation(int(given))


def check_sizes(local_steps: Any, participation: Any, n: int) -> None:
    """Require that lists have one entry per client and samples are not too large."""
    steps, who = make_local_steps(local_steps), make_participation(participation)
    for law, key in ((steps, "steps"), (steps, "speeds"), (who, "probability")):
        values = getattr(law, key, None)
        if isinstance(values, Sequence) and len(values) != n:
            given = local_steps if law is steps else participation
            rule = f"one number for each of the {n} clients"
            raise invalid(_written(law, given, key), rule, f"{len(values)} of them")
    count = getattr(who, "count", 0)
    if count > n:
        rule = f"at most the {n} clients there are"
        raise invalid(_written(who, participation, "count"), rule, count)


def _written(law: Any, given: Any, field: str) -> str:
    """The path of a law's field in the spec."""
    kind = "local_steps" if type(law).__name__ in LOCAL_STEPS else "participation"
    return f"clients.{kind}" + (f".{field}" if isinstance(given, Mapping) else "")


def is_own_law(given: Any, group: str) -> bool:
    """Whether a spec names a law of the user's own; it is loaded only to run it."""
    return is_user_code(
        given.get("kind") if isinstance(given, Mapping) else given, group
    )


def _law(
    known: Mapping[str, type[Any]],
    given: Mapping[str, Any] | str,
    where: str,
    group: str,
    kind_of: Any,
) -> Any:
    """A law by its name, with its own fields; one of the user's own is loaded."""
    if isinstance(given, str):
        given = {"kind": given}
    kind = given.get("kind")
    check_name(kind, tuple(known), group, f"{where}.kind")
    rest = _law_fields(given, where)
    if kind in known:
        return from_table(known[str(kind)], rest, where)
    return _own(given, where, group, get_args(kind_of) or (kind_of,), "a law")


def _own(
    given: Mapping[str, Any],
    where: str,
    group: str,
    contracts: Sequence[Any],
    what: str,
) -> Any:
    """An object of the user's own, loaded, with all members of one of the contracts."""
    code, place = str(given["kind"]), f"{where}.kind"
    value = make(load(code, group, place), _law_fields(given, where), {}, where)
    check_parts(value, contracts, place, what)
    check_repr(value, place)
    return value


def _law_fields(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of a law beside its kind; none of them is an empty list."""
    fields = {key: value for key, value in given.items() if key != "kind"}
    for key, value in fields.items():
        if value == []:
            raise invalid(f"{where}.{key}", "a list with at least one entry", value)
    return fields
