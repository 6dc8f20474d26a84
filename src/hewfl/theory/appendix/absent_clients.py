"""Tracking bounds under partial participation (erratum E-19).

The paper's one-step bounds allow any set S of participants known before the draws, but
its recursion of Q renews every client. An absent client keeps its control variate while
the anchor moves:

    E‖e_i⁺‖² ≤ (1 + s) Q_i + (1 + 1/s) D,     D ≥ L²E‖x⁺ − x‖²,     any s > 0.

Algorithm 1 carries these bounds from round to round, and stops them at what the ball
allows: `hewfl.control.tracking.propagated_bounds`.
"""

import numpy as np

from hewfl.control.certificate import Variant
from hewfl.control.tracking import (
    predictable_tracking,
    server_move,
    tracking_after,
)
from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, nonnegatives
from hewfl.theory.systems import System, client_mask


@broadcasting
def propagated_tracking(
    system: System,
    amplitude: ArrayLike,
    active: ArrayLike,
    gap: ArrayLike,
    tracking: ArrayLike,
    *,
    variant: Variant = "sharp",
) -> Float64[Array, "... n"]:
    """Tracking bounds of all clients after a round, for weights fixed before it.

        i ∈ S:  A + B U + C Q      with the noise and horizons of S (prop:sur-track)
        i ∉ S:  (√Q_i + √D)²,      D = θ²(8LU + 16Q + 2 max_S M_j)
        S = ∅:  Q_i                nothing moves (E-06)

    with Q = max Q_i over all clients: the server's control variate averages all of
    them, absent or not. For weights chosen after the draws D is too small (E-01). The
    paper has no statement here, so the default constants are the sharp ones.

    Args:
        system: the constants.
        amplitude: θ ≥ 0, the largest among the participants, shape (*c).
        active: whether i ∈ S, clients last.
        gap: U ≥ 0, shape (*c).
        tracking: Q_i ≥ 0, clients last.
        variant: the set of constants.

    Returns:
        Q_i after the round, clients last.
    """
    S = client_mask(system, active)
    Q_i = np.atleast_1d(nonnegatives("tracking", tracking))
    theta = np.where(S.any(-1), nonnegatives("amplitude", amplitude), 0.0)
    U, L = nonnegatives("gap", gap), system.L
    M, H = np.where(S, system.noise, 0.0), np.where(S, system.horizon, 1.0)
    track = predictable_tracking(theta, M, H, L, variant=variant)
    move = server_move(theta, M, L, variant=variant)
    Q_i, S = np.broadcast_arrays(Q_i, S)
    return tracking_after(Q_i, S, track, move, U)
