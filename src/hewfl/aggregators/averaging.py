"""Weighted means of the updates by fixed laws: FedAvg's, FedNova's and others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

import numpy as np

from hewfl.aggregators.aggregator import Aggregator
from hewfl.core.algorithm import Need
from hewfl.core.array_types import Float64
from hewfl.core.round import Cohort, Decision, Round
from hewfl.core.validation import Array, Nonnegative, Positive, invalid, positives

Weighting = Literal["equal", "size", "steps"]
"""What a client's share is proportional to: 1, data size m_i, or local steps H_i."""


def client_shares(weighting: Weighting, cohort: Cohort) -> Float64[Array, " s"]:
    """Shares p_i of the clients of a round, which sum to one; equal where all are zero.

    Args:
        weighting: what they are proportional to.
        cohort: the clients of the round.

    Returns:
        One share for each client.
    """
    values = {
        "equal": np.ones_like(cohort.horizons),
        "size": cohort.data_sizes,
        "steps": cohort.horizons,
    }[weighting].astype(np.float64)
    values = values if values.any() else np.ones(len(values))
    return np.asarray(values / values.sum())


def weighting_needs(weighting: Weighting) -> frozenset[Need]:
    """What `client_shares` looks at."""
    needs: dict[str, frozenset[Need]] = {
        "size": frozenset({"sizes"}),
        "steps": frozenset({"steps"}),
    }
    return needs.get(weighting, frozenset())


@final
@dataclass(frozen=True, slots=True)
class Mean(Aggregator):
    """A weighted mean of the updates [McMahan2017].

        step = Σ_i p_iΔ_i,     p_i = 1/S, m_i/Σ_j m_j by size, or H_i/Σ_j H_j by steps

    "size" is federated averaging, p_i = m_i/Σ_{j∈S} m_j [McMahan2017]. The paper's
    pseudo-code once divided by the sizes of all clients, which shrinks the step under
    partial participation; a later version divides by the sum over S, as here. "equal"
    is local SGD [Gorbunov2021]. "steps", p_i = H_i/Σ_j H_j, is the default of NVFLARE
    (`weigh_by_local_iter`); an update grows with H_i already, so clients with many
    steps count about quadratically: the bias that `NormalizedMean` removes.

    Attributes:
        by: what the share of a client is proportional to.
    """

    by: Weighting = "equal"

    @property
    def name(self) -> str:
        """What tables call it."""
        return {"equal": "Mean", "size": "Mean by size", "steps": "Mean by steps"}[
            self.by
        ]

    @property
    def needs(self) -> frozenset[Need]:
        """What the shares are made of."""
        return weighting_needs(self.by)

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = p_i."""
        status = {
            "equal": "equal weights",
            "size": "weights by data size",
            "steps": "weights by local steps",
        }[self.by]
        return Decision(client_shares(self.by, round_.cohort), status), state


@final
@dataclass(frozen=True, slots=True)
class NormalizedMean(Aggregator):
    """FedNova: a client counts by its mean step, not by its number of steps [Wang2020].

        d_i = −Δ_i/(η H_i)                   mean local gradient
        τ_eff = Σ_i p_i H_i                  effective number of steps
        step = −τ_eff Σ_i p_i η d_i  =  Σ_i (τ_eff p_i/H_i) Δ_i

    This is the paper's default with plain SGD on the clients, ‖a_i‖₁ = H_i. Under
    partial participation p_i and τ_eff are over the active clients alone, with no
    factor n/S: ten of a hundred identical clients move the model by their common
    update. Weights sum to τ_eff Σ p_i/H_i ≥ 1, and to one when horizons are equal.

    Attributes:
        by: what p_i is proportional to; data sizes in the paper.
    """

    by: Literal["equal", "size"] = "size"

    name: ClassVar[str] = "Normalized mean"

    @property
    def needs(self) -> frozenset[Need]:
        """Local steps, and what the shares are made of."""
        return weighting_needs(self.by) | {"steps"}

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = τ_eff p_i/H_i."""
        H, p = round_.cohort.horizons, client_shares(self.by, round_.cohort)
        tau_eff = p @ H
        return Decision(tau_eff * p / H, "weights by normalised steps"), state


@final
@dataclass(frozen=True, slots=True)
class PowerWeights(Aggregator):
    """Weights fixed by horizon, batch and noise: w_i ∝ (H_i b_i/v_i²)^λ.

    The weights of HEW-Fixed, which the paper names without defining (erratum E-28):
    λ = 1 is its noise-optimal comparator a*, λ = 0 gives equal weights.

    Attributes:
        power: λ ≥ 0.
        variance: v_i², one number or one per client; equal by default.
    """

    power: Nonnegative = 1.0
    variance: Annotated[float | Sequence[float], positives] = 1.0

    name: ClassVar[str] = "Power weights"
    needs: ClassVar[frozenset[Need]] = frozenset({"steps"})

    def init(self, n: int, d: int) -> None:
        """There is no state.

        Raises:
            InvalidInputError: `variance` is neither one number nor one per client.
        """
        check_per_client("variance", self.variance, n)

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """The fixed law, normalised over the clients of the round."""
        cohort = round_.cohort
        variance = np.broadcast_to(np.asarray(self.variance), cohort.population)
        worth = cohort.horizons * cohort.batch_sizes / variance[cohort.clients]
        law = (worth / worth.max()) ** self.power
        return Decision(law / law.sum(), "fixed weights"), state


def check_per_client(name: str, value: float | Sequence[float], n: int) -> None:
    """Require one number for all clients, or one for each of n."""
    if np.size(value) not in (1, n):
        raise invalid(name, f"one number or {n} of them", f"{np.size(value)} numbers")


@final
@dataclass(frozen=True, slots=True)
class FedExP(Aggregator):
    """The mean update, lengthened as far as clients disagree [Jhunjhunwala2023].

        Δ̄ = (1/S) Σ_i Δ_i
        η_g = max{1, Σ_i ‖Δ_i‖² / (2S (‖Δ̄‖² + ε))}
        step = η_g Δ̄

    The paper weighs clients equally, and so do we (the authors' code weighs them by
    data size); it also reports the mean of the last two iterates, which is a matter of
    evaluation and not done here.

    ε has the units of a squared update and is tuned in the paper: at half the mean of
    ‖Δ_i‖² and above there is no extrapolation at all. The authors' code adds S ε in
    place of ε, with ε = 1e-3 for CIFAR and CINIC and 0.1 for EMNIST, and shrinks it
    with η² from round to round; to have theirs, give S times their value.

    Attributes:
        epsilon: ε > 0, keeps η_g down when the mean vanishes.
    """

    epsilon: Positive = 1e-3

    name: ClassVar[str] = "FedExP"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = η_g/S."""
        S, G = len(round_.cohort.clients), round_.displacements.gram()
        mean = max(G.sum(), 0.0) / S**2  # ‖Δ̄‖²
        ratio = np.trace(G) / (2 * S * (mean + self.epsilon))
        eta_g = max(1.0, float(ratio))
        status = f"equal weights, server step {eta_g:.3g}"
        return Decision(np.full(S, eta_g / S), status), state


@final
@dataclass(frozen=True, slots=True)
class QFedAvg(Aggregator):
    """Steps on the fair objective Σ_i F_i^{q+1}/(q + 1) [Li2020b].

        Δw_i = −Δ_i/η_i
        D_i = F_i^q Δw_i
        h_i = q F_i^{q−1} ‖Δw_i‖² + F_i^q/η_i
        step = −Σ_i D_i / Σ_i h_i

    F_i = F_i(x) ≥ 0. The paper has its Lipschitz estimate L for 1/η, the inverse of the
    step size that was best at q = 0; the authors' code has 1/η itself. So Δw_i is the
    gradient after one local step; more of them do not change the factor. The paper
    draws clients by data size, which puts the sizes into the objective; here all active
    clients enter alike, so that q = 0 is the plain mean.

    Where F_i = 0 and q > 0 the limit is taken: ‖∇F_i‖² ≤ 2L F_i, so D_i and h_i vanish.
    (The authors' code adds 1e-10 to every loss instead.) A negative F_i has no power q:
    the rule refuses the round.

    Attributes:
        q: fairness, q ≥ 0; 1 is one of the values of the paper.
    """

    q: Nonnegative = 1.0

    name: ClassVar[str] = "q-FedAvg"
    needs: ClassVar[frozenset[Need]] = frozenset({"losses", "step_sizes"})

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = (F_i^q/η_i) / Σ_j h_j.

        Raises:
            InvalidInputError: losses are absent, or one is negative and q > 0.
        """
        losses = round_.losses
        if losses is None:
            raise invalid("losses", "given", losses)
        if self.q > 0 and not (losses >= 0).all():
            rule = "nonnegative (F_i to the power q is weighed)"
            raise invalid("losses", rule, losses[~(losses >= 0)][0])
        q, inverse = self.q, 1 / round_.plan.step_sizes  # 1/η_i
        sq_norms = inverse**2 * np.diagonal(round_.displacements.gram())

        top = float(losses.max()) or 1.0  # D and h share top^q, which might overflow
        F_q = (losses / top) ** q
        F_q1 = np.divide(F_q, losses, out=np.zeros_like(losses), where=losses > 0)
        h = q * F_q1 * sq_norms + inverse * F_q
        weights = inverse * F_q / (h.sum() or 1.0)
        return Decision(weights, f"weights by loss to the power {q:g}"), state
