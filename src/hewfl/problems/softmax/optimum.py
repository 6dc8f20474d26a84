"""The minimiser of a softmax regression, to rounding.

Two phases for f of `weighted_sum`. L-BFGS, in variables whitened by the Hessian at
W = 0, finds the basin of Newton's method. (Newton steps from zero are damped to a crawl
where rare features are large: standardised MNIST took 15 steps and 1000 Hessian
products to get there.) Newton's method then takes conjugate gradients on exact Hessian
products, preconditioned by the Hessian's class blocks between projections on
Σ_k w_k = 0, where the minimiser lies. (On MNIST: 13 products per Newton step; over 120
with the blocks' diagonals or blocks of every eighth sample.)

Values and gradients are float64. Directions need a few digits only, so L-BFGS and the
Hessian work in the precision of the data; if float32 proves too coarse, Newton's method
goes on with a float64 copy. Memory is c·p² beside the data.
"""

import dataclasses
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
from jaxtyping import Float64

from hewfl.core.checks import Array
from hewfl.errors import SolverError
from hewfl.problems.problem import Optimum
from hewfl.problems.softmax.weighted_sum import Point, WeightedSoftmax

LBFGS_STEPS, LBFGS_MEMORY = 200, 20
NEWTON_STEPS = 50
CG_TOLERANCE, CG_STEPS = 1e-3, 100
"""Near the minimiser a Newton step gains three digits; float32 offers few more. Far
from it a truncated direction does as well."""
AT_ROUNDING, NEAR_ROUNDING = 4, 1000
"""Gradient over its unit of rounding: where to stop, and what a stall may leave."""
DECREASE, SLOPE = 1e-4, 0.8
"""Armijo's constant, and the approximate Wolfe condition φ'(t) ≤ 0.8 |φ'(0)| that
takes over where φ(t) − φ(0) drowns in rounding [HagerZhang2005, with δ = 0.1]."""


def minimise(f: WeightedSoftmax, start: Float64[Array, " d"] | None = None) -> Optimum:
    """The minimiser of f with the norm of its gradient.

    Args:
        f: what to minimise.
        start: a model to go on from by Newton's method, such as the minimiser under
            other weights; by default L-BFGS finds one.

    Returns:
        The minimiser; its gap is infinite where λ = 0.

    Raises:
        SolverError: the gradient does not fall to rounding.
    """
    if start is None:
        point, is_done = _newton(f, _whitened_lbfgs(f))
    else:
        point, is_done = _newton(f, _centred(start.reshape(f.classes, -1)))
    if not is_done and f.features.dtype != np.float64:
        # Hessian products in float32 are too coarse where curvatures span many decades.
        wide = dataclasses.replace(f, features=f.features.astype(np.float64))
        point, is_done = _newton(wide, point.W)
    residual = float(np.linalg.norm(point.gradient))
    if not is_done:
        text = (
            f"softmax optimum: gradient norm {residual:.1e} after Newton's method,"
            f" {point.unit:.1e} wanted; is `l2` zero or tiny and the data separable?"
        )
        raise SolverError(text)
    gap = residual**2 / (2 * f.l2) if f.l2 > 0 else np.inf
    return Optimum(point.W.reshape(-1), point.value, residual, gap)


def _newton(f: WeightedSoftmax, W: Float64[Array, "c p"]) -> tuple[Point, bool]:
    """Newton's method from W; whether the gradient fell to rounding."""
    point, cost = f.at(W), np.inf
    blocks: list[Any] = []
    for _ in range(NEWTON_STEPS):
        size = np.linalg.norm(point.gradient)
        if size <= AT_ROUNDING * point.unit:
            return point, True
        if cost > 20 + f.features.shape[1] / 16:  # about what new blocks cost
            try:
                blocks = f.class_blocks(point.probabilities)
            except np.linalg.LinAlgError:  # a class without curvature: no minimiser
                return point, False
        direction, cost = _newton_direction(f, point, blocks)
        found = _line_search(f, point, direction)
        # At rounding the gradient no longer halves: a stall near it is the end.
        is_stalled = found is None or np.linalg.norm(found.gradient) > 0.5 * size
        if is_stalled and size <= NEAR_ROUNDING * point.unit:
            return point, True
        if found is None:
            return point, False
        point = found
    return point, False


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
    f: WeightedSoftmax, point: Point, blocks: list[Any]
) -> tuple[Float64[Array, "c p"], int]:
    """D with ‖H D + ∇f‖ ≤ 10⁻³‖∇f‖ by preconditioned conjugate gradients."""
    g = _centred(point.gradient)
    D, r = np.zeros_like(g), -g
    z = _precondition(blocks, r)
    Q, rz, steps = z, np.vdot(r, z), 0
    while np.linalg.norm(r) > CG_TOLERANCE * np.linalg.norm(g) and steps < CG_STEPS:
        HQ = _centred(f.hessian_product(point.probabilities, Q))
        curvature = np.vdot(Q, HQ)
        if curvature <= 0:  # rounding, where f is flat
            break
        step = rz / curvature
        D, r, steps = D + step * Q, r - step * HQ, steps + 1
        z = _precondition(blocks, r)
        previous, rz = rz, np.vdot(r, z)
        Q = z + (rz / previous) * Q
    return D, steps


def _precondition(blocks: list[Any], r: Float64[Array, "c p"]) -> Float64[Array, "c p"]:
    """The residual times the inverses of the class blocks, on Σ_k v_k = 0."""
    pairs = zip(blocks, r, strict=True)
    return _centred(np.stack([scipy.linalg.cho_solve(K, row) for K, row in pairs]))


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
