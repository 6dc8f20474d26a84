"""An aggregation rule of your own: weights by agreement with the mean update.

An aggregator is a frozen record of hyper-parameters with a pure method `decide`. It can
be compared with other methods on the same draws, and used in Flower and torch.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from hewfl import (
    Aggregator,
    Algorithm,
    ChoiceSteps,
    Decision,
    Entry,
    FedAvg,
    Federation,
    HewHom,
    LocalSGD,
    Method,
    Round,
    simulate,
)
from hewfl.problems import random_quadratic


@final
@dataclass(frozen=True)
class Agreeing(Aggregator):
    """Weights proportional to the positive part of the cosine with the mean update."""

    name: ClassVar[str] = "Agreeing"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        G = round_.displacements.gram()  # ⟨Δ_i, Δ_j⟩, on any device or transport
        with_mean, mean_sq = G.mean(axis=1), G.mean()
        lengths = np.sqrt(np.diagonal(G) * mean_sq)
        cosine = np.maximum(with_mean / np.maximum(lengths, 1e-300), 0.0) + 1e-12
        return Decision(cosine / cosine.sum(), "weights by agreement"), state


def main() -> None:
    problem = random_quadratic(seed=1, n=12, d=30)
    L = problem.smoothness
    steps = (0.1, 0.4, 1.6, 6.4)  # the same for all: rules are compared at their best
    entries = []
    for s in steps:
        methods: dict[str, Algorithm[Any]] = {
            "Agreeing": Method(LocalSGD(total=s / L), Agreeing()),
            "HEW (plain)": HewHom(L, s),
            "FedAvg": FedAvg(total=s / L),
        }
        entries += [Entry(method, label=f"{k} {s}") for k, method in methods.items()]
    federation = Federation(ChoiceSteps(), batch_size=8)
    final = simulate(problem, federation, entries, rounds=40, seed=0).final()
    print(f"{'total step · L':14s}", *(f"{s:9g}" for s in steps))
    for name in methods:
        print(f"{name:14s}", *(f"{final[f'{name} {s}']:9.6f}" for s in steps))


if __name__ == "__main__":
    main()
