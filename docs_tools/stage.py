"""Collects the pages of the site in `build/pages`, as Zensical expects them.

docs/index.md is the front page. Links between files of the repository become links
between pages; linked files that are no pages are copied. Notebooks are run and become
pages with their outputs; galleries get their cards.
"""

import re
import shutil
from os.path import relpath
from pathlib import Path

from docs_tools.gallery import expanded
from docs_tools.notebooks import as_page
from docs_tools.pages import NOTEBOOKS, ROOT, pages

STAGE = ROOT / "build" / "pages"
MOVED = {
    "README.md": "overview.md",
    "PAPER.md": "paper.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
FOLDED = {
    "PAPER.md",
    "docs/results/extended/results.md",
    "docs/results/robustness/results.md",
    "docs/results/byzantine/results.md",
    "docs/results/torch.md",
    "docs/results/solvers.md",
}
"""Long pages of tables, whose sections are opened one by one."""
LINK = re.compile(r"(?P<open>\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
CODE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def place(path: Path) -> Path:
    """The path of a file of the repository in the folder of pages."""
    name = path.relative_to(ROOT).as_posix()
    if name in MOVED:
        return STAGE / MOVED[name]
    if path.suffix == ".ipynb":
        return STAGE / "notebooks" / f"{path.stem}.md"
    if name.startswith("docs/"):
        return STAGE / name.removeprefix("docs/")
    return STAGE / "files" / name


def relinked(text: str, source: Path, target: Path) -> tuple[str, set[Path]]:
    """The text of a page with its links changed, and the files that it links to.

    Args:
        text: of the page.
        source: its place in the repository, which links are relative to.
        target: its place in the folder of pages.

    Returns:
        The new text, and every file of the repository that it links to.

    Raises:
        FileNotFoundError: a link leads nowhere.
    """
    linked: set[Path] = set()

    def follow(match: re.Match[str]) -> str:
        if re.match(r"\w+:", match["target"]):
            return match[0]
        path = (source.parent / match["target"]).resolve()
        if not path.is_file():
            raise FileNotFoundError(f"{source}: a link to {match['target']}")
        linked.add(path)
        new = relpath(place(path), target.parent).replace("\\", "/")
        return match["open"] + new + (match["anchor"] or "")

    parts, end = [], 0
    for code in CODE.finditer(text):
        parts += [LINK.sub(follow, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(follow, text[end:])]), linked


def folded(text: str) -> str:
    """The page with what stands below each heading of level two or three in a box.

    Headings and their anchors stay outside of the closed boxes.
    """
    head, *sections = re.split(r"^(?=###? )", text, flags=re.MULTILINE)
    parts = [head]
    for section in sections:
        heading, _, body = section.partition("\n")
        parts.append(f"{heading}\n\n")
        if body.strip():
            box = "<details markdown><summary>show</summary>"
            parts.append(f"{box}\n\n{body.strip()}\n\n</details>\n\n")
    return "".join(parts)


def stage() -> None:
    """Write `build/pages`."""
    shutil.rmtree(STAGE, ignore_errors=True)
    texts = {page: expanded(page.read_text("utf-8")) for page in pages()}
    texts |= {path: as_page(path) for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    files: set[Path] = set()
    for source, text in texts.items():
        target = place(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        new, linked = relinked(text, source, target)
        if source.relative_to(ROOT).as_posix() in FOLDED:
            new = folded(new)
        target.write_text(new, "utf-8")
        files |= linked - set(texts)
    for path in [*files, ROOT / "docs" / "site.css"]:
        place(path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place(path))


if __name__ == "__main__":
    stage()
