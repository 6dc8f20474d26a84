"""Rules that compare directions of updates."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np

from hewfl.aggregators.aggregator import FAULTY, Aggregator, faulty_count
from hewfl.aggregators.averaging import Weighting, client_shares, weighting_needs
from hewfl.aggregators.coordinatewise import blocks_as_stored, sum_over_ranks
from hewfl.aggregators.distance import lengths_of
from hewfl.core.algorithm import Need
from hewfl.core.array_types import Bool, Float64, Int64
from hewfl.core.displacements import Displacements, KnownLengths
from hewfl.core.round import Decision, Round
from hewfl.core.validation import (
    Array,
    Faulty,
    Ints,
    Mask,
    Nonnegative,
    PerClient,
    Positive,
    check_fields,
    invalid,
)
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
    """Mean cosine of each vector with the others, and lengths up to one factor."""
    cosines = _Cosines(displacements)
    return cosines.means(), cosines.lengths


@final
class _Cosines:
    """Cosines between the updates of a round.

    With u_i = Δ_i/‖Δ_i‖ those of one vector with all others sum to ⟨u_i, Σ_j u_j⟩ − 1:
    where lengths are known no Gram matrix is formed.

    Attributes:
        lengths: ‖Δ_i‖, up to one factor.
    """

    def __init__(self, displacements: Displacements) -> None:
        D = displacements
        self._known = self._pairs = None
        if isinstance(D, KnownLengths) and D.sq_lengths is not None:
            self._known, self.lengths = D, np.sqrt(D.sq_lengths)
            self._inverse = _inverse(self.lengths)
        else:
            # without the common power of two squares may overflow; cosines have none
            G = replace(D.products(), exponent=0).uncentred_gram()
            self._pairs, self.lengths = _normalised(G), np.sqrt(np.diagonal(G))

    def means(self) -> PerClient:
        """Mean cosine of each vector with the others."""
        n = len(self.lengths)
        if self._known is None:
            return np.asarray(self.pairs().sum(axis=1) / (n - 1))
        sums = self._inverse * self._known.inner_with_sum(self._inverse)
        return np.asarray((sums - (self.lengths > 0)) / (n - 1))

    def means_among(self, means: PerClient, voters: Bool[Mask, " n"]) -> PerClient:
        """The same with those that are marked: the cosines with all others go off."""
        others = (len(voters) - 1) * means - self.pairs() @ ~voters
        return np.asarray(others / np.maximum(voters.sum() - voters, 1.0))

    def pairs(self) -> Float64[Array, "n n"]:
        """All cosines, zero on the diagonal; of many entries, from some of them."""
        if self._pairs is None:
            assert self._known is not None, "one of the two is there"
            columns = self._known.spread(SAMPLE)
            self._pairs = _normalised(columns @ columns.T)
        return self._pairs


def _normalised(gram: Float64[Array, "n n"]) -> Float64[Array, "n n"]:
    """The cosines of a Gram matrix, zero on the diagonal."""
    inverse = _inverse(np.sqrt(np.diagonal(gram)))
    cosines = np.clip(inverse[:, None] * gram * inverse, -1.0, 1.0)
    np.fill_diagonal(cosines, 0.0)
    return np.asarray(cosines)


def copies(cosines: Float64[Array, "n n"], f: int) -> PerClient:
    """How many clients send nearly what each client sends, itself included.

        κ_i = 1 + Σ_{j≠i} max(0, (cos_ij − c)/(1 − c)),   c = max(0.8, c_k)

    c_k is the largest cosine that a pair with an honest client must have: with f faulty
    clients, f(f − 1)/2 pairs may be larger. So honest clients that are all alike are no
    copies of each other.
    """
    n = len(cosines)
    ordered = np.sort(cosines[np.triu_indices(n, 1)])[::-1]
    c = max(ALIKE, float(ordered[f * (f - 1) // 2])) if n > 1 else 1.0
    if c >= 1 - _TIE:
        return np.ones(n)
    return np.asarray(1 + np.clip((cosines - c) / (1 - c), 0.0, 1.0).sum(axis=1))


def _inverse(lengths: PerClient) -> PerClient:
    """1/l, and zero for zero."""
    return np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)


_TIE = 1e-9
"""Cosines that differ by less are equal: clients that send the same have one weight."""
ALIKE = 0.8
"""Least cosine of updates that may be copies of each other."""
SAMPLE = 4096
"""Entries that cosines of single pairs are taken from, where models are larger."""
LEAST = 0.4
"""τ for many clients; docs/results/flower.md has the comparison it was chosen by."""
FASTEST = 10.0
"""Reported steps beyond this multiple of the median client's are a claim."""


@final
@dataclass(frozen=True, slots=True)
class Sieve(Aggregator):
    """FedAvg, with less weight for clients that oppose the others and for long updates.

        a_i = (1/(n − 1)) Σ_{j≠i} ⟨Δ_i, Δ_j⟩/(‖Δ_i‖‖Δ_j‖)
        k_i = min(1, max(0, 1 + a_i/τ))
        w_i = m_i k_i / Σ_j m_j k_j · min(1, c · median_j ‖Δ_j‖/‖Δ_i‖)

    A rule of this library, for careless clients: those that collude agree with each
    other, and 20 % of them can ruin a training. A client whose direction agrees with
    the others at all has FedAvg's weight. From a mean cosine of zero down to −τ the
    weight falls in a straight line to nothing. It must not fall at once: where data
    differ, cosines of good clients are around zero, and a rule that drops all below
    zero trains on some of the clients only (on one stock app of docs/results/flower.md
    it lost 0.1). And near the end of a training the steps cancel, Σ m_iΔ_i ≈ 0: then
    the mean cosine of n steps of one length is −1/(n − 1) for all. So τ is twice that
    for few clients,

        τ = max(0.4, 2/(n − 1)).

    The step of a client longer than c times the median counts as one of that length,
    and weights then sum to less than one. τ = 0 drops every client with a_i ≤ 0; a
    large τ only clips. Where no client moved, or all oppose the others, the weights are
    those of FedAvg, clipped.

    Where clients differ in speed, a fast one moves far without fault. `per_step`
    compares ‖Δ_i‖/H_i as well, and clips by the smaller excess: fast clients move far
    in all, slow ones per step, as their noise has not averaged out yet.

    `relative` measures a_i from r = min(0, median_j a_j), and takes τ − 2r for τ. Where
    most clients oppose the others, as with classes of their own, or where steps cancel
    near the end of a training, a client loses weight only if it does so much more than
    the median client. Then a small τ, which drops a bad client among good ones, does
    little harm there.

    Attributes:
        tolerance: τ ≥ 0; as above if it is not given.
        clip: c > 0, longest step that counts in full, over the median.
        by: what m_i stands for: data sizes as in FedAvg, local steps, or one for all.
        per_step: clip only updates that are long for their local steps as well.
        relative: measure a_i from the median of all where that is below zero.
    """

    tolerance: Nonnegative | None = None
    clip: Positive = 2.0
    by: Weighting = "size"
    per_step: bool = False
    relative: bool = False

    name: ClassVar[str] = "Sieve"

    @property
    def needs(self) -> frozenset[Need]:
        """What m_i and the clip are made of."""
        steps: frozenset[Need] = frozenset({"steps"} if self.per_step else ())
        return weighting_needs(self.by) | steps

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i ∝ m_i k_i, then clipped; FedAvg's own where every k_i is zero."""
        m = client_shares(self.by, round_.cohort)
        if len(m) == 1:
            return Decision(np.ones(1), "one client"), state
        a, lengths = mean_cosines(round_.displacements)
        k, status = _kept(a, self.tolerance, relative=self.relative)
        weights = m * k / (m * k).sum()
        excess = _excess(lengths)
        if self.per_step:
            excess = np.minimum(excess, _excess(lengths / round_.cohort.horizons))
        return Decision(weights / np.maximum(excess / self.clip, 1), status), state


def _kept(
    a: PerClient, tolerance: float | None, *, relative: bool = False
) -> tuple[PerClient, str]:
    """k_i = min(1, max(0, 1 + a_i/τ)), and the status; ones where all are zero."""
    tau = max(LEAST, 2 / (len(a) - 1)) if tolerance is None else tolerance
    if relative:
        r = min(0.0, _median(a))
        a, tau = a - r, tau - 2 * r
    k = np.clip(1 + a / tau, 0.0, 1.0) if tau > 0 else (a > 0) * 1.0
    if not k.any():
        return np.ones(len(k)), "all clients oppose the others"
    return k, f"{int((k > 0).sum())} of {len(k)} clients keep weight"


def _excess(lengths: PerClient) -> PerClient:
    """Lengths over the median of those above zero."""
    moved = lengths[lengths > 0]
    return lengths / _median(moved) if len(moved) else lengths


def _median(values: PerClient) -> float:
    """The median of some finite numbers; NumPy's takes five times as long for a few."""
    ordered = np.sort(values)
    half = len(ordered) // 2
    return float(0.5 * ordered[half] + 0.5 * ordered[(len(ordered) - 1) // 2])


@final
@dataclass(frozen=True, slots=True)
class MajoritySieve(Aggregator):
    """`Sieve` for a round in which f clients may be faulty, and may work together.

        C   = the n − f clients of largest mean cosine with all others
        a_i = mean over j ∈ C, j ≠ i, of ⟨Δ_i, Δ_j⟩/(‖Δ_i‖‖Δ_j‖)
        k_i = min(1, max(0, 1 + a_i/τ)),   τ = max(0.4, 2/(n − 1))
        v_i = m_i/κ_i;   min(m_i, median m)/κ_i if i ∉ C and a_i < ½ median_{j∈C} a_j
        ℓ   = the max(f + 1, 2)-th largest ‖Δ_j‖,   h = that of ‖Δ_j‖/H_j
        w_i = v_i k_i/Σ_j v_j k_j · min(1, c · max{ℓ, h H_i [a_i > 0]}/‖Δ_i‖)

    A rule of this library: FedAvg, with less weight for clients that oppose the others
    and for updates that are long beyond the spread of the clients. What differs from
    `Sieve`:

    - The f clients that are least central have no vote on directions: colluders do not
      vouch for each other. If they agree less than half as much as the others, a data
      size above the median does not count: it is a claim.
    - κ_i is the number of clients that send nearly the same (`copies`): they count as
      one. Of a large model single cosines are taken from 4,096 entries, means from all.
    - A length is compared with the longest that one honest client must have while f are
      faulty, not with the median: where speeds differ widely fast clients are twice as
      long as the median. One that is long, but not for the local steps it reports, is
      not shortened if its direction agrees; steps beyond ten times the median client's
      are a claim, and do not count.

    What it cannot do: a minority of honest clients whose data pull the other way (4 of
    20 that own two classes) looks like colluders, and loses weight; colluders that
    add noise to what they share are no copies; more colluders than f pass for the
    majority, and can do more harm than to a mean. One client far faster than others
    is shortened unless clients report their steps (docs/results/flower.md).

    Attributes:
        f: faulty clients, a count or a fraction below ½ of those present.
        tolerance: τ ≥ 0; as above if it is not given.
        clip: c > 0, longest step that counts in full, over ℓ.
        by: what m_i stands for: data sizes as in FedAvg, local steps, or one for all.

    Examples:
        >>> import numpy as np
        >>> from hewfl.aggregators import MajoritySieve
        >>> updates = np.array([[1.0, 0.1], [1.0, -0.1], [4.0, 0.0], [-9.0, 0.0]])
        >>> decision, _ = MajoritySieve()(updates)
        >>> decision.weights.round(2)
        array([0.33, 0.33, 0.33, 0.  ])
    """

    f: Faulty = FAULTY
    tolerance: Nonnegative | None = None
    clip: Positive = 2.0
    by: Weighting = "size"

    name: ClassVar[str] = "Majority sieve"
    optional: ClassVar[frozenset[Need]] = frozenset({"steps"})
    clips: ClassVar[bool] = True

    @property
    def needs(self) -> frozenset[Need]:
        """What m_i and the clip are made of."""
        return weighting_needs(self.by) | self.optional

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i ∝ v_i k_i, then clipped; as if all k_i were one where all are zero."""
        m = client_shares(self.by, round_.cohort)
        n = len(m)
        if n == 1:
            return Decision(np.ones(1), "one client"), state
        f, note = faulty_count(self.f, round_, (n - 1) // 2)
        cosines = _Cosines(round_.displacements)
        a = cosines.means()
        if f > 0:
            central = a >= np.sort(a)[f] - _TIE
            a = cosines.means_among(a, central)
            doubted = ~central & (a < 0.5 * np.median(a[central]))
            m = np.where(doubted, np.minimum(m, np.median(m)), m)
        if f > 1:
            m = m / copies(cosines.pairs(), f)
        k, status = _kept(a, self.tolerance)
        status += note
        weights = m * k / (m * k).sum()
        lengths = cosines.lengths
        excess = lengths / _largest_honest(lengths, f)
        H = round_.cohort.horizons
        per_step = lengths / np.minimum(H, FASTEST * np.median(H))
        per_step = per_step / _largest_honest(per_step, f)
        excess = np.where(a > 0, np.minimum(excess, per_step), excess)
        return Decision(weights / np.maximum(excess / self.clip, 1), status), state


def _largest_honest(lengths: PerClient, f: int) -> float:
    """The (f+1)-th largest of those above zero, at least the second; 1 without any."""
    moved = np.sort(lengths[lengths > 0])[::-1]
    return float(moved[min(max(f, 1), len(moved) - 1)]) if len(moved) else 1.0


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


@final
@dataclass(frozen=True, slots=True)
class FLTrust(Aggregator):
    """Clients count as far as they point where the server's own step points [Cao2021].

        g_0 = −ρ g,   t_i = max{0, cos(Δ_i, g_0)}
        step = Σ_i t_i ‖g_0‖/‖Δ_i‖ Δ_i / Σ_j t_j

    g is the root gradient, that the server computes on samples it trusts. In the paper
    the server trains on them as a client does, and g_0 is its update; from a gradient
    that is a step of length ρ, the median over clients of the total step η_iH_i. Where
    all t_i are zero the step is zero.

    Attributes:
        total: ρ > 0 in place of the median total step.
    """

    total: Positive | None = None

    name: ClassVar[str] = "FLTrust"

    @property
    def needs(self) -> frozenset[Need]:
        """The root gradient, and total steps unless one is given."""
        if self.total is not None:
            return frozenset({"root"})
        return frozenset({"root", "steps", "step_sizes"})

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = t_i ‖g_0‖/(‖Δ_i‖ Σ_j t_j).

        Raises:
            InvalidInputError: the round has no root gradient.
        """
        if round_.root is None:
            raise invalid("root", f"given for {self.name}", "None")
        D, g = round_.displacements, round_.root
        lengths, exponent = lengths_of(D)
        inverse = _inverse(lengths)  # of lengths times 2^−exponent
        length = float(np.sqrt(D.dot(g, g)))
        rho = self.total or float(np.median(round_.total_step))
        with np.errstate(over="ignore"):
            factors = np.ldexp(rho * length * inverse, -exponent)
        if not 0 < length < np.inf:
            return Decision(np.zeros(D.n), "the root gives no direction"), state
        along = -np.ldexp(D.inner(g), -exponent) * inverse / length
        # a client that no number makes as long as the root counts as one at rest
        scores = np.maximum(along, 0.0) * np.isfinite(factors)
        total = float(scores.sum())
        if total == 0:
            return Decision(np.zeros(D.n), "no client agrees with the root"), state
        factors = np.where(scores > 0, factors, 0.0)
        status = f"{int((scores > 0).sum())} of {D.n} clients agree with the root"
        return Decision(scores / total * factors, status), state


@final
@dataclass(frozen=True, slots=True)
class SignGuard(Aggregator):
    """Clients of usual length and usual shares of signs, clipped [Xu2022].

        M = median_j ‖Δ_j‖
        S_1 = {i: lower ≤ ‖Δ_i‖/M ≤ upper}
        S_2 = largest cluster of (share of entries above, at, below zero)
        step = mean over S_1 ∩ S_2 of min{1, M/‖Δ_i‖} Δ_i

    Clusters are those of mean shift with a flat kernel, whose width is the mean over
    clients of the distance to the ⌊n/2⌋-th nearest, itself included, as in the authors'
    code. The paper counts signs in a tenth of the coordinates, drawn at random; here
    all are counted. Where no client is in both sets, S_1 alone is taken, which is never
    empty: our choice.

    Attributes:
        lower: least length over the median; 0.1 in the paper.
        upper: largest length over the median, above `lower`; 3 in the paper.
    """

    lower: Nonnegative = 0.1
    upper: Positive = 3.0

    name: ClassVar[str] = "SignGuard"
    needs: ClassVar[frozenset[Need]] = frozenset({"entries"})

    def __post_init__(self) -> None:
        """Check ranges: a length between one and two medians must be usual."""
        check_fields(self)
        if self.lower > 1:
            raise invalid("lower", "at most 1", self.lower)
        if self.upper < 2:
            raise invalid("upper", "at least 2", self.upper)

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """Equal weights on the clients that pass both filters, clipped."""
        D = round_.displacements
        lengths, _ = lengths_of(D)
        M = float(np.median(lengths))
        usual = (lengths >= self.lower * M) & (lengths <= self.upper * M)
        chosen = usual & largest_cluster(_sign_shares(D))
        chosen = chosen if chosen.any() else usual
        clipped = np.divide(M, lengths, out=np.ones(D.n), where=lengths > M)
        status = f"{int(chosen.sum())} of {D.n} clients pass the filters"
        return Decision(chosen * clipped / chosen.sum(), status), state


def _sign_shares(displacements: Displacements) -> Float64[Array, "n 3"]:
    """Shares of the entries that are above, at and below zero."""
    n = displacements.n
    above, below, entries = np.zeros(n), np.zeros(n), 0
    for block in blocks_as_stored(displacements):
        above += np.count_nonzero(block > 0, axis=1)
        below += np.count_nonzero(block < 0, axis=1)
        entries += block.shape[1]
    counts = np.concatenate([above, below, [float(entries)]])
    counts = sum_over_ranks(displacements, counts)
    above, below = counts[:n] / counts[-1], counts[n:-1] / counts[-1]
    return np.stack([above, 1 - above - below, below], axis=1)


def largest_cluster(points: Float64[Array, "n k"]) -> Bool[Mask, " n"]:
    """Which points are in the largest cluster of mean shift with a flat kernel.

    Every point climbs to the mean of the points within the width around it. Of ends
    within the width of each other the one with most points around it stands for all;
    points go to the nearest end that is left.
    """
    apart = _distances(points, points)
    nearest = np.sort(apart, axis=1)[:, max(len(points) // 2 - 1, 0)]
    width = float(nearest.mean()) * (1 + 1e-12)  # a distance to itself may be rounded
    ends = points
    for _ in range(CLIMBS):
        near = (_distances(ends, points) <= width).astype(np.float64)
        after = near @ points / np.maximum(near.sum(axis=1, keepdims=True), 1.0)
        change, ends = float(np.abs(after - ends).max()), after
        if change <= 1e-3 * width:
            break
    counts = (_distances(ends, points) <= width).sum(axis=1)
    order = np.lexsort((*ends.T.round(12), -counts))  # ties in count: by place
    left: list[int] = []
    for i in order:
        if not left or _distances(ends[[i]], ends[left]).min() > width:
            left.append(int(i))
    to_ends = _distances(points, ends[left])
    label = to_ends.argmin(axis=1)
    sizes = np.bincount(label, minlength=len(left))
    return np.asarray(label == sizes.argmax())


CLIMBS = 300
"""Steps of mean shift at most, as in scikit-learn."""


def _distances(a: Float64[Array, "m k"], b: Float64[Array, "n k"]) -> Any:
    return np.sqrt(((a[:, None] - b) ** 2).sum(axis=-1))
