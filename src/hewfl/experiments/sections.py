"""The sections of a spec: samples, model, clients and tuning, checked one by one."""

from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from hewfl.core.checks import invalid, nonnegative, positive
from hewfl.core.conversion import errors_naming
from hewfl.server.client_laws import (
    check_horizons,
    check_participation,
    check_sizes,
    check_world,
)

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


@final
@dataclass(frozen=True, slots=True)
class DataSpec:
    """Which samples.

    Attributes:
        name: `digits`, `mnist`, `fashion_mnist`, `covertype`, `ag_news`, or the path of
            a CSV, NPZ or Parquet file, relative to the folder that the command runs in.
        label: column of the labels in a CSV or Parquet file; the last by default.
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
    split: Literal["shuffled", "published"] = "shuffled"
    test_fraction: float = 0.2
    subsample: int | None = None
    validation_fraction: float = 0.0
    standardise: bool = True
    bias: bool = True

    def __post_init__(self) -> None:
        """Require shares of rows and numbers that make sense."""
        if not 0 < self.test_fraction < 1:
            raise invalid("data.test_fraction", "between 0 and 1", self.test_fraction)
        if not 0 <= self.validation_fraction < 1:
            rule, found = "from 0 to below 1", self.validation_fraction
            raise invalid("data.validation_fraction", rule, found)
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
            images, `classifier_head` for 768 features of a text encoder.
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

    model: Literal["softmax", "medium_cnn", "classifier_head"] = "softmax"
    l2: float = 1e-4
    smoothness: Literal["estimate", "bound"] = "estimate"
    optimum: bool = True
    learning_rate: float = 1e-3
    reference_steps: float = 1.0
    weight_decay: float = 0.0
    clip: float | None = None
    dropout: float = 0.0
    optimiser: Literal["sgd", "adamw"] = "sgd"
    precision: Literal["full", "bfloat16"] = "full"
    client_chunk: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        """Require a penalty, a rate and steps that are not negative."""
        nonnegative("l2", self.l2)
        positive("learning_rate", self.learning_rate)
        positive("reference_steps", self.reference_steps)

    @property
    def is_module(self) -> bool:
        """Whether PyTorch trains it."""
        return self.model != "softmax"


@final
@dataclass(frozen=True, slots=True)
class ClientsSpec:
    """Who holds what, and how much each does in a round.

    Attributes:
        n: number of clients.
        partition: `iid` deals shuffled samples evenly; `dirichlet` skews classes;
            `pool` lets every client draw from all samples, which alone is homogeneous
            in the sense of the theory (erratum E-14). A federation's own record says
            `nodes`: data as its nodes hold them.
        alpha: concentration of the Dirichlet partition.
        minimum: least samples of a client in a Dirichlet partition.
        batch_size: samples of a local step.
        horizons: local steps: a number, a list with one per client, or a table with
            `kind` = "FixedHorizons", "ChoiceHorizons", "PoissonHorizons",
            "EpochHorizons" or "TimedHorizons" and that law's own fields, listed in
            docs/experiments.md.
        participation: "full", a number of clients sampled each round, or a table with
            `kind` and that law's own fields.
        world: what is wrong with some of the clients, hidden from every rule: a table
            with `faults`, a list of tables with `kind` and that law's own fields, and
            `objective`, "honest" (the default) or "all". Everybody is honest if absent.
    """

    n: int = 20
    partition: Literal["iid", "dirichlet", "pool", "nodes"] = "iid"
    alpha: float = 0.2
    minimum: int = 1
    batch_size: int = 32
    horizons: Any = 4
    participation: Any = "full"
    world: Any = None

    def __post_init__(self) -> None:
        """Require sizes of at least 1 and laws that fit the number of clients."""
        for name in ("n", "batch_size", "minimum"):
            if getattr(self, name) < 1:
                raise invalid(f"clients.{name}", "at least 1", getattr(self, name))
        positive("clients.alpha", self.alpha)
        check_horizons(self.horizons)
        check_participation(self.participation)
        world = check_world(self.world)
        with errors_naming({"faults": "clients.world.faults"}):
            world.roles(0, np.ones(self.n, dtype=np.int64))  # leaves somebody honest
        if self.partition != "nodes":  # a federation may know of few of its nodes
            check_sizes(self.horizons, self.participation, self.n)


@final
@dataclass(frozen=True, slots=True)
class TuneSpec:
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

    rounds: int = 20
    seeds: tuple[int, ...] = (0, 1, 2)
    by: Quantity = "objective"
    tie: float = 0.0
    tie_by: Quantity = "objective"
    ties: tuple[Quantity, ...] = ()
    screen_rounds: int = 0
    screen_seeds: tuple[int, ...] = (0,)
    keep: int = 3
    search: Literal["grid", "climb"] | None = None
    extend: int | None = None
    over: Literal["mean", "worst"] | None = None

    def __post_init__(self) -> None:
        """Require trials of at least a round, and seeds that differ."""
        if self.rounds < 1:
            raise invalid("tune.rounds", "at least 1", self.rounds)
        if self.screen_rounds < 0:
            raise invalid("tune.screen_rounds", "at least 0", self.screen_rounds)
        if self.keep < 1:
            raise invalid("tune.keep", "at least 1", self.keep)
        if self.extend is not None and self.extend < 0:
            raise invalid("tune.extend", "at least 0", self.extend)
        nonnegative("tune.tie", self.tie)
        check_seeds("tune.seeds", self.seeds)
        check_seeds("tune.screen_seeds", self.screen_seeds)


def check_seeds(name: str, seeds: tuple[int, ...]) -> None:
    """Require seeds that are there, not negative, and different from each other.

    Raises:
        InvalidInputError: naming the field and the seeds.
    """
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise invalid(name, "different whole numbers from 0", list(seeds))
