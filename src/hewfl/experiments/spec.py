"""What an experiment is: a frozen record, read from TOML, checked, hashed."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, final

from hewfl.core.checks import invalid, nonnegative, positive
from hewfl.errors import DataError
from hewfl.experiments.laws import check_horizons, check_participation, check_sizes
from hewfl.experiments.methods import MethodSpec, method_from_table, method_table
from hewfl.experiments.tables import from_table, to_table, write_toml

Quantity = Literal[
    "objective",
    "pooled",
    "validation_loss",
    "validation_accuracy",
    "test_loss",
    "test_accuracy",
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
        """Check ranges."""
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
        """Check ranges."""
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
    """

    n: int = 20
    partition: Literal["iid", "dirichlet", "pool", "nodes"] = "iid"
    alpha: float = 0.2
    minimum: int = 1
    batch_size: int = 32
    horizons: Any = 4
    participation: Any = "full"

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("n", "batch_size", "minimum"):
            if getattr(self, name) < 1:
                raise invalid(f"clients.{name}", "at least 1", getattr(self, name))
        positive("clients.alpha", self.alpha)
        check_horizons(self.horizons)
        check_participation(self.participation)
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
        screen_rounds: length of a first, shorter trial of all candidates, after which
            only the best of each method go on; 0 for none.
        screen_seeds: of the first trial.
        keep: how many of each method go on.
    """

    rounds: int = 20
    seeds: tuple[int, ...] = (0, 1, 2)
    by: Quantity = "objective"
    tie: float = 0.0
    tie_by: Quantity = "objective"
    screen_rounds: int = 0
    screen_seeds: tuple[int, ...] = (0,)
    keep: int = 3

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.rounds < 1:
            raise invalid("tune.rounds", "at least 1", self.rounds)
        if self.screen_rounds < 0:
            raise invalid("tune.screen_rounds", "at least 0", self.screen_rounds)
        if self.keep < 1:
            raise invalid("tune.keep", "at least 1", self.keep)
        nonnegative("tune.tie", self.tie)
        _check_seeds("tune.seeds", self.seeds)
        _check_seeds("tune.screen_seeds", self.screen_seeds)


@final
@dataclass(frozen=True, slots=True)
class Spec:
    """An experiment.

    Attributes:
        name: what folders and pages call it.
        methods: what is compared, each on the same clients, work and minibatches.
        rounds: T.
        seeds: repetitions; a seed fixes the split, the partition, the horizons and all
            draws.
        evaluate_every: rounds between evaluations.
        audit_every: rounds between checks of the pathwise certificate of HEW methods
            with exact gradients; 0 for none.
        dtype: precision of local branches and evaluations.
        device: where the samples live: `numpy` on the host, with compiled kernels, or
            torch tensors on the `cpu` or on `cuda`. Results agree to rounding.
        data: which samples.
        problem: which objective.
        clients: who holds what and does how much.
        tune: how grids are searched.
    """

    name: str
    methods: tuple[MethodSpec, ...]
    rounds: int = 90
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
    evaluate_every: int = 1
    audit_every: int = 0
    dtype: Literal["float32", "float64"] = "float32"
    device: Literal["numpy", "cpu", "cuda"] = "numpy"
    data: DataSpec = field(default_factory=DataSpec)
    problem: ProblemSpec = field(default_factory=ProblemSpec)
    clients: ClientsSpec = field(default_factory=ClientsSpec)
    tune: TuneSpec = field(default_factory=TuneSpec)

    def __post_init__(self) -> None:
        """Check ranges."""
        if not self.name or any(c in self.name for c in "/\\\0") or self.name[0] == ".":
            raise invalid("name", "a name for a folder", repr(self.name))
        if self.rounds < 1:
            raise invalid("rounds", "at least 1", self.rounds)
        if self.evaluate_every < 1:
            raise invalid("evaluate_every", "at least 1", self.evaluate_every)
        if self.audit_every < 0:
            raise invalid("audit_every", "at least 0", self.audit_every)
        _check_seeds("seeds", self.seeds)
        if not self.methods:
            raise invalid("methods", "at least one [[methods]] table", "none")
        labels = [method.label for method in self.methods]
        for label in labels:
            if labels.count(label) > 1:
                rule = "different from each other (give each a `label`)"
                raise invalid("methods.label", rule, f"{label!r} twice")

        self._check_tuning()

    def _check_tuning(self) -> None:
        """Require that tuning goes by something that is measured."""
        if self.is_tuned or (self.problem.is_module and self.data.validation_fraction):
            return
        asked = {"by": self.tune.by}
        if self.tune.tie:
            asked["tie_by"] = self.tune.tie_by
        for name, quantity in asked.items():
            if quantity.startswith("validation"):
                rule = "measured: only modules with data.validation_fraction have that"
                raise invalid(f"tune.{name}", rule, f'"{quantity}"')

    @property
    def is_tuned(self) -> bool:
        """Whether no method brings a grid any more."""
        return not any(method.grid for method in self.methods)

    @property
    def digest(self) -> str:
        """Eight letters that stand for every field."""
        text = json.dumps(spec_table(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def with_methods(self, methods: tuple[MethodSpec, ...]) -> "Spec":
        """The same experiment with other methods."""
        return replace(self, methods=methods)


def spec_from_table(table: Mapping[str, Any]) -> Spec:
    """The spec in a parsed TOML file.

    Raises:
        InvalidInputError: naming the field, the rule and the value.
    """
    rest = {key: value for key, value in table.items() if key != "methods"}
    listed = table.get("methods", [])
    if not isinstance(listed, list):
        raise invalid("methods", "a list of [[methods]] tables", repr(listed)[:80])
    methods = [method_from_table(m, f"methods[{i}]") for i, m in enumerate(listed)]
    return from_table(Spec, rest | {"methods": methods}, "")


def read_spec(file: Path) -> Spec:
    """The spec in a TOML file.

    Raises:
        DataError: the file cannot be read or is not TOML.
        InvalidInputError: a field breaks a rule.
    """
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        text = f"cannot read the spec {file}: {error.strerror or error}"
        raise DataError(text) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"the spec {file} is not TOML: {error}") from error
    return spec_from_table(table)


def spec_table(spec: Spec) -> dict[str, Any]:
    """The table of a spec, defaults written out."""
    table = to_table(spec)
    table["methods"] = [method_table(method) for method in spec.methods]
    return table


def write_spec(spec: Spec) -> str:
    """The spec as TOML, defaults written out."""
    return write_toml(spec_table(spec))


def _check_seeds(name: str, seeds: tuple[int, ...]) -> None:
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise invalid(name, "different whole numbers from 0", list(seeds))
