"""The spec of an experiment: a frozen record, read from TOML, validated, hashed.

read_spec(file)                  a TOML file as a `Spec`
spec_from_table(table)           the same from a parsed table
write_spec(spec)                 TOML text with all defaults
template()                       TOML text that explains every field
"""

import dataclasses
import hashlib
import inspect
import json
import re
import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal, final

from hewfl.aggregators import PREAGGREGATIONS
from hewfl.core.plugins import absolute_name, is_file
from hewfl.core.toml_records import from_table, path, to_table, write_toml
from hewfl.core.validation import check_fields, invalid
from hewfl.data.partitions import GROUP as PARTITIONS_GROUP
from hewfl.errors import DataError, InvalidInputError
from hewfl.experiments.method_spec import GROUP as METHODS_GROUP
from hewfl.experiments.method_spec import (
    SERVER_STEP,
    MethodSpec,
    method_from_table,
    method_table,
    recorded_method,
    text_field,
)
from hewfl.experiments.spec_sections import (
    FAULTS_GROUP,
    LOCAL_STEPS_GROUP,
    MODELS_GROUP,
    PARTICIPATION_GROUP,
    PROBLEMS_GROUP,
    ClientsSpec,
    Count,
    CountOrZero,
    DataSpec,
    ProblemSpec,
    Seeds,
    TuneSpec,
)
from hewfl.methods.registry import METHODS

RENAMED = {
    "judge": "evaluate_model",
    "data.label": "data.label_column",
    "data.client": "data.client_column",
    "problem.make": "problem.factory",
    "problem.optimum": "problem.solve_optimum",
    "clients.minimum": "clients.min_samples",
    "clients.per_client": "clients.classes_per_client",
    "clients.horizons": "clients.local_steps",
    "clients.world": "clients.scenario",
    "tune.by": "tune.metric",
    "tune.tie": "tune.tie_tolerance",
    "tune.tie_by": "tune.tie_metrics",
    "tune.ties": "tune.tie_metrics",
    "tune.keep": "tune.screen_top_k",
    "tune.over": "tune.seed_reduction",
    "tune.extend": "tune.max_extensions",
    "tune.search": "tune.local_search",
}
"""Old keys of a spec and the keys to write instead; an old key is refused."""

CODE = "code"
"""Folder of a run for the copy of the user's own code."""
LARGEST_SPEC = 4_000_000
"""Bytes of a spec that are read: some files, such as /dev/zero, have no end."""

USER_CODE = {
    "methods[].method": METHODS_GROUP,
    "clients.local_steps": LOCAL_STEPS_GROUP,
    "clients.participation": PARTICIPATION_GROUP,
    "clients.partition": PARTITIONS_GROUP,
    "clients.scenario.faults[]": FAULTS_GROUP,
    "problem.model": MODELS_GROUP,
    "problem.factory": PROBLEMS_GROUP,
}
"""Fields that may name the user's own code, by itself or as the `kind` of a table, and
the group of entry points that may provide it."""
ChangeName = Callable[[Any, str, str], Any]
"""A function of a name of code, its field and its group that gives the new name."""


@final
@dataclass(frozen=True, slots=True)
class Spec:
    """An experiment.

    Attributes:
        name: of folders and pages.
        methods: what is compared, each on the same clients, work and minibatches.
        rounds: T.
        seeds: repetitions; a seed fixes the split, the partition, the local steps and
            all draws.
        evaluate_every: rounds between evaluations.
        evaluate_model: the model by which methods are tuned and compared: "iterate",
            the server's last one; or "averaged", the average of the iterates for
            methods with `average`, and the iterate of the others. Both are measured
            and shown.
        audit_every: rounds between checks of the pathwise certificate of HEW methods
            with exact gradients; 0 for none.
        dtype: precision of local branches and evaluations.
        device: where the samples are: `numpy` on the host, with compiled kernels, or
            torch tensors on the `cpu` or on `cuda`. Results agree to rounding.
        data: the data set.
        problem: the model and its objective.
        clients: their data, local work and faults.
        tune: how grids are searched.

    Raises:
        InvalidInputError: naming the field, the rule and the value.
    """

    name: str
    methods: tuple[MethodSpec, ...]
    rounds: Count = 90
    seeds: Seeds = (0, 1, 2, 3, 4, 5, 6)
    evaluate_every: Count = 1
    evaluate_model: Literal["iterate", "averaged"] = "iterate"
    audit_every: CountOrZero = 0
    dtype: Literal["float32", "float64"] = "float32"
    device: Literal["numpy", "cpu", "cuda"] = "numpy"
    data: DataSpec = field(default_factory=DataSpec)
    problem: ProblemSpec = field(default_factory=ProblemSpec)
    clients: ClientsSpec = field(default_factory=ClientsSpec)
    tune: TuneSpec = field(default_factory=TuneSpec)

    def __post_init__(self) -> None:
        """Validate the fields; labels of methods differ."""
        check_spec_name(self.name)
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
        """Require tuning by quantities that are measured."""
        if self.is_tuned or (self.problem.is_module and self.data.validation_fraction):
            return
        asked = [("metric", self.tune.metric)]
        if self.tune.tie_tolerance:
            asked += [("tie_metrics", each) for each in self.tune.tie_metrics]
        for name, quantity in asked:
            if quantity.startswith("validation"):
                rule = "measured: only modules with data.validation_fraction have that"
                raise invalid(f"tune.{name}", rule, f'"{quantity}"')

    @property
    def is_tuned(self) -> bool:
        """Whether no method has a grid."""
        return not any(method.grid for method in self.methods)

    @property
    def is_record(self) -> bool:
        """Whether it describes a real job, no simulation: its nodes hold the data."""
        return self.clients.partition == "nodes"

    @property
    def digest(self) -> str:
        """Eight letters that identify all fields."""
        text = json.dumps(portable_table(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def check_spec_name(name: str) -> None:
    """Require a name that a folder can have, on one line."""
    is_bad = any(c in name for c in "/\\") or len(name.encode()) > 200
    if is_bad or not name or name[0] == ".":
        raise invalid("name", "a name for a folder", repr(name))
    text_field(name, "name")


def spec_from_table(table: Mapping[str, Any], folder: Path | None = None) -> Spec:
    """Make a spec from a parsed TOML file; code of the user's own is not loaded.

    Args:
        table: as parsed.
        folder: where files of the user's own code are searched first; None leaves
            their names as they are.

    Returns:
        The spec, validated.

    Raises:
        InvalidInputError: naming the field, the rule and the value.
    """
    refuse_old_keys(table)
    if folder is not None and not is_record(table):
        place = folder
        table = map_code(table, lambda name, _, __: absolute_name(name, place))
    rest = {key: value for key, value in table.items() if key != "methods"}
    listed = table.get("methods", [])
    if not isinstance(listed, list):
        raise invalid("methods", "a list of [[methods]] tables", repr(listed)[:80])
    # A real federation may run any rule, also one that this process cannot import.
    read = recorded_method if is_record(table) else method_from_table
    methods = [read(m, f"methods[{i}]") for i, m in enumerate(listed)]
    return from_table(Spec, rest | {"methods": methods}, "")


def refuse_old_keys(table: Mapping[str, Any]) -> None:
    """Refuse a key of `RENAMED`; the error names the new key."""
    for old, new in RENAMED.items():
        *section, key = old.split(".")
        inner = table.get(section[0]) if section else table
        if isinstance(inner, Mapping) and key in inner:
            raise InvalidInputError(f"`{old}` is now called `{new}`")


def map_code(table: Mapping[str, Any], change: ChangeName) -> dict[str, Any]:
    """The table with every name that may be of user code changed; none is validated."""
    new: Any = table
    for field_, group in USER_CODE.items():
        keys = field_.replace("[]", ".[]").split(".")
        new = _map_names(new, keys, "", group, change)
    return dict(new)


def _map_names(
    value: Any, keys: Sequence[str], where: str, group: str, change: ChangeName
) -> Any:
    if not keys:
        if not isinstance(value, Mapping):
            return change(value, where, group)
        if isinstance(value.get("base"), Mapping):  # an attack made of another one
            place = path(where, "base")
            base = _map_names(value["base"], keys, place, group, change)
            value = {**value, "base": base}
        keys = ("kind",)
    first, *rest = keys
    if first == "[]" and isinstance(value, list | tuple):
        return [
            _map_names(each, rest, f"{where}[{k}]", group, change)
            for k, each in enumerate(value)
        ]
    if not isinstance(value, Mapping) or first not in value:
        return value
    inner = _map_names(value[first], rest, path(where, first), group, change)
    return {**value, first: inner}


def portable_table(spec: Spec) -> dict[str, Any]:
    """The table of a spec, with its files of code as a run folder names them.

    Files of one folder stay together: those of the first are in `code`, of the second
    in `code/2`. The same spec has the same table on every machine.
    """
    folders: dict[str, str] = {}

    def change(name: Any, _: str, __: str) -> Any:
        if not isinstance(name, str) or not is_file(name):
            return name
        module, _, inside = name.rpartition(":")
        return f"{code_folder(folders, Path(module))}/{Path(module).name}:{inside}"

    table = spec_table(spec)
    return table if spec.is_record else map_code(table, change)


def code_folder(folders: dict[str, str], file: Path) -> str:
    """The folder of a run for the code of a file, entered in a table of them."""
    count = len(folders) + 1
    return folders.setdefault(
        str(file.parent), CODE if count == 1 else f"{CODE}/{count}"
    )


def with_code_in(spec: Spec, folder: Path) -> Spec:
    """The spec with its files of code in a run folder."""
    table = portable_table(spec)
    return spec if table == spec_table(spec) else spec_from_table(table, folder)


def is_record(table: Mapping[str, Any]) -> bool:
    """Whether a table describes a real job, no simulation: its nodes hold the data."""
    clients = table.get("clients")
    return isinstance(clients, Mapping) and clients.get("partition") == "nodes"


def read_toml(file: Path) -> dict[str, Any]:
    """Read the TOML file of a spec."""
    try:
        with file.open("rb") as stream:
            content = stream.read(LARGEST_SPEC + 1)
    except OSError as error:
        text = f"cannot read the spec {file}: {error.strerror or error}"
        raise DataError(text) from error
    if len(content) > LARGEST_SPEC:
        text = f"has more than {LARGEST_SPEC / 1e6:g} MB"
        raise DataError(f"the spec {file} is not TOML: it {text}")
    try:
        return tomllib.loads(content.decode("utf-8").replace("\r\n", "\n"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"the spec {file} is not TOML: {error}") from error


def read_spec(file: Path) -> Spec:
    """Read a spec from its file; code of the user's own is searched beside it.

    Args:
        file: a TOML file.

    Returns:
        The spec, validated.

    Raises:
        DataError: the file cannot be read or is not TOML.
        InvalidInputError: a field breaks a rule.
    """
    return spec_from_table(read_toml(file), file.parent)


def spec_table(spec: Spec) -> dict[str, Any]:
    """The table of a spec, with all defaults."""
    table = to_table(spec)
    table["methods"] = [method_table(method) for method in spec.methods]
    return table


def write_spec(spec: Spec) -> str:
    """The spec as TOML text, with all defaults and portable names of code."""
    table = portable_table(spec)
    # tomli-w writes a list of short tables in brackets, one line each. Users add
    # methods by [[methods]] tables, so each method is written by itself.
    methods = [
        write_toml({"methods": method}).replace("[methods]", "[[methods]]", 1)
        for method in table.pop("methods")
    ]
    plain = {k: v for k, v in table.items() if not isinstance(v, dict)}
    sections = {k: v for k, v in table.items() if isinstance(v, dict)}
    return "\n".join([write_toml(plain), *methods, write_toml(sections)])


SECTIONS = {f.name: f.type for f in dataclasses.fields(Spec) if is_dataclass(f.type)}
METHODS_HELP = (
    f"What is compared. A method is one of {', '.join(METHODS)}; `hewfl methods NAME` "
    f"lists its fields. Before an aggregator may be {', '.join(PREAGGREGATIONS)}, as "
    'in "clip+nnm+geometric-median"; a field is given to all parts that have it. '
    "Besides its hyper-parameters a table has local work, by exactly one of "
    "learning_rate, step_scale (units of 1/L), total and amplitude (units of "
    f"1/L), and the server step: {', '.join(SERVER_STEP)}. Lists in [methods.grid] are "
    'searched by tuning. A method of your own is method = "my_rules:Krum", from '
    "my_rules.py beside this file."
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
    """TOML text of a complete spec: the defaults, with the meaning of each field."""
    top = [f for f in dataclasses.fields(Spec) if f.name not in (*SECTIONS, "methods")]
    lines = [f"# {inspect.getdoc(Spec)!s}".splitlines()[0], ""]
    meanings = field_meanings(Spec)
    for item in top:
        value = "example" if item.name == "name" else item.default
        lines += _field_lines(item.name, value, meanings[item.name])
    for section, record in SECTIONS.items():
        title = str(inspect.getdoc(record)).splitlines()[0]
        lines += ["", f"# {title}", f"[{section}]"]
        meanings = field_meanings(record)
        for item in dataclasses.fields(record):
            lines += _field_lines(item.name, item.default, meanings[item.name])
    lines += ["", *_comment(METHODS_HELP), ""]
    return "\n".join(lines) + "\n" + EXAMPLE


def field_meanings(record: Any) -> dict[str, str]:
    """The meaning of each field: the Attributes or Args of a docstring."""
    text = str(inspect.getdoc(record))
    sections = re.split(
        r"^(?:Attributes|Args):\n", text, maxsplit=1, flags=re.MULTILINE
    )
    text = sections[-1].partition("\n\n")[0] if len(sections) > 1 else ""
    pairs = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", text, re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in pairs}


def _field_lines(name: str, value: Any, meaning: str) -> list[str]:
    comment = _comment(meaning)
    if value is None or value is dataclasses.MISSING:  # the latter: an empty table
        return [*comment, f"# {name} ="]
    plain = list(value) if isinstance(value, tuple) else value
    return [*comment, write_toml({name: plain}).strip()]


def _comment(text: str) -> list[str]:
    wrapper = textwrap.TextWrapper(84, "# ", "# ", break_on_hyphens=False)
    return wrapper.wrap(text)
