"""Networks by name: shapes, seeds, training by both routes, and in a run."""

import tomllib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hewfl import FedAvg, Federation, FixedSteps, simulate
from hewfl.errors import InvalidInputError
from hewfl.experiments import run, spec_from_table
from hewfl.experiments.spec_sections import ZOO as NAMES
from hewfl.problems import Training, torch_from_arrays
from hewfl.problems.module.zoo import ZOO, cnn, mlp, resnet18, transformer

pytestmark = pytest.mark.torch
SMALL: dict[str, dict[str, int]] = {
    "mlp": {"width": 6},
    "cnn": {"width": 2, "dense": 5},
    "resnet18": {"width": 2},
    "transformer": {"width": 4, "depth": 1, "heads": 2},
}
SHAPE = (3, 8, 12)
SAME = 1e-4
"""Two orders of float32 sums, over the size of the result."""


def small(name: str) -> Any:
    torch.manual_seed(0)
    return ZOO[name](SHAPE, 4, **SMALL[name])


def test_a_spec_knows_their_names() -> None:
    assert tuple(ZOO) == NAMES


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (4, 8, 16)])
def test_flat_rows_of_any_image(name: str, shape: tuple[int, ...]) -> None:
    network = ZOO[name](shape, 7, **SMALL[name])
    assert network(torch.zeros(2, prod(shape))).shape == (2, 7)


@pytest.mark.parametrize("name", ZOO)
def test_both_routes_train_alike(name: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(24, prod(SHAPE))).astype(np.float32)
    y = np.arange(24) % 4
    shards = np.array_split(np.arange(24), 3)
    models = []
    for route in ("loop", "stacked"):
        training = Training(route=route)
        problem = torch_from_arrays(small(name), X, y, shards, training=training)
        federation = Federation(FixedSteps(3), batch_size=4)
        start = problem.start
        trace = simulate(
            problem, federation, [FedAvg(0.1)], rounds=2, seed=0, start=start
        )
        models.append(trace.anchors[0])
        assert trace.curve(0, "objective")[-1] < trace.curve(0, "objective")[0]
    step = np.linalg.norm(models[0] - start)
    assert np.linalg.norm(models[0] - models[1]) < SAME * step


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: cnn((5,), 2), "`shape` must be of images of 4 × 4 pixels or more"),
        (lambda: resnet18((3, 4, 8), 2), "`shape` must be of images of 8 × 8"),
        (lambda: resnet18(SHAPE, 2, groups=3), "`groups` must be a divisor of width"),
        (lambda: transformer(SHAPE, 2, patch=5), "a divisor of 8 and 12; got 5"),
        (lambda: transformer(SHAPE, 2, heads=3), "`heads` must be a divisor of width"),
        (lambda: mlp(SHAPE, 2, width=0), "`width` must be at least 1; got 0"),
    ],
)
def test_mistakes_are_named(call: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        call()


SPEC = """
name = "zoo"
rounds = 2
seeds = [0]
[data]
name = "own.npz"
[clients]
n = 3
[problem]
model = "resnet18"
learning_rate = 0.1
options = { width = 2 }
[[methods]]
method = "FedAvg"
step_scale = 1.0
"""


def test_a_run_on_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(1).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    np.savez("own.npz", X=X, y=np.arange(60) % 3)
    table = tomllib.loads(SPEC)
    results = run(table, runs_dir="runs")
    assert results.accuracies("FedAvg", "client").shape == (1, 3, 3)
    for options, text in (
        ({"groups": 3}, "`problem.options.groups` must be a divisor of width = 64"),
        ({"with": 3}, r"`problem.options.with` must be one of width, groups \(did you"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            run(table | {"problem": table["problem"] | {"options": options}})
    data = {"name": "digits"}
    with pytest.raises(InvalidInputError, match=r"`data.name` must be of images of 8"):
        run(table | {"data": data})
    with pytest.raises(InvalidInputError, match=r"only medium_cnn and classifier_head"):
        run(table | {"problem": table["problem"] | {"dropout": 0.1}})
    assert spec_from_table(table).problem.is_module
