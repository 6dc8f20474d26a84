"""A release: its version, the tests that SECURITY.md names, the workflows."""

import ast
import re
from pathlib import Path

import pytest

from hewfl import __version__

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_one() -> None:
    newest = re.search(r"^## (\d\S*) - (\d{4}-\d\d-\d\d)$", text("CHANGELOG.md"), re.M)
    assert newest is not None
    cited = dict(
        re.findall(r"^(version|date-released): (.*)$", text("CITATION.cff"), re.M)
    )
    assert (cited["version"], cited["date-released"]) == newest.groups()
    assert __version__ == newest[1] or ".dev" in __version__


def named_tests() -> list[str]:
    return re.findall(r"`(tests/[\w/]+\.py[^`]*)`", text("SECURITY.md"))


def test_security_names_tests_one_by_one() -> None:
    """A file alone would leave open which of its tests is meant."""
    assert len(named_tests()) >= 13
    assert [name for name in named_tests() if "::" not in name] == []


@pytest.mark.parametrize("name", named_tests())
def test_what_security_says_has_its_test(name: str) -> None:
    """They run with all the others; here only that they exist."""
    file, _, function = name.partition("::")
    tree = ast.parse(text(file))
    assert function in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}


def test_only_a_cluster_unpickles() -> None:
    """Anyone who reaches a cluster's scheduler can run code on it in any case."""
    files = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                names += ["pickle"] if ast.unparse(node.value) != "False" else []
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load":
                names += ["pickle"]
            if {"pickle", "marshal", "shelve", "dill", "joblib"} & set(names):
                files.add(path.relative_to(ROOT / "src" / "hewfl").as_posix())
    assert files <= {"experiments/dask_executor.py", "experiments/dask_tasks.py"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_make_alone(path: Path) -> None:
    """So that everything in a workflow can be repeated locally."""
    phony = re.search(r"^\.PHONY: (.*)$", text("Makefile"), re.M)
    assert phony is not None
    commands = re.findall(r"^ *(?:- )?run: *(.*)$", path.read_text("utf-8"), re.M)
    assert commands
    for command in commands:
        make, *rest = command.split()
        targets = [word for word in rest if "=" not in word]
        assert make == "make"
        assert targets
        assert set(targets) <= set(phony[1].split())
