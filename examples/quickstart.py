"""Four methods under unequal local work, on the same clients and minibatches."""

from typing import Any

import numpy as np

from hewfl import (
    Algorithm,
    ChoiceSteps,
    FedAvg,
    Federation,
    FedNova,
    HewHet,
    Scaffold,
    simulate,
)
from hewfl.problems import random_quadratic

problem = random_quadratic(seed=0, n=20, d=50)
L, best = problem.smoothness, problem.optimum().objective
methods: list[Algorithm[Any]] = [
    HewHet(L, amplitude=1.0),
    Scaffold(0.2 / L),
    FedNova(0.2 / L),
    FedAvg(0.2 / L),
]
federation = Federation(ChoiceSteps((1, 2, 4, 8)), batch_size=8)
trace = simulate(problem, federation, methods, rounds=60, seed=0)

print(f"{'method':16s} {'gap at 20':>10s} {'gap at 60':>10s} {'numbers sent':>13s}")
for entry, name in enumerate(trace.names):
    gap = trace.curve(entry, "objective") - best
    sent = trace.of(entry)[-1].scalars
    print(f"{name:16s} {gap[20]:10.2e} {gap[60]:10.2e} {sent:13,d}")
assert np.isfinite(trace.anchors).all()
