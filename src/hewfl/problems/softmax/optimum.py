"""The minimiser of a softmax regression, to rounding.

Two phases for f of `weighted_sum`. L-BFGS, in variables whitened by the Hessian at
W = 0, finds the basin of Newton's method. (Newton steps from zero are damped to a crawl
where rare features are large: standardised MNIST took 15 steps and 1000 Hessian
products to get there, and as many from the minimiser of another split of the data.)
Where samples are many times the parameters, L-BFGS looks at a part of them: the basin
is wide and the minimiser of the part lies in it. Newton's method then takes conjugate
gradients on exact Hessian products, preconditioned by the Hessian itself or, where it
is large, its class blocks, between projections on Σ_k w_k = 0, where the minimiser
lies. (On MNIST: 13 products per Newton step; over 120 with the blocks' diagonals or
blocks of every eighth sample.)

Values and gradients are float64. Directions need a few digits only, so L-BFGS and the
Hessian work in the precision of the data; if float32 proves too coarse, Newton's method
goes on with a float64 copy. Memory is c·p² beside the data.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import scipy.linalg
import scipy.optimize
from jaxtyping import Float64

from hewfl.core.checks import Array
from hewfl.errors import SolverError
from hewfl.problems.problem import Optimum
from hewfl.problems.softmax.weighted_sum import Point, WeightedSoftmax

LBFGS_STEPS, LBFGS_MEMORY = 100, 20
SAMPLES_PER_PARAMETER = 128
"""So many, weighed in, are enough to find the basin of Newton's method."""
NEWTON_STEPS = 50
CG_TOLERANCE, CG_FIRST, CG_STEPS = 1e-3, 0.1, 100
"""Near the minimiser a Newton step gains three digits; float32 offers few more. Far
from it a truncated direction does as well: the tolerance is the square of what the step
before gained [EisenstatWalker1996]."""
AT_ROUNDING, NEAR_ROUNDING = 4, 1000
"""Gradient over its unit of rounding: where to stop, and what a stall may leave."""
DENSE = 1000
"""Parameters up to which the Hessian is formed whole."""
DECREASE, SLOPE = 1e-4, 0.8
"""Armijo's constant, and the approximate Wolfe condition φ'(t) ≤ 0.8 |φ'(0)| that
takes over where φ(t) − φ(0) drowns in rounding [HagerZhang2005, with δ = 0.1]."""

Preconditioner = Callable[[Float64[Array, "c p"]], Float64[Array, "c p"]]


def minimise(
    f: WeightedSoftmax,
    start: Float64[Array, " d"] | None = None,
    *,
    gap: float = 0.0,
) -> Optimum:
    """The minimiser of f with the norm of its gradient.

    Args:
        f: what to minimise.
        start: a model to go on from by Newton's method, such as the minimiser under
            other weights; by default L-BFGS finds one.
        gap: f(W) − min f that is small enough, proved by ‖∇f‖²/(2λ); by default the
            gradient has to fall to rounding.

    Returns:
        The minimiser; its gap is infinite where λ = 0.

    Raises:
        SolverError: the gradient falls neither to rounding nor as far as `gap` asks.
    """
    small = float(np.sqrt(2 * f.l2 * gap))
    if start is None:
        point, is_done = _newton(f, _whitened_lbfgs(_part(f)), small)
    else:
        point, is_done = _newton(f, _centred(start.reshape(f.classes, -1)), small)
    if not is_done and f.features.dtype != np.float64:
        # Hessian products in float32 are too coarse where curvatures span many decades.
        wide = dataclasses.replace(f, features=f.features.astype(np.float64))
        point, is_done = _newton(wide, point.W, small)
    residual = float(np.linalg.norm(point.gradient))
    if not is_done:
        text = (
            f"softmax optimum: gradient norm {residual:.1e} after Newton's method,"
            f" {point.unit:.1e} wanted; is `l2` zero or tiny and the data separable?"
        )
        raise SolverError(text)
    proved = residual**2 / (2 * f.l2) if f.l2 > 0 else np.inf
    return Optimum(point.W.reshape(-1), point.value, residual, proved)


def _newton(
    f: WeightedSoftmax, W: Float64[Array, "c p"], small: float
) -> tuple[Point, bool]:
    """Newton's method from W; whether the gradient fell to `small` or to rounding."""
    point, cost, tolerance = f.at(W), np.inf, CG_FIRST
    precondition: Preconditioner = _centred
    for _ in range(NEWTON_STEPS):
        size = float(np.linalg.norm(point.gradient))
        if size <= max(small, AT_ROUNDING * point.unit):
            return point, True
        if cost > 20 + f.features.shape[1] / 16:  # about what a new one costs
            try:
                precondition = _preconditioner(f, point)
            except np.linalg.LinAlgError:  # a class without curvature: no minimiser
                return point, False
        # the last direction need not be better than what is asked for
        direction, cost = _newton_direction(
            f, point, precondition, max(tolerance, small / (2 * size))
        )
        found = _line_search(f, point, direction)
        # At rounding the gradient no longer halves: a stall near it is the end.
        is_stalled = found is None or np.linalg.norm(found.gradient) > 0.5 * size
        if is_stalled and size <= NEAR_ROUNDING * point.unit:
            return point, True
        if found is None:
            return point, False
        gained = float(np.linalg.norm(found.gradient)) / size
        tolerance = min(max(gained**2, CG_TOLERANCE), CG_FIRST)
        point = found
    return point, False


def _part(f: WeightedSoftmax) -> WeightedSoftmax:
    """Some of the samples, where there are many more than parameters.

    They are drawn at equal distances along the sum of ω_j(‖a_j‖² + mean), so that
    samples of small clients and of rare features, which are large once standardised,
    are among them, and weigh ω_j over their chance. (By ω_j alone Newton's method
    needed five times the Hessian products on Covertype.)
    """
    count = SAMPLES_PER_PARAMETER * f.classes * f.features.shape[1]
    if 2 * count > len(f.labels):
        return f
    squares = f.norms**2
    chance = f.weights * (squares + squares.mean())
    ends = np.cumsum(chance)
    marks = (np.arange(count) + 0.5) * (ends[-1] / count)
    rows, hits = np.unique(np.searchsorted(ends, marks), return_counts=True)
    return dataclasses.replace(
        f,
        features=f.features[rows],
        norms=f.norms[rows],
        labels=f.labels[rows],
        weights=f.weights[rows] * hits * (ends[-1] / count) / chance[rows],
    )


def _whitened_lbfgs(f: WeightedSoftmax) -> Float64[Array, "c p"]:
    """L-BFGS from zero in the variables V = W L, LLᵀ = (1/c) Σ_j ω_j a_j a_jᵀ + λI.

    At W = 0 and on Σ_k w_k = 0 the Hessian is LLᵀ in every class: the identity in V.
    """
    c, p = f.classes, f.features.shape[1]
    L = np.linalg.cholesky(f.gram(f.weights / c))

    def model(v: Float64[Array, " d"]) -> Float64[Array, "c p"]:
        V = v.reshape(c, p)
        return scipy.linalg.solve_triangular(L, V.T, lower=True, trans="T").T

    def value_and_slope(v: Float64[Array, " d"]) -> tuple[float, Float64[Array, " d"]]:
        point = f.at(model(v), f.features.dtype)
        slope = scipy.linalg.solve_triangular(L, point.gradient.T, lower=True).T
        return point.value, slope.reshape(-1)

    found = scipy.optimize.minimize(
        value_and_slope,
        np.zeros(c * p),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": LBFGS_STEPS, "maxcor": LBFGS_MEMORY, "gtol": 1e-6},
    )
    return _centred(model(found.x))


def _newton_direction(
    f: WeightedSoftmax, point: Point, precondition: Preconditioner, tolerance: float
) -> tuple[Float64[Array, "c p"], int]:
    """D with ‖H D + ∇f‖ ≤ tolerance ‖∇f‖ by preconditioned conjugate gradients."""
    g = _centred(point.gradient)
    D, r = np.zeros_like(g), -g
    z = precondition(r)
    Q, rz, steps = z, np.vdot(r, z), 0
    while np.linalg.norm(r) > tolerance * np.linalg.norm(g) and steps < CG_STEPS:
        HQ = _centred(f.hessian_product(point.probabilities, Q))
        curvature = np.vdot(Q, HQ)
        if curvature <= 0:  # rounding, where f is flat
            break
        step = rz / curvature
        D, r, steps = D + step * Q, r - step * HQ, steps + 1
        z = precondition(r)
        previous, rz = rz, np.vdot(r, z)
        Q = z + (rz / previous) * Q
    return D, steps


def _preconditioner(f: WeightedSoftmax, point: Point) -> Preconditioner:
    """An approximate inverse of the Hessian, on Σ_k v_k = 0.

    Of few parameters the whole Hessian, else its class blocks.
    """
    if point.W.size <= DENSE:
        whole = scipy.linalg.cho_factor(f.hessian(point.probabilities))
        return lambda r: _centred(
            scipy.linalg.cho_solve(whole, r.reshape(-1)).reshape(r.shape)
        )
    blocks = f.class_blocks(point.probabilities)

    def by_blocks(r: Float64[Array, "c p"]) -> Float64[Array, "c p"]:
        pairs = zip(blocks, r, strict=True)
        return _centred(np.stack([scipy.linalg.cho_solve(K, row) for K, row in pairs]))

    return by_blocks


def _centred(V: Float64[Array, "c p"]) -> Float64[Array, "c p"]:
    """V projected on Σ_k v_k = 0.

    A vector common to all classes changes no probability. Without penalty the Hessian
    is singular along it, and conjugate gradients would wander off.
    """
    return np.asarray(V - V.mean(axis=0))


def _line_search(
    f: WeightedSoftmax, point: Point, direction: Float64[Array, "c p"]
) -> Point | None:
    """The first of the steps 1, ½, ¼, … that Armijo or approximate Wolfe accepts."""
    slope = float(np.vdot(point.gradient, direction))
    blur = 1e-12 * abs(point.value)  # differences of values below this are rounding
    for halvings in range(30):
        t = 0.5**halvings
        found = f.at(point.W + t * direction)
        if found.value <= point.value + DECREASE * t * slope:
            return found
        flat = np.vdot(found.gradient, direction) <= SLOPE * abs(slope)
        if found.value <= point.value + blur and flat:
            return found
    return None
