"""What an experiment is: a frozen record, read from TOML, checked, hashed."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final

from hewfl.core.checks import invalid
from hewfl.core.conversion import from_table, to_table, write_toml
from hewfl.core.fields import check_fields
from hewfl.core.own_code import located
from hewfl.data.sharing import GROUP as PARTITIONS_GROUP
from hewfl.errors import DataError
from hewfl.experiments.methods import (
    MethodSpec,
    method_from_table,
    method_table,
    recorded_method,
    text_field,
)
from hewfl.experiments.sections import (
    MODELS_GROUP,
    PROBLEMS_GROUP,
    Amount,
    AmountOrNone,
    ClientsSpec,
    DataSpec,
    ProblemSpec,
    Seeds,
    TuneSpec,
)
from hewfl.server.client_laws import HORIZONS_GROUP, PARTICIPATION_GROUP

LATER: tuple[tuple[str, str, Any], ...] = (
    ("tune", "ties", []),
    ("problem", "options", {}),
    ("clients", "options", {}),
    ("clients", "per_client", 2),
)
"""Fields that came after runs had been kept under a digest: not in it at default."""


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
        judge: the model by which methods are tuned and compared: "iterate", the
            server's last one, which is the default; or "averaged", the average of its
            iterates for methods with `average`, and the iterate of the others. Both are
            measured and shown.
        audit_every: rounds between checks of the pathwise certificate of HEW methods
            with exact gradients; 0 for none.
        dtype: precision of local branches and evaluations.
        device: where the samples live: `numpy` on the host, with compiled kernels, or
            torch tensors on the `cpu` or on `cuda`. Results agree to rounding.
        data: which samples.
        problem: which objective.
        clients: who holds what and does how much.
        tune: how grids are searched.

    Raises:
        InvalidInputError: naming the field, the rule and the value.
    """

    name: str
    methods: tuple[MethodSpec, ...]
    rounds: Amount = 90
    seeds: Seeds = (0, 1, 2, 3, 4, 5, 6)
    evaluate_every: Amount = 1
    judge: Literal["iterate", "averaged"] | None = None
    audit_every: AmountOrNone = 0
    dtype: Literal["float32", "float64"] = "float32"
    device: Literal["numpy", "cpu", "cuda"] = "numpy"
    data: DataSpec = field(default_factory=DataSpec)
    problem: ProblemSpec = field(default_factory=ProblemSpec)
    clients: ClientsSpec = field(default_factory=ClientsSpec)
    tune: TuneSpec = field(default_factory=TuneSpec)

    def __post_init__(self) -> None:
        """Require a name for a folder, numbers in range, and different labels."""
        is_bad = any(c in self.name for c in "/\\") or len(self.name.encode()) > 200
        if is_bad or not self.name or self.name[0] == ".":
            raise invalid("name", "a name for a folder", repr(self.name))
        text_field(self.name, "name")
        check_fields(self)
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
    def is_record(self) -> bool:
        """Whether it tells of a job that is no simulation: its nodes hold the data."""
        return self.clients.partition == "nodes"

    @property
    def digest(self) -> str:
        """Eight letters that stand for every field."""
        table = spec_table(self)
        for section, name, default in LATER:
            if table[section][name] == default:
                del table[section][name]
        text = json.dumps(table, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def spec_from_table(table: Mapping[str, Any], folder: Path | None = None) -> Spec:
    """Make a spec from a parsed TOML file; code of the user's own is not loaded.

    Args:
        table: as parsed.
        folder: where files of the user's own code are looked for first; None leaves
            their names as they are.

    Returns:
        The spec, its own checks passed.

    Raises:
        InvalidInputError: naming the field, the rule and the value.
    """
    rest = {key: value for key, value in table.items() if key != "methods"}
    if folder is not None:
        table = _located(table, folder)
        rest = {key: value for key, value in table.items() if key != "methods"}
    listed = table.get("methods", [])
    if not isinstance(listed, list):
        raise invalid("methods", "a list of [[methods]] tables", repr(listed)[:80])
    # A federation runs whatever rule its server was given, also one of the user's own.
    read = recorded_method if is_record(table) else method_from_table
    methods = [read(m, f"methods[{i}]") for i, m in enumerate(listed)]
    return from_table(Spec, rest | {"methods": methods}, "")


OWN = {
    ("clients", "horizons"): HORIZONS_GROUP,
    ("clients", "participation"): PARTICIPATION_GROUP,
    ("clients", "partition"): PARTITIONS_GROUP,
    ("problem", "model"): MODELS_GROUP,
    ("problem", "make"): PROBLEMS_GROUP,
}
"""Where a spec may name code of the user's own, besides its methods, and the group of
entry points that it may be one of."""


def _located(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The table with whole paths of the user's own code; its form is not checked."""
    found = dict(table)
    for section, name in OWN:
        inner = found.get(section)
        if not isinstance(inner, Mapping) or name not in inner:
            continue
        value = inner[name]
        if isinstance(value, Mapping):
            value = {**value, "kind": located(value.get("kind"), folder)}
        found[section] = {**inner, name: located(value, folder)}
    listed = found.get("methods")
    if isinstance(listed, list):
        found["methods"] = [
            {**m, "method": located(m.get("method"), folder)}
            if isinstance(m, Mapping)
            else m
            for m in listed
        ]
    return found


def is_record(table: Mapping[str, Any]) -> bool:
    """Whether a table tells of a job that is no simulation: its nodes hold the data."""
    clients = table.get("clients")
    return isinstance(clients, Mapping) and clients.get("partition") == "nodes"


def read_toml(file: Path) -> dict[str, Any]:
    """Read the TOML file of a spec."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        text = f"cannot read the spec {file}: {error.strerror or error}"
        raise DataError(text) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"the spec {file} is not TOML: {error}") from error


def read_spec(file: Path) -> Spec:
    """Read a spec from its file; code of the user's own is looked for beside it.

    Args:
        file: a TOML file.

    Returns:
        The spec, its own checks passed.

    Raises:
        DataError: the file cannot be read or is not TOML.
        InvalidInputError: a field breaks a rule.
    """
    return spec_from_table(read_toml(file), file.parent)


def spec_table(spec: Spec) -> dict[str, Any]:
    """The table of a spec, defaults written out."""
    table = to_table(spec)
    table["methods"] = [method_table(method) for method in spec.methods]
    return table


def write_spec(spec: Spec) -> str:
    """The spec as TOML text, defaults written out."""
    table = spec_table(spec)
    # One by one, as tomli-w puts short tables of a list between brackets on one line
    # each: nobody could then add a method by a [[methods]] table of their own.
    methods = [
        write_toml({"methods": method}).replace("[methods]", "[[methods]]", 1)
        for method in table.pop("methods")
    ]
    plain = {k: v for k, v in table.items() if not isinstance(v, dict)}
    sections = {k: v for k, v in table.items() if isinstance(v, dict)}
    return "\n".join([write_toml(plain), *methods, write_toml(sections)])
