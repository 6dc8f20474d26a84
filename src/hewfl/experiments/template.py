"""A spec with every field explained, made from the records themselves."""

import dataclasses
import inspect
import re
import textwrap
from dataclasses import is_dataclass
from typing import Any

from hewfl.core.conversion import write_toml
from hewfl.experiments.methods import OUTER
from hewfl.experiments.spec import Spec
from hewfl.server.methods import METHODS

SECTIONS = {f.name: f.type for f in dataclasses.fields(Spec) if is_dataclass(f.type)}
WHAT = (
    f"What is compared. A method is one of {', '.join(METHODS)}. Its hyper-parameters "
    f"are fields, and so are those of the outer optimiser: {', '.join(OUTER)}. FedAvgM "
    'is FedAvg with `momentum`, FedAdam is FedAvg with `adapt = "adam"`. Lists in '
    "[methods.grid] are searched by tuning, those of the outer optimiser too. A rule "
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
    for field in top:
        value = "example" if field.name == "name" else field.default
        lines += _field(field.name, value, meanings[field.name])
    for section, record in SECTIONS.items():
        title = str(inspect.getdoc(record)).splitlines()[0]
        lines += ["", f"# {title}", f"[{section}]"]
        meanings = documented(record)
        for field in dataclasses.fields(record):
            lines += _field(field.name, field.default, meanings[field.name])
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
