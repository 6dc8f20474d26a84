"""Public names, and modules that `import hewfl` and `hewfl --help` do not load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hewfl

HELP = """
import sys
from typer.testing import CliRunner
from hewfl.cli.app import app
result = CliRunner().invoke(app, ["--help"])
assert result.exit_code == 0 and "certify" in result.output
"""
SLOW = {"scipy.linalg", "scipy.special", "jaxtyping", "matplotlib"}


@pytest.mark.parametrize(
    ("program", "slow"),
    [
        ("import hewfl", SLOW | {"numpy", "typer"}),
        ("import hewfl; [getattr(hewfl, name) for name in hewfl.__all__]", SLOW),
        (HELP, SLOW | {"numpy"}),
    ],
    ids=["import hewfl", "all names", "hewfl --help"],
)
def test_slow_modules_load_late(program: str, slow: set[str]) -> None:
    program = f"{program}\nimport sys; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not slow & set(done.stdout.split())


def test_the_stub_lists_every_public_name() -> None:
    stub = Path(hewfl.__file__).with_name("__init__.pyi").read_text("utf-8")
    lists = [node for node in ast.parse(stub).body if isinstance(node, ast.Assign)]
    assert sorted(ast.literal_eval(lists[-1].value)) == hewfl.__all__
    assert set(hewfl.__all__) <= set(dir(hewfl))


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        hewfl.nonsense  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError):
        from hewfl import nonsense  # type: ignore[attr-defined]  # noqa: F401, PLC0415
