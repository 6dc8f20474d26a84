"""The weight law of the predictive controller: gain against diagonal risk, exactly.

    min over w ∈ Δ_n of  −⟨μ, w⟩ + ½ Σ_i r_i w_i²

Sorting by gain turns the KKT conditions into one scan (prop:KKT). The scan only adds
numbers of one sign, so the weights keep their digits whatever the offset of the gains
and however many decades the risks span.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from hewfl.core.array_types import Float64
from hewfl.core.records import SimplexSolution
from hewfl.core.validation import Array, ArrayLike, as_float64, invalid

UNIQUE = "optimal: threshold law, unique minimiser"
LEAST_NORM = "optimal: threshold law, least-norm split over riskless clients"
_TOP = 900
"""The largest risk or spread of gains is scaled to 2^900 and risks are kept above
2^−900: inverse risks and their sums stay in range, over 540 decades of risk."""


def threshold_weights(gains: ArrayLike, risks: ArrayLike) -> SimplexSolution:
    """Weights that trade gain against risk over the simplex, exactly.

        w* = argmin over w ∈ Δ_n of  −⟨μ, w⟩ + ½ Σ_i r_i w_i²
        w*_i = (μ_i − λ)₊ / r_i,  λ such that Σ_i w*_i = 1                    (prop:KKT)

    In the paper r_i = L κ_i. Riskless clients (r_i = 0, erratum E-05) hold λ at or
    above their best gain; what the others leave is split equally over those who
    attain it, which is the least-norm minimiser. Batch dimensions are solved together.

    Args:
        gains: μ, shape (*batch, n) after broadcasting against `risks`.
        risks: r ≥ 0, shape (*batch, n) after broadcasting against `gains`.

    Returns:
        Weights with value, multipliers and certified gap.

    Raises:
        InvalidInputError: an argument breaks a rule above.

    Examples:
        >>> threshold_weights([1.0, 0.5, -3.0], [1.0, 0.5, 1.0]).weights
        array([0.66666667, 0.33333333, 0.        ])
    """
    mu, r = _problem(gains, risks)
    law = threshold_law(mu, r)
    w = law.weights
    gradient = r * w - law.above(mu)  # up to the constant −λ
    multipliers = gradient - gradient.min(-1, keepdims=True)
    return SimplexSolution(
        weights=w,
        value=np.asarray((w * (0.5 * r * w - mu)).sum(-1)),
        gap=np.asarray((w * multipliers).sum(-1)),
        multipliers=multipliers,
        support=w > 0,
        iterations=np.ones(w.shape[:-1], dtype=np.int64),
        status=LEAST_NORM if law.is_split else UNIQUE,
    )


def _problem(
    gains: ArrayLike, risks: ArrayLike
) -> tuple[Float64[Array, "*batch n"], Float64[Array, "*batch n"]]:
    """Gains and risks of one common shape, checked."""
    mu, r = as_float64("gains", gains), as_float64("risks", risks)
    if mu.shape != r.shape:
        try:
            mu, r = np.broadcast_arrays(mu, r)
        except ValueError as error:
            rule = f"of a shape that broadcasts with {mu.shape} of `gains`"
            raise invalid("risks", rule, r.shape) from error
    if mu.ndim == 0 or mu.size == 0:
        raise invalid("gains", "of shape (*batch, n), n ≥ 1, with `risks`", mu.shape)
    if r.min() < 0:
        raise invalid("risks", "nonnegative", r.min())
    low, high = float(mu.min()), float(mu.max())
    if high - low == np.inf:
        raise invalid("gains", "a finite distance apart", f"{low} and {high}")
    return mu, r


@final
@dataclass(frozen=True, slots=True)
class ThresholdLaw:
    """Weights and the threshold behind them, λ = reference − depth.

    The threshold is kept in two parts because w_i = (μ_i − λ) / r_i needs its distance
    from the gains to full relative precision, which λ itself cannot hold.

    Attributes:
        weights: w, nonnegative, summing to one.
        reference: the smallest gain on the support.
        depth: how far below it the threshold lies, ≥ 0.
        is_split: whether several riskless clients share what the others leave.
    """

    weights: Float64[Array, "*batch n"]
    reference: Float64[Array, "*batch 1"]
    depth: Float64[Array, "*batch 1"]
    is_split: bool

    @property
    def level(self) -> float:
        """λ of a single problem, rounded."""
        return float((self.reference - self.depth).item())

    def above(self, gains: Float64[Array, "*batch n"]) -> Float64[Array, "*batch n"]:
        """μ_i − λ."""
        return (gains - self.reference) + self.depth


def threshold_law(
    gains: Float64[Array, "*batch n"], risks: Float64[Array, "*batch n"]
) -> ThresholdLaw:
    """The threshold law on checked arrays, for callers that solve many problems.

    With gains in decreasing order, the mass the first k clients take when the threshold
    stands at the k-th gain grows by terms of one sign,

        F_k = Σ_{i≤k} (μ_i − μ_k)/r_i,    F_{k+1} = F_k + (μ_k − μ_{k+1}) Σ_{i≤k} 1/r_i,

    and the support ends at the last k with F_k < 1, where

        depth = (1 − F_k) / Σ_{i≤k} 1/r_i,    w_i = ((μ_i − μ_k) + depth) / r_i.

    Args:
        gains: μ, finite.
        risks: r ≥ 0.

    Returns:
        Weights and threshold.
    """
    order = np.argsort(-gains, axis=-1, kind="stable")
    mu, r = _pick(gains, order), _pick(risks, order)
    unit = _exponent(mu, r)
    S, F, last = _scan(mu, r, unit)
    mu_k, S_k, F_k, r_k = (_pick(values, last) for values in (mu, S, F, r))
    depth = (1 - F_k) / np.where(r_k > 0, S_k, np.inf)
    above = np.ldexp(gains - mu_k, unit) + depth
    w = np.zeros(gains.shape)
    inside = (gains >= mu_k) & (risks > 0)
    np.divide(above, _scale(risks, unit), out=w, where=inside)
    riskless_best = (r_k == 0) & (risks == 0) & (gains == mu_k)
    parts = _split_rest(w, riskless_best) if riskless_best.any() else 0
    w /= w.sum(-1, keepdims=True)
    return ThresholdLaw(w, mu_k, np.ldexp(depth, -unit), parts > 1)


def _scan(
    mu: Array, r: Array, unit: NDArray[np.intc]
) -> tuple[Array, Array, NDArray[np.intp]]:
    """S_k = Σ_{i≤k} 1/r_i and F_k for every k, and the last k of the support.

    The support never goes past the first riskless client.
    """
    riskless = r == 0
    S = np.cumsum(np.where(riskless, 0.0, 1.0 / _scale(r, unit)), axis=-1)
    F = np.zeros(S.shape)
    with np.errstate(over="ignore"):  # an infinite F is beyond the support
        growth = S[..., :-1] * np.ldexp(mu[..., :-1] - mu[..., 1:], unit)
        np.cumsum(growth, axis=-1, out=F[..., 1:])
    reached = F < 1
    reached[..., 1:] &= ~np.logical_or.accumulate(riskless, axis=-1)[..., :-1]
    return S, F, reached.sum(-1, keepdims=True) - 1


def _split_rest(w: Array, clients: NDArray[np.bool_]) -> int:
    """Give `clients` equal parts of the mass that is left, in place (E-05)."""
    parts = clients.sum(-1, keepdims=True)
    rest = np.maximum(1 - w.sum(-1, keepdims=True), 0.0)
    np.copyto(w, rest / np.maximum(parts, 1), where=clients)
    return int(np.max(parts, where=rest > 0, initial=0))


def _pick(values: Array, index: NDArray[np.intp]) -> Array:
    """Entries along the last axis; plain indexing is ten times faster where it can."""
    return values[index] if values.ndim == 1 else np.take_along_axis(values, index, -1)


def _exponent(mu: Array, r: Array) -> NDArray[np.intc]:
    """The power of two that brings the largest risk or spread of gains to 2^900."""
    top = np.maximum(mu[..., :1] - mu[..., -1:], r.max(-1, keepdims=True))
    exponent: NDArray[np.intc] = _TOP - np.frexp(top)[1]
    return exponent


def _scale(r: Array, unit: NDArray[np.intc]) -> Array:
    """Risks in the unit of `_exponent`, kept away from zero."""
    return np.maximum(np.ldexp(r, unit), 2.0**-_TOP)
