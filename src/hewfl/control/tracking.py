"""The recursion of the tracking bound: how stale control variates can get.

With u ≥ E[F(x) − F*] and χ ≥ max_i E‖e_i‖², e_i = c_i − ∇F_i(x), the bound after a
round is χ⁺ = A + Bu + Cχ. A renewed c_i misses the gradient at the new anchor by its
own noise, by the drift of its branch and by the server's move; three squares, hence

    E‖e_i⁺‖² ≤ 3 (noise + drift + move),     M_i = v_i²/(H_i b_i),  M = max_i M_i,

    noise = M,
    drift = θ²(8h₁Lu + 16h₁χ + 2h₂M),                           θ ≤ 1  (T1, T3)
    move  = θ²(8Lu + 16χ + 2M)             weights fixed before the draws,
    move  = θ²(8Lu + 8(n + 1)χ + 2ΣM_j)    weights chosen afterwards (erratum E-01).

A weight chosen afterwards can always favour the worst branch, so the noise
and the mismatch of all branches count.

Arrays broadcast; the client axis of `noise` and `horizon` is last and is reduced.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from hewfl.control.certificate import Variant, check_variant, horizon_factors
from hewfl.core.array_types import Bool, Float64, Int64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.records import ProblemBounds
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Ints,
    Mask,
    PerClient,
    Reals,
    nonnegatives,
    positives,
    wholes,
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Tracking:
    """Coefficients of χ⁺ = A + Bu + Cχ, or of one summand of it.

    Attributes:
        noise: A ≥ 0.
        gap: B ≥ 0.
        tracking: C ≥ 0.
    """

    noise: Reals
    gap: Reals
    tracking: Reals

    def after(self, gap: ArrayLike, tracking: ArrayLike) -> Reals:
        """A + Bu + Cχ; infinite once it outgrows the number range."""
        A, B, C = self.noise, self.gap, self.tracking
        u, chi = np.asarray(gap, np.float64), np.asarray(tracking, np.float64)
        with np.errstate(over="ignore"):
            return np.asarray(A + B * u + C * chi)


@final
@dataclass(frozen=True, slots=True, eq=False)
class RoundWork:
    """The work of the clients of a round.

    Attributes:
        amplitudes: θ_i > 0.
        noise: M_i = v_i²/(H_i b_i).
        horizons: H_i.
    """

    amplitudes: Float64[Array, " s"]
    noise: Float64[Array, " s"]
    horizons: Int64[Ints, " s"]


@broadcasting
def predictable_tracking(
    amplitude: ArrayLike,
    noise: ArrayLike,
    horizon: ArrayLike,
    smoothness: ArrayLike,
    *,
    variant: Variant = "paper",
) -> Tracking:
    """Tracking when the weights are fixed before the round (prop:sur-track).

        A = 6M,   B = 144Lθ²,   C = 288θ²                                     paper
        A = 3M(1 + 2h₂θ² + 2θ²),   B = 24(1 + h₁)Lθ²,   C = 48(1 + h₁)θ²      the others

    The first set is true for θ ≤ 1/√3, where it is no smaller than the second (E-04);
    the second for θ ≤ 1. The paper puts the end of the box for θ; the largest amplitude
    played is valid and smaller (E-33).

    Args:
        amplitude: θ ≥ 0, the largest over the clients.
        noise: M_i ≥ 0, clients last.
        horizon: H_i, clients last.
        smoothness: L.
        variant: which constants.
    """
    theta = nonnegatives("amplitude", amplitude)
    L = positives("smoothness", smoothness)
    M = np.atleast_1d(nonnegatives("noise", noise)).max(-1)
    if check_variant(variant) == "paper":
        return _tracking(6 * M, 144 * L * theta**2, 288 * theta**2)
    h1, h2 = _largest_factors(horizon)
    A = 3 * M * (1 + 2 * h2 * theta**2 + 2 * theta**2)
    B, C = 24 * (1 + h1) * L * theta**2, 48 * (1 + h1) * theta**2
    return _tracking(A, B, C)


@broadcasting
def realised_tracking(
    amplitude: ArrayLike,
    noise: ArrayLike,
    horizon: ArrayLike,
    smoothness: ArrayLike,
    *,
    count: ArrayLike | None = None,
    printed: bool = False,
) -> Tracking:
    """Tracking when the weights are chosen after the draws (lem:realized-het-tracking).

        A = 3M(1 + 2h₂θ²) + 6θ²ΣM_j,   B = 24(1 + h₁)Lθ²,   C = (48h₁ + 24(n + 1))θ²

    for θ ≤ 1. The printed set is that of fixed weights, 6M, 144Lθ², 288θ². It is false
    in general (erratum E-01); it is no smaller than ours, whatever H_i and M_i,
    exactly for n ≤ 10 and θ² ≤ 1/(2n + 1).

    Args:
        amplitude: θ ≥ 0, common to all clients.
        noise: M_i ≥ 0, clients last.
        horizon: H_i, clients last.
        smoothness: L.
        count: how many clients each entry of `noise` stands for; one by default.
        printed: return the paper's coefficients.
    """
    if printed:
        return predictable_tracking(amplitude, noise, horizon, smoothness)
    theta = nonnegatives("amplitude", amplitude)
    L = positives("smoothness", smoothness)
    M_i = np.atleast_1d(nonnegatives("noise", noise))
    m_j = np.ones(()) if count is None else positives("count", count)
    n = M_i.shape[-1] if count is None else m_j.sum(-1)
    M = M_i.max(-1)
    h1, h2 = _largest_factors(horizon)
    A = 3 * M * (1 + 2 * h2 * theta**2) + 6 * theta**2 * (m_j * M_i).sum(-1)
    B, C = 24 * (1 + h1) * L * theta**2, (48 * h1 + 24 * (n + 1)) * theta**2
    return _tracking(A, B, C)


@broadcasting
def server_move(
    amplitude: ArrayLike,
    noise: ArrayLike,
    smoothness: ArrayLike,
    *,
    variant: Variant = "paper",
) -> Tracking:
    """The summands of L²E‖x⁺ − x‖² when the weights are fixed before the round.

    24Lθ²u + 48θ²χ + 8θ²M     paper
    8Lθ²u + 16θ²χ + 2θ²M      the others, θ ≤ 2H (T1)
    """
    theta = nonnegatives("amplitude", amplitude)
    L = positives("smoothness", smoothness)
    M = np.atleast_1d(nonnegatives("noise", noise)).max(-1)
    k = (8, 24, 48) if check_variant(variant) == "paper" else (2, 8, 16)
    A, B, C = k[0] * theta**2 * M, k[1] * L * theta**2, k[2] * theta**2
    return _tracking(A, B, C)


@broadcasting
def ball_tracking(noise: ArrayLike, smoothness: ArrayLike, radius: ArrayLike) -> Reals:
    """Bound on E‖e_i‖² while all iterates stay in the ball (ass:model).

        (√M_i + 2LR)²

    c_i is a mean of gradients at points of the ball plus noise of variance M_i, and no
    two points of the ball are further apart than 2R.

    Args:
        noise: M_i ≥ 0, the variance of c_i given where its gradients were taken.
        smoothness: L.
        radius: R.
    """
    M = nonnegatives("noise", noise)
    reach = 2 * positives("smoothness", smoothness) * positives("radius", radius)
    return np.asarray((np.sqrt(M) + reach) ** 2)


def propagated_bounds(
    tracking: PerClient,
    clients: Int64[Ints, " s"],
    work: RoundWork,
    gap: float,
    bounds: ProblemBounds,
    *,
    variant: Variant = "paper",
) -> PerClient:
    """Tracking bounds of all clients after a round of weights fixed before it (E-19).

        i ∈ S:  min{A + B U + C Q, (√M_i + 2LR)²}            (prop:sur-track, ball)
        i ∉ S:  (√Q_i + √D)²,   D = min{θ²(8LU + 16Q + 2M), (2LR)²}

    with Q = max Q_i over all clients, for c averages all of them, absent or not; M and
    θ are the largest among those who took part. A client that stays away keeps its c_i
    while the anchor moves on. D bounds L² times the expected squared move, for weights
    known before the draws only (E-01). The paper has no statement for absent clients:
    D has the sharp constants whatever the variant. As printed, A, B, C belong to the
    end of the box, otherwise to θ (E-33); where the printed A is not proved, for an end
    above 1/√3 (E-04), the larger sharp one takes its place.

    Args:
        tracking: Q_i ≥ 0; infinite where nothing is known.
        clients: S.
        work: of the clients in S.
        gap: U.
        bounds: L, R and the box.
        variant: which constants.
    """
    L, R = bounds.smoothness, bounds.radius
    theta, M, H = float(work.amplitudes.max()), work.noise, work.horizons
    # the ball alone, which is all that is left beyond the proofs, θ > 1
    limit = absent_tracking(tracking, np.asarray((2 * L * R) ** 2))
    limit[clients] = ball_tracking(M, L, R)
    if theta > 1:
        return limit
    top = max(bounds.amplitude_max, theta) if variant == "paper" else theta
    law = predictable_tracking(top, M, H, L, variant=variant)
    proved = predictable_tracking(top, M, H, L, variant="sharp")
    law = _tracking(max(law.noise, proved.noise), law.gap, law.tracking)
    move = server_move(theta, M, L, variant="sharp")
    active = np.zeros(len(tracking), dtype=np.bool_)
    active[clients] = True
    # 0 × ∞ is NaN where θ² underflows; fmin then takes the other bound
    with np.errstate(invalid="ignore"):
        after = tracking_after(tracking, active, law, move, gap)
    return np.asarray(np.fmin(after, limit))


def tracking_after(
    tracking: Float64[Array, "... n"],
    active: Bool[Mask, "... n"],
    law: Tracking,
    move: Tracking,
    gap: ArrayLike,
) -> Float64[Array, "... n"]:
    """Tracking bounds of all clients after a round of weights fixed before it (E-19).

    i ∈ S:  A + B U + C Q               Q = max Q_i over all clients
    i ∉ S:  (√Q_i + √D)²                D ≥ L²E‖x⁺ − x‖²
    """
    Q = tracking.max(-1)
    renewed, D = law.after(gap, Q), move.after(gap, Q)
    return np.where(active, renewed[..., None], absent_tracking(tracking, D[..., None]))


def absent_tracking(tracking: Reals, move: Reals) -> Reals:
    """Tracking bound of a client that stayed away while the anchor moved (E-19).

        (√Q + √D)² = min over s > 0 of (1 + s) Q + (1 + 1/s) D

    Args:
        tracking: Q ≥ 0, its bound before the round; infinite where nothing is known.
        move: D ≥ 0, a bound on L² times the expected squared move of the server.
    """
    inflated = (np.sqrt(tracking) + np.sqrt(move)) ** 2
    return np.where(move == 0, tracking, inflated)  # the root would cost a rounding


@broadcasting
def tracking_cap(recursion: Tracking, start: ArrayLike, cap: ArrayLike) -> Reals:
    """The level the tracking bound never passes (lem:sur-chi-cap, eq:chi-bar-main).

        χ̄ = max{χ₀, (A + B f̄)/(1 − C)}

    Q̄ of cor:realized-het-rate is the same for the recursion of Q.

    Args:
        recursion: A, B, C.
        start: χ₀ ≥ 0.
        cap: f̄.

    Returns:
        χ̄, infinite where C ≥ 1: the recursion then grows without end (E-04).
    """
    C = recursion.tracking
    pull = recursion.noise + recursion.gap * nonnegatives("cap", cap)
    level = np.where(C < 1, pull / np.where(C < 1, 1 - C, 1.0), np.inf)
    return np.asarray(np.maximum(nonnegatives("start", start), level))


def _tracking(A: ArrayLike, B: ArrayLike, C: ArrayLike) -> Tracking:
    return Tracking(np.asarray(A), np.asarray(B), np.asarray(C))


def _largest_factors(horizon: ArrayLike) -> tuple[Reals, Reals]:
    """The largest h₁ and h₂; both grow with H."""
    H = np.atleast_1d(wholes("horizon", horizon, least=1))
    h1, h2 = horizon_factors(H)
    return np.asarray(h1.max(-1)), np.asarray(h2.max(-1))
