"""The public names are those of the listing, documented, and in the reference."""

import re

import griffe
import pytest
from docs_tools.public import LISTING, ROOT, listing, public_names

DOCUMENTED = {
    path: definition
    for path, definition in public_names().items()
    if isinstance(definition, griffe.Class | griffe.Function)
}
KINDS = (
    griffe.DocstringSectionKind.parameters,
    griffe.DocstringSectionKind.attributes,
)


def test_the_api_is_the_listed_one() -> None:
    text = "if the change is meant, name it in CHANGELOG.md and run `make api`"
    assert LISTING.read_text("utf-8").splitlines() == list(listing()), text


@pytest.mark.parametrize("path", DOCUMENTED)
def test_parameters_are_documented(path: str) -> None:
    definition = DOCUMENTED[path]
    start = definition.members.get("__init__")
    docstrings = [d.docstring for d in (definition, start) if d and d.docstring]
    assert docstrings
    sections = [section for d in docstrings for section in d.parse("google")]
    described = {
        name.strip(" *`")
        for section in sections
        if section.kind in KINDS
        for item in section.value
        for name in item.name.split(",")
    }
    if "Exception" in " ".join(map(str, getattr(definition, "bases", ()))):
        return
    names = {p.name for p in definition.parameters} - {"self"}
    assert {name for name in names if name[0] != "_"} <= described
    if isinstance(definition, griffe.Function):
        kinds = {section.kind for section in sections}
        has_value = str(definition.returns) != "None"
        assert not has_value or griffe.DocstringSectionKind.returns in kinds


def test_the_reference_has_every_public_name_once() -> None:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    text = "\n".join(page.read_text("utf-8") for page in pages)
    shown = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert sorted(shown) == sorted(DOCUMENTED)
