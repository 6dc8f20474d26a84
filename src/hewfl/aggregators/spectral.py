"""Robust rules that look along the direction in which updates differ most."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.aggregator import FAULTY, Aggregator, faulty_count
from hewfl.aggregators.distance import ROUNDING, TIED, lowest
from hewfl.core.array_types import Float64
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, Faulty, PerClient


def outlier_scores(
    gram: Float64[Array, "n n"], c: PerClient
) -> tuple[PerClient, float]:
    """Squared lengths of the updates along the direction of largest variance.

    With μ = Σ c_iΔ_i/Σ c_i and v the top eigenvector of Σ c_i (Δ_i − μ)(Δ_i − μ)ᵀ/Σ c_i
    these are ⟨Δ_i − μ, v⟩². v is a combination of the Δ_i − μ, from an eigenvector of
    their n × n products. Where several directions tie, all of them count.

    Args:
        gram: products of the updates around any common vector.
        c: how much each counts, not negative.

    Returns:
        The scores, and the variance along v.
    """
    p = c / c.sum()
    to_mean = gram @ p
    K = gram - to_mean - to_mean[:, None] + p @ to_mean  # of Δ_i − μ
    root = np.sqrt(p)
    values, vectors = np.linalg.eigh(root[:, None] * K * root)
    top = max(float(values[-1]), 0.0)
    if top <= ROUNDING * float(p @ np.diagonal(gram)):
        return np.zeros(len(c)), 0.0
    chosen = values >= top * (1 - TIED) - ROUNDING * top * len(c)
    along = K @ (root[:, None] * vectors[:, chosen]) / np.sqrt(values[chosen])
    return np.asarray((along**2).sum(axis=1)), top


@final
@dataclass(frozen=True, slots=True)
class DnC(Aggregator):
    """The clients with the shortest parts along the main direction [Shejwalkar2021].

        v = top right singular vector of the rows Δ_i − Δ̄
        step = mean of the n − f updates with the least ⟨Δ_i − Δ̄, v⟩²

    "Divide and conquer". The paper looks at some random coordinates only, to save time,
    and may do so several times; from the products of the updates all coordinates cost
    no more. Clients that tie for the last place share it.

    Attributes:
        f: faulty clients, a count or a fraction below ½ of those present.
    """

    f: Faulty = FAULTY

    name: ClassVar[str] = "DnC"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """Equal weights on the lowest scores."""
        gram = round_.displacements.products().gram
        n = len(gram)
        f, note = faulty_count(self.f, round_, (n - 1) // 2)
        scores, _ = outlier_scores(gram, np.ones(n))
        weights = lowest(scores, n - f, ROUNDING * n * float(scores.max()))
        status = f"{n - f} lowest scores along the main direction{note}"
        return Decision(weights / weights.sum(), status), state


@final
@dataclass(frozen=True, slots=True)
class CAF(Aggregator):
    """Covariance-bound agnostic filter: weights fall along outliers [Allouah2025].

        c = 1;  as long as Σ c_i > n − 2f:
            μ = Σ c_iΔ_i/Σ c_i,   λ, v = top eigenpair of their weighted covariance
            τ_i = ⟨Δ_i − μ, v⟩²,   c_i ← c_i (1 − τ_i/max{τ_j: c_j > 0})
        step = the μ of the least λ

    Every pass sets at least one weight to zero. (ByzFL takes the maximum over all j: a
    far client then slows the filter down even after it has lost its weight.) Eigenpairs
    are exact, from the products of the updates.

    Attributes:
        f: faulty clients, a count or a fraction below ½ of those present.
    """

    f: Faulty = FAULTY

    name: ClassVar[str] = "CAF"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """The weights c/Σc of the pass with the least variance."""
        gram = round_.displacements.products().gram
        n = len(gram)
        f, note = faulty_count(self.f, round_, (n - 1) // 2)
        c, best, least, passes = np.ones(n), np.ones(n), np.inf, 0
        while c.sum() > n - 2 * f:
            scores, variance = outlier_scores(gram, c)
            passes += 1
            if variance < least:
                best, least = c, variance
            among = np.where(c > 0, scores, 0.0)
            if among.max() == 0:
                break
            c = c * np.maximum(1 - among / among.max(), 0.0)
        status = f"filtered in {passes} passes, {f} faulty clients assumed{note}"
        return Decision(best / best.sum(), status), state
