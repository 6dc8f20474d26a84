"""What an experiment is: a frozen record, read from TOML, checked, hashed."""

import dataclasses
import hashlib
import inspect
import json
import re
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal, final

from hewfl.core.plugins import located
from hewfl.core.toml_records import from_table, to_table, write_toml
from hewfl.core.validation import check_fields, invalid
from hewfl.data.partition import GROUP as PARTITIONS_GROUP
from hewfl.errors import DataError
from hewfl.experiments.method_spec import (
    SERVER_STEP,
    MethodSpec,
    method_from_table,
    method_table,
    recorded_method,
    text_field,
)
from hewfl.experiments.spec_sections import (
    HORIZONS_GROUP,
    MODELS_GROUP,
    PARTICIPATION_GROUP,
    PROBLEMS_GROUP,
    Amount,
    AmountOrNone,
    ClientsSpec,
    DataSpec,
    ProblemSpec,
    Seeds,
    TuneSpec,
)
from hewfl.methods.registry import METHODS

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


# ------------------ Changes to a spec from the command line: `clients.n=10`


def overridden(table: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The table with fields replaced; values are read as TOML, else as text.

    Fields and types are checked when the spec is built from the table.

    Raises:
        InvalidInputError: a change is not of the form field=value.

    >>> overridden({"rounds": 90}, ["clients.n=10", "data.name=mnist"])
    {'rounds': 90, 'clients': {'n': 10}, 'data': {'name': 'mnist'}}
    """
    found = dict(table)
    for change in changes:
        field, sign, text = change.partition("=")
        if not sign or not field.strip():
            raise invalid("--set", "of the form field=value", repr(change))
        found = _replaced(found, field.strip().split("."), _value(text.strip()))
    return found


def _replaced(table: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    first, *rest = path
    if not rest:
        return table | {first: value}
    inner = table.get(first, {})
    if not isinstance(inner, dict):
        raise invalid("--set", f"a field of a table; `{first}` is none", ".".join(path))
    return table | {first: _replaced(inner, rest, value)}


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


# ------------------ A spec with every field explained, made from the records

SECTIONS = {f.name: f.type for f in dataclasses.fields(Spec) if is_dataclass(f.type)}
WHAT = (
    f"What is compared. A method is one of {', '.join(METHODS)}. Its hyper-parameters "
    f"are fields, and so are those of the server optimiser: {', '.join(SERVER_STEP)}. FedAvgM "
    'is FedAvg with `momentum`, FedAdam is FedAvg with `adapt = "adam"`. Lists in '
    "[methods.grid] are searched by tuning, those of the server optimiser too. A rule "
    'of your own is method = "my_rules:Krum", from my_rules.py beside this file.'
)
EXAMPLE = """\
[[methods]]
method = "HewHom"
label = "HEW"

[methods.grid]
amplitude = [0.5, 1.0, 2.0, 4.0, 8.0]
curvature_ratio = [1.1, 1.25, 1.5, 1.75, 2.0]

[[methods]]
method = "FedAvg"
step_scale = 0.4
"""


def template() -> str:
    """TOML text that runs as it is: defaults, with what each field means."""
    top = [f for f in dataclasses.fields(Spec) if f.name not in (*SECTIONS, "methods")]
    lines = [f"# {inspect.getdoc(Spec)!s}".splitlines()[0], ""]
    meanings = documented(Spec)
    for item in top:
        value = "example" if item.name == "name" else item.default
        lines += _field(item.name, value, meanings[item.name])
    for section, record in SECTIONS.items():
        title = str(inspect.getdoc(record)).splitlines()[0]
        lines += ["", f"# {title}", f"[{section}]"]
        meanings = documented(record)
        for item in dataclasses.fields(record):
            lines += _field(item.name, item.default, meanings[item.name])
    lines += ["", *_comment(WHAT), ""]
    return "\n".join(lines) + "\n" + EXAMPLE


def documented(record: Any) -> dict[str, str]:
    """What a record's docstring says of each of its fields."""
    text = str(inspect.getdoc(record)).partition("Attributes:\n")[2]
    text = text.partition("\n\n")[0]  # what a record raises is another section
    found = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", text, re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in found}


def _field(name: str, value: Any, meaning: str) -> list[str]:
    comment = _comment(meaning)
    if value is None or value is dataclasses.MISSING:  # the latter: an empty table
        return [*comment, f"# {name} ="]
    plain = list(value) if isinstance(value, tuple) else value
    return [*comment, write_toml({name: plain}).strip()]


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 84, initial_indent="# ", subsequent_indent="# ")
