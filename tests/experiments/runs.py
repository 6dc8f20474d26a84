"""A small experiment that every test of this folder can afford."""

import tomllib
from typing import Any

from hewfl.experiments.spec import Spec, spec_from_table

TEXT = """
name = "small"
rounds = 6
seeds = [0, 1]
audit_every = 2
dtype = "float64"

[data]
subsample = 300

[clients]
n = 5
partition = "dirichlet"
alpha = 0.5
min_samples = 4
batch_size = 4
local_steps = { kind = "ChoiceSteps", choices = [1, 2, 4] }

[tune]
rounds = 3
seeds = [0, 1]

[[methods]]
method = "HewHom"
label = "HEW"
curvature_ratio = 1.5
[methods.grid]
amplitude = [0.25, 0.5, 1.0]

[[methods]]
method = "HewHet"
amplitude = 0.5

[[methods]]
method = "FedAvg"
step_scale = 0.2
momentum = 0.5
label = "FedAvgM"
"""


def table() -> dict[str, Any]:
    return tomllib.loads(TEXT)


def small() -> Spec:
    return spec_from_table(table())
