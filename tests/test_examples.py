"""Every example runs and prints its result."""

import subprocess
import sys
from pathlib import Path

import pytest

ELASTIC = "torch_elastic"
ELSEWHERE = (ELASTIC, "torch_local_sgd")
"""Several ranks: run by tests/torch/test_restart.py."""
FILES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
EXAMPLES = [file for file in FILES if file.stem not in ELSEWHERE]
SAYS = {
    "aggregate_state_dicts": "loss after the round",
    "custom_rule": "Agreeing",
    "encode_texts": "usage: encode_texts.py",
    "quickstart": "HEW (corrected)",
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(example: Path) -> None:
    command = [sys.executable, str(example)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert SAYS[example.stem] in run.stdout


@pytest.mark.torch
def test_the_elastic_example_says_how_it_is_started() -> None:
    file = next(file for file in FILES if file.stem == ELASTIC)
    command = [sys.executable, str(file), "folder"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith("usage: torchrun")
