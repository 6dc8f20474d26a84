"""Your own aggregation rule: here, trust clients by how far they agree with the mean.

A method is a frozen record of hyper-parameters with three pure methods. Nothing else is
needed to compare it with all the others on the same draws.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from hewfl import (
    Algorithm,
    ChoiceSteps,
    Cohort,
    Decision,
    Demands,
    FedAvg,
    Federation,
    HewHom,
    LocalPlan,
    Round,
    simulate,
)
from hewfl.problems import random_quadratic


@final
@dataclass(frozen=True)
class Agreeing:
    """Weights proportional to the positive part of the cosine with the mean update."""

    smoothness: float
    step_scale: float

    name: ClassVar[str] = "Agreeing"
    demands: ClassVar[Demands] = Demands()

    def init(self, n: int, d: int, gradients: Any) -> None:
        """There is no state."""

    def plan(self, cohort: Cohort, state: None) -> LocalPlan:  # noqa: ARG002 - none
        return LocalPlan(self.step_scale / (self.smoothness * cohort.horizons))

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        G = round_.displacements.gram()  # ⟨Δ_i, Δ_j⟩, wherever the vectors lie
        with_mean, mean_sq = G.mean(axis=1), G.mean()
        lengths = np.sqrt(np.diagonal(G) * mean_sq)
        cosine = np.maximum(with_mean / np.maximum(lengths, 1e-300), 0.0) + 1e-12
        return Decision(cosine / cosine.sum(), "weights by agreement"), state


def main() -> None:
    problem = random_quadratic(seed=1, n=12, d=30)
    L = problem.smoothness
    methods: list[Algorithm[Any]] = [Agreeing(L, 0.4), HewHom(L, 0.4), FedAvg(0.1 / L)]
    federation = Federation(ChoiceSteps(), batch_size=8)
    trace = simulate(problem, federation, methods, rounds=40, seed=0)
    for name, value in trace.final().items():
        print(f"{name:12s} {value:.6f}")


if __name__ == "__main__":
    main()
