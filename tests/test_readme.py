"""The README's code runs, its links lead somewhere, its commands exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_run(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    for block in blocks:
        exec(compile(block, str(page), "exec"), {"__name__": "__main__"})
    if page.name == "README.md":
        assert blocks
        assert "optimal: the minimiser is unique" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_make_knows_the_commands() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in re.findall(r"make (\w+)", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE), command
