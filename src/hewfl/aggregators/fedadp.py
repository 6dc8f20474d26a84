"""FedAdp: weights by the angle to the mean displacement."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.one_step_size import PlainBranches
from hewfl.core.algorithm import FirstGradients
from hewfl.core.array_types import Float64, Int64
from hewfl.core.displacements import Displacements
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, Ints, PerClient, Positive
from hewfl.displacements.backend import to_host


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
class FedAdp(PlainBranches):
    """Clients that point where the average points weigh more [Wu2021].

        Δ̄ = Σ_i (m_i/m) Δ_i,     θ_i = arccos ⟨Δ̄, Δ_i⟩/(‖Δ̄‖‖Δ_i‖)
        θ̃_i = ((t_i − 1) θ̃_i + θ_i)/t_i                          mean angle so far
        f(θ̃) = α (1 − exp(−exp(−α (θ̃ − 1))))                     Gompertz
        w_i = m_i exp f(θ̃_i) / Σ_j m_j exp f(θ̃_j)

    The paper writes gradients −Δ_i/η; angles, in radians, are the same. It counts t in
    rounds with everybody present, so that θ̃_i is the plain mean of the angles so far;
    here t_i counts the rounds of client i, which keeps it the plain mean when clients
    come and go. (Plato keeps the common t: a mean no longer.) A client that did not
    move, or a mean that vanishes, has no angle: it is taken as π/2.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        alpha: α > 0, how sharply f falls; 5 in the paper.
    """

    alpha: Positive = 5.0

    name: ClassVar[str] = "FedAdp"

    def init(self, n: int, d: int, gradients: FirstGradients) -> FedAdpState:
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
