"""Weights by how far a client's direction agrees with those of the others."""

from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.displacements import Displacements, KnownLengths
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Nonnegative, PerClient


@final
@dataclass(frozen=True, slots=True)
class Agreement(Memoryless):
    """Clients that point where the others point weigh more, whatever their length.

        a_i = (1/(n − 1)) Σ_{j≠i} ⟨Δ_i, Δ_j⟩/(‖Δ_i‖‖Δ_j‖)
        w_i = max(0, a_i)^p / Σ_j max(0, a_j)^p

    A rule of this library. A client is judged by the others alone (j ≠ i): its cosine
    with itself is 1 whatever it sent, and so is, in part, its cosine with a mean that
    contains it (as `FedAdp` takes it). Lengths do not matter, so a client is neither
    favoured nor punished for the number of its steps or the size of its noise alone.

    A client that did not move has no direction: its cosines are taken as zero. One
    client alone weighs 1. Where nobody agrees with the others (all a_i ≤ 0, or nobody
    moved) weights are equal, and the status says so.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        power: p ≥ 0, how sharply agreement counts; 2 did best among equal workers in
            the prototype that the rule comes from, and 1 is milder where data differ.
    """

    power: Nonnegative = 2.0

    name: ClassVar[str] = "Agreement"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i ∝ max(0, a_i)^p; equal weights where all are zero."""
        n = round_.displacements.n
        if n == 1:
            return Decision(np.ones(1), "one client"), state
        cosines, _ = mean_cosines(round_.displacements)
        agreed = np.maximum(cosines, 0.0)
        top = float(agreed.max())
        if top == 0:
            text = "equal weights: no client agrees with the others"
            return Decision(np.full(n, 1 / n), text), state
        # over the largest, so that a large power leaves someone
        weights = (agreed / top) ** self.power * (agreed > 0)  # 0⁰ is one
        return Decision(weights / weights.sum(), "weights by agreement"), state


def mean_cosines(displacements: Displacements) -> tuple[PerClient, PerClient]:
    """Mean cosine of each vector with the others, and lengths up to one factor.

    With u_i = Δ_i/‖Δ_i‖ the cosines of one vector sum to ⟨u_i, Σ_j u_j⟩ − 1: where
    lengths are known no Gram matrix is formed.
    """
    D = displacements
    if isinstance(D, KnownLengths) and D.sq_lengths is not None:
        lengths = np.sqrt(D.sq_lengths)
        inverse = _inverse(lengths)
        sums = inverse * D.inner_with_sum(inverse) - (lengths > 0)
    else:
        # cosines have no scale: without the common power of two squares may overflow
        G = replace(D.products(), exponent=0).uncentred_gram()
        lengths = np.sqrt(np.diagonal(G))
        inverse = _inverse(lengths)
        cosines = np.clip(inverse[:, None] * G * inverse, -1.0, 1.0)
        np.fill_diagonal(cosines, 0.0)
        sums = cosines.sum(axis=1)
    return np.asarray(sums / (D.n - 1)), lengths


def _inverse(lengths: PerClient) -> PerClient:
    """1/l, and zero for zero."""
    return np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
