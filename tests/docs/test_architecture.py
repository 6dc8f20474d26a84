"""docs/architecture.md lists the files that a displacement passes in the simulator."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docs_tools.pages import ROOT

import hewfl
from hewfl import FedAvg, Federation, FixedSteps, HewHet, Round, simulate
from hewfl.core.displacements import Products
from hewfl.problems import random_quadratic

SOURCE = str(Path(hewfl.__file__).parent) + os.sep
D = 37
"""Parameters of the problem: an array of this width is a displacement or a model."""
METHOD = ["methods/method.py", "aggregators/averaging.py"]


def is_displacement(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(is_displacement, value))
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and value.shape[-1] == D
    return isinstance(value, Products | Round)


def files_passed(method: Any) -> set[str]:
    """Files with a function that takes or returns a displacement.

    From the first local step of a round to the new model.
    """
    problem, federation = random_quadratic(seed=0, n=6, d=D), Federation(FixedSteps(2))
    files, is_on = set(), False

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal is_on
        code = frame.f_code
        if not code.co_filename.startswith(SOURCE):
            return
        is_on |= event == "call" and code.co_name == "run_branches"
        values = frame.f_locals.values() if event == "call" else (arg,)
        if is_on and event in ("call", "return") and any(map(is_displacement, values)):
            files.add(code.co_filename.removeprefix(SOURCE).replace(os.sep, "/"))
        if event == "return" and code.co_name == "take_step":
            is_on = False

    simulate(problem, federation, [method], rounds=1, seed=0)  # loads late imports
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        simulate(problem, federation, [method], rounds=1, seed=0)
    finally:
        sys.setprofile(before)
    return files


def listed_files() -> tuple[set[str], set[str]]:
    """The table of the page: files of FedAvg, and of Algorithm 2."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = page.partition("| FedAvg: ")[2].partition("\n\n")[0]
    left, right = set(), set()
    for row in table.splitlines()[2:]:
        _, first, second, _ = row.split("|")
        left |= set(re.findall(r"`([\w/]+\.py)`", first))
        right |= set(re.findall(r"`([\w/]+\.py)`", second))
    return left, (left - set(METHOD)) | right


@pytest.mark.unchecked
def test_fedavg_passes_the_listed_files() -> None:
    listed, _ = listed_files()
    assert files_passed(FedAvg(0.01)) == listed
    assert len(listed) <= 12


@pytest.mark.unchecked
def test_algorithm_2_passes_the_listed_files() -> None:
    _, listed = listed_files()
    solver = {"solver/simplex.py", "solver/weight_problem.py"}  # sees the Gram matrix
    problem = random_quadratic(seed=0, n=6, d=D)
    method = HewHet(problem.smoothness, 1.0)
    assert files_passed(method) | solver == listed
    assert len(listed) <= 20


def test_every_listed_file_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for name in set(re.findall(r"`((?:\w+/)+\w+\.py)`", page)):
        places = (Path(SOURCE, name), ROOT / name)
        assert any(place.exists() for place in places), name
