"""The records of one round: all that servers, clients and rules tell each other.

cohort   environment → server    who takes part, H_i, b_i, m_i
plan     server → clients        step sizes η_i, additive correction, proximal term
round    clients → server        anchor x_t, displacements Δ_i: all a rule sees
decision server                  weights on displacements, with a certificate
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from hewfl.core.array_types import Float64, Int64
from hewfl.core.displacements import Displacements
from hewfl.core.validation import Array, Ints


@final
@dataclass(frozen=True, slots=True)
class Cohort:
    """Who takes part in a round, and with how much work.

    Attributes:
        clients: S_t, increasing indices out of the population; may be empty.
        horizons: H_i ≥ 1, local steps.
        batch_sizes: b_i ≥ 1.
        data_sizes: m_i ≥ 1, samples held.
        population: n, clients in all.
        round: t, rounds done before this one: the argument of schedules.
    """

    clients: Int64[Ints, " s"]
    horizons: Int64[Ints, " s"]
    batch_sizes: Int64[Ints, " s"]
    data_sizes: Int64[Ints, " s"]
    population: int
    round: int = 0

    def only(self, members: Int64[Ints, " k"]) -> "Cohort":
        """The cohort of some of its clients, by their places in it.

        Args:
            members: places, not indices of clients.

        Returns:
            The cohort of those alone.
        """
        return replace(
            self,
            clients=self.clients[members],
            horizons=self.horizons[members],
            batch_sizes=self.batch_sizes[members],
            data_sizes=self.data_sizes[members],
        )


@final
@dataclass(frozen=True, slots=True)
class LocalPlan:
    """Instructions for each client: y ← y − η_i (g − correction_i + μ (y − x)).

    Attributes:
        step_sizes: η_i > 0.
        correction: subtracted from every stochastic gradient (c_i − c), or None.
        proximal: μ ≥ 0, pull towards the anchor.
        hold: take all gradients at the anchor instead of along the branch.
    """

    step_sizes: Float64[Array, " s"]
    correction: Float64[Array, "s d"] | None = None
    proximal: float = 0.0
    hold: bool = False

    def only(self, members: Int64[Ints, " k"]) -> "LocalPlan":
        """The plan of some of the clients, by their places in the cohort.

        Args:
            members: places in the cohort.

        Returns:
            The plan of those alone.
        """
        rows = None if self.correction is None else self.correction[members]
        return replace(self, step_sizes=self.step_sizes[members], correction=rows)


@final
@dataclass(frozen=True, slots=True)
class Round:
    """All that a rule may look at.

    Attributes:
        anchor: x_t, as the transport keeps vectors.
        displacements: Δ_i = y_i − x_t, one vector per client of the cohort. Sketches of
            them have the part `Products` alone, for rules that do not need entries.
        cohort: who they are.
        plan: their instructions.
        losses: F_i(x_t), for rules that demand them, else None.
        gradients: the mean of the stochastic gradients along each branch, before the
            correction and before the local optimiser: sent where branches are corrected
            and the optimiser is not plain SGD, which alone shows them in Δ_i.
        root: a gradient at x_t that the server computed on samples it trusts, for
            rules that need one, else None.
        variate: c_t, the server's control variate, where clients have them, else None.
        present: clients that the displacements stand for, where a pre-aggregation has
            merged some (`hewfl.aggregators.Bucketing`); None for one each.
    """

    anchor: Any
    displacements: Displacements
    cohort: Cohort
    plan: LocalPlan
    losses: Float64[Array, " s"] | None = None
    gradients: Displacements | None = None
    root: Any = None
    variate: Any = None
    present: int | None = None

    @property
    def total_step(self) -> Float64[Array, " s"]:
        """η_iH_i, by which −Δ_i is divided to give the mean direction of branch i."""
        return self.plan.step_sizes * self.cohort.horizons


@final
@dataclass(frozen=True, slots=True)
class Decision:
    """What the server does with a round.

    Attributes:
        weights: w_i; the step is Σ w_iΔ_i. They sum to one where the rule averages.
        status: one sentence.
        gap: certified distance from the rule's optimum; zero for closed forms.
        step: a vector of the round's space, given only by rules whose step is not a
            combination of displacements.
        value: Ψ(w) = ⟨g, d⟩ + (Λ/2)‖d‖² for rules that minimise it, else None.
        certificate: one sentence of what is proved of the plain step Σ w_iΔ_i, for
            rules that prove something before the round.
        measured: finite numbers for traces, metrics and reports, by name.
        rejected: the round must change nothing: neither the model nor any state. The
            next round goes on.
    """

    weights: Float64[Array, " s"]
    status: str
    gap: float = 0.0
    step: Any = None
    value: float | None = None
    certificate: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)
    rejected: bool = False
