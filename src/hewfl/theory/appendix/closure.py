"""Fenchel-Young closure: product terms of a one-step bound split into separate ones.

    a·b ≤ φ*(a) + φ(b),     φ*(α) = sup over β ≥ 0 of αβ − φ(β)

so that a bound with products of what the control sets (a) and what the state is (b)
becomes a kernel in which the two stand apart (ass:raw, thm:FY_closure).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Reals,
    as_float64,
    invalid,
    nonnegatives,
    positives,
)
from hewfl.theory.appendix.generators import Generator
from hewfl.theory.statement import Bound, Hypothesis, at_most


@final
@dataclass(frozen=True, slots=True, eq=False)
class YoungPair:
    """A convex φ on [0, ∞) and its conjugate φ*, as elementwise functions.

    φ* may be any upper bound of the conjugate; `young_hypothesis` tests the pair.
    """

    phi: Callable[..., Any]
    phi_star: Callable[..., Any]

    def primal(self, level: ArrayLike) -> Reals:
        """φ(β) for β ≥ 0."""
        return np.asarray(self.phi(nonnegatives("level", level)), dtype=np.float64)

    def conjugate(self, gain: ArrayLike) -> Reals:
        """φ*(α) for α ≥ 0."""
        return np.asarray(self.phi_star(nonnegatives("gain", gain)), dtype=np.float64)


@broadcasting
def power_pair(exponent: ArrayLike = 2.0, weight: ArrayLike = 1.0) -> YoungPair:
    """φ(β) = cβ^q/q and φ*(α) = c(α/c)^{q'}/q', 1/q + 1/q' = 1, for q > 1 and c > 0.

    q = 2 is the quadratic pair cβ²/2, α²/(2c). αβ is met exactly at c = α/β^{q−1}.
    """
    q, c = as_float64("exponent", exponent), positives("weight", weight)
    if not (q > 1).all():
        raise invalid("exponent", "above 1", q[~(q > 1)].flat[0])
    np.broadcast_shapes(q.shape, c.shape)  # or say so now
    return YoungPair(
        lambda beta: c * beta ** (q - 1) / q * beta,
        lambda alpha: (alpha / c) ** (1 / (q - 1)) * ((q - 1) / q) * alpha,
    )


@broadcasting
def young_hypothesis(
    pair: YoungPair, gains: ArrayLike, levels: ArrayLike
) -> Hypothesis:
    """αβ ≤ φ*(α) + φ(β) for each given (α, β), up to rounding."""
    alpha, beta = nonnegatives("gains", gains), nonnegatives("levels", levels)
    bound = (pair.conjugate(alpha) + pair.primal(beta)) * (1 + 1e-14)
    return at_most("αβ ≤ φ*(α) + φ(β)", alpha * beta, bound)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """One product term a(y, u)·b(y) and the pair that splits it."""

    gain: Callable[..., Any]  # a(y, u) ≥ 0, the factor in which the control enters
    level: Callable[..., Any]  # b(y) ≥ 0
    pair: YoungPair


@final
@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """The raw one-step bound of one coordinate: A(y, u) + Σ_j a_j(y, u) b_j(y)."""

    base: Callable[..., Any]  # A(y, u) ≥ 0
    products: tuple[Product, ...] = ()


@broadcasting
def raw_kernel(
    envelopes: Sequence[Envelope], state: ArrayLike, control: Any
) -> Float64[Array, "*c coordinates"]:
    """The bounds as they come, products and all (eq:raw0, eq:rawi).

    The state y ≥ 0 has its coordinates (D_h, z_1, ..., z_m) last, one per envelope; the
    control u is passed to the envelopes unchanged.
    """
    return _stack_bounds(envelopes, state, control, lambda _pair, a, b: a * b)


@broadcasting
def closed_kernel(
    envelopes: Sequence[Envelope], state: ArrayLike, control: Any
) -> Float64[Array, "*c coordinates"]:
    """The kernel B(y, u) = (U_0, ..., U_m) (thm:FY_closure, eq:FY_upperized).

        U_i = A_i(y, u) + Σ_j φ*_ij(a_ij(y, u)) + Σ_j φ_ij(b_ij(y))

    Never below `raw_kernel`, coordinate by coordinate.
    """

    def split(pair: YoungPair, a: Reals, b: Reals) -> Reals:
        return np.asarray(pair.conjugate(a) + pair.primal(b))

    return _stack_bounds(envelopes, state, control, split)


@broadcasting
def scalar_shadow(
    generator: Generator,
    amplitude: ArrayLike,
    functional: ArrayLike,
    terms: tuple[ArrayLike, ArrayLike],
    state: ArrayLike,
) -> Bound:
    """Bound on E s⁺ of the gauge s = Ψ(Y) of a vector recursion (prop:vector_scalar).

        E Y⁺ ≼ Φ_α(Y) + M Y + q  implies  E s⁺ ≤ R_α(s) + β s + δ      (eq:scalar_rec)

    on the orthant K = [0, ∞)ᵐ with Ψ(y) = ⟨ψ, y⟩, ψ > 0, coordinates last, for a matrix
    M ≥ 0 and a vector q ≥ 0 (`terms`) and any cone semigroup Φ whose shadow
    is R (ass:cone_semigroup). β is the least number with ψᵀM ≤ βψᵀ (eq:M_bound), and
    δ = ⟨ψ, q⟩ (eq:delta).
    """
    psi = np.atleast_1d(positives("functional", functional))
    M, q = as_float64("terms", terms[0]), as_float64("terms", terms[1])
    m = psi.shape[-1]
    if M.shape[-2:] != (m, m) or q.shape[-1:] != (m,):
        rule = f"a matrix of shape (*c, {m}, {m}) and a vector of shape (*c, {m})"
        raise invalid("terms", rule, f"shapes {M.shape} and {q.shape}")
    s = np.asarray((psi * nonnegatives("state", state)).sum(-1))
    beta = ((psi[..., None] * M).sum(-2) / psi).max(-1)
    flow = generator.flow(nonnegatives("amplitude", amplitude), s)
    met = (
        at_most("0 ≤ M", 0.0, M.min((-2, -1))),
        at_most("0 ≤ q", 0.0, q.min(-1)),
    )
    value = np.asarray(flow + beta * s + (psi * q).sum(-1))
    return Bound("prop:vector_scalar", value, met)


def _stack_bounds(
    envelopes: Sequence[Envelope],
    state: ArrayLike,
    control: Any,
    term: Callable[..., Any],
) -> Float64[Array, "*c coordinates"]:
    y = nonnegatives("state", state)
    if y.ndim == 0 or y.shape[-1] != len(envelopes):
        rule = f"of shape (*c, {len(envelopes)}), one entry per envelope"
        raise invalid("state", rule, f"shape {y.shape}")
    rows = []
    for envelope in envelopes:
        row = nonnegatives("base", envelope.base(y, control))
        for product in envelope.products:
            a = nonnegatives("gain", product.gain(y, control))
            row = row + term(product.pair, a, nonnegatives("level", product.level(y)))
        rows.append(row)
    return np.stack(np.broadcast_arrays(*rows), axis=-1)
