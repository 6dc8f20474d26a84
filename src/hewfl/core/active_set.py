"""A finite primal active-set method for small quadratics on the simplex.

    min  ⟨c, w⟩ + ½ wᵀ H w   over  w ∈ Δ_n,      H = Hᵀ ⪰ 0.

Wolfe's corral [Wolfe1976] in quadratic form: keep a support S whose columns are
affinely independent, minimise on its face, step to the first bound, drop what hits it.
The factor of H_SS + σ11ᵀ is updated, never recomputed; the lift σ11ᵀ is constant on the
simplex and makes the factor exist where H_SS alone is singular.
"""

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from jaxtyping import Float64
from scipy.linalg import lapack

from hewfl.core.checks import Array

OPTIMALITY = 1e-13
"""τ: a reduced cost below −τ e_i counts as negative; e_i bounds every term in it."""
PIVOT_FLOOR = 1e-14
"""A new pivot is floored here, so a dependent column makes a long step and a swap."""
INDEPENDENT = 1e-8
"""Squared relative pivots above this prove the columns of a support independent."""


class Found(NamedTuple):
    """Outcome of a solver on a prepared problem.

    Attributes:
        weights: on the simplex, whatever happened.
        pivots: exchanges or sweeps made.
        solved: whether the optimality test was passed.
        independent: whether the pivots prove the support affinely independent.
    """

    weights: Float64[Array, " n"]
    pivots: int
    solved: bool
    independent: bool


def error_scale(
    root: Float64[Array, "*batch n"],
    c: Float64[Array, "*batch n"],
    w: Float64[Array, "*batch n"],
) -> Float64[Array, "*batch n"]:
    """Magnitude of the terms in the i-th reduced cost ν − ∇_i, by Cauchy-Schwarz.

        ρ = Σ_j w_j √H_jj,     e_i = |c_i| + √H_ii ρ + Σ_j w_j |c_j| + ρ²

    It has no unit and does not see the scale of columns without weight.

    Args:
        root: √H_ii.
        c: linear term.
        w: weights.
    """
    rho = (w * root).sum(-1, keepdims=True)
    return np.abs(c) + root * rho + (w * np.abs(c)).sum(-1, keepdims=True) + rho**2


@final
@dataclass(slots=True)
class _Face:
    """The support S in order of entry, the factor of H_SS + σ11ᵀ, weights on S."""

    support: list[int]
    factor: Float64[Array, "m m"]  # upper triangular in its leading |S| rows
    weights: Float64[Array, " k"]

    def triangle(self) -> Float64[Array, "k k"]:
        k = len(self.support)
        return self.factor[:k, :k]

    def enter(self, j: int, column: Float64[Array, " k"], corner: float) -> None:
        """Append index j; column = (H + σ11ᵀ)_Sj, corner = (H + σ11ᵀ)_jj."""
        k = len(self.support)
        head, _ = lapack.dtrtrs(self.triangle(), column, trans=1)
        pivot = corner - head @ head
        self.factor[:k, k] = head
        self.factor[k, k] = np.sqrt(max(pivot, PIVOT_FLOOR * corner))
        self.support.append(j)
        self.weights = np.append(self.weights, 0.0)

    def leave(self, p: int) -> None:
        """Delete the p-th member: drop its column, mend the triangle by rotations."""
        k = len(self.support)
        row = self.factor[p, p + 1 : k].copy()
        tail = np.asfortranarray(self.factor[p + 1 : k, p + 1 : k])
        self.factor[:p, p : k - 1] = self.factor[:p, p + 1 : k]
        if p < k - 1:
            tail, _, _, _ = lapack.dtpqrt(0, 1, tail, row[None, :])
            self.factor[p : k - 1, p : k - 1] = np.triu(tail)
        del self.support[p]
        self.weights = np.delete(self.weights, p)

    def independence(self, H: Float64[Array, "n n"], sigma: float) -> float:
        """Smallest squared pivot over diagonal of the factor."""
        corner = np.diagonal(H)[self.support] + sigma
        return float((np.diagonal(self.triangle()) ** 2 / corner).min())

    def newton(self, gradient: Float64[Array, " k"]) -> Float64[Array, " k"]:
        """Step δ to the minimiser on the affine hull: (H_SS)δ = −∇_S + ν1, 1ᵀδ = 0."""
        right = np.stack([np.ones_like(gradient), -gradient], axis=1)
        half, _ = lapack.dtrtrs(self.triangle(), right, trans=1)
        both, _ = lapack.dtrtrs(self.triangle(), half)
        u, p = both[:, 0], both[:, 1]
        step: Float64[Array, " k"] = p - (p.sum() / u.sum()) * u
        return step


def active_set(
    H: Float64[Array, "n n"],
    c: Float64[Array, " n"],
    start: Float64[Array, " n"] | None = None,
    max_pivots: int | None = None,
) -> Found:
    """Minimise ⟨c, w⟩ + ½ wᵀHw over the simplex.

    Args:
        H: symmetric positive semidefinite, largest entry near one.
        c: linear term on the same scale; a constant added to it changes nothing.
        start: weights to start from (their support is the first face).
        max_pivots: give up after so many exchanges.
    """
    n = len(c)
    root, sigma = np.sqrt(np.diagonal(H)), _lift(H)
    face = _first_face(H, c, start, sigma)
    c = c - c[face.support[int(np.argmax(face.weights))]]
    limit = 20 * n + 100 if max_pivots is None else max_pivots
    banned: set[int] = set()
    pivots, w = 0, np.zeros(n)
    _descend(face, H[np.ix_(face.support, face.support)] @ face.weights + c[face.support])
    while True:
        w = np.zeros(n)
        w[face.support] = face.weights
        gradient = H[face.support].T @ face.weights + c
        violation = w @ gradient - gradient
        violation /= np.maximum(error_scale(root, c, w), 1e-300)
        violation[face.support + list(banned)] = -np.inf
        j = int(np.argmax(violation))
        if violation[j] <= OPTIMALITY or pivots == limit:
            solved = bool(violation[j] <= OPTIMALITY) and not banned
            return Found(w, pivots, solved, face.independence(H, sigma) > INDEPENDENT)
        face.enter(j, H[face.support, j] + sigma, H[j, j] + sigma)
        moved = _descend(face, gradient[face.support], entered=True)
        banned = set() if moved else banned | {j}  # refused at step zero: wait
        pivots += 1


def _lift(H: Float64[Array, "n n"]) -> float:
    diagonal = np.diagonal(H)
    return float(np.median(diagonal) or np.mean(diagonal) or 1.0)


def _first_face(
    H: Float64[Array, "n n"], c: Float64[Array, " n"], start: Array | None, sigma: float
) -> _Face:
    """The support of `start` where it is independent, else the best vertex."""
    n = len(c)
    room = np.zeros((n, n), order="F")
    if start is not None:
        members = np.flatnonzero(start)
        factor, info = lapack.dpotrf(H[np.ix_(members, members)] + sigma, clean=1)
        if info == 0:
            room[: len(members), : len(members)] = factor
            weights = start[members] / start.sum()
            return _Face([int(i) for i in members], room, weights)
    vertex = int(np.argmin(0.5 * np.diagonal(H) + c))
    room[0, 0] = np.sqrt(H[vertex, vertex] + sigma)
    return _Face([vertex], room, np.ones(1))


def _descend(
    face: _Face, gradient: Float64[Array, " k"], *, entered: bool = False
) -> bool:
    """Go to the minimiser on the face, dropping members that reach zero on the way.

    After a step αδ the gradient on the face is (1 − α) times the old one, up to a
    constant that no step sees.

    Returns:
        Whether the weights moved; False if the member just entered left at once.
    """
    moved = False
    while len(face.support) > 1:
        step = face.newton(gradient)
        if entered and step[-1] <= 0:
            face.leave(len(step) - 1)
            return False
        entered = False
        target = face.weights + step
        if (target > 0).all():
            face.weights = target / target.sum()
            return True
        falling = target <= 0
        ratio = np.full(len(step), np.inf)
        ratio[falling] = face.weights[falling] / -step[falling]
        p = int(np.argmin(ratio))
        alpha = min(float(ratio[p]), 1.0)
        moved = moved or alpha > 0
        face.weights = np.maximum(face.weights + alpha * step, 0.0)
        gradient = np.delete((1.0 - alpha) * gradient, p)
        face.leave(p)
    face.weights = np.ones(1)
    return moved
