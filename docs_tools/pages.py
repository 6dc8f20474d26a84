"""The pages of the documentation, and the code in them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOP = ("README.md", "PAPER.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
NOTEBOOKS = ROOT / "notebooks"
FENCE = re.compile(
    r"(?:<!-- (?P<mark>not run|runs after):(?P<note>(?:(?!-->).)+)-->\n+)?"
    r"^(?P<indent> *)```(?P<language>[\w-]*)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n"
    r"(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: where it stands.
        line: of its fence.
        language: the word after the fence, may be empty.
        code: what it holds.
        before: what a page leaves out because every reader has it (a model, a loader):
            a comment before the block, `<!-- runs after: … -->`.
        reason: why it is not run, if a comment before it says so.
        title: the file that readers are told to put it in; such files work together,
            and a test of their own runs them.
    """

    page: Path
    line: int
    language: str
    code: str
    before: str
    reason: str
    title: str


def pages() -> list[Path]:
    """Every page of the site that is written by hand."""
    top = [ROOT / name for name in TOP if (ROOT / name).exists()]
    return [*top, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text("utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start("code")),
            found["language"],
            found["code"],
            found["note"].strip() if found["mark"] == "runs after" else "",
            found["note"].strip() if found["mark"] == "not run" else "",
            found["title"] or "",
        )
        for found in FENCE.finditer(text)
    ]


def python_blocks() -> Iterator[str]:
    """The Python code of all pages; a few blocks only compile, with a reason."""
    for page in pages():
        for block in blocks(page):
            if block.language == "python":
                yield block.code


def code_of_examples() -> Iterator[str]:
    """The example programs, which have tests of their own."""
    for path in sorted((ROOT / "examples").rglob("*.py")):
        yield path.read_text("utf-8")


def cells(notebook: Path) -> list[tuple[str, str]]:
    """The cells of a notebook as (kind, source): `markdown` or `code`."""
    content = json.loads(notebook.read_text("utf-8"))
    return [(cell["cell_type"], "".join(cell["source"])) for cell in content["cells"]]


def code_of_notebooks() -> Iterator[str]:
    """The code of all notebooks, cell by cell."""
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        yield from (source for kind, source in cells(notebook) if kind == "code")
