"""Who takes part in a round, with how many steps and which faults, from a spec."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, final

import numpy as np

from hewfl.core.plugins import checked_name, is_own, load, make
from hewfl.core.toml_records import (
    check_names,
    errors_naming,
    from_list,
    from_table,
    is_whole,
)
from hewfl.core.validation import (
    BelowOne,
    Nonnegative,
    Positive,
    Validated,
    check_fields,
    invalid,
    shown,
)
from hewfl.data.partition import GROUP, KINDS, PartitionSpec
from hewfl.federation.attacks import (
    ConstantUpdates,
    FlippedLabels,
    GrowingNoise,
    HiddenBatches,
    RandomLabels,
    RandomUpdates,
    ScaledUpdates,
    StaleUpdates,
)
from hewfl.federation.federation import (
    ChoiceHorizons,
    EpochHorizons,
    FixedHorizons,
    FullParticipation,
    Horizons,
    Law,
    PoissonHorizons,
    RandomParticipation,
    RotatingParticipation,
    SampledParticipation,
    Scenario,
    TimedHorizons,
)


def _by_name(*laws: type[Any]) -> dict[str, type[Any]]:
    return {law.__name__: law for law in laws}


HORIZONS = _by_name(
    *(FixedHorizons, ChoiceHorizons, PoissonHorizons, EpochHorizons, TimedHorizons)
)
PARTICIPATION = _by_name(
    *(FullParticipation, SampledParticipation, RandomParticipation),
    RotatingParticipation,
)

HORIZONS_GROUP, PARTICIPATION_GROUP = "hewfl.horizons", "hewfl.participation"
"""Entry points by which installed packages offer laws of their own."""
FAULTS = _by_name(
    *(HiddenBatches, RandomLabels, FlippedLabels, ScaledUpdates, RandomUpdates),
    *(ConstantUpdates, StaleUpdates, GrowingNoise),
)


def check_scenario(given: Any) -> Scenario:
    """Make the scenario that a spec asks for: a table with a list of faults."""
    where = "clients.scenario"
    if given is None:
        return Scenario()
    if not isinstance(given, Mapping):
        raise invalid(where, "a table with `faults`", repr(given))
    check_names(given, ("faults", "objective"), where)
    listed = given.get("faults", ())
    if not isinstance(listed, list | tuple) or not listed:
        raise invalid(f"{where}.faults", "a list of tables", repr(listed))
    for k, fault in enumerate(listed):
        if not isinstance(fault, Mapping):
            raise invalid(f"{where}.faults[{k}]", "a table", repr(fault))
    faults = [_law(FAULTS, f, f"{where}.faults[{k}]") for k, f in enumerate(listed)]
    objective = given.get("objective", "honest")
    if objective not in ("honest", "all"):
        raise invalid(f"{where}.objective", "one of honest, all", repr(objective))
    with errors_naming({"faults": f"{where}.faults"}):
        return Scenario(tuple(faults), objective)


def check_horizons(given: Any) -> Horizons:
    """Make the law of local steps that a spec asks for."""
    where = "clients.horizons"
    if isinstance(given, Mapping) or is_own(given, HORIZONS_GROUP):
        law: Horizons = _law(HORIZONS, given, where, HORIZONS_GROUP, Horizons)
        return law
    if isinstance(given, list | tuple):
        steps: Any = from_list(int, given, where)
    elif is_whole(given):
        steps = int(given)
    else:
        raise invalid(where, "a whole number, a list of them or a table", repr(given))
    with errors_naming({"steps": where}):
        return FixedHorizons(steps)


def check_participation(given: Any) -> Law:
    """Make the law of participation that a spec asks for."""
    where = "clients.participation"
    if given == "full":
        return FullParticipation()
    if isinstance(given, Mapping) or is_own(given, PARTICIPATION_GROUP):
        law: Law = _law(PARTICIPATION, given, where, PARTICIPATION_GROUP, Law)
        return law
    if not is_whole(given):
        raise invalid(where, '"full", a whole number or a table', repr(given))
    with errors_naming({"count": where}):
        return SampledParticipation(int(given))


def check_sizes(horizons: Any, participation: Any, n: int) -> None:
    """Require that lists have one entry per client and samples are not too large."""
    steps, who = check_horizons(horizons), check_participation(participation)
    for law, key in ((steps, "steps"), (steps, "speeds"), (who, "probability")):
        values = getattr(law, key, None)
        if isinstance(values, Sequence) and len(values) != n:
            given = horizons if law is steps else participation
            rule = f"one number for each of the {n} clients"
            raise invalid(_written(law, given, key), rule, f"{len(values)} of them")
    count = getattr(who, "count", 0)
    if count > n:
        rule = f"at most the {n} clients there are"
        raise invalid(_written(who, participation, "count"), rule, count)


def _written(law: Any, given: Any, field: str) -> str:
    """What the user calls a law's field."""
    kind = "horizons" if type(law).__name__ in HORIZONS else "participation"
    return f"clients.{kind}" + (f".{field}" if isinstance(given, Mapping) else "")


def is_own_law(given: Any, group: str) -> bool:
    """Whether a spec asks for a law of the user's own, which only running it loads."""
    return is_own(given.get("kind") if isinstance(given, Mapping) else given, group)


def _law(
    known: Mapping[str, type[Any]],
    given: Mapping[str, Any] | str,
    where: str,
    group: str = "hewfl.faults",
    kind_of: Any = object,
) -> Any:
    """A law by its name, with its own fields; one of the user's own is loaded."""
    if isinstance(given, str):
        given = {"kind": given}
    kind = given.get("kind")
    checked_name(kind, tuple(known), group, f"{where}.kind")
    rest = {key: value for key, value in given.items() if key != "kind"}
    for key, value in rest.items():
        if value == []:
            raise invalid(f"{where}.{key}", "a list with something in it", value)
    if kind in known:
        return from_table(known[str(kind)], rest, where)
    law = make(load(str(kind), group, f"{where}.kind"), rest, {}, where)
    if not isinstance(law, kind_of):
        rule = "a law with `draw`, or with `draw_after` for participation"
        raise invalid(f"{where}.kind", rule, shown(law))
    return law


# ------------------ The sections of a spec: samples, model, clients and tuning,

MODELS = ("softmax", "medium_cnn", "classifier_head")
MODELS_GROUP, PROBLEMS_GROUP = "hewfl.models", "hewfl.problems"
"""Entry points by which installed packages offer modules and problems of their own."""
PARTITIONS = (*KINDS, "pool", "nodes")
LARGEST = 2**31 - 1
"""Of rounds, clients and samples: beyond it, numbers of draws would not be exact."""
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


def in_range(name: str, value: int, *, least: int = 1) -> None:
    """Require a number that is neither too small nor beyond all reason."""
    if value < least:
        raise invalid(name, f"at least {least}", value)
    if value > LARGEST:
        raise invalid(name, f"at most {LARGEST}", value)


def check_seeds(name: str, seeds: tuple[int, ...]) -> None:
    """Require seeds that are there, not negative, and different from each other."""
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise invalid(name, "different whole numbers from 0", list(seeds))
    if max(seeds) >= 2**63:
        raise invalid(name, "below 2^63", max(seeds))


Amount = Annotated[int, in_range]
"""At least 1, and not beyond all reason."""
AmountOrNone = Annotated[int, partial(in_range, least=0)]
"""The same, or 0."""
Seeds = Annotated[tuple[int, ...], check_seeds]


@final
@dataclass(frozen=True, slots=True)
class DataSpec:
    """Which samples.

    Attributes:
        name: `digits`, `mnist`, `fashion_mnist`, `covertype`, `ag_news`, or the path of
            a CSV, NPZ or Parquet file, relative to the folder that the command runs in.
        label: column of the labels in a CSV or Parquet file; the last by default.
        client: column that says whose each row is, no feature then; for
            `clients.partition = "natural"`. In an NPZ file "clients", its array.
        split: `shuffled` pools all published parts and splits them anew, by seed;
            `published` keeps the publisher's test part.
        test_fraction: share of rows held out by the shuffled split.
        subsample: rows kept, drawn by seed; all by default.
        validation_fraction: share of the training part held out for tuning; for
            modules.
        standardise: to mean 0 and deviation 1 on the training part.
        bias: append a column of ones.
    """

    name: str = "digits"
    label: str | None = None
    client: str | None = None
    split: Literal["shuffled", "published"] = "shuffled"
    test_fraction: float = 0.2
    subsample: int | None = None
    validation_fraction: BelowOne = 0.0
    standardise: bool = True
    bias: bool = True

    def __post_init__(self) -> None:
        """Require shares of rows and numbers that make sense."""
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
    """Which model and objective: softmax regression, or a torch module.

    Attributes:
        model: `softmax`; or a module trained by PyTorch: `medium_cnn` for 28 × 28
            images, `classifier_head` for 768 features of a text encoder, or your own,
            as "my_models:Net": called with those of `features`, `classes` and `seed`
            that it names, and with the `options`, it returns a torch module.
        make: your own problem instead of a model, as "my_problems:ridge": called with
            `data` (`hewfl.experiments.build_problem.ProblemData`) and the `options`, it
            returns a `hewfl.problems.Problem`.
        options: what your own model or problem is called with besides.
        l2: λ of (λ/2)‖W‖² for softmax; the paper does not print its value.
        smoothness: the L that normalises softmax step sizes: `estimate` by power
            iteration, as in the paper's experiments, or `bound`, the proven one.
        optimum: whether to solve softmax for F*, so that gaps can be reported; say no
            where l2 is zero.
        learning_rate: of a module. There is no L: with a method's `rate_scale` r it is
            put at 1/(r rate), so that a `step_scale` s steps with s r times this rate;
            for methods with an `amplitude` ϑ at 1/(r rate h), so that they step with
            ϑ r h/H_i times it, and their Λ is `curvature_ratio` over r rate h.
        reference_steps: h, about the mean number of local steps.
        weight_decay: of a module.
        clip: norm that a module's minibatch gradients are clipped to; none if absent.
        dropout: of a module.
        optimiser: of a module's local steps: `sgd`, or `adamw` with moments that start
            anew in every round.
        precision: of a module's local steps: `full`, or `bfloat16` by autocast.
        client_chunk: most models of a module stepped at once; `auto` for as many as fit
            into memory.
    """

    model: str = "softmax"
    make: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    l2: Nonnegative = 1e-4
    smoothness: Literal["estimate", "bound"] = "estimate"
    optimum: bool = True
    learning_rate: Positive = 1e-3
    reference_steps: Positive = 1.0
    weight_decay: float = 0.0
    clip: float | None = None
    dropout: float = 0.0
    optimiser: Literal["sgd", "adamw"] = "sgd"
    precision: Literal["full", "bfloat16"] = "full"
    client_chunk: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        """Require a penalty, a rate and steps that are not negative."""
        checked_name(self.model, MODELS, MODELS_GROUP, "problem.model")
        if self.make is not None:
            checked_name(self.make, (), PROBLEMS_GROUP, "problem.make")
            if self.model != "softmax":
                rule = "left out beside problem.make"
                raise invalid("problem.model", rule, repr(self.model))
        check_fields(self)

    @property
    def is_module(self) -> bool:
        """Whether PyTorch trains it."""
        return self.model != "softmax"

    @property
    def is_softmax(self) -> bool:
        """Whether it is hewfl's softmax regression."""
        return self.model == "softmax" and self.make is None


@final
@dataclass(frozen=True, slots=True)
class ClientsSpec:
    """Who holds what, and how much each does in a round.

    Attributes:
        n: number of clients; counted in the data under `natural`.
        partition: `iid` deals shuffled samples evenly; `dirichlet` skews classes;
            `classes` gives each client samples of `per_client` classes, `shards` as
            many shards of the samples sorted by label; `quantity` skews sizes alone,
            `features` the regions of feature space; `natural` goes by the column
            `data.client`; `pool` lets every client draw from all samples, which alone
            is homogeneous in the sense of the theory (erratum E-14); or a function of
            your own, as "my_parts:by_age" (`hewfl.data.PartitionSpec`). A federation's own
            record says `nodes`: data as its nodes hold them.
        alpha: concentration of `dirichlet`, `quantity` and `features`.
        minimum: least samples of a client under these.
        per_client: classes or shards of each client.
        options: what a partition of your own is called with besides.
        batch_size: samples of a local step.
        horizons: local steps: a number, a list with one per client, or a table with
            `kind` = "FixedHorizons", "ChoiceHorizons", "PoissonHorizons",
            "EpochHorizons" or "TimedHorizons" and that law's own fields, listed in
            docs/experiments.md, or a law of your own, as kind = "my_laws:Weekdays".
        participation: "full", a number of clients sampled each round, or a table with
            `kind` and that law's own fields.
        scenario: what is wrong with some of the clients, hidden from every rule: a table
            with `faults`, a list of tables with `kind` and that law's own fields, and
            `objective`, "honest" (the default) or "all". Everybody is honest if absent.
    """

    n: Amount = 20
    partition: str = "iid"
    alpha: Positive = 0.2
    minimum: Amount = 1
    per_client: Amount = 2
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    batch_size: Amount = 32
    horizons: Any = 4
    participation: Any = "full"
    scenario: Any = None

    def __post_init__(self) -> None:
        """Require sizes in range and laws that fit the number of clients.

        Code of the user's own is not loaded: a spec can be read without running it.
        """
        checked_name(self.partition, PARTITIONS, GROUP, "clients.partition")
        check_fields(self)
        if not is_own_law(self.horizons, HORIZONS_GROUP):
            check_horizons(self.horizons)
        if not is_own_law(self.participation, PARTICIPATION_GROUP):
            check_participation(self.participation)
        check_scenario(self.scenario)
        # A federation may know of few of its nodes, and natural clients are counted.
        if self.partition not in ("nodes", "natural"):
            self.check_number()

    def check_number(self) -> None:
        """Require laws that fit the number of clients, and somebody honest."""
        with errors_naming({"faults": "clients.scenario.faults"}):
            check_scenario(self.scenario).roles(0, np.ones(self.n, dtype=np.int64))
        steps, who = self.horizons, self.participation
        check_sizes(
            1 if is_own_law(steps, HORIZONS_GROUP) else steps,
            "full" if is_own_law(who, PARTICIPATION_GROUP) else who,
            self.n,
        )

    @property
    def sharing(self) -> PartitionSpec:
        """How the samples are shared out."""
        return PartitionSpec(
            self.partition,
            self.n,
            self.alpha,
            self.minimum,
            self.per_client,
            self.options,
        )

    @property
    def shared_out(self) -> str:
        """How the samples are shared out, in words."""
        words = {"pool": "one pool for all", "nodes": "data as the nodes hold them"}
        return words.get(self.partition) or self.sharing.description


@final
@dataclass(frozen=True, slots=True)
class TuneSpec(Validated):
    """How hyper-parameters are chosen for methods that bring a grid.

    Attributes:
        rounds: length of a trial.
        seeds: of the trials.
        by: the quantity whose mean over the seeds decides, at the last round.
        tie: candidates whose means are this close to the best count as equal.
        tie_by: the quantity that decides between equals.
        ties: those that decide, one after the other, where that is the same too;
            `scalars` are the numbers sent, `local_steps` those of all clients together.
        screen_rounds: length of a first, shorter trial of all candidates, after which
            only the best of each method go on; 0 for none.
        screen_seeds: of the first trial.
        keep: how many of each method go on.
        search: `grid`, the default, tries all points of a method's lists; `climb` a
            few, and then the neighbours of the best until it has none untried
            (`hewfl.experiments.local_search`).
        extend: how often a list of positive numbers may be made longer, by the ratio of
            its last two, at the end where the best value lies; never if absent.
        over: of the seeds, the `mean` decides, which is the default, or the `worst`:
            what diverges for one of them is then not chosen.
    """

    rounds: Amount = 20
    seeds: Seeds = (0, 1, 2)
    by: Quantity = "objective"
    tie: Nonnegative = 0.0
    tie_by: Quantity = "objective"
    ties: tuple[Quantity, ...] = ()
    screen_rounds: AmountOrNone = 0
    screen_seeds: Seeds = (0,)
    keep: Amount = 3
    search: Literal["grid", "climb"] | None = None
    extend: AmountOrNone | None = None
    over: Literal["mean", "worst"] | None = None
