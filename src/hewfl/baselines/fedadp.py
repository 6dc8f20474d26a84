"""FedAdp: weights by the angle to the mean displacement."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Float64, Int64

from hewfl.core.checks import Array, Ints, positive
from hewfl.core.round import Decision, LocalPlan, Roster, Round, Traffic


@final
@dataclass(frozen=True, slots=True)
class FedAdpState:
    """What the server remembers of each client.

    Attributes:
        angles: θ̃_i, smoothed, in radians; zero before the first round of a client.
        counts: t_i, rounds the client has taken part in.
    """

    angles: Float64[Array, " n"]
    counts: Int64[Ints, " n"]


@final
@dataclass(frozen=True, slots=True)
class FedAdp:
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

    smoothness: float
    step_scale: float
    alpha: float = 5.0

    name: ClassVar[str] = "FedAdp"
    traffic: ClassVar[Traffic] = Traffic()
    needs_losses: ClassVar[bool] = False
    needs_gradients: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check ranges."""
        positive("smoothness", self.smoothness)
        positive("step_scale", self.step_scale)
        positive("alpha", self.alpha)

    def init(
        self,
        n: int,
        d: int,  # noqa: ARG002 - angles only
        gradients: Float64[Array, "n d"] | None,  # noqa: ARG002 - not asked for
    ) -> FedAdpState:
        """Nothing seen yet."""
        return FedAdpState(np.zeros(n), np.zeros(n, dtype=np.int64))

    def plan(self, roster: Roster, state: FedAdpState) -> LocalPlan:  # noqa: ARG002 - same for all
        """One step size for all: η = s/L."""
        eta = self.step_scale / self.smoothness
        return LocalPlan(np.full(len(roster.clients), eta))

    def decide(self, round_: Round, state: FedAdpState) -> tuple[Decision, FedAdpState]:
        """w_i ∝ m_i exp f(θ̃_i), and the angles remembered."""
        S, m = round_.roster.clients, round_.roster.data_sizes
        delta = round_.displacements.astype(np.float64, copy=False)
        theta = angles(delta, (m / m.sum()) @ delta)

        t, smoothed = state.counts.copy(), state.angles.copy()
        t[S] += 1
        smoothed[S] = ((t[S] - 1) * smoothed[S] + theta) / t[S]

        alpha = self.alpha
        f = alpha * (1 - np.exp(-np.exp(-alpha * (smoothed[S] - 1))))
        weights = m * np.exp(f - f.max())
        decision = Decision(weights / weights.sum(), "weights by smoothed angle")
        return decision, FedAdpState(smoothed, t)


def angles(
    rows: Float64[Array, "s d"], direction: Float64[Array, " d"]
) -> Float64[Array, " s"]:
    """Angle of each row to a direction, π/2 where one of them is zero.

    2 atan2(‖u − v‖, ‖u + v‖) on unit vectors: an arccos loses half the digits of small
    angles.
    """
    lengths, length = np.linalg.norm(rows, axis=1), np.linalg.norm(direction)
    theta = np.full(len(rows), np.pi / 2)
    moved = (lengths > 0) & (length > 0)
    if not moved.any():
        return theta
    u, v = rows[moved] / lengths[moved, None], direction / length
    apart, along = np.linalg.norm(u - v, axis=1), np.linalg.norm(u + v, axis=1)
    theta[moved] = 2 * np.arctan2(apart, along)
    return theta
