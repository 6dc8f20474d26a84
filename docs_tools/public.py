"""What is public: the names in `__all__` of a few modules, and how they are called.

`docs/api.txt` lists them with their parameters. A change of the list needs a line in
the changelog that names what changed (`docs/api_policy.md`); `make api` writes the list
anew and refuses to where that line is missing.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LISTING = ROOT / "docs" / "api.txt"
MODULES = (
    "hewfl",
    "hewfl.data",
    "hewfl.problems",
    "hewfl.problems.module",
    "hewfl.experiments",
    "hewfl.simulation",
    "hewfl.theory",
    "hewfl.theory.appendix",
    "hewfl.flower",
    "hewfl.torch",
)


INNER = ("Columns", "Crew", "Faced", "Readable", "Sums", "Transport", "Variates")
"""Protocols between inner parts, which no user meets."""


def public_names() -> Iterator[tuple[str, Any]]:
    """Every public name with its module in front, and the object it stands for."""
    for module in map(importlib.import_module, MODULES):
        for name in sorted(module.__all__):
            yield f"{module.__name__}.{name}", getattr(module, name)


def public_methods(cls: type) -> Iterator[tuple[str, Any]]:
    """The methods and properties that a class defines itself, without `_` in front."""
    fields = getattr(cls, "__dataclass_fields__", {})
    for name, member in vars(cls).items():
        plain = getattr(member, "__func__", member)
        if (
            not name.startswith("_")
            and name not in fields
            and (isinstance(member, property) or inspect.isfunction(plain))
        ):
            yield name, member if isinstance(member, property) else plain


@cache
def protocols() -> tuple[type, ...]:
    """The library's interfaces: the protocols of all modules loaded with it."""
    for name in MODULES:
        importlib.import_module(name)
    found = {
        thing
        for name, module in sorted(sys.modules.items())
        if name.split(".")[0] == "hewfl"
        for thing in vars(module).values()
        if inspect.isclass(thing)
        and getattr(thing, "_is_protocol", False)
        and thing.__module__.startswith("hewfl.")
        and thing.__name__ not in INNER
    }
    return tuple(sorted(found, key=lambda cls: f"{cls.__module__}.{cls.__name__}"))


@cache
def interfaces() -> dict[str, set[type]]:
    """The methods that protocols prescribe, by name, with the protocols."""
    methods: dict[str, set[type]] = {}
    for protocol in protocols():
        for name, _ in public_methods(protocol):
            methods.setdefault(name, set()).add(protocol)
    return methods


def parameters(function: Any) -> str:
    """The parameters in brackets, without types: those are written in many ways."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return "(…)"
    short = []
    for parameter in signature.parameters.values():
        default = parameter.default
        if default is not inspect.Parameter.empty and not isinstance(
            default, str | int | float | bool | tuple | None
        ):
            default = ...
        short.append(
            parameter.replace(annotation=inspect.Parameter.empty, default=default)
        )
    return str(inspect.Signature(short)).replace("Ellipsis", "…")


def listing() -> list[str]:
    """One line for every public name, and one for each method of a public class."""
    lines = []
    for path, thing in public_names():
        if inspect.isfunction(thing):
            lines.append(path + parameters(thing))
        elif inspect.isclass(thing):
            is_protocol = getattr(thing, "_is_protocol", False)
            own = (
                "" if is_protocol or issubclass(thing, Exception) else parameters(thing)
            )
            lines.append(path + own)
            for name, member in sorted(public_methods(thing), key=lambda pair: pair[0]):
                if not is_protocol and name in interfaces():
                    continue  # listed with the protocol that prescribes it
                called = "" if isinstance(member, property) else parameters(member)
                lines.append(f"{path}.{name}{called}")
        else:
            lines.append(path)
    return lines


def changed(before: list[str], now: list[str]) -> list[str]:
    """The public names whose lines differ, without modules, methods and parameters."""
    lines = set(before) ^ set(now)
    known = "|".join(map(re.escape, sorted(MODULES, key=len, reverse=True)))
    return sorted({re.match(rf"(?:{known})\.(\w+)", line)[1] for line in lines})  # type: ignore[index]


def unnamed(names: list[str], changelog: str) -> list[str]:
    """Those of the names that the newest section of the changelog does not mention."""
    newest = changelog.split("\n## ")[1]
    return [name for name in names if not re.search(rf"\b{name}\b", newest)]


def renew(path: Path = LISTING, changelog: Path = ROOT / "CHANGELOG.md") -> None:
    """Write the listing anew, if the changelog names everything that changed.

    Raises:
        SystemExit: a changed name is not in the newest section of the changelog.
    """
    now = listing()
    before = path.read_text("utf-8").splitlines() if path.exists() else now
    silent = unnamed(changed(before, now), changelog.read_text("utf-8"))
    if silent:
        text = "say in the newest section of CHANGELOG.md what changed in: "
        raise SystemExit(text + ", ".join(silent))
    path.write_text("\n".join(now) + "\n", "utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    renew()
