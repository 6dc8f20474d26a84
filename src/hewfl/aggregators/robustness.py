"""The certificate of robustness: how far a step is from what honest clients ask for.

    κ̂ = max over S of n − f clients of
        ‖step − mean_S‖² / ((1/|S|) Σ_{i∈S} ‖Δ_i − mean_S‖²)

is the least κ for which the step of *this* round satisfies the definition of
(f, κ)-robustness [Allouah2023], whoever the f faulty clients are. The literature bounds
κ for a rule, over all updates (`worst_case_kappa`); κ̂ is its value for the updates at
hand, and exists for every rule.

    certificate = robustness_certificate(updates, f=5, weights=w)
    Certified(GeometricMedian(), f=0.2, refuse_above=4.0)     # an aggregator

For any S, T = mean over S of ‖Δ_i − step‖² is ‖step − mean_S‖² + D, D the denominator,
so that κ̂ + 1 = max T/D: a ratio of sums of squared distances, none of which is
negative (`hewfl.solver.subset_search`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite, nextafter, sqrt
from typing import Any, Literal, final

import numpy as np

from hewfl.aggregators.aggregator import Aggregator, assumed_count
from hewfl.core.algorithm import Informed, Modelled, Need, RoundModel, Truth
from hewfl.core.array_types import Bool, Float64
from hewfl.core.displacements import (
    Displacements,
    Distorted,
    Products,
    RoundProducts,
)
from hewfl.core.round import Decision, Round
from hewfl.core.rounding import format_lower, format_upper
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Faulty,
    Mask,
    PerClient,
    Positive,
    as_float64,
    check_faulty,
    check_fields,
    format_value,
    invalid,
    whole,
)
from hewfl.displacements.backend import to_host
from hewfl.displacements.dense import as_dense
from hewfl.solver.subset_search import WORK, largest_ratio, ratios, rounding

UNIT = 2.0**-53
AGREES = 2.0**-50
"""Where all updates agree in an entry, a step within this share of it agrees too: its
last bits are rounding of the rule's own arithmetic."""
FAILURE = 0.05
"""Probability that a certificate from sketches does not hold."""


@final
@dataclass(frozen=True, slots=True)
class RobustnessCertificate:
    """κ̂ of one step, as an interval.

    Attributes:
        kappa: the ratio of `subset`, the worst one known.
        lower: κ̂ is at least this.
        upper: κ̂ is at most this.
        exact: whether no subset is worse: `lower` and `upper` then differ by rounding
            alone.
        subset: places of the n − f updates that the step is farthest from.
        f: how many clients may be faulty.
        confidence: 1; from sketches the probability with which the interval holds.
        status: one sentence.
    """

    kappa: float
    lower: float
    upper: float
    exact: bool
    subset: tuple[int, ...]
    f: int
    confidence: float
    status: str


def robustness_certificate(
    updates: Any,
    f: Faulty,
    *,
    weights: ArrayLike | None = None,
    step: Any = None,
    work: int = WORK,
) -> RobustnessCertificate:
    """How robust a step is against any f of the clients.

    The subsets are enumerated where they are at most 200,000, and searched by branch
    and bound beyond. Where that ends early, `upper` is the bound of the open nodes and
    `exact` is false.

    Rounding is in the interval: every inner product is taken to have a relative error
    of d·2⁻⁵³ times both lengths, and sums are rounded outward. Updates whose products
    agree in every bit count as equal. Weights that sum to one but for rounding count as
    if they did.

    Args:
        updates: Δ_i, shape (n, d) or n vectors, of any array library; or what a rule
            sees, `Displacements` or sketches.
        f: clients that may be faulty: an int is their number, a float their share.
        weights: w_i, where the step is Σ w_iΔ_i.
        step: any vector, in place of weights.
        work: additions that branch and bound may take; 0 for the bound of its root.

    Returns:
        The interval, and the subset behind it.

    Raises:
        InvalidInputError: not exactly one of `weights` and `step` is given, a shape is
            wrong, or f is not below half of the clients.

    Examples:
        >>> import numpy as np
        >>> from hewfl import robustness_certificate
        >>> updates = np.array([[1.0, 0.0], [1.2, 0.1], [0.9, -0.1], [-9.0, 3.0]])
        >>> mean = robustness_certificate(updates, f=1, weights=np.full(4, 0.25))
        >>> third = robustness_certificate(updates, f=1, weights=[1/3, 1/3, 1/3, 0])
        >>> mean.subset, bool(mean.kappa > 100), bool(third.kappa < 1)
        ((0, 1, 2), True, True)
    """
    is_ready = isinstance(updates, Products)
    vectors: Any = updates if is_ready else as_dense("updates", updates)
    n = vectors.n
    check_faulty("f", f)
    if 2 * assumed_count(f, n) >= n:
        raise invalid("f", f"below half of the {n} clients", format_value(f))
    whole("work", work, least=0)
    if (weights is None) == (step is None):
        rule = "given, or `step` in place of it"
        raise invalid("weights", rule, "None" if step is None else "both")
    if weights is not None:
        w = as_float64("weights", weights)
        if w.shape != (n,):
            raise invalid("weights", f"of shape ({n},)", w.shape)
        return _certify(vectors, w, None, assumed_count(f, n), work)
    vector = as_float64("step", to_host(step) if hasattr(step, "__dlpack__") else step)
    if not is_ready and vector.shape != (vectors.d,):
        raise invalid("step", f"of shape ({vectors.d},)", vector.shape)
    return _certify(vectors, None, vector, assumed_count(f, n), work)


def _certify(
    vectors: Any, weights: PerClient | None, step: Any, f: int, work: int
) -> RobustnessCertificate:
    """The certificate of weights, or of a step where it is given."""
    with np.errstate(over="ignore"):
        if step is None:
            assert weights is not None, "weights, or a step"
            given = _distances_of_weights(vectors.products(), weights, vectors.d)
        else:
            given = _distances_of_step(vectors, step)
    confidence, epsilon = 1.0, 0.0
    if isinstance(vectors, Distorted):
        epsilon, stored = vectors.distortion(FAILURE)
        if epsilon > 0:
            given, confidence = given.rounded(stored), 1 - FAILURE
    return given.certificate(f, work, epsilon, confidence)


@final
@dataclass(frozen=True, slots=True)
class _Distances:
    """Squared distances of the updates, in one unit, with bounds on their errors.

    Attributes:
        to_step: t_i = ‖Δ_i − step‖².
        step_error: of t_i, at most.
        apart: d_ij = ‖Δ_i − Δ_j‖².
        error: of d_ij, at most.
        lengths: ‖Δ_i‖, for the rounding of vectors.
    """

    to_step: PerClient
    step_error: PerClient
    apart: Float64[Array, "n n"]
    error: Float64[Array, "n n"]
    lengths: PerClient

    def rounded(self, relative: float) -> "_Distances":
        """The same where each vector has an error of that share of its length."""
        moved = relative * (self.lengths + self.lengths[:, None])
        largest = 2 * relative * float(self.lengths.max())
        error = self.error + (2 * np.sqrt(self.apart) + moved) * moved
        step_error = self.step_error + (2 * np.sqrt(self.to_step) + largest) * largest
        return replace(self, step_error=step_error, error=error)

    def certificate(
        self, f: int, work: int, epsilon: float, confidence: float
    ) -> RobustnessCertificate:
        """Search with the distances that make κ̂ largest; then bound from below."""
        n = len(self.to_step)
        above = self.to_step + self.step_error
        below = np.maximum(self.apart - self.error, 0.0)
        np.fill_diagonal(below, 0.0)
        largest = largest_ratio(above, below, n - f, work)
        members = np.zeros((1, n))
        members[0, largest.members] = 1.0
        ratio = float(ratios(*_scaled(self.to_step, self.apart), members)[0])
        least = np.maximum(self.to_step - self.step_error, 0.0)
        lower = float(ratios(*_scaled(least, self.apart + self.error), members)[0])
        lower *= (1 - rounding(n)) * (1 - epsilon) / (1 + epsilon)
        upper = largest.upper
        upper = upper * (1 + epsilon) / (1 - epsilon) if epsilon < 1 else inf
        kappa = max(ratio - 1, 0.0)
        lower = nextafter(lower - 1, -inf) if isfinite(lower) else lower
        lower = min(max(lower, 0.0), kappa)
        upper = max(nextafter(upper - 1, inf), kappa)
        if largest.upper <= 1:  # the step is at all of them, without rounding
            upper = upper if epsilon else 0.0
        exact = largest.exact and epsilon == 0
        return RobustnessCertificate(
            kappa,
            lower,
            upper,
            exact,
            tuple(largest.members.tolist()),
            f,
            confidence,
            _sentence(kappa, lower, upper, exact, f, confidence),
        )


def _scaled(
    t: PerClient, d: Float64[Array, "n n"]
) -> tuple[PerClient, Float64[Array, "n n"]]:
    """Both times a power of two, so that sums stay in range."""
    largest = max(float(t.max()), float(d.max()))
    exponent = -int(np.frexp(largest)[1]) if largest > 0 else 0
    return np.ldexp(t, exponent), np.ldexp(d, exponent)


def _sentence(
    kappa: float, lower: float, upper: float, exact: bool, f: int, confidence: float
) -> str:
    """What the certificate says, with numbers rounded outward."""
    near = isfinite(kappa) and upper <= 1.01 * kappa + 0.01
    # One number alone is a bound; beside an upper one it is what was computed.
    shown = format_upper(upper) if exact and near else f"{kappa:.3g}"
    text = f"kappa {shown} whichever {f} clients are faulty"
    most = f"at most {format_upper(upper)}" if isfinite(upper) else "without a bound"
    if confidence < 1:
        return f"{text}, from sketches: {most} with probability {confidence:g}"
    if not exact:
        return f"{text}, {most}: the search was stopped"
    if isfinite(kappa) and not near:
        least = format_lower(lower)
        return f"{text}, from {least} to {format_upper(upper)} by rounding"
    return text


# ------------------ distances


def _distances_of_weights(
    products: RoundProducts, weights: PerClient, d: int
) -> _Distances:
    """Distances to Σ w_jΔ_j, from products around a short vector r.

    With c_i = Δ_i − r, U = Σ w_j − 1 and k the vector of largest weight,

        step − Δ_k = Σ_j w_j (c_j − c_k) + U Δ_k.

    Differences to Δ_k come first: updates that equal it are at distance zero, whatever
    the length of the others.
    """
    G, cr, rr, n = (
        products.gram + 0.0,
        products.linear,
        2 * products.offset,
        len(weights),
    )
    excess = float(weights.sum()) - 1
    size = float(np.abs(weights).sum())
    if abs(excess) <= n * 2 * UNIT * max(1.0, size):
        excess = 0.0
    k = int(np.abs(weights).argmax())
    H = (G - G[k]) - (G[:, k, None] - G[k, k])
    h = (G[k] - G[k, k]) + (cr - cr[k])  # ⟨c_i − c_k, Δ_k⟩
    sq_length = max(G[k, k] + 2 * cr[k] + rr, 0.0)
    a = H @ weights + excess * h
    b = weights @ H @ weights + 2 * excess * (weights @ h) + excess**2 * sq_length
    to_step = np.maximum(np.diagonal(H) - 2 * a + b, 0.0)

    twins = _twins(G)
    apart = np.diagonal(G) + np.diagonal(G)[:, None] - 2 * G
    apart = np.where(twins, 0.0, np.maximum(0.5 * (apart + apart.T), 0.0))
    radii = np.sqrt(np.maximum(np.diagonal(G), 0.0))
    unit = 1.01 * (d + 10 * n + 50) * UNIT
    error = np.where(twins, 0.0, unit * (radii + radii[:, None]) ** 2)
    reach = np.abs(weights) @ (radii + radii[k]) + abs(excess) * (
        radii[k] + sqrt(max(rr, 0))
    )
    step_error = unit * (radii + radii[k] + reach) ** 2
    at_step = ~((~twins) @ (weights != 0))  # all weight is on updates that equal it
    if excess == 0:
        to_step = np.where(at_step, 0.0, to_step)
        step_error = np.where(at_step, 0.0, step_error)
    lengths = np.sqrt(np.maximum(np.diagonal(G) + 2 * cr + rr, 0.0))
    return _Distances(to_step, step_error, apart, error, lengths)


def _twins(G: Float64[Array, "n n"]) -> Bool[Mask, "n n"]:
    """Which updates have the same products with all, bit by bit."""
    _, group = np.unique(G, axis=0, return_inverse=True)
    group = group.reshape(-1)
    return np.asarray(group == group[:, None])


def _distances_of_step(vectors: Displacements, step: Any) -> _Distances:
    """Distances to any vector: products of Δ_i − step, a range of entries at a time."""
    n, exponent = vectors.n, 0
    K, step = np.zeros((n, n)), np.asarray(step, dtype=np.float64)
    for here, part in vectors.column_chunks():
        rows = part.matrix()
        apart = rows - step[here]
        agrees = (rows == rows[0]).all(axis=0)
        agrees &= np.abs(apart[0]) <= AGREES * np.abs(step[here])
        apart[:, agrees] = 0.0
        products = part.from_matrix(apart).products()
        gram = replace(products, exponent=0).uncentred_gram()
        is_first = not K.any()
        common = products.exponent if is_first else max(exponent, products.exponent)
        K = np.ldexp(K, exponent - common)
        K += np.ldexp(gram, products.exponent - common)
        exponent = common
    K = K + 0.0
    squares = np.maximum(np.diagonal(K), 0.0)
    radii, twins = np.sqrt(squares), _twins(K)
    apart = squares + squares[:, None] - 2 * K
    apart = np.where(twins, 0.0, np.maximum(0.5 * (apart + apart.T), 0.0))
    unit = 1.01 * (vectors.d + 10 * n + 50) * UNIT
    error = np.where(twins, 0.0, unit * (radii + radii[:, None]) ** 2)
    return _Distances(squares, 2 * unit * squares, apart, error, radii)


# ------------------ theory

Rule = Literal[
    "trimmed-mean", "coordinate-median", "geometric-median", "krum", "multi-krum"
]


def worst_case_kappa(rule: Rule, n: int, f: int, *, mixed: bool = False) -> float:
    """A κ for which the rule is (f, κ)-robust [Allouah2023]: no κ̂ is larger.

    With m = n − f and D the denominator of κ̂:

    - trimmed mean of f values at either end, κ = f/(n − 2f). In every coordinate the
      k-th smallest of all values is between the (k − f)-th and the k-th smallest of S.
      So the rule is between the means of the n − 2f smallest and of the n − 2f largest
      values of S, and the mean of h out of m values is within √((m − h)/h · D) of
      theirs. No rule has a smaller κ: with f updates at 1 and the rest at 0, any other
      step than 0 has none, and 0 has this.
    - coordinate-wise median, by the same argument with b = ⌊(n − 1)/2⌋ values left out:
      κ = b/(n − f − b).
    - geometric median, κ = 4(m/(n − 2f))²: its sum of distances is not above that of
      mean_S, so (n − 2f)‖step − mean_S‖ ≤ 2 Σ_S ‖Δ_i − mean_S‖.
    - Krum, and multi-Krum of at most m updates, with h = n − 2f − 1 ≥ 1:
      κ = (√(2m(m − 2)/((m − 1)h)) + √((m − h)/h))². Of the mean score of S, at most
      2mD(m − 2)/(m − 1), the sum over the h members of S that are neighbours of a
      chosen update is no more.
    - after nearest-neighbour mixing, (8f/m)(κ + 1).

    Args:
        rule: a name of `hewfl.aggregators.NAMES`. It must assume the same f: the
            trimmed mean leaves out f values at either end, Krum counts n − f − 2
            neighbours.
        n: number of updates.
        f: how many of them may be faulty.
        mixed: whether nearest-neighbour mixing with n − f neighbours comes before.

    Returns:
        κ; infinite where nothing is proven.

    Raises:
        InvalidInputError: there is no bound for the rule, or f is not below n/2.

    Examples:
        >>> from hewfl import worst_case_kappa
        >>> worst_case_kappa("trimmed-mean", 20, 5)
        0.5
    """
    n, f = whole("n", n, least=1), whole("f", f, least=0)
    if 2 * f >= n:
        raise invalid("f", f"below half of the {n} clients", f)
    m = n - f
    if rule == "trimmed-mean":
        kappa = f / (n - 2 * f)
    elif rule == "coordinate-median":
        b = (n - 1) // 2
        kappa = b / (m - b)
    elif rule == "geometric-median":
        kappa = 4 * (m / (n - 2 * f)) ** 2
    elif rule in ("krum", "multi-krum"):
        h = n - 2 * f - 1
        if h < 1 or m < 2:
            return inf
        kappa = (sqrt(2 * m * (m - 2) / ((m - 1) * h)) + sqrt((m - h) / h)) ** 2
    else:
        known = "trimmed-mean, coordinate-median, geometric-median, krum, multi-krum"
        raise invalid("rule", f"one of {known}", format_value(rule))
    return 8 * f / m * (kappa + 1) if mixed else kappa


# ------------------ in every transport


@final
@dataclass(frozen=True, slots=True)
class Certified(Aggregator):
    """Any aggregator, with the certificate of robustness of every step.

    `Decision.measured` has `kappa`, `kappa_lower`, `kappa_upper` and f as `kappa_f`,
    which traces, Flower's metrics and torch's reports show. Those that are infinite are
    left out, and the status has them.

    With `refuse_above` a round is rejected unless κ̂ is certainly no larger: the model
    and all states stay as they are, and the next round goes on. A round in which f is
    not below half of the clients present has no certificate, and is rejected too.

    The certificate is of the aggregated step: what a server step adds, such as
    momentum, is not part of it. Rules that give weights are certified from products of
    the updates. Others, such as the coordinate-wise median, read the entries once more.

    Attributes:
        rule: the aggregator; last, after a `Pipeline`, so that the certificate is about
            the updates that arrived.
        f: clients that may be faulty: an int is their number, a float their share of
            the clients present, rounded down.
        refuse_above: largest κ̂ that is accepted; None accepts every round.
        work: additions of branch and bound (`robustness_certificate`).

    Examples:
        >>> import numpy as np
        >>> from hewfl.aggregators import Certified, Mean
        >>> updates = np.array([[1.0, 0.0], [1.2, 0.1], [0.9, -0.1], [-9.0, 3.0]])
        >>> decision, _ = Certified(Mean(), f=1, refuse_above=4.0)(updates)
        >>> decision.rejected
        True
    """

    rule: Aggregator
    f: Faulty = 0.2
    refuse_above: Positive | None = None
    work: int = WORK

    def __post_init__(self) -> None:
        """Check ranges, and that an aggregator was given."""
        check_fields(self)
        whole("work", self.work, least=0)
        if not isinstance(self.rule, Aggregator):
            rule = "an aggregator, such as GeometricMedian()"
            raise invalid("rule", rule, format_value(self.rule))

    @property
    def name(self) -> str:
        """The rule's name."""
        return f"{self.rule.name}, certified"

    @property
    def needs(self) -> frozenset[Need]:
        """The rule's."""
        return self.rule.needs

    @property
    def optional(self) -> frozenset[Need]:
        """Of the rule."""
        return self.rule.optional

    @property
    def clips(self) -> bool:
        """As the rule does."""
        return self.rule.clips

    def init(self, n: int, d: int) -> Any:
        """The rule's state."""
        return self.rule.init(n, d)

    def with_truth(self, state: Any, truth: Truth) -> Any:
        """The rule's state with what a simulation knows."""
        if not isinstance(self.rule, Informed):
            return state
        return self.rule.with_truth(state, truth)

    def model(self, round_: Round, state: Any) -> RoundModel | None:
        """The quadratic that the rule minimises, None where it has none."""
        if not isinstance(self.rule, Modelled):
            return None
        return self.rule.model(round_, state)

    def decide(self, round_: Round, state: Any) -> tuple[Decision, Any]:
        """The rule's decision with its certificate; rejected where κ̂ may be larger."""
        decision, after = self.rule.decide(round_, state)
        D = round_.displacements
        present = D.n if round_.present is None else round_.present
        f = assumed_count(self.f, present)
        measured = {**decision.measured, "kappa_f": float(f)}
        if 2 * f >= D.n:
            upper = inf
            text = f"no certificate: {f} faulty of {D.n} clients is not below half"
        else:
            c = _certify(D, decision.weights, decision.step, f, self.work)
            upper, text = c.upper, c.status
            measured |= _finite(c)
        status = f"{decision.status}; {text}"
        if self.refuse_above is None or upper <= self.refuse_above:
            return replace(decision, status=status, measured=measured), after
        status += f"; it may be above {self.refuse_above:g}"
        rejected = replace(decision, status=status, measured=measured, rejected=True)
        return rejected, state


def _finite(c: RobustnessCertificate) -> Mapping[str, float]:
    """The numbers of a certificate that are finite, for traces."""
    numbers = {"kappa": c.kappa, "kappa_lower": c.lower, "kappa_upper": c.upper}
    return {name: value for name, value in numbers.items() if isfinite(value)}
