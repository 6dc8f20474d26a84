"""The public names are those of the listing, documented, and in the reference."""

import re
from pathlib import Path

import pytest
from docs_tools import docstrings
from docs_tools.public import LISTING, ROOT, changed, listing, public_names, renew

pytest.importorskip("torch", reason="some public names need PyTorch")
pytest.importorskip("flwr", reason="some public names need Flower")
CHANGELOG = """# Changelog

## Unreleased

- `combine` rounds twice.

## 0.1.0

- `simulate`.
"""


def test_the_api_is_the_listed_one() -> None:
    before = LISTING.read_text("utf-8").splitlines()
    text = "name it in the newest section of CHANGELOG.md, then `make api`"
    assert changed(before, listing()) == [], text


def test_a_change_needs_a_line_in_the_changelog(tmp_path: Path) -> None:
    old, log = tmp_path / "api.txt", tmp_path / "CHANGELOG.md"
    now, was = listing(), "hewfl.combine(displacements)"
    log.write_text(CHANGELOG)
    old.write_text(
        "\n".join([line for line in now if "hewfl.combine(" not in line] + [was])
    )
    renew(old, log)
    assert old.read_text().splitlines() == now
    old.write_text("\n".join(line for line in now if "hewfl.simulate(" not in line))
    with pytest.raises(SystemExit, match="simulate"):
        renew(old, log)


def test_every_public_name_is_documented() -> None:
    assert docstrings.missing() == []


def test_the_reference_has_every_public_name_once() -> None:
    pages = "\n".join(
        p.read_text("utf-8") for p in (ROOT / "docs/reference").glob("*.md")
    )
    shown = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    wanted = [
        path
        for path, thing in public_names()
        if isinstance(thing, type) or callable(thing)
    ]
    wanted = [path for path in wanted if path != "hewfl.data.Partition"]
    assert sorted(shown) == sorted(wanted)


def undocumented(first: int, second: float = 1.0) -> float:
    """Nothing about arguments.

    Args:
        first: a number.
    """
    if first < 0:
        raise ValueError
    return first * second


def test_missing_parts_are_seen() -> None:
    lacks = list(docstrings.lacks_of_function(undocumented))
    assert lacks == ["Args: second", "Returns", "Raises"]
