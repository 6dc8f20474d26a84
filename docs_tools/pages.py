"""The pages of the documentation, and the blocks of code in them."""

import json
import re
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
        where: page and line.
        language: the word after the fence, may be empty.
        code: the text between the fences.
        before: code that runs first, from a comment `<!-- runs after: … -->`: what a
            reader already has, such as a model or a loader.
        reason: from a comment `<!-- not run: … -->`.
        title: name of the file in the block; such files work together,
            and a test of their own runs them.
    """

    where: str
    language: str
    code: str
    before: str
    reason: str
    title: str


def pages() -> list[Path]:
    """Every page of the site that is written by hand."""
    top = [ROOT / name for name in TOP]
    return [*top, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text("utf-8")
    return [
        Block(
            where=f"{page.name}:{text.count(chr(10), 0, match.start('code'))}",
            language=match["language"],
            code=match["code"],
            before=match["note"].strip() if match["mark"] == "runs after" else "",
            reason=match["note"].strip() if match["mark"] == "not run" else "",
            title=match["title"] or "",
        )
        for match in FENCE.finditer(text)
    ]


def cells(notebook: Path) -> list[tuple[str, str]]:
    """The cells of a notebook as (kind, source): `markdown` or `code`."""
    content = json.loads(notebook.read_text("utf-8"))
    return [(cell["cell_type"], "".join(cell["source"])) for cell in content["cells"]]
