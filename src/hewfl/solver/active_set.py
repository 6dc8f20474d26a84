r"""A finite primal active-set method for small quadratics on the simplex.

    min  ⟨c, w⟩ + ½ wᵀ H w   over  w ∈ Δ_n,      H = Hᵀ ⪰ 0.

Wolfe's corral [Wolfe1976] in quadratic form: keep a support S whose columns are
affinely independent, minimise on its face, step to the first bound, drop what hits it.
A face is factorised around its shortest member o,

    M_ij = H_ij − H_io − H_oj + H_oo,     i, j ∈ S \ {o},

so the constraint Σw_i = 1 disappears and short columns keep their digits beside long
ones. The factor is updated as members come and go; only a new origin starts it afresh.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from hewfl.core.array_types import Float64, Int64
from hewfl.core.native import SOLVER, library
from hewfl.core.validation import Array, Ints
from hewfl.solver import lapack

Index = Int64[Ints, " _"]
"""Places of some clients."""

OPTIMALITY = 1e-13
"""τ: a reduced cost below −τ e_i counts as negative; e_i bounds every term in it."""
PIVOT_FLOOR = 1e-14
"""A new pivot is floored here, so a dependent column makes a long step and a swap."""
INDEPENDENT = 1e-8
"""Squared relative pivots above this prove the columns of a support independent."""
REFINEMENTS = 5
"""Newton steps on a finished face to bring its members level."""


@final
@dataclass(frozen=True, slots=True)
class SolverResult:
    """Result of a solver on a scaled problem.

    Attributes:
        weights: on the simplex, solved or not.
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

    Returns:
        e, positive: a reduced cost is judged against it, never against a fixed number.
    """
    rho = (w * root).sum(-1, keepdims=True)
    mass = (w * np.abs(c)).sum(-1, keepdims=True)
    scale: Array = np.abs(c) + root * rho + mass + rho**2
    return np.maximum(scale, 1e-300)


def gram_around(
    H: Float64[Array, "n n"], origin: int, rows: list[int], columns: list[int]
) -> Float64[Array, "k m"]:
    """M restricted to rows × columns: inner products of differences to the origin.

    Args:
        H: the whole matrix.
        origin: o.
        rows: indices i.
        columns: indices j.

    Returns:
        M_ij = H_ij − H_io − H_oj + H_oo.
    """
    # In pairs: where i and o are close, each pair is small and nearly exact. Summed in
    # another order, what is left would be the rounding of the largest term.
    M: Array = H[np.ix_(rows, columns)]
    M -= H[rows, origin][:, None]
    M -= H[origin, columns] - H[origin, origin]
    return M


@final
@dataclass(slots=True)
class _Face:
    """The support, its origin first; the factor of M; weights in the same order."""

    H: Float64[Array, "n n"]
    support: list[int]
    weights: Float64[Array, " k"]
    factor: Float64[Array, "m m"]  # upper triangular in its leading |S| − 1 rows

    def refactor(self) -> bool:
        """Origin at the shortest member, factor afresh; False if it does not exist."""
        # Around a long member all differences are long and nearly equal, and short
        # columns lose their digits; around the shortest one they keep them.
        first = int(np.argmin(np.diagonal(self.H)[self.support]))
        order = [first, *(i for i in range(len(self.support)) if i != first)]
        self.support = [self.support[i] for i in order]
        self.weights = self.weights[order]
        origin, *rest = self.support
        if not rest:
            return True
        M = gram_around(self.H, origin, rest, rest)
        whole, info = lapack.dpotrf(M, clean=1)
        k = len(rest) if info == 0 else info - 1
        self.factor[:k, :k] = whole[:k, :k]
        for i in range(k, len(rest)):
            self._append(i, rest)
        return bool(info == 0)

    def _append(self, k: int, rest: list[int]) -> None:
        origin, j = self.support[0], rest[k]
        column = gram_around(self.H, origin, [*rest[:k], j], [j])[:, 0]
        head = column[:k]
        if k > 0:
            head, _ = lapack.dtrtrs(self.factor[:k, :k], head, trans=1)
        corner = float(column[k])
        size = float(self.H[j, j] + self.H[origin, origin])
        # A column that depends on others has a pivot of zero, by rounding perhaps
        # a negative one: its root would be nan. Floored, it makes a very long step
        # that ends at a bound at once, so that it replaces one of those.
        floor = PIVOT_FLOOR * abs(corner) + 1e-30 * size + 1e-300
        self.factor[:k, k] = head
        with np.errstate(over="ignore"):  # beyond a floored pivot anything goes
            pivot = corner - float(head @ head)
        self.factor[k, k] = np.sqrt(max(pivot, floor))

    def enter(self, j: int) -> None:
        """Append index j; a much shorter column becomes the origin."""
        self.support.append(j)
        self.weights = np.append(self.weights, 0.0)
        if self.H[j, j] < 0.01 * self.H[self.support[0], self.support[0]]:
            self.refactor()
        else:
            self._append(len(self.support) - 2, self.support[1:])

    def leave(self, m: int) -> None:
        """Delete the m-th member: drop its column, mend the triangle by rotations."""
        k, p = len(self.support) - 1, m - 1
        del self.support[m]
        self.weights = np.delete(self.weights, m)
        if m == 0:
            self.refactor()
            return
        row = self.factor[p, p + 1 : k].copy()
        tail = np.asfortranarray(self.factor[p + 1 : k, p + 1 : k])
        self.factor[:p, p : k - 1] = self.factor[:p, p + 1 : k]
        if p < k - 1:  # orthogonal: no digits go, however many members leave in a row
            tail, _, _, _ = lapack.dtpqrt(0, 1, tail, row[None, :])
            self.factor[p : k - 1, p : k - 1] = np.triu(tail)

    def newton(self, gradient: Float64[Array, " n"]) -> Float64[Array, " k"]:
        """Step δ to the minimiser on the affine hull: Mδ = ∇_o − ∇, δ_o = −Σδ."""
        k = len(self.support) - 1
        rest = gradient[self.support[0]] - gradient[self.support[1:]]
        half, _ = lapack.dtrtrs(self.factor[:k, :k], rest, trans=1)
        step, _ = lapack.dtrtrs(self.factor[:k, :k], half)
        return np.concatenate([[-step.sum()], step])

    def independence(self) -> float:
        """Smallest squared pivot over diagonal of the factor."""
        origin, *rest = self.support
        if not rest:
            return 1.0
        H, k = self.H, len(rest)
        to_origin = H[rest, origin]
        corner = (np.diagonal(H)[rest] - to_origin) - (to_origin - H[origin, origin])
        pivots = np.diagonal(self.factor[:k, :k]) ** 2
        return float((pivots / np.maximum(corner, 1e-300)).min())


def is_independent(H: Float64[Array, "n n"], w: Float64[Array, " n"]) -> bool:
    """Whether a factorisation proves the support of w affinely independent.

    Args:
        H: symmetric positive semidefinite.
        w: weights whose support is tested.
    """
    S = np.flatnonzero(w)
    factor = np.zeros((len(S), len(S)), order="F")
    face = _Face(H, [int(i) for i in S], w[S], factor)
    return face.refactor() and face.independence() > INDEPENDENT


def active_set(
    H: Float64[Array, "n n"],
    c: Float64[Array, " n"],
    start: Float64[Array, " n"] | None = None,
    max_pivots: int | None = None,
) -> SolverResult:
    """Minimise ⟨c, w⟩ + ½ wᵀHw over the simplex.

    Args:
        H: symmetric positive semidefinite, largest entry near one.
        c: linear term on the same scale; a constant added to it changes nothing.
        start: weights to start from (their support is the first face).
        max_pivots: give up after so many exchanges.

    Returns:
        The weights, and whether they passed the optimality test.
    """
    n = len(c)
    root = np.sqrt(np.diagonal(H))
    face = _first_face(H, c, start)
    # A large constant in c would round away the differences that decide.
    c = c - c[face.support[int(np.argmax(face.weights))]]
    limit = 20 * n + 100 if max_pivots is None else max_pivots
    banned: set[int] = set()
    pivots, refined = 0, 0
    _descend(face, _gradient(face, c))
    while True:
        w = np.zeros(n)
        w[face.support] = face.weights
        gradient = _gradient(face, c)
        violation = (w @ gradient - gradient) / error_scale(root, c, w)
        level = float(violation[face.support].max()) <= OPTIMALITY
        violation[face.support + list(banned)] = -np.inf
        j = int(np.argmax(violation))
        if violation[j] <= OPTIMALITY and not level and refined < REFINEMENTS:
            _descend(face, gradient)
            refined += 1
        elif violation[j] <= OPTIMALITY or pivots == limit:
            solved = bool(violation[j] <= OPTIMALITY) and level and not banned
            return SolverResult(w, pivots, solved, face.independence() > INDEPENDENT)
        else:
            face.enter(j)
            moved = _descend(face, gradient, entered=j)
            # Refused at step zero: among ties it would enter and leave for ever.
            banned = set() if moved else banned | {j}
            refined = 0 if moved else refined
            pivots += 1


def _gradient(face: _Face, c: Float64[Array, " n"]) -> Float64[Array, " n"]:
    gradient: Array = face.H[face.support].T @ face.weights + c
    return gradient


def _first_face(
    H: Float64[Array, "n n"], c: Float64[Array, " n"], start: Array | None
) -> _Face:
    """The support of `start` where it is independent, else the best vertex."""
    factor = np.zeros((len(c), len(c)), order="F")
    if start is not None:
        members = np.flatnonzero(start)
        weights = start[members] / start.sum()
        face = _Face(H, [int(i) for i in members], weights, factor)
        if face.refactor():
            return face
    vertex = int(np.argmin(0.5 * np.diagonal(H) + c))
    return _Face(H, [vertex], np.ones(1), factor)


def _descend(
    face: _Face, gradient: Float64[Array, " n"], *, entered: int | None = None
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
        if entered is not None:
            at = face.support.index(entered)
            if step[at] <= 0:
                face.leave(at)
                return False
            entered = None
        target = face.weights + step
        if (target > 0).all():
            face.weights = target / target.sum()  # or rounding adds up over steps
            return True
        falling = target <= 0
        ratio = np.where(falling, 0.0, np.inf)
        down = falling & (step < 0)
        ratio[down] = face.weights[down] / -step[down]
        p = int(np.argmin(ratio))
        alpha = min(float(ratio[p]), 1.0)
        moved = moved or alpha > 0
        face.weights = np.maximum(face.weights + alpha * step, 0.0)
        gradient = (1.0 - alpha) * gradient
        face.leave(p)
    face.weights = np.ones(1)
    return moved


def active_set_compiled(
    H: Float64[Array, "n n"],
    c: Float64[Array, " n"],
    start: Float64[Array, " n"] | None = None,
    max_pivots: int | None = None,
) -> SolverResult:
    """`active_set` by the compiled kernel where it is built, equal to rounding."""
    kernels = library(SOLVER)
    if kernels is None:
        return active_set(H, c, start, max_pivots)
    n = len(c)
    w = np.zeros(n) if start is None else np.array(start)
    limit = 20 * n + 100 if max_pivots is None else max_pivots
    H, c = np.ascontiguousarray(H), np.ascontiguousarray(c)
    pivots, least = kernels.corral(H, c, w, n, start is not None, limit)
    solved = pivots >= 0
    return SolverResult(w, pivots if solved else limit, solved, least > INDEPENDENT)
