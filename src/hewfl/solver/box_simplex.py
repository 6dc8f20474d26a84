"""The shortest combination of vectors with every weight in an interval of its own.

    min ½ ‖Σ_i λ_i u_i‖²   over   Σ_i λ_i = 1,   l ≤ λ ≤ u

FedMGDA+ keeps its weights near given ones and then solves this problem. Around the
shortest vector r it reads ⟨c, λ⟩ + ½ λᵀGλ, with G and c the inner products of u_i − r
among themselves and with r. A primal active set on a slightly lifted G finds
which bounds hold, and the least-norm minimiser with these bounds is the answer. The
certificate is the Frank-Wolfe gap over the same set: its best vertex is a greedy
filling, so anyone can recompute it.
"""

import numpy as np

from hewfl.core.array_types import Bool, Float64
from hewfl.core.displacements import RoundProducts
from hewfl.core.validation import Array, Mask, PerClient
from hewfl.errors import SolverError
from hewfl.solver import lapack

LIFT = 1e-11
"""Added to the diagonal of G, relative to its largest entry: makes the minimiser unique
and nearly the least-norm one."""
RANK = 1e-11
"""Eigenvalues of a face below this × largest diagonal entry of G count as zero."""
EXACT = 1e-13
"""Gap of a least-norm point that is taken for the answer, over the largest ‖u_i‖²."""
ACCEPTED = 1e-10
"""A gap above this is a failure, over the same."""


def solve_box_simplex(
    products: RoundProducts, lower: PerClient, upper: PerClient, start: PerClient
) -> tuple[PerClient, float]:
    """Weights in a box on the simplex that make the combination shortest.

    Takes one factorisation for each bound that becomes or ceases to be active.

    Args:
        products: of the vectors, as `Displacements.products()` gives them.
        lower: l ≥ 0, with Σl ≤ 1.
        upper: u ≥ l, with Σu ≥ 1.
        start: any point of the set.

    Returns:
        λ, the least-norm minimiser, and its certified gap; where rounding blurs the
        face λ is the minimiser of the lifted problem, and the gap says so.

    Raises:
        SolverError: the gap is above rounding; the text gives it.
    """
    G, c = products.gram, products.linear
    size = float(np.diagonal(products.uncentred_gram()).max())
    bend = float(np.diagonal(G).max())
    if bend == 0.0:  # equal vectors: any point will do, so the one of least norm
        G, c, bend = np.eye(len(start)), np.zeros(len(start)), 1.0
    lifted = G + LIFT * bend * np.eye(len(start))
    w, free, cost = _active_set(lifted, c, (lower, upper), start)
    for face in (np.abs(cost) <= 10 * LIFT * bend, free):
        exact = _least_norm_on_face(G, c, w, free | face, RANK * bend)
        inside = np.clip(exact, lower, upper)
        gap = box_simplex_gap(products.gram @ inside + c, lower, upper, inside)
        if np.abs(inside - exact).max() <= EXACT and gap <= EXACT * size:
            return inside, gap
    gap = box_simplex_gap(products.gram @ w + c, lower, upper, w)
    if gap > ACCEPTED * size:
        text = f"the weights in a box were not found: gap {gap:.1e}, size {size:.1e}"
        raise SolverError(text)
    return w, gap


def box_simplex_gap(
    gradient: PerClient, lower: PerClient, upper: PerClient, weights: PerClient
) -> float:
    """The largest ⟨∇, λ − v⟩ over v in the set: no less than the excess at λ.

    The best v fills the smallest entries of ∇ first; a constant in ∇ does not matter.
    """
    order = np.argsort(gradient, kind="stable")
    filled = np.cumsum((upper - lower)[order])
    vertex = lower.copy()
    vertex[order] += np.diff(np.minimum(filled, 1 - lower.sum()), prepend=0.0)
    return max(0.0, float(gradient @ (weights - vertex)))


def _active_set(
    H: Float64[Array, "n n"],
    c: PerClient,
    box: tuple[PerClient, PerClient],
    start: PerClient,
) -> tuple[PerClient, Bool[Mask, " n"], PerClient]:
    """The minimiser for definite H, which weights are free, and reduced costs."""
    lower, upper = box
    w, free = start.copy(), np.ones(len(start), dtype=np.bool_)
    cost = np.full(len(w), np.inf)
    slack = 1e-15 * float(np.diagonal(H).max())  # rounding of a reduced cost
    for _ in range(100 + 20 * len(w)):
        step, level = _newton(H, c, w, free)
        end = np.where(step > 0, upper, lower)
        reach = np.divide(end - w, step, out=np.full(len(w), np.inf), where=step != 0)
        first = int(np.argmin(reach))
        if reach[first] < 1:
            w = np.clip(w + reach[first] * step, lower, upper)
            w[first], free[first] = end[first], False
            continue
        w = np.clip(w + step, lower, upper)
        cost = H @ w + c - level
        inwards = np.where(free, 0.0, np.where(w == lower, -cost, cost))
        worst = int(np.argmax(inwards))
        if inwards[worst] <= slack:
            break
        free[worst] = True
    return w, free, cost


def _newton(
    H: Float64[Array, "n n"], c: PerClient, w: PerClient, free: Bool[Mask, " n"]
) -> tuple[PerClient, float]:
    """Step of the free weights, of sum zero, to a level gradient; and that level."""
    F = np.flatnonzero(free)
    gradient = H[F] @ w + c[F]
    if len(F) == 1:
        return np.zeros_like(w), float(gradient[0])
    factor, info = lapack.dpotrf(H[np.ix_(F, F)])
    if info != 0:
        raise SolverError("the vectors are not finite, or too long for their products")
    a, b = lapack.dpotrs(factor, np.stack([gradient, np.ones(len(F))], axis=1))[0].T
    level = float(a.sum() / b.sum())
    step = np.zeros_like(w)
    step[F] = level * b - a
    step[F] -= step[F].mean()
    return step, level


def _least_norm_on_face(
    G: Float64[Array, "n n"],
    c: PerClient,
    w: PerClient,
    free: Bool[Mask, " n"],
    cut: float,
) -> PerClient:
    """The shortest minimiser with the same weights at their bounds.

    λ_F = ρ/|F| + z, where ρ is what the bounds leave, z sums to zero and solves
    P G_FF P z = −P (Gλ + c)_F at z = 0 in the least-norm sense; P centres.
    """
    F = np.flatnonzero(free)
    flat = w.copy()
    flat[F] = (1 - w[~free].sum()) / len(F)
    block = G[np.ix_(F, F)]
    centred = block - block.mean(axis=0) - block.mean(axis=1)[:, None] + block.mean()
    values, vectors = np.linalg.eigh(centred)
    ranked = values > cut
    slope = G[F] @ flat + c[F]
    along = vectors[:, ranked].T @ (slope - slope.mean())
    flat[F] -= vectors[:, ranked] @ (along / values[ranked])
    return flat
