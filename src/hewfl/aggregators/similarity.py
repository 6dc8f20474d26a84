"""Rules that compare directions of updates."""

from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.aggregator import Aggregator
from hewfl.aggregators.averaging import Weighting, client_shares, weighting_needs
from hewfl.core.algorithm import Need
from hewfl.core.array_types import Float64, Int64
from hewfl.core.displacements import Displacements, KnownLengths
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, Ints, Nonnegative, PerClient, Positive
from hewfl.displacements.backend import to_host


@final
@dataclass(frozen=True, slots=True)
class Agreement(Aggregator):
    """Clients that point where the others point weigh more, whatever their length.

        a_i = (1/(n − 1)) Σ_{j≠i} ⟨Δ_i, Δ_j⟩/(‖Δ_i‖‖Δ_j‖)
        w_i = max(0, a_i)^p / Σ_j max(0, a_j)^p

    A rule of this library. A client is compared with the others alone (j ≠ i): its
    cosine with itself is 1 whatever it sent, and so is, in part, its cosine with a mean
    that contains it (as `FedAdp` takes it). Lengths do not matter, so a client is
    neither favoured nor punished for the number of its steps or the size of its noise
    alone.

    A client that did not move has no direction: its cosines are taken as zero. One
    client alone weighs 1. Where no client agrees with the others (all a_i ≤ 0, or no
    client moved) weights are equal, and the status says so.

    Attributes:
        power: p ≥ 0, how sharply agreement counts; 2 suits workers with equal data, 1
            is milder where data differ.
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
        # over the largest, so that a large power does not underflow for all
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


LEAST = 0.4
"""τ for many clients; docs/results/flower.md has the comparison it was chosen by."""


@final
@dataclass(frozen=True, slots=True)
class Sieve(Aggregator):
    """FedAvg, with less weight for clients that oppose the others and for long updates.

        a_i = (1/(n − 1)) Σ_{j≠i} ⟨Δ_i, Δ_j⟩/(‖Δ_i‖‖Δ_j‖)
        k_i = min(1, max(0, 1 + a_i/τ))
        w_i = m_i k_i / Σ_j m_j k_j · min(1, c · median_j ‖Δ_j‖/‖Δ_i‖)

    A rule of this library. A client whose direction agrees with the others at all has
    FedAvg's weight. From a mean cosine of zero down to −τ the weight falls in a
    straight line to nothing. It must not fall at once: where data differ, cosines of
    good clients are around zero, and a rule that drops all below zero trains on some of
    the clients only (on one stock app of docs/results/flower.md it lost 0.1). And
    near the end of a training the steps cancel, Σ m_iΔ_i ≈ 0: then the mean cosine of n
    steps of one length is −1/(n − 1) for all. So τ is twice that for few clients,

        τ = max(0.4, 2/(n − 1)).

    The step of a client longer than c times the median counts as one of that length,
    and weights then sum to less than one. τ = 0 drops every client with a_i ≤ 0; a
    large τ only clips. Where no client moved, or all oppose the others, the weights are
    those of FedAvg, clipped.

    Attributes:
        tolerance: τ ≥ 0; as above if it is not given.
        clip: c > 0, longest step that counts in full, over the median.
        by: what m_i stands for: data sizes as in FedAvg, local steps, or one for all.
    """

    tolerance: Nonnegative | None = None
    clip: Positive = 2.0
    by: Weighting = "size"

    name: ClassVar[str] = "Sieve"

    @property
    def needs(self) -> frozenset[Need]:
        """What m_i is made of."""
        return weighting_needs(self.by)

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i ∝ m_i k_i, then clipped; FedAvg's own where every k_i is zero."""
        m = client_shares(self.by, round_.cohort)
        if len(m) == 1:
            return Decision(np.ones(1), "one client"), state
        a, lengths = mean_cosines(round_.displacements)
        tau = max(LEAST, 2 / (len(a) - 1)) if self.tolerance is None else self.tolerance
        k = np.clip(1 + a / tau, 0.0, 1.0) if tau > 0 else (a > 0) * 1.0
        status = f"{int((k > 0).sum())} of {len(k)} clients keep weight"
        if not k.any():
            k, status = np.ones(len(k)), "all clients oppose the others"
        weights = m * k / (m * k).sum()
        moved = lengths[lengths > 0]
        if len(moved) > 0:
            most = self.clip * float(np.median(moved))
            weights = weights * (most / np.maximum(lengths, most))
        return Decision(weights, status), state


@final
@dataclass(frozen=True, slots=True)
class FedAdpState:
    """What the server remembers of each client.

    Attributes:
        angles: θ̃_i, smoothed, in radians; zero before the first round of a client.
        counts: t_i, rounds the client has taken part in.
    """

    angles: PerClient
    counts: Int64[Ints, " n"]


@final
@dataclass(frozen=True, slots=True)
class FedAdp(Aggregator):
    """Clients that point where the average points weigh more [Wu2021].

        Δ̄ = Σ_i (m_i/m) Δ_i,     θ_i = arccos ⟨Δ̄, Δ_i⟩/(‖Δ̄‖‖Δ_i‖)
        θ̃_i = ((t_i − 1) θ̃_i + θ_i)/t_i                          mean angle so far
        f(θ̃) = α (1 − exp(−exp(−α (θ̃ − 1))))                     Gompertz
        w_i = m_i exp f(θ̃_i) / Σ_j m_j exp f(θ̃_j)

    The paper writes gradients −Δ_i/η; angles, in radians, are the same. It counts t in
    rounds with full participation, so that θ̃_i is the plain mean of the angles so far;
    here t_i counts the rounds of client i, which keeps it the plain mean when clients
    come and go. (Plato keeps the common t: a mean no longer.) A client that did not
    move, or a mean that vanishes, has no angle: it is taken as π/2.

    Attributes:
        alpha: α > 0, how sharply f falls; 5 in the paper.
    """

    alpha: Positive = 5.0

    name: ClassVar[str] = "FedAdp"
    needs: ClassVar[frozenset[Need]] = frozenset({"sizes", "entries", "clients"})

    def init(self, n: int, d: int) -> FedAdpState:
        """Nothing seen yet."""
        return FedAdpState(np.zeros(n), np.zeros(n, dtype=np.int64))

    def decide(self, round_: Round, state: FedAdpState) -> tuple[Decision, FedAdpState]:
        """w_i ∝ m_i exp f(θ̃_i), and the angles remembered."""
        S, m = round_.cohort.clients, round_.cohort.data_sizes
        theta = angles_to_mean(round_.displacements, m / m.sum())

        t, smoothed = state.counts.copy(), state.angles.copy()
        t[S] += 1
        smoothed[S] = ((t[S] - 1) * smoothed[S] + theta) / t[S]

        alpha = self.alpha
        f = alpha * (1 - np.exp(-np.exp(-alpha * (smoothed[S] - 1))))
        weights = m * np.exp(f - f.max())
        decision = Decision(weights / weights.sum(), "weights by smoothed angle")
        return decision, FedAdpState(smoothed, t)


def angles_to_mean(
    displacements: Displacements, weights: Float64[Array, " s"]
) -> Float64[Array, " s"]:
    """Angle of each vector to their weighted mean, π/2 where one of them is zero.

    2 atan2(‖u − v‖, ‖u + v‖) on unit vectors: an arccos of products loses half the
    digits of small angles.
    """
    D, mean = displacements, displacements.combine(weights)
    lengths, length = _lengths(D), np.sqrt(D.dot(mean, mean))
    theta = np.full(D.n, np.pi / 2)
    moved = np.flatnonzero((lengths > 0) & (length > 0))
    if len(moved) == 0:
        return theta
    u, v = D.matrix()[moved] / lengths[moved, None], to_host(mean) / length
    apart, along = _lengths(D.from_matrix(u - v)), _lengths(D.from_matrix(u + v))
    theta[moved] = 2 * np.arctan2(apart, along)
    return theta


def _lengths(vectors: Displacements) -> PerClient:
    return np.sqrt(np.diagonal(vectors.gram()))
