"""Every block of code in the pages runs, parses or names commands that exist."""

import re
import sys
import tomllib
from pathlib import Path

import click
import pytest
from docs_tools.pages import ROOT, Block, blocks, pages
from docs_tools.stage import CODE, LINK
from typer.main import get_command

LANGUAGES = ("python", "toml", "sh", "text", "")
PAGES = {str(page.relative_to(ROOT)): page for page in pages()}
WITH_CODE = {name: page for name, page in PAGES.items() if blocks(page)}
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def check_command(line: str) -> None:
    """A command of this project that a page prints exists, with its options."""
    words = line.partition("#")[0].split()
    if words[:1] == ["make"]:
        targets = [word for word in words[1:] if "=" not in word]
        for target in targets:
            assert re.search(rf"^[\w -]*\b{target}\b[\w -]*:", MAKEFILE, re.M), line
    elif words[:1] == ["python"] and words[1].endswith(".py"):
        assert (ROOT / words[1]).exists(), line
    elif words[:1] == ["hewfl"] and words[1][0] != "-":
        from hewfl.cli.app import app  # noqa: PLC0415 - brings typer and rich

        command: click.Command | None = get_command(app)
        rest = words[1:]
        while isinstance(command, click.Group):
            _, command, rest = command.resolve_command(click.Context(command), rest)
        assert command is not None, line
        options = {name for parameter in command.params for name in parameter.opts}
        given = {word.partition("=")[0] for word in rest if word[0] == "-"}
        assert given <= options, line


def check(block: Block) -> None:
    """Run, parse or compile one block; each starts without names of others."""
    assert block.language in LANGUAGES, f"{block.where}: one of {LANGUAGES}"
    if block.language == "python":
        code = compile(block.code, block.where, "exec")
        if not block.reason and not block.title:
            names: dict[str, object] = {"__name__": "__main__"}
            exec(compile(block.before, f"before {block.where}", "exec"), names)
            exec(code, names)
    elif block.language == "toml":
        tomllib.loads(block.code)
    elif block.language in ("sh", ""):
        for line in block.code.splitlines():
            check_command(line)


@pytest.mark.unchecked
@pytest.mark.parametrize("name", WITH_CODE)
def test_blocks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(WITH_CODE[name]):
        check(block)
    jobs = sys.modules.get("torch.distributed")
    if jobs is not None and jobs.is_initialized():
        jobs.destroy_process_group()


def test_few_blocks_are_not_run() -> None:
    """Files with a title are run by tests/test_five_minutes.py and test_recipe.py."""
    every = {name: blocks(page) for name, page in PAGES.items()}
    reasons = [block.reason for page in every.values() for block in page]
    assert len([reason for reason in reasons if reason]) <= 2
    titled = [name for name, page in every.items() if any(b.title for b in page)]
    assert titled == ["docs/five_minutes.md", "docs/recipe_cifar10.md"]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = PAGES[name]
    for link in LINK.finditer(CODE.sub("", page.read_text("utf-8"))):
        if not re.match(r"\w+:", link["target"]):
            assert (page.parent / link["target"]).exists(), link["target"]


@pytest.mark.parametrize(
    "line", ["make nothing", "hewfl no", "python no.py", "hewfl ls --no"]
)
def test_commands_that_do_not_exist_are_seen(line: str) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        check_command(line)
