"""How pages are collected, and the checks of the built site."""

import re
from pathlib import Path

import pytest
from docs_tools.check import site_errors
from docs_tools.pages import ROOT, pages
from docs_tools.stage import STAGE, folded, place, relinked

PAGE = '<a href="b.html#here">b</a> <a href="b.html#gone">b</a> <a href="c.html">c</a>'


def test_errors_name_page_and_link(tmp_path: Path) -> None:
    loads = '<script src="https://elsewhere.example/x.js"></script>'
    (tmp_path / "a.html").write_text(PAGE + loads)
    (tmp_path / "b.html").write_text('<p id="here">here</p> <a href="a.html">a</a>')
    assert site_errors(tmp_path) == [
        "a.html links to b.html#gone: no such anchor",
        "a.html links to c.html, which does not exist",
        "a.html loads https://elsewhere.example/x.js",
    ]


def test_links_follow_pages_to_their_place() -> None:
    source = ROOT / "docs" / "theory.md"
    text = "[p](../PAPER.md#notation) [e](../examples/quickstart.py) `[x](y.md)`"
    new, files = relinked(text, source, place(source))
    assert new == "[p](paper.md#notation) [e](files/examples/quickstart.py) `[x](y.md)`"
    assert files == {ROOT / "PAPER.md", ROOT / "examples" / "quickstart.py"}
    with pytest.raises(FileNotFoundError, match="nothing"):
        relinked("[n](nothing.md)", source, place(source))


def test_pages_go_to_their_places() -> None:
    assert place(ROOT / "docs" / "index.md") == STAGE / "index.md"
    assert place(ROOT / "README.md") == STAGE / "overview.md"


def test_the_home_page_has_three_audiences_three_pictures_and_two_commands() -> None:
    text = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert len(re.findall(r"^### You ", text, re.MULTILINE)) == 3
    pictures = re.findall(r"!\[.+\]\((.+)\)", text)
    assert len(pictures) == 3
    assert all((ROOT / "docs" / picture).exists() for picture in pictures)
    (commands,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert len(commands.splitlines()) == 2


def test_every_page_is_in_the_navigation_once() -> None:
    """Pages of results are linked from the others; the side bar has at most 30."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"([\w/]+\.md)$", text, re.MULTILINE)
    assert len(set(listed)) == len(listed)
    expected = {place(page).relative_to(STAGE).as_posix() for page in pages()}
    assert {page for page in expected if "results/" not in page} <= set(listed)
    for tab in re.split(r"^  - ", text, flags=re.MULTILINE):
        assert tab.count(".md") <= 30


def test_sections_are_folded_below_their_headings() -> None:
    text = folded("# Page\n\nhead\n\n## One\n\nbody\n\n## Two\n\n### Deep\n\nend\n")
    assert text.startswith("# Page\n\nhead\n\n## One\n\n<details markdown>")
    assert text.count("<details markdown>") == text.count("</details>") == 2
    assert "</details>\n\n## Two\n\n### Deep\n\n<details" in text
    assert "head" not in text.split("<details", 1)[1]
