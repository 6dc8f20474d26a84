"""The public API: the names in `__all__` of a few modules, and their parameters.

`docs/api.txt` lists them, so that a change of the API shows in the diff of a commit.
`make api` writes the listing, and a test compares it with the code. griffe reads the
sources without an import, so the listing needs neither PyTorch nor Flower.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
LISTING = ROOT / "docs" / "api.txt"
MODULES = (
    "hewfl",
    "hewfl.aggregators",
    "hewfl.data",
    "hewfl.experiments",
    "hewfl.flower",
    "hewfl.methods",
    "hewfl.nvflare",
    "hewfl.problems",
    "hewfl.problems.module",
    "hewfl.simulation",
    "hewfl.theory",
    "hewfl.theory.appendix",
    "hewfl.torch",
)
Definition = griffe.Class | griffe.Function | griffe.Attribute | griffe.Module


@cache
def public_names() -> dict[str, Definition]:
    """Every public path, such as `hewfl.simulate`, with its definition.

    What two modules export is listed under the first of them.
    """
    loaded = griffe.load("hewfl", search_paths=[ROOT / "src"], resolve_aliases=True)
    names: dict[str, Definition] = {}
    for path in MODULES:
        module = loaded if path == "hewfl" else loaded[path.removeprefix("hewfl.")]
        for name in sorted(str(name) for name in module.exports or ()):
            member = module[name]
            target = member.final_target if member.is_alias else member
            if target.is_module and name in target.members:
                target = target[name]  # `hewfl.data.load` is a module and a function
            if target not in names.values():
                names[f"{path}.{name}"] = target
    return names


def parameters(function: griffe.Function | griffe.Class) -> str:
    """The parameters with their defaults, without annotations."""
    parts = []
    is_keyword_only = False
    for parameter in function.parameters:
        if parameter.name in ("self", "cls"):
            continue
        star = {
            griffe.ParameterKind.var_positional: "*",
            griffe.ParameterKind.var_keyword: "**",
        }.get(parameter.kind, "")
        if parameter.kind is griffe.ParameterKind.keyword_only and not is_keyword_only:
            parts.append("*")
        is_keyword_only |= parameter.kind in (
            griffe.ParameterKind.keyword_only,
            griffe.ParameterKind.var_positional,
        )
        default = "" if star or parameter.default is None else f"={parameter.default}"
        parts.append(f"{star}{parameter.name}{default}")
    return f"({', '.join(parts)})"


def listing() -> Iterator[str]:
    """One line for each public name, and one for each method of a public class."""
    for path, definition in public_names().items():
        if not isinstance(definition, griffe.Class | griffe.Function):
            yield path
            continue
        yield path + parameters(definition)
        if isinstance(definition, griffe.Class):
            for name, member in sorted(definition.members.items()):
                if name.startswith("_") or member.is_alias:
                    continue
                if isinstance(member, griffe.Function):
                    yield f"{path}.{name}{parameters(member)}"
                elif "property" in member.labels:
                    yield f"{path}.{name}"


if __name__ == "__main__":
    LISTING.write_text("\n".join(listing()) + "\n", "utf-8")
