"""The sections of a spec: samples, model, clients and tuning, checked one by one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, final

import numpy as np

from hewfl.core.checks import invalid
from hewfl.core.conversion import errors_naming
from hewfl.core.fields import BelowOne, Checked, Nonnegative, Positive, check_fields
from hewfl.core.own_code import checked_name
from hewfl.data.sharing import GROUP, KINDS, Sharing
from hewfl.server.client_laws import (
    HORIZONS_GROUP,
    PARTICIPATION_GROUP,
    check_horizons,
    check_participation,
    check_sizes,
    check_world,
    is_own_law,
)

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
            `data` (`hewfl.experiments.problem.ProblemData`) and the `options`, it
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
            your own, as "my_parts:by_age" (`hewfl.data.Sharing`). A federation's own
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
        world: what is wrong with some of the clients, hidden from every rule: a table
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
    world: Any = None

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
        check_world(self.world)
        # A federation may know of few of its nodes, and natural clients are counted.
        if self.partition not in ("nodes", "natural"):
            self.check_number()

    def check_number(self) -> None:
        """Require laws that fit the number of clients, and somebody honest."""
        with errors_naming({"faults": "clients.world.faults"}):
            check_world(self.world).roles(0, np.ones(self.n, dtype=np.int64))
        steps, who = self.horizons, self.participation
        check_sizes(
            1 if is_own_law(steps, HORIZONS_GROUP) else steps,
            "full" if is_own_law(who, PARTICIPATION_GROUP) else who,
            self.n,
        )

    @property
    def sharing(self) -> Sharing:
        """How the samples are shared out."""
        return Sharing(
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
        return words.get(self.partition) or self.sharing.words


@final
@dataclass(frozen=True, slots=True)
class TuneSpec(Checked):
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
            (`hewfl.experiments.climb`).
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
