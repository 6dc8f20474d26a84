"""Trust learned over rounds: careless clients, which are far from the others."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.aggregator import Aggregator
from hewfl.aggregators.distance import (
    RESOLVED,
    around_medoid,
    central_distance,
    sq_distances,
    sq_distances_to,
    weiszfeld,
)
from hewfl.core.algorithm import Need
from hewfl.core.array_types import Float64, Int64
from hewfl.core.median import median
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, BelowOne, Ints, PerClient, Positive

SMOOTHING, STEPS = 1e-6, 200
"""Of the geometric median, whose last digits do not matter here."""
NEAREST = 0.01
"""Least e over the median: one round in which a client happens to be the median itself
must not give it all the weight."""
MAX_DISTANCE_RATIO = 100.0
"""Most that one round adds to the memory: ten times as far as the median client. What
is farther counts in full at once, but is forgiven in as many rounds."""


@final
@dataclass(frozen=True, slots=True)
class TrustState:
    """What is remembered of all clients.

    Attributes:
        apart: e_i, mean squared distance of a step so far over the median client's.
        rounds: number of rounds in which each client took part.
    """

    apart: PerClient
    rounds: PerClient


@final
@dataclass(frozen=True, slots=True)
class Trust(Aggregator):
    """Clients that stay far from the others lose their weight, round by round.

        z = geometric median of the Δ_i
        a_i = H_i‖Δ_i − z‖² / median_j H_j‖Δ_j − z‖²
        e_i ← b e_i + (1 − b) a_i,      b = min(β, k_i/(k_i + 1)),   k_i rounds before
        l_i = log(e_i / median_j e_j),     c = exp(κ median_j |l_j|)
        u_i = √(H_i/e_i) · min(1, c · median_j e_j / e_i)³
        w_i ∝ min{u_i, median_j u_j}      the lower median, of an even number

    For careless clients: random labels, small batches, sensors that fail. Hostile ones
    that know the rule stay near the centre; use "angle-mix+geometric-median", or
    "root-weights" where the server owns samples.

    A rule of this library, chosen for its worst ratio to the best rule over the
    scenarios of docs/choosing.md. Below the threshold, w_i ∝ 1/√e_i is the weight that
    the geometric median gives, with a distance averaged over rounds in place of one
    round's. That average tells a client that is always far from one that was far by
    chance, which no rule that forgets can. Beyond c times the median the weight falls
    like the seventh power of the distance; c is wide where the better half of the
    clients differ much among themselves, as they do near the end of a training that
    fits most samples, and narrow where they are alike.

    With one total step for all, η_i = s/H_i, noise is averaged over H_i steps:
    H_i‖Δ_i − z‖² is what one step contributes, so that no client is distrusted for few
    local steps. (Without that factor clients that always do one step in a fleet that
    does eight lost their weight.)

    No client has more weight than the median client. So clients that send the mean of
    the others have no more than their share of those weights, however near they are.

    Fewer than half of the clients may be faulty. Where all updates agree nothing is
    learned in that round.

    Attributes:
        memory: β from 0 to below 1; 0.8 remembers about five rounds, 0 only this one.
        threshold: κ > 0, from how many median deviations of log e on a client is
            distrusted.
    """

    memory: BelowOne = 0.8
    threshold: Positive = 2.0

    name: ClassVar[str] = "Trust"
    needs: ClassVar[frozenset[Need]] = frozenset({"steps", "clients"})
    optional: ClassVar[frozenset[Need]] = frozenset({"steps"})

    def init(self, n: int, d: int) -> TrustState:
        """No client was seen; each is as near as the median."""
        return TrustState(np.ones(n), np.zeros(n))

    def decide(self, round_: Round, state: TrustState) -> tuple[Decision, TrustState]:
        """Distances of this round into the memory, then weights from the memory."""
        i, H = round_.cohort.clients, round_.cohort.horizons
        a = relative_distances(round_.displacements.products().gram, H)
        e, k = state.apart[i], state.rounds[i]
        if a is not None:
            b = np.minimum(self.memory, k / (k + 1))
            e = b * e + (1 - b) * np.minimum(a, MAX_DISTANCE_RATIO)
            state = TrustState(
                _replaced(state.apart, i, e), _replaced(state.rounds, i, k + 1)
            )
            e = np.where(a > MAX_DISTANCE_RATIO, np.maximum(e, a), e)
        middle = median(e)
        e = np.maximum(e, NEAREST * middle) / middle if middle > 0 else np.ones(len(e))
        usual = np.exp(self.threshold * median(np.abs(np.log(e))))
        weights = np.sqrt(H / e) * np.minimum(1.0, usual / e) ** 3
        weights = np.minimum(weights, np.sort(weights)[(len(e) - 1) // 2])
        doubted = int((e > usual).sum())
        status = f"trust in {len(e) - doubted} of {len(e)}"
        return Decision(weights / weights.sum(), status), state


def relative_distances(
    gram: Float64[Array, "n n"], horizons: Int64[Ints, " n"]
) -> PerClient | None:
    """a_i = H_i‖Δ_i − z‖² over its median, around the geometric median z.

    None where all updates agree.
    """
    apart, n = sq_distances(gram), len(gram)
    farthest = float(apart.max(initial=0.0))
    if farthest == 0:
        return None
    nu = max(SMOOTHING * central_distance(apart), RESOLVED * float(np.sqrt(farthest)))
    gram = around_medoid(gram, apart)
    c, _ = weiszfeld(gram, np.full(n, 1 / n), nu, STEPS)
    scaled = horizons * sq_distances_to(gram, c / c.sum())
    # where most displacements are one point, the median distance is rounding
    return np.asarray(scaled / max(median(scaled), RESOLVED * farthest))


def _replaced(
    values: PerClient, places: Int64[Ints, " s"], new: Float64[Array, " s"]
) -> PerClient:
    """A copy with some entries replaced."""
    changed = values.copy()
    changed[places] = new
    return changed
