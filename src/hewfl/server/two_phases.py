"""A round of two phases: weights from sketches, then one plain sum.

    k numbers of each client     →  weights w by any rule that looks at products
    w_i to client i              →  d = Σ w_iD_i, which is only summed
    r = Λ d + Σ u_iD_i           →  ⟨r, D_i⟩: n numbers, and with them the gap of these
                                    weights on the true problem, not on the sketches

At no time does the server hold n updates, and under secure aggregation it never sees
one. A client that is lost between the phases leaves the others with their weights over
their sum; there is no certificate then.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float64

from hewfl.aggregate.rows import matrix_round
from hewfl.baselines.uniform import UniformLocalSGD
from hewfl.core.algorithm import Modelled
from hewfl.core.checks import Array, Mask
from hewfl.core.round import Round
from hewfl.errors import HewError
from hewfl.server.conclude import Outcome, conclude, decided
from hewfl.server.state import Lane, ServerState

Factors = Sequence[Float64[Array, " s"]]


@runtime_checkable
class Transport(Protocol):
    """How a server asks the clients of a round, without seeing their updates."""

    def sums(self, factors: Factors) -> tuple[Sequence[Any], Bool[Mask, " s"]]:
        """Σ f_iD_i over those heard for each list of factors, and who was heard."""

    def products(self, vector: Float64[Array, " d"]) -> Float64[Array, " s"]:
        """⟨v, D_i⟩ of every client; NaN where there is no answer."""


def conclude_in_phases(
    lane: Lane,
    state: ServerState,
    round_: Round,
    transport: Transport,
    *,
    fits: Callable[[Float64[Array, " d"]], bool],
    certify: bool = False,
) -> Outcome:
    """Weigh sketches, sum updates, step; the state as it was where nothing came.

    Args:
        lane: the rule, which must give weights and no step of its own.
        state: before the round.
        round_: of sketches in place of displacements; its anchor is the model.
        transport: asks the clients.
        fits: whether a model is one that can be sent.
        certify: whether the clients are asked for the gap as well; it costs a second
            sum and a broadcast.
    """
    try:
        decision, following = decided(lane.algorithm, round_, state.algorithm)
    except HewError as error:
        return Outcome(state, str(error))
    w = decision.weights
    factors = [w]
    if certify and isinstance(lane.algorithm, Modelled):
        model = lane.algorithm.model(round_, state.algorithm)
        u = getattr(model.reference, "weights", np.zeros_like(w))
        factors.append(model.curvature * w + u)
    sums, heard = transport.sums(factors)
    share = float(w[heard].sum())
    if share <= 0:
        return Outcome(state, "nobody was heard in the second phase")
    one = np.zeros(1, dtype=np.int64)  # the sum is the displacement of one client
    alone = (round_.roster.only(one), round_.plan.only(one))
    step = matrix_round(state.anchor, sums[0][None] / share, *alone)
    mean = Lane(UniformLocalSGD(1.0, 1.0), lane.outer)
    came = conclude(mean, replace(state, algorithm=None), step, fits=fits)
    if came.decision is None:
        return replace(came, state=state)
    if len(sums) > 1 and heard.all():
        p = transport.products(sums[1])
        if np.isfinite(p).all():
            decision = replace(decision, gap=float(w @ p - p.min()))
    lost = int((~heard).sum())
    status = decision.status + (f"; {lost} lost between phases" if lost else "")
    return Outcome(replace(came.state, algorithm=following), status, decision)
