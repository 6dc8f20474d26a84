"""Rules for hostile clients, which see everything and work together.

    make("angle-mix+geometric-median")      fewer than half are hostile
    make("root-weights")                    the server owns samples besides

Both use nothing but products of the updates, and of the updates with the root gradient.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np

from hewfl.aggregators.aggregator import Aggregator
from hewfl.aggregators.distance import (
    RESOLVED,
    TIED,
    central_distance,
    sq_distances,
    weiszfeld,
)
from hewfl.aggregators.preaggregation import PreAggregation, median_length
from hewfl.core.algorithm import Need
from hewfl.core.array_types import Float64, Int64
from hewfl.core.median import median
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, BelowOne, Ints, PerClient, invalid
from hewfl.solver.simplex import solve_simplex_qp

SMOOTHING, STEPS = 1e-6, 200
"""Of the geometric median, whose last digits do not matter here."""
FULL = 0.5
"""Share of the median trust from which on a client counts in full."""
RECENT = 0.5
"""Memory of the recent cosine: a client that turns is noticed in a few rounds."""
UNTRUSTED = 0.5
"""Vote of a client that the root does not trust, over that of one that it does."""
AIM = 0.75
"""Part of the target that is the root's direction; the rest is the clients' own."""
NEGLIGIBLE = 1e-3
"""Part of an update across the root, over its length, that is as good as none."""
GROWTH = 2.0
"""The length to which updates are clipped grows by no more from round to round."""
LENGTHENING = 2.0
"""Lengths up to this multiple of the median make the step longer again."""


def gram_and_exponent(displacements: Any) -> tuple[Float64[Array, "n n"], int]:
    """⟨Δ_i, Δ_j⟩ · 2^−e and e, which is even: no product overflows."""
    products = displacements.products()
    return replace(products, exponent=0).uncentred_gram(), products.exponent


def angle_map(gram: Float64[Array, "n n"], shares: PerClient) -> Float64[Array, "n n"]:
    """M²: two means over the clients whose updates are at an acute angle.

    Args:
        gram: ⟨Δ_i, Δ_j⟩.
        shares: p > 0.

    Returns:
        A matrix whose rows sum to one.
    """
    acute = gram > 0
    np.fill_diagonal(acute, True)
    M = acute * shares
    M /= M.sum(axis=1, keepdims=True)
    return np.asarray(M @ M)


@final
@dataclass(frozen=True, slots=True)
class AngleMix(PreAggregation):
    """Means of the updates at an acute angle, clipped at the median length.

        s_i = min{1, median_j ‖Δ_j‖/‖Δ_i‖}
        M_ij ∝ 1 where ⟨Δ_i, Δ_j⟩ > 0 or i = j,   rows of M sum to one
        A = M² diag(s)

    A pre-aggregation of this library, to be used before a geometric median:
    `make("angle-mix+geometric-median")`. There is nothing to tune, and no memory.
    Distances between updates of unequal data are almost equal, whoever sends them:
    updates have as much noise as length. Angles are not: an update that undoes the
    mean of the others is at an obtuse angle to most of them. An update that is alone
    keeps its own direction, and is one vector of many for the median.

    Fewer than half of the clients may be hostile. It is meant for convex models: where
    honest updates are nearly orthogonal, angles say as little as distances.

    Examples:
        >>> import numpy as np
        >>> from hewfl.aggregators import make
        >>> updates = np.array([[1.0, 0.2], [1.0, -0.2], [0.9, 0.0], [-9.0, 0.0]])
        >>> decision, _ = make("angle-mix+geometric-median")(updates)
        >>> decision.weights.round(2)
        array([0.33, 0.33, 0.33, 0.  ])
    """

    name: ClassVar[str] = "angle mixing"

    def linear_map(self, round_: Round) -> Float64[Array, "n n"]:
        """M² diag(s)."""
        gram, _ = gram_and_exponent(round_.displacements)
        lengths = np.sqrt(np.diagonal(gram))
        bound = median_length(lengths)
        scale = bound / np.maximum(lengths, bound)
        return np.asarray(angle_map(gram, np.ones(len(gram))) * scale)


@final
@dataclass(frozen=True, slots=True)
class RootState:
    """What is remembered of all clients.

    Attributes:
        descent: Σ_t β^t ⟨Δ_i, −g⟩/‖Δ_i‖ over the rounds of client i, the last one
            first.
        steepness: Σ_t β^t ‖g‖ over the same rounds.
        recent: mean cosine of Δ_i with −g over about two rounds.
        length: λ, what ℓ may at most double of; infinite before the first round.
    """

    descent: PerClient
    steepness: PerClient
    recent: PerClient
    length: float = np.inf


@final
@dataclass(frozen=True, slots=True)
class RootWeights(Aggregator):
    """Exact weights, aimed by a root gradient and by the clients among themselves.

    The root g is a gradient that the server computes on samples of its own. It judges
    directions over rounds. What it does not see, the part of the updates across g, the
    clients decide among themselves.

        ρ_i = Σ_t β^t ⟨Δ_i, −g⟩/‖Δ_i‖ / Σ_t β^t ‖g‖        mean cosine, by steepness
        σ_i ← ½σ_i + ½⟨Δ_i, −g⟩/(‖Δ_i‖‖g‖)                 recent cosine
        τ_i = max{0, min{1, 2ρ_i/ρ̄, 1 + σ_i/ρ̄}},   ρ̄ the median of the positive ρ_j
        p_i ∝ ½ + ½τ_i                                      votes
        ℓ   = min{median of the ‖Δ_i‖ by p, 2λ},   λ ← max{ℓ, λ/2}
        s_i = min{1, ℓ/‖Δ_i‖}
        z   = geometric median, by p, of the angle-mixed s_iΔ_i, all of it across g
        w   = argmin over w ∈ Δ_n of ½‖Σ w_is_iΔ_i − t‖² + (ℓ̄²/2)‖w − v‖²
        t   = ¼z − ¾‖z‖ g/‖g‖
        step = a Σ w_is_iΔ_i,   a = Σ p_i min{‖Δ_i‖, 2ℓ} / Σ p_i min{‖Δ_i‖, ℓ}

    v are the weights of z and ℓ̄² the mean of the squared clipped lengths. *Across g*:
    angles and distances are those of the updates without their part along g, the
    products ⟨s_iΔ_i, s_jΔ_j⟩ less ⟨s_iΔ_i, g⟩⟨s_jΔ_j, g⟩/‖g‖². Attackers who know g go
    down with it and look honest in all products; what they undo they undo across it,
    and there they are at an obtuse angle to the others.

    A late gradient of a small root set is mostly noise; weighted by steepness the early
    rounds, where it is not, decide. So trust would outlast an attack of clients that
    were honest for many rounds (a sleeper): whoever now goes uphill as far as the
    median client goes down has none. Nobody gains by a cosine above half of the median
    one, by a length above twice the median, or by being near the centre. A majority
    that is trusted could be honest in most rounds and long in one: the remembered
    length λ at most doubles from round to round, and at most halves.

    Whom the root does not trust has half a vote. Honest clients with rare data go
    uphill on the root; without a vote they would leave the majority to attackers who
    know it. A quarter of the target is z, as a root of few samples alone is a poor aim
    where the clients agree, and z alone a poor one where they do not.

    What it does not do: a root of few samples, without many classes or of another
    distribution trusts and distrusts wrongly. Half of the clients or more take over,
    also if they do not know the root. docs/hostile.md has the figures.

    Where all clients have gone uphill so far no step is taken, and the status says so.
    A root gradient of zero judges nobody.

    Attributes:
        memory: β from 0 to below 1; 0.98 remembers about fifty rounds.
    """

    memory: BelowOne = 0.98

    name: ClassVar[str] = "Root weights"
    needs: ClassVar[frozenset[Need]] = frozenset({"root", "clients"})

    def init(self, n: int, d: int) -> RootState:
        """No client was seen."""
        return RootState(np.zeros(n), np.zeros(n), np.zeros(n))

    def decide(self, round_: Round, state: RootState) -> tuple[Decision, RootState]:
        """The root's judgement of this round into the memory, then the weights."""
        if round_.root is None:
            raise invalid("root", f"given for {self.name}", "None")
        D, i = round_.displacements, round_.cohort.clients
        gram, exponent = gram_and_exponent(D)
        steep = float(np.sqrt(D.dot(round_.root, round_.root)))
        slopes = -np.ldexp(D.inner(round_.root), -exponent // 2)  # exponents are even
        if not np.isfinite(steep):  # no direction: judges nobody, is not remembered
            steep, slopes = 0.0, np.zeros(D.n)
        lengths = np.sqrt(np.diagonal(gram))
        descent = np.divide(slopes, lengths, out=np.zeros(D.n), where=lengths > 0)
        descent = np.clip(descent, -steep, steep)
        cosines = descent / steep if steep > 0 else np.zeros(D.n)
        recent = state.recent.copy()
        if steep > 0:
            is_new = state.steepness[i] == 0
            mean = RECENT * recent[i] + (1 - RECENT) * cosines
            recent[i] = np.where(is_new, cosines, mean)
        state = RootState(
            _after(state.descent, i, self.memory, descent),
            _after(state.steepness, i, self.memory, np.full(D.n, steep)),
            recent,
            state.length,
        )
        if not lengths.any():
            return Decision(np.full(D.n, 1 / D.n), "no client moved"), state
        trust = root_trust(state.descent[i], state.steepness[i], recent[i])
        trusted = int(np.count_nonzero(trust))
        weights = np.zeros(D.n)
        if trusted == 0:
            return Decision(weights, "no client is trusted: all go uphill"), state
        moved = np.flatnonzero(lengths)
        down = (cosines * lengths)[moved]
        votes = UNTRUSTED + (1 - UNTRUSTED) * trust[moved]
        bound, length = bounded_length(
            weighted_median(lengths[moved], votes), state.length, exponent // 2
        )
        state = replace(state, length=length)
        weights[moved], gap = voted_weights(
            gram[np.ix_(moved, moved)], down, votes / votes.sum(), bound
        )
        status = f"the root trusts {trusted} of {D.n}"
        return Decision(weights, status, float(np.ldexp(gap, exponent))), state


def root_trust(
    descent: PerClient, steepness: PerClient, recent: PerClient
) -> PerClient:
    """τ_i, of what is remembered of a client; one for all where no root was steep."""
    if not steepness.any():
        return np.ones(len(descent))
    cosines = np.divide(
        descent, steepness, out=np.zeros(len(descent)), where=steepness > 0
    )
    positive = cosines[cosines > 0]
    if len(positive) == 0:
        return np.where(steepness > 0, 0.0, 1.0)
    usual = median(positive)
    trust = np.minimum(cosines / (FULL * usual), 1 + recent / usual)
    return np.where(steepness > 0, np.clip(trust, 0.0, 1.0), 1.0)  # 1: never judged


def bounded_length(
    median: float, remembered: float, exponent: int
) -> tuple[float, float]:
    """ℓ in units of 2^exponent, and λ, which is remembered.

    Args:
        median: of the lengths, in these units; above 0.
        remembered: λ before; infinite in the first round.
        exponent: of the unit.
    """
    own = float(np.ldexp(median, exponent))
    bound = min(own, GROWTH * remembered)
    kept = bound if np.isinf(remembered) else max(bound, remembered / GROWTH)
    return float(np.ldexp(bound, -exponent)) or median, kept


def voted_weights(
    gram: Float64[Array, "n n"], down: PerClient, p: PerClient, bound: float
) -> tuple[PerClient, float]:
    """Weights of clients that moved, and the gap of the quadratic problem.

    Args:
        gram: ⟨Δ_i, Δ_j⟩, with no update of length zero.
        down: ⟨Δ_i, −g⟩/‖g‖; where all are zero, the weights are v.
        p: votes above 0, of sum one.
        bound: ℓ > 0.
    """
    lengths = np.sqrt(np.diagonal(gram))
    scale = bound / np.maximum(lengths, bound)
    clipped, along = scale[:, None] * gram * scale, scale * down
    across = clipped - np.outer(along, along)
    has_none = np.diagonal(across) <= NEGLIGIBLE**2 * np.diagonal(clipped)
    across[has_none] = across[:, has_none] = 0.0  # what is left of them is rounding
    v = weights = mixed_median(across, p)
    gap = 0.0
    if down.any():
        ridge = float(np.diagonal(clipped).mean())
        length = np.sqrt(max(float(v @ clipped @ v), 0.0))  # ‖z‖
        aim = (1 - AIM) * (clipped @ v) + AIM * length * along
        H = clipped + ridge * np.eye(len(p))
        solution = solve_simplex_qp(H, -aim - ridge * v)
        weights, gap = solution.weights, float(solution.gap)
    longer = p @ np.minimum(lengths, LENGTHENING * bound) / (p @ (scale * lengths))
    return longer * weights * scale, gap


def weighted_median(values: PerClient, shares: PerClient) -> float:
    """The middle value; of two in the middle their mean, as without shares."""
    order = np.argsort(values, kind="stable")
    x, below = values[order], np.cumsum(shares[order])
    half = below[-1] / 2
    lower = int(np.searchsorted(below, half * (1 - TIED)))
    upper = int(np.searchsorted(below, half * (1 + TIED), side="right"))
    return 0.5 * float(x[lower] + x[upper])


def mixed_median(gram: Float64[Array, "n n"], shares: PerClient) -> PerClient:
    """Weights of the geometric median of the angle-mixed vectors, on the vectors."""
    M = angle_map(gram, shares)
    mixed = M @ gram @ M.T
    apart = sq_distances(mixed)
    farthest = float(apart.max(initial=0.0))
    if farthest == 0:
        return np.asarray(shares @ M)
    nu = max(SMOOTHING * central_distance(apart), RESOLVED * float(np.sqrt(farthest)))
    c, _ = weiszfeld(mixed, shares, nu, STEPS)
    return np.asarray(c @ M / c.sum())


def _after(
    sums: PerClient,
    clients: Int64[Ints, " s"],
    memory: float,
    new: Float64[Array, " s"],
) -> PerClient:
    """β times the sums of some clients, and this round's terms."""
    changed = sums.copy()
    changed[clients] = memory * sums[clients] + new
    return changed
