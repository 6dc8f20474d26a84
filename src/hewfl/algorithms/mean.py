"""Exact weights around a plain average, for local optimisers that nobody knows."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from hewfl.algorithms.quadratic_model import (
    least_cross_fitted,
    least_model,
    leave_one_out_weights,
)
from hewfl.core.algorithm import Demands, FirstGradients, RoundModel, Traffic
from hewfl.core.array_types import Float64
from hewfl.core.displacements import LinearCombination
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import Array, Positive, Schedule, Validated, at_round

Shares = Literal["size", "uniform", "steps"]
"""What a client's share of the mean is proportional to: m_i, 1 or H_i."""


@final
@dataclass(frozen=True, slots=True)
class HewMean(Validated):
    """The mean displacement, divided by κ and projected onto the hull of all.

        w = argmin over w ∈ Δ_n of ‖Σ w_iΔ_i − m/κ‖²,   m = Σ p_iΔ_i

    Algorithm 3 takes Δ_i/(η_iH_i) for a gradient, which is right for plain SGD. After
    momentum, Adam or a step size of the client's own it is not, and clients that did
    little count too much in the mean. Here only displacements are looked at: κ = 1 is
    federated averaging itself (`FedAvg`, `UniformLocalSGD` or `StepWeighted`, by `by`),
    κ → ∞ the point of least norm. In plain SGD of equal ground it is `HewHom(kappa=κ)`
    where shares are equal. Large κ prefers clients that moved little: keep near 1 where
    branches are long and unequal.

    With `cross_fit` client i is judged by the mean of the others,
    m_{−i} = Σ_{j≠i} p_jΔ_j/(1 − p_i): its own noise then no longer speaks for it. With
    κ = 1, equal means and independent noise, what is minimised is an unbiased estimate
    of ½‖Σ w_iΔ_i − E Δ‖², up to a constant.

    Attributes:
        smoothness: L > 0, the unit of the step size and nothing else.
        step_scale: s > 0; every client takes every step with η = s/L.
        kappa: κ > 0, a number or a function of t.
        by: shares p_i of the mean: data sizes ("size"), local steps ("steps"), or equal
            ones ("uniform").
        cross_fit: judge each client by the others alone.
    """

    smoothness: Positive
    step_scale: Positive
    kappa: Schedule = 1.0
    by: Shares = "size"
    cross_fit: bool = False

    name: ClassVar[str] = "HEW (mean)"

    @property
    def demands(self) -> Demands:
        """Those of an average; H_i travels up where it is asked for."""
        return Demands(Traffic(up_scalars=int(self.by == "steps")))

    def init(self, n: int, d: int, gradients: FirstGradients) -> None:
        """There is no state."""

    def plan(self, cohort: Cohort, state: None) -> LocalPlan:
        """One step size for all: η = s/L."""
        eta = self.step_scale / self.smoothness
        return LocalPlan(np.full(len(cohort.clients), eta))

    def shares(self, cohort: Cohort) -> Float64[Array, " s"]:
        """p_i, which sum to one; equal where all are zero.

        Args:
            cohort: who takes part.

        Returns:
            One share for each, summing to one.
        """
        worth = {
            "size": cohort.data_sizes,
            "uniform": np.ones_like(cohort.horizons),
            "steps": cohort.horizons,
        }[self.by].astype(np.float64)
        worth = worth if worth.any() else np.ones(len(worth))
        return np.asarray(worth / worth.sum())

    def model(self, round_: Round, state: None) -> RoundModel:
        """(κ/2)‖d − m/κ‖² without its constant; no L is known, nothing certified."""
        kappa = at_round("kappa", self.kappa, round_.cohort.round)
        return RoundModel(LinearCombination(-self.shares(round_.cohort)), kappa, None)

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """The weights of the point of the hull that is nearest to m/κ."""
        n, model = round_.displacements.n, self.model(round_, state)
        p = self.shares(round_.cohort)
        if self.cross_fit and n > 1:
            found = least_cross_fitted(
                round_, -leave_one_out_weights(p), model.curvature, null=False
            )
            return found, state
        if model.curvature == 1:  # m is in the hull: many weights may give it, p does
            return Decision(p, "the mean itself"), state
        return least_model(round_, model, null=False), state
