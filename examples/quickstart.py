"""Four methods under unequal local work, on the same clients and minibatches.

Every method is run with the same list of step sizes, and all are shown: a comparison at
one of them would be one of step sizes.
"""

from typing import Any

import numpy as np

from hewfl import (
    Algorithm,
    ChoiceSteps,
    Entry,
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
steps = (0.005, 0.01, 0.02, 0.04, 0.08)
entries = []
for s in steps:
    methods: dict[str, Algorithm[Any]] = {
        "HEW (corrected)": HewHet(L, amplitude=5 * s),
        "SCAFFOLD": Scaffold(s / L),
        "FedNova": FedNova(s / L),
        "FedAvg": FedAvg(s / L),
    }
    entries += [Entry(method, label=f"{k} {s}") for k, method in methods.items()]
federation = Federation(ChoiceSteps((1, 2, 4, 8)), batch_size=8)
trace = simulate(problem, federation, entries, rounds=60, seed=0)

final = trace.final("objective")
print(f"{'gap at 60, step · L':20s}", *(f"{s:>9g}" for s in steps), f"{'sent':>9s}")
for name in methods:
    gaps = [final[f"{name} {s}"] - best for s in steps]
    sent = trace.communication(f"{name} {steps[0]}").total.scalars
    print(f"{name:20s}", *(f"{gap:9.2e}" for gap in gaps), f"{sent:9,d}")
print("HEW's total step is 5 times as long: 5 s / L over the steps of a client")
assert np.isfinite(trace.anchors).all()
