"""Modules, samples and settings that make no federated problem are refused."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.problems.module.small import data, mlp, nn
from tests.simulation.unchecked import unchecked

from hewfl import InvalidInputError
from hewfl.problems.module import TorchModule, Training, torch_from_arrays

pytestmark = pytest.mark.torch
X, Y, _ = data()


class Noisy(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return nn.functional.dropout(self.layer(x), 0.5)


class Counting(Noisy):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.count += 1
        return self.layer(x)


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"module": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))},
        r"`module` must be free of running statistics, .*GroupNorm.*; got BatchNorm1",
    ),
    (
        {"module": nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True))},
        "got InstanceNorm1d at '0'",
    ),
    ({"module": nn.ReLU()}, "`module` must be one with trainable parameters; got ReLU"),
    ({"module": Noisy()}, "by torch.nn.Dropout layers alone; got one that uses"),
    ({"module": Counting()}, "whose buffers training leaves alone; got a change of 'c"),
    ({"module": mlp(5, 5, 3)}, "`module, loss` must be such that they take these"),
    ({"module": mlp(4, 5, 2)}, "`labels` must be from 0 to 1; got 2"),
    ({"loss": nn.CrossEntropyLoss()}, r'reduction="none"\); got shape \(\) for 2'),
    ({"X": X * np.nan}, "`features` must be finite; got NaN"),
    ({"X": X[:0]}, r"`features` must be one entry per sample.*got shape \(0, 4\)"),
    ({"y": Y[:9]}, "`labels` must be one per sample, 40 of them; got 9"),
    ({"X": (X * 0).astype(np.uint8)}, r"`normalise` must be \(mean, deviation\) where"),
    ({"partition": []}, "`partition` must be one list of rows per client; got an empt"),
    ({"partition": [[0], []]}, r"`partition\[1\]` must be a nonempty vector of rows"),
    ({"partition": [[0, 40]]}, r"`partition\[0\]` must be rows from 0 to 39; got 40"),
    ({"parts": {"test": (X, Y - 9)}}, "`test labels` must be from 0 to 2; got -9"),
    ({"training": Training(route="graph")}, "`training.route` must be auto, stacked"),
    ({"normalise": 5}, r"`normalise` must be \(mean, deviation\); got 5"),
    ({"normalise": (0.0, 0.0)}, r"`normalise\[1\]` must be positive; got 0.0"),
    ({"partition": 5}, "`partition` must be one list of rows per client; got 5"),
    ({"partition": [[[0], []]]}, r"`partition\[0\]` must be a nonempty vector of row"),
    ({"X": ["a"]}, r"`features` must be an array of numbers; got \['a'\]"),
    ({"parts": (X, Y)}, "`parts` must be features and labels by name; got tuple"),
    ({"parts": {"v": X}}, r"`parts\['v'\]` must be a pair of features and labels"),
    ({"module": "net"}, "`module` must be a torch.nn.Module; got 'net'"),
    ({"module": nn.ReLU}, "`module` must be a torch.nn.Module; got <class"),
    ({"training": {"clip": 1.0}}, "`training` must be a Training; got {'clip': 1.0}"),
    ({"device": "gpu"}, '`device` must be a device .*"cpu" or "cuda"; got \'gpu\''),
    ({"device": "cuda:99"}, "`device` must be a device that torch has here"),
    ({"device": 1.5}, "`device` must be a device that torch has here, .*; got 1.5"),
]


@pytest.mark.parametrize(("changes", "text"), BAD)
def test_bad_problems_are_refused(changes: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"module": mlp(4, 5, 3), "X": X, "y": Y}
    given |= {"partition": [np.arange(40)]} | changes
    with unchecked(), pytest.raises(InvalidInputError, match=text):
        torch_from_arrays(**given)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"weight_decay": -1.0}, "`weight_decay` must be a nonnegative finite number"),
        ({"clip": 0.0}, "`clip` must be a positive finite number; got 0.0"),
        ({"client_chunk": 0}, '`client_chunk` must be "auto" or at least 1; got 0'),
        ({"client_chunk": "few"}, "`client_chunk` must be .*; got 'few'"),
        ({"client_chunk": 2.5}, "`client_chunk` must be .*; got 2.5"),
        ({"clip": "5"}, "`clip` must be a positive finite number; got '5'"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], text: str) -> None:
    with unchecked(), pytest.raises(InvalidInputError, match=text):
        Training(**changes)


def test_arrays_that_are_no_tensors_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="`features` must be a torch tensor; g"):
        TorchModule(mlp(4, 5, 3), X, Y, np.array([0]), np.array([40]))
