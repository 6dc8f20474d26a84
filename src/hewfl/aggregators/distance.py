"""Robust rules that compare distances between updates."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import numpy as np

from hewfl.aggregators.aggregator import FAULTY, Aggregator, faulty_count
from hewfl.aggregators.averaging import client_shares, weighting_needs
from hewfl.core.algorithm import Need
from hewfl.core.array_types import Float64
from hewfl.core.displacements import Displacements, Products
from hewfl.core.median import median
from hewfl.core.native import SOLVER, library
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, Count, Faulty, PerClient, Positive, Share
from hewfl.displacements.backend import to_host


def lengths_of(displacements: Products) -> tuple[PerClient, int]:
    """‖Δ_i‖ · 2^−e and e: in a unit in which they neither overflow nor vanish."""
    products = displacements.products()
    gram = replace(products, exponent=0).uncentred_gram()
    return np.sqrt(np.diagonal(gram)), products.exponent // 2  # exponents are even


def sq_distances(gram: Float64[Array, "n n"]) -> Float64[Array, "n n"]:
    """‖Δ_i − Δ_j‖² = G_ii + G_jj − 2G_ij, never below zero."""
    lengths = np.diagonal(gram)
    apart = np.maximum(lengths + lengths[:, None] - 2 * gram, 0.0)
    np.fill_diagonal(apart, 0.0)
    return np.asarray(0.5 * (apart + apart.T))


def sq_distances_to(gram: Float64[Array, "n n"], weights: PerClient) -> PerClient:
    """‖Δ_i − Σ_j w_jΔ_j‖² = G_ii − 2(Gw)_i + wᵀGw for Σw_j = 1, never below zero.

    The form in pairwise distances, Σ_j w_j‖Δ_i − Δ_j‖² − …, is not used: one far client
    with a small weight would put the square of its distance into every entry.
    """
    against = gram @ weights
    apart = np.diagonal(gram) - 2 * against + weights @ against
    return np.asarray(np.maximum(apart, 0.0))


def around_medoid(
    gram: Float64[Array, "n n"], apart: Float64[Array, "n n"]
) -> Float64[Array, "n n"]:
    """⟨Δ_i − Δ_k, Δ_j − Δ_k⟩, k the vector with the least sum of distances to all.

    Near Δ_k distances then have all their digits. Around another vector r they are
    differences of numbers of the size ‖Δ_k − r‖², and vectors that are all alike seem
    to be apart.

    Args:
        gram: products around any common vector.
        apart: ‖Δ_i − Δ_j‖².

    Returns:
        The products around Δ_k.
    """
    k = int(np.sqrt(apart).sum(axis=1).argmin())
    moved = (gram - gram[k]) - (gram[:, k, None] - gram[k, k])
    return np.asarray(0.5 * (moved + moved.T))


def central_distance(apart: Float64[Array, "n n"]) -> float:
    """The least radius around one of the vectors that holds half of the others.

    A scale that fewer than half of the clients cannot make large. The median over all
    pairs is none: with three far clients of ten most pairs are far.
    """
    nearest = np.sort(apart, axis=1)[:, 1:]  # without itself
    return float(np.sqrt(nearest[:, (len(apart) - 2) // 2].min()))


TIED = 1e-10
"""Scores that differ by less than this share are equal but for rounding."""
ROUNDING = 1e-14
"""Error of a squared distance, over the squared lengths that it is made of."""


def distance_error(gram: Float64[Array, "n n"]) -> float:
    """What a sum of squared distances may be off by rounding, at most."""
    return ROUNDING * len(gram) * median(np.diagonal(gram))


def lowest(
    scores: Float64[Array, "... n"], count: int, error: float
) -> Float64[Array, "... n"]:
    """Shares of the lowest scores, `count` in all; ties for the last place share it.

    Identical updates must get equal shares, and their scores may differ in the last
    digits.

    Args:
        scores: of one round, or rows of them.
        count: places.
        error: rounding of a score.

    Returns:
        1 below the last place, 0 above, and what is left for those that tie for it.
    """
    last = np.partition(scores, count - 1, axis=-1)[..., count - 1, None]
    slack = TIED * last + error
    below, tied = scores < last - slack, np.abs(scores - last) <= slack
    left = count - below.sum(axis=-1, keepdims=True)
    return np.asarray(below + tied * (left / tied.sum(axis=-1, keepdims=True)))


@final
@dataclass(frozen=True, slots=True)
class Krum(Aggregator):
    """The one displacement whose nearest neighbours are nearest [Blanchard2017].

        score_i = Σ ‖Δ_i − Δ_j‖² over the n − f − 2 clients j nearest to i
        step = Δ_k,   k = argmin score

    The paper proves its bound for n ≥ 2f + 3; where fewer clients are present, f is the
    largest that satisfies it, and the status gives f. Clients that tie for the lowest
    score share the weight (the paper takes the one of least index): two or three
    clients always tie in part.

    Attributes:
        f: faulty clients, a count or a fraction below ½ of those present.
    """

    f: Faulty = FAULTY

    name: ClassVar[str] = "Krum"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """All weight to the lowest score."""
        weights, assumed = krum_weights(round_, self.f, 1)
        return Decision(weights, f"lowest score, {assumed}"), state


@final
@dataclass(frozen=True, slots=True)
class MultiKrum(Aggregator):
    """The mean of the m displacements with Krum's lowest scores [Blanchard2017].

        step = (1/m) Σ Δ_i over the m clients of lowest score,   m = max(1, ⌊μ n⌋)

    Scores are those of `Krum`. The paper picks m once, from one set of scores; so do
    we (others compute new scores after every choice). Clients that tie for the last
    place share it.

    Attributes:
        f: faulty clients, a count or a fraction below ½ of those present.
        selected_fraction: 0 < μ ≤ 1, the share of clients that is averaged; the
            better half is our choice, 1 is the plain mean.
    """

    f: Faulty = FAULTY
    selected_fraction: Share = 0.5

    name: ClassVar[str] = "Multi-Krum"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """Equal weights on the m lowest scores."""
        m = max(1, _part(self.selected_fraction, round_.displacements.n))
        weights, assumed = krum_weights(round_, self.f, m)
        return Decision(weights, f"{m} lowest scores, {assumed}"), state


def krum_weights(round_: Round, f: int | float, selected: int) -> tuple[PerClient, str]:
    """Equal weights on the clients of lowest score; ties share the last places.

    Args:
        round_: the updates.
        f: faulty clients, a count or a fraction.
        selected: m, how many clients are averaged.

    Returns:
        Weights, and what f was taken for, for the status.
    """
    gram = round_.displacements.products().gram
    n = len(gram)
    count, note = faulty_count(f, round_, (n - 3) // 2)
    scores = krum_scores(sq_distances(gram), count)
    weights = lowest(scores, selected, distance_error(gram))
    return weights / weights.sum(), f"{count} faulty clients assumed{note}"


def krum_scores(apart: Float64[Array, "n n"], f: int) -> PerClient:
    """Σ ‖Δ_i − Δ_j‖² over the n − f − 2 clients nearest to i, one at least."""
    nearest = np.sort(apart, axis=1)[:, 1:]  # without itself
    return np.asarray(nearest[:, : max(1, len(apart) - f - 2)].sum(axis=1))


def _part(share: float, n: int) -> int:
    """⌊share · n⌋, where 0.29 · 100 is 29 in spite of rounding."""
    return int(share * n + 1e-9)


RESOLVED = 1e-15
"""Distances below this × the largest are rounding: the smoothing is never finer."""
SETTLED = 1e-13
"""Weights that change by less than this have arrived."""
PLAIN = 8
"""Weiszfeld steps before the first extrapolation: near the mean they go far."""
STALLED = 60
"""Steps without a lower sum: what is left is rounding, as where most vectors agree."""
NO_RISE = 1 + 1e-15
"""A sum that is larger by no more than this factor has not risen but for rounding."""


@final
@dataclass(frozen=True, slots=True)
class GeometricMedian(Aggregator):
    """The point with the least sum of distances to the displacements [Pillutla2022].

        z = argmin Σ_i α_i h(‖z − Δ_i‖),    h(t) = t for t ≥ ν, else t²/(2ν) + ν/2
        c_i = α_i / max(ν, ‖z − Δ_i‖),      z ← Σ_i c_iΔ_i / Σ_i c_i

    The second line is the smoothed Weiszfeld step, from the mean Σ α_iΔ_i on. z is a
    combination of the displacements at every step, so distances are quadratic forms of
    their products and the data are read once.

    `gap` is certified. With the c_i of a point z and the next point z⁺, the multipliers
    u_i = κ c_i (z⁺ − Δ_i) sum to zero, and κ ≤ 1 makes ‖u_i‖ ≤ α_i, so

        least value ≥ κ Σ_i c_i d_i² − (ν/2) κ² Σ_i c_i² d_i²/α_i + ν/2,
                      d_i = ‖z⁺ − Δ_i‖

    and the gap is the value at z⁺ minus that bound: a length, as the value is. The
    smoothed value is above the plain sum of distances by at most ν/2.

    The paper stops after a few steps, as each of them is a secure sum over the clients;
    here the products are known, and the steps go on until the weights converge. It
    weighs clients by data size; sizes are the clients' own claims, so here they count
    only with `by="size"`. Its ν is a length; here it is relative.

    Attributes:
        smoothing: ν > 0 in units of the least radius around one client that holds half
            of the others; 1e-6 is the number of public implementations, where it is a
            length.
        iterations: Weiszfeld steps at most.
        by: what α_i is proportional to; data sizes in the paper.
    """

    smoothing: Positive = 1e-6
    iterations: Count = 1000
    by: Literal["equal", "size"] = "equal"

    name: ClassVar[str] = "Geometric median"

    @property
    def needs(self) -> frozenset[Need]:
        """What α_i is made of."""
        return weighting_needs(self.by)

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = c_i/Σc_j at the last point, and the certified gap."""
        products = round_.displacements.products()
        alpha = client_shares(self.by, round_.cohort)
        apart = sq_distances(products.gram)
        if apart.max() == 0:
            return Decision(alpha, "all updates agree"), state
        rounding = RESOLVED * np.sqrt(apart.max())
        nu = max(self.smoothing * central_distance(apart), float(rounding))

        gram = around_medoid(products.gram, apart)
        c, change = weiszfeld(gram, alpha, nu, self.iterations)
        weights = c / c.sum()
        distances = np.sqrt(sq_distances_to(gram, weights))
        gap = fermat_weber_gap(distances, c, alpha, nu)
        rest = "" if change <= SETTLED else f", weights still moving by {change:.0e}"
        gap = float(np.ldexp(gap, products.exponent // 2))  # exponents are even
        return Decision(weights, f"geometric median{rest}", gap), state


def weiszfeld(
    gram: Float64[Array, "n n"], alpha: PerClient, nu: float, iterations: int
) -> tuple[PerClient, float]:
    """Smoothed Weiszfeld steps from the mean on, until the weights converge.

    The steps converge linearly, at times slowly. After the first `PLAIN` ones two steps
    r and s in a row are extrapolated [Varadhan2008],

        w ← w + 2a r + a² (s − r),     a = max{1, ‖r‖/‖s − r‖}

    and where the smoothed sum of distances has not fallen there, the second of the two
    steps is taken instead, so that it never rises.

    Args:
        gram: G, products around any common vector.
        alpha: α > 0, of sum one.
        nu: ν > 0, in the units of √G.
        iterations: at most so many evaluations of the distances.

    Returns:
        c_i = α_i/max(ν, ‖z − Δ_i‖) at the last point but one, which the last point is
        the mean of; and by how much the weights c/Σc changed in the last step.
    """
    # None as well in a checkout whose kernels were built before this one was written
    kernel = getattr(library(SOLVER), "weiszfeld", None)
    if kernel is None:
        return weiszfeld_plain(gram, alpha, nu, iterations)
    n = len(gram)
    c, G, start = np.empty(n), *map(np.ascontiguousarray, (gram, alpha))
    how = iterations, PLAIN, STALLED, SETTLED, NO_RISE
    return c, kernel(G, start, c, n, nu, *how)


def weiszfeld_plain(
    gram: Float64[Array, "n n"], alpha: PerClient, nu: float, iterations: int
) -> tuple[PerClient, float]:
    """The same steps in NumPy, which the compiled ones are compared with."""
    weights, least, lengths, idle = alpha, np.inf, np.diagonal(gram), 0
    taken: list[PerClient] = []
    plain: PerClient | None = None  # in place of an extrapolation that does not help
    for k in range(iterations):
        against = gram @ weights  # then `sq_distances_to`
        apart = np.maximum(lengths + (weights @ against - 2 * against), 0.0)
        bounded = np.maximum(np.sqrt(apart), nu)
        c = alpha / bounded
        value = 0.5 * float(c @ apart + alpha @ bounded)  # Σ α_ih(d_i)
        if plain is not None and value > least * NO_RISE:
            weights, plain = plain, None
            continue
        before, weights, plain = weights, c / c.sum(), None
        move = weights - before
        change = float(np.abs(move).max())
        idle = 0 if value < least else idle + 1
        if change <= SETTLED or idle == STALLED:
            break
        least = min(least, value)
        taken.append(before)
        if k >= PLAIN and len(taken) > 1:
            r = before - taken[-2]
            bend = move - r
            sq_size = float(bend @ bend)
            a = math.sqrt(float(r @ r) / sq_size) if sq_size > 0 else 1.0
            if a > 1:
                plain, weights = weights, taken[-2] + 2 * a * r + a**2 * bend
                taken = []
    return c, change


def smoothed_lengths(distances: PerClient, nu: float) -> PerClient:
    """h(t) = t for t ≥ ν, else t²/(2ν) + ν/2."""
    squares = distances**2 / (2 * nu) + nu / 2
    return np.asarray(np.where(distances >= nu, distances, squares))


def fermat_weber_gap(
    distances: PerClient, c: PerClient, alpha: PerClient, nu: float
) -> float:
    """How far the smoothed sum of distances can be above its least value, at most.

    Args:
        distances: d_i, of z⁺ = Σ c_iΔ_i/Σ c_i to the displacements.
        c: positive factors, c_i = α_i/max(ν, ‖z − Δ_i‖) for the z before.
        alpha: α > 0, of sum one.
        nu: ν > 0.
    """
    smooth = smoothed_lengths(distances, nu)
    lengths = c * distances  # of the multipliers before κ
    kappa = 1 / max(1.0, float((lengths / alpha).max()))
    linear = kappa * lengths @ distances
    quadratic = kappa**2 * (lengths**2 / alpha).sum()
    least = linear - nu / 2 * quadratic + nu / 2
    return max(0.0, float(alpha @ smooth - least))


@final
@dataclass(frozen=True, slots=True)
class CenteredClippingState:
    """What the server remembers.

    Attributes:
        previous: v, the step of the last round, as one row; zero before the first.
    """

    previous: Float64[Array, "1 d"]


@final
@dataclass(frozen=True, slots=True)
class CenteredClipping(Aggregator):
    """No client pulls the step away from the last one by more than τ [Karimireddy2021].

        v ← v + (1/n) Σ_i (Δ_i − v) min{1, τ/‖Δ_i − v‖}           several times
        step = v

    from v = the step of the last round, zero before the first. The paper sends momenta
    of the clients, (1 − β) g + β m; here displacements are clipped as they are, which
    is its form at β = 0. What the server step adds is not part of v.

    τ is relative by default: `radius` times the median over clients of
    ‖Δ_i − v‖, computed in each pass, so that at radius 1 the nearer half is not clipped
    and nothing has a unit. `relative=False` makes τ a length, constant over the rounds,
    as in the paper.

    The step contains v, so it is given as such; `weights` holds the factors of the
    displacements in it, which sum to at most one: the rest is the last step's.

    Attributes:
        radius: > 0, τ over the median distance, or τ itself; 1 is our choice.
        iterations: passes; 5 as in Blades; 1 in the authors' code.
        relative: whether `radius` is in units of the median distance.
    """

    radius: Positive = 1.0
    iterations: Count = 5
    relative: bool = True

    name: ClassVar[str] = "Centered clipping"
    needs: ClassVar[frozenset[Need]] = frozenset({"entries"})

    def init(self, n: int, d: int) -> CenteredClippingState:
        """No step taken yet."""
        return CenteredClippingState(np.zeros((1, d)))

    def decide(
        self, round_: Round, state: CenteredClippingState
    ) -> tuple[Decision, CenteredClippingState]:
        """The clipped step, and its factors of the displacements."""
        D, v = round_.displacements, state.previous[0]
        K, exponent = products_with_vector(D, v)
        length = float(np.ldexp(self.radius, -exponent // 2))  # exponents are even
        a = np.zeros(D.n + 1)
        a[-1] = 1.0  # v = a_{n+1} v_0 + Σ a_iΔ_i, and a sums to one
        for _ in range(self.iterations):
            far = np.sqrt(sq_distances_to(K, a))[:-1]
            tau = self.radius * median(far) if self.relative else length
            share = np.minimum(
                1.0, np.divide(tau, far, out=np.ones_like(far), where=far > 0)
            )
            a *= 1 - share.mean()
            a[:-1] += share / D.n
        step = to_host(D.combine(a[:-1])) + a[-1] * v
        clipped = int((share < 1).sum())
        status = f"{clipped} of {D.n} clipped in the last pass"
        return Decision(a[:-1], status, step=step), CenteredClippingState(
            step[None].copy()
        )


def products_with_vector(
    displacements: Displacements, vector: Float64[Array, " d"]
) -> tuple[Float64[Array, "m m"], int]:
    """Products of the displacements and of one vector more, around a short one.

    With c_i = Δ_i − r and e = v − r it is the Gram matrix of c_1, …, c_n, e. The weight
    problem of g = −v and Λ = 1 holds all of it: q_i = ⟨c_i, r − v⟩ = −⟨c_i, e⟩ and
    2·offset + ‖v‖² = ‖r‖² − 2⟨v, r⟩ + ‖v‖² = ‖e‖².

    Returns:
        The matrix times 2^−exponent, of n + 1 rows, and the exponent.
    """
    products, n = displacements.products(-vector, 1.0), displacements.n
    length = displacements.from_matrix(vector[None, :]).dot(vector, vector)
    K = np.empty((n + 1, n + 1))
    slopes = -products.linear
    K[:n, :n], K[n, :n], K[:n, n] = products.gram, slopes, slopes
    sq_length = float(np.ldexp(length, -products.exponent))
    K[n, n] = max(0.0, 2 * products.offset + sq_length)
    return K, products.exponent


FLOOR = 1e-3
"""Smallest variance, over the mean of r. It has no unit, and n hardly matters: clients
of equal variance have σ² = (n − 2)/(2(n − 1)) · mean r, so the floor is 0.4 % of that
for n = 3 and 0.2 % for many. It only keeps weights finite: a client below it has nearly
all the weight. Among 3 to 5 clients of equal noise that is 0 of 400 rounds if the noise
has 100 dimensions or more; with 10 dimensions 15 %, 5 % and 3 % of rounds for n = 3, 4,
5, and the squared error of the step is 1.5 to 1.3 times that of equal weights. A floor
of 0.1 makes this 1.25, but lets a client of five times the noise have 7 % of the weight
instead of 2 % (n = 3, 1000 dimensions), and one far away pulls a hundred times more."""


@final
@dataclass(frozen=True, slots=True)
class Disagreement(Aggregator):
    """Clients far from all the others weigh less; nothing to tune.

        r_i = Σ_j ‖Δ_i − Δ_j‖² / (n − 2)
        σ_i² = max{r_i − Σ_j r_j/(2(n − 1)),  10⁻³ · mean r}
        w_i = σ_i^{−2} / Σ_j σ_j^{−2}

    A rule of this library. If displacements have one mean and independent noises of
    variance σ_i², then E‖Δ_i − Δ_j‖² = σ_i² + σ_j² for i ≠ j; these equations, summed
    over j, are solved by the second line without its floor. Inverse variances are then
    the weights of the mean with the least error. Where clients have different means
    (unequal data, unequal horizons) their distance to the others counts as noise too.

    Three clients are the fewest that have variances: σ_i² = ⟨Δ_j − Δ_i, Δ_k − Δ_i⟩, so
    one that lies between the two others has none, and all the weight. Two are equally
    far from each other, so they weigh ½ each; one weighs 1; clients that all agree
    get equal weights.

    A client at a distance R far beyond the others gets about 2·10⁻³/n² of the weight
    because of the floor: it is damped, not ignored, and its pull grows with R.

    """

    name: ClassVar[str] = "Disagreement"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i ∝ σ_i^{−2}; equal weights where there are no variances."""
        n = round_.displacements.n
        equal = np.full(n, 1 / n)
        if n < 3:
            return Decision(equal, "equal weights: too few to have variances"), state
        apart = sq_distances(round_.displacements.products().gram)
        r = apart.sum(axis=1) / (n - 2)
        if r.max() == 0:
            return Decision(equal, "equal weights: all updates agree"), state
        variances = np.maximum(r - r.sum() / (2 * (n - 1)), FLOOR * r.mean())
        weights = variances.min() / variances
        weights /= weights.sum()
        return Decision(weights, "weights by disagreement"), state
