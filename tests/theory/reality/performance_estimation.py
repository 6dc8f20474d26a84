"""The exact worst case of one corrected round, as a semidefinite program.

Performance estimation: over all convex L-smooth F_1, ..., F_n in any dimension, all x
with F(x) − F* ≤ U and ‖x − x*‖ ≤ R, and all c_i with ‖c_i − ∇F_i(x)‖² ≤ Q,

    maximise F(x⁺) − F*,     x⁺ = x + Σ w_i Δ_i,     Δ_i the H_i steps of client i

without noise. Functions enter by their values and gradients at the points met, with
the interpolation conditions of smooth convex functions (Taylor, Hendrickx and Glineur
2017), which are exact; the Gram matrix of gradients, x − x* and tracking errors is the
variable.

    python -m tests.theory.reality.performance_estimation

prints the table of docs/theory.md.
"""

from dataclasses import dataclass
from typing import Any, final

import clarabel
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hewfl.control.certificate import VARIANTS
from hewfl.core.rounding import format_lower
from hewfl.theory import System, one_step, situation
from hewfl.theory.statement import Constants

Array = NDArray[np.float64]


@final
@dataclass(frozen=True)
class _Point:
    """A point of one client: position, gradient and value as linear forms."""

    position: Array
    gradient: Array
    value: Array


def worst_gap(
    horizons: list[int],
    theta: float,
    gap: float,
    tracking: float,
    *,
    weights: list[float] | None = None,
) -> float:
    """The largest F(x⁺) − F* after a round with L = R = 1 and a common amplitude θ."""
    n, L, radius = len(horizons), 1.0, 1.0
    w = np.full(n, 1 / n) if weights is None else np.array(weights)
    # basis: x − x*, the gradients of all points but the last at x*, the errors e_i
    gradients = sum(H + 2 for H in horizons) - 1
    m, count = 1 + gradients + n, sum(H + 2 for H in horizons)
    basis, values = np.eye(m), np.eye(count)
    errors = basis[1 + gradients :]
    free = iter(basis[1 : 1 + gradients])
    forms = iter(values)
    zero, x = np.zeros(m), basis[0]
    optima = [next(free) for _ in range(n - 1)]
    optima.append(-np.sum(optima, axis=0) if optima else zero)
    clients = [[_Point(zero, g, next(forms))] for g in optima]
    for points in clients:
        points.append(_Point(x, next(free), next(forms)))
    c = np.mean(
        [p[1].gradient + e for p, e in zip(clients, errors, strict=True)], axis=0
    )
    move = np.zeros(m)
    for points, e, H, w_i in zip(clients, errors, horizons, w, strict=True):
        eta, correction = theta / (L * H), c - points[1].gradient - e
        y, slope = x, points[1].gradient
        for h in range(H):
            if h > 0:
                slope = next(free)
                points.append(_Point(y, slope, next(forms)))
            y = y - eta * (slope + correction)
        move += w_i * (y - x)
    for points in clients:
        points.append(_Point(x + move, next(free), next(forms)))
    rows, limits = [], []
    for points in clients:
        for a in points:
            for b in points:
                if a is not b:  # f_b + ⟨g_b, a − b⟩ + ‖g_a − g_b‖²/(2L) − f_a ≤ 0
                    gram = _inner(b.gradient, a.position - b.position)
                    d = a.gradient - b.gradient
                    gram = gram + _inner(d, d) / (2 * L)
                    rows.append((gram, b.value - a.value))
                    limits.append(0.0)
    none = np.zeros(count)
    rows += [(_inner(e, e), none) for e in errors]
    limits += [tracking] * n
    rows.append((_inner(x, x), none))
    limits.append(radius**2)
    start = np.mean([p[1].value - p[0].value for p in clients], axis=0)
    rows.append((np.zeros((m, m)), start))
    limits.append(gap)
    goal = np.mean([p[-1].value - p[0].value for p in clients], axis=0)
    return _solve(rows, limits, goal, m)


def _inner(u: Array, v: Array) -> Array:
    """⟨u, v⟩ as a symmetric matrix on the Gram matrix."""
    return (np.outer(u, v) + np.outer(v, u)) / 2


def _svec(matrix: Array) -> Array:
    """The upper triangle, column by column, off-diagonal entries times √2."""
    m = len(matrix)
    i, j = np.tril_indices(m)
    return matrix[i, j] * np.where(i == j, 1.0, np.sqrt(2.0))


def _solve(
    rows: list[tuple[Array, Array]], bounds: list[float], goal: Array, m: int
) -> float:
    """The largest goal · f with all rows ⟨A, G⟩ + a · f ≤ bound and G ⪰ 0."""
    size = m * (m + 1) // 2
    linear = np.array([np.r_[_svec(A), a] for A, a in rows])
    cone = np.hstack([-np.eye(size), np.zeros((size, len(goal)))])
    A = sparse.csc_matrix(np.vstack([linear, cone]))
    b = np.r_[bounds, np.zeros(size)]
    q = np.r_[np.zeros(size), -goal]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    cones: list[Any] = [
        clarabel.NonnegativeConeT(len(rows)),
        clarabel.PSDTriangleConeT(m),
    ]
    nothing = sparse.csc_matrix((len(q), len(q)))
    solution = clarabel.DefaultSolver(nothing, q, A, b, cones, settings).solve()
    assert str(solution.status) in ("Solved", "AlmostSolved"), solution.status
    return float(-solution.obj_val)


CASES = [
    (weights, H, theta, tracking)
    for weights, tracking in (([0.5, 0.5], 0.0), ([0.5, 0.5], 0.01), ([0.8, 0.2], 0.01))
    for H, theta in ((1, 0.05), (1, 0.3), (4, 0.05), (4, 0.3))
]
GAP = 0.1
SETS: tuple[Constants, ...] = (*VARIANTS, "joint")


def certified_gaps(
    horizons: list[int], theta: float, state: tuple[float, float], weights: list[float]
) -> dict[Constants, float]:
    """J with each set of constants, at the same numbers."""
    at = situation(System(1.0, 1.0, horizons, 1, 0.0), *state)
    controls = np.array(weights), np.full(len(horizons), theta)
    return {v: float(one_step(controls, at, variant=v).value) for v in SETS}


def table() -> str:
    """The decrease of the gap in a round, over the gap, in Markdown."""
    names = ("weights", "H", "ϑ", "Q", *SETS, "exact worst case", "joint : exact")
    lines = [f"| {' | '.join(names)} |", "|" + " --- |" * len(names)]
    for weights, H, theta, tracking in CASES:
        horizons, state = [H] * len(weights), (GAP, tracking)
        ours = certified_gaps(horizons, theta, state, weights)
        worst = worst_gap(horizons, theta, *state, weights=weights)
        falls = [(GAP - J) / GAP for J in (*ours.values(), worst)]
        cells = [", ".join(map(str, weights)), H, theta, tracking]
        cells += [format_lower(round(fall, 6), 2) for fall in falls]
        cells.append(format_lower(falls[-2] / falls[-1], 2))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201 - a command
