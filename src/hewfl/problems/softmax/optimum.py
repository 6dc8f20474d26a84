"""The minimiser of a softmax regression, to rounding.

Two phases minimise f of `weighted_losses`. L-BFGS finds the region where Newton's
method converges, in variables that a preconditioner makes well-conditioned: that of
the Hessian at W = 0 for the first steps, that of the Hessian at the current point
afterwards. (Newton steps from zero are damped heavily where rare features are large: on
standardised MNIST they took 15 steps and 1000 Hessian products. L-BFGS with the first
preconditioner alone took 105 passes; from the minimiser under other weights, with the
preconditioner there, 45 passes get closer.) Where samples are many times the
parameters, L-BFGS and preconditioners use a part of them. Newton's method then uses
conjugate gradients on exact Hessian products, preconditioned likewise, between
projections on Σ_k w_k = 0, where the minimiser lies.

Values and gradients are float64. Directions need a few digits only, so L-BFGS and the
Hessian work in the precision of the data; if float32 proves too coarse, Newton's method
continues with a float64 copy. Memory is c·p² beside the data.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array
from hewfl.errors import SolverError
from hewfl.problems.problem import Optimum
from hewfl.problems.softmax.weighted_losses import Point, WeightedSoftmax

LBFGS_AT_ZERO, LBFGS_STEPS, LBFGS_MEMORY = 50, 25, 20
"""Steps with the preconditioner at zero, then with that at the point they reach. On
MNIST 20 steps and then two such preconditioners, or 100 with the first, take longer."""
NEAR = 1e-3
"""Gradient over the sum of the norms of its terms from which Newton's method works."""
SAMPLES_PER_PARAMETER = 128
"""Samples used to find the region where Newton's method converges."""
NEWTON_STEPS = 50
CG_TOLERANCE, CG_FIRST, CG_STEPS = 1e-3, 0.1, 100
"""Near the minimiser a Newton step gains three digits; float32 offers few more. Far
from it a truncated direction does as well: the tolerance is the square of what the step
before gained [EisenstatWalker1996]."""
AT_ROUNDING, NEAR_ROUNDING = 4, 1000
"""Gradient over its unit of rounding: where to stop, and where a stall is accepted."""
DECREASE, SLOPE = 1e-4, 0.8
"""Armijo's constant, and the approximate Wolfe condition φ'(t) ≤ 0.8 |φ'(0)| that
takes over where φ(t) − φ(0) is rounding [HagerZhang2005, with δ = 0.1]."""
DENSE = 1000
"""Parameters up to which the Hessian is formed whole."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Preconditioner:
    """A matrix M = LLᵀ near the Hessian, in blocks along the diagonal.

    In the variables V = Lᵀ W quasi-Newton methods see a Hessian near the identity, and
    M⁻¹ preconditions conjugate gradients. All directions are projected on Σ_k v_k = 0.

    Attributes:
        factors: L of each block, lower triangular; together they have d rows.
    """

    factors: tuple[Float64[Array, "q q"], ...]

    def variables(self, W: Float64[Array, "c p"]) -> Float64[Array, " d"]:
        """V = Lᵀ W."""
        parts = zip(self.factors, W.reshape(len(self.factors), -1), strict=True)
        return np.concatenate([L.T @ w for L, w in parts])

    def model(self, V: Float64[Array, " d"], classes: int) -> Float64[Array, "c p"]:
        """W = L⁻ᵀ V, projected."""
        return _centred(self._solve_factors(V, "T").reshape(classes, -1))

    def slope(self, G: Float64[Array, "c p"]) -> Float64[Array, " d"]:
        """The gradient in V of a function with gradient G in W: L⁻¹ G, projected."""
        return self._solve_factors(_centred(G).reshape(-1), "N")

    def solve(self, R: Float64[Array, "c p"]) -> Float64[Array, "c p"]:
        """M⁻¹ R between projections."""
        return self.model(self.slope(R), len(R))

    def _solve_factors(
        self, v: Float64[Array, " d"], trans: Literal["N", "T"]
    ) -> Float64[Array, " d"]:
        import scipy.linalg  # noqa: PLC0415 - slow to import

        parts = zip(self.factors, v.reshape(len(self.factors), -1), strict=True)
        return np.concatenate(
            [
                scipy.linalg.solve_triangular(
                    L, part, lower=True, trans=trans, check_finite=False
                )
                for L, part in parts
            ]
        )


def _preconditioner_at_zero(f: WeightedSoftmax) -> Preconditioner:
    """The Hessian at W = 0: (1/c) Σ_j ω_j a_j a_jᵀ + λI in every class."""
    L = np.linalg.cholesky(f.gram(f.weights / f.classes))
    return Preconditioner((L,) * f.classes)


def _preconditioner_at(f: WeightedSoftmax, point: Point) -> Preconditioner:
    """The Hessian at a point: all of it if parameters are few, else its class blocks.

    Raises:
        LinAlgError: a class has no curvature.
    """
    if point.W.size <= DENSE:
        return Preconditioner((np.linalg.cholesky(f.hessian(point.probabilities)),))
    blocks = f.class_blocks(point.probabilities)
    return Preconditioner(tuple(np.linalg.cholesky(block) for block in blocks))


def _centred(V: Float64[Array, "c p"]) -> Float64[Array, "c p"]:
    """V projected on Σ_k v_k = 0.

    A vector common to all classes changes no probability. Without penalty the Hessian
    is singular along it, and conjugate gradients would diverge.
    """
    return np.asarray(V - V.mean(axis=0))


def minimise(
    f: WeightedSoftmax,
    start: Float64[Array, " d"] | None = None,
    *,
    gap: float = 0.0,
) -> Optimum:
    """The minimiser of f with the norm of its gradient.

    Args:
        f: what to minimise.
        start: initial model, such as the minimiser under other weights; zero by
            default.
        gap: accepted f(W) − min f, bounded by ‖∇f‖²/(2λ); by default the gradient
            has to fall to rounding.

    Returns:
        The minimiser; its gap is infinite where λ = 0.

    Raises:
        SolverError: the gradient falls neither to rounding nor as far as `gap` asks.
    """
    small = float(np.sqrt(2 * f.l2 * gap))
    W, preconditioner = _find_basin(f, start)
    point, has_converged = _newton(f, W, small, preconditioner)
    if not has_converged and f.features.dtype != np.float64:
        # Hessian products in float32 are too coarse where curvatures span many decades.
        features = f.features.astype(np.float64)
        wide = dataclasses.replace(f, features=features, sparse=None)
        point, has_converged = _newton(wide, point.W, small, None)
    residual = float(np.linalg.norm(point.gradient))
    if not has_converged:
        text = (
            f"softmax optimum: gradient norm {residual:.1e} after Newton's method,"
            f" {point.unit:.1e} wanted; is `l2` zero or tiny and the data separable?"
        )
        raise SolverError(text)
    bound = residual**2 / (2 * f.l2) if f.l2 > 0 else np.inf
    return Optimum(point.W.reshape(-1), point.value, residual, bound)


def _find_basin(
    f: WeightedSoftmax, start: Float64[Array, " d"] | None
) -> tuple[Float64[Array, "c p"], Preconditioner | None]:
    """A model from which Newton's method converges, and a preconditioner near it."""
    part = _part(f)
    if start is None:
        zero = np.zeros((f.classes, f.features.shape[1]))
        W = _descend(part, zero, _preconditioner_at_zero(part), LBFGS_AT_ZERO)
    else:
        W = _centred(start.reshape(f.classes, -1))
        point = f.at(W)
        lengths = point.unit / float(np.finfo(np.float64).eps)
        if np.linalg.norm(point.gradient) <= NEAR * lengths:
            return W, None
    try:
        preconditioner = _preconditioner_at(part, part.at(W, part.features.dtype))
    except np.linalg.LinAlgError:  # no minimiser: Newton's method will fail
        return W, None
    return _descend(part, W, preconditioner, LBFGS_STEPS), preconditioner


def _newton(
    f: WeightedSoftmax,
    W: Float64[Array, "c p"],
    small: float,
    preconditioner: Preconditioner | None,
) -> tuple[Point, bool]:
    """Newton's method from W; whether the gradient fell to `small` or to rounding."""
    point, cost, tolerance = f.at(W), 0, CG_FIRST
    for _ in range(NEWTON_STEPS):
        size = float(np.linalg.norm(point.gradient))
        if size <= max(small, AT_ROUNDING * point.unit):
            return point, point.unit > 0  # else separable: W went to where exp is 0
        if (
            preconditioner is None or cost > 20 + f.features.shape[1] / 16
        ):  # as a new one costs
            try:
                preconditioner = _new_preconditioner(f, point)
            except np.linalg.LinAlgError:  # a class without curvature: no minimiser
                return point, False
        # the last direction need not exceed the requested precision
        direction, cost = _newton_direction(
            f, point, preconditioner, max(tolerance, small / (2 * size))
        )
        following = _line_search(f, point, direction)
        # At rounding the gradient no longer halves: a stall near it is the end.
        is_stalled = (
            following is None or np.linalg.norm(following.gradient) > 0.5 * size
        )
        if is_stalled and size <= NEAR_ROUNDING * point.unit:
            return point, True
        if following is None:
            return point, False
        reduction = float(np.linalg.norm(following.gradient)) / size
        tolerance = min(max(reduction**2, CG_TOLERANCE), CG_FIRST)
        point = following
    return point, False


def _new_preconditioner(f: WeightedSoftmax, point: Point) -> Preconditioner:
    """The Hessian at a point, of a part of the samples where they are many."""
    part = _part(f)
    if part is not f:
        point = part.at(point.W, part.features.dtype)
    return _preconditioner_at(part, point)


def _part(f: WeightedSoftmax) -> WeightedSoftmax:
    """A part of the samples, if they are many more than the parameters.

    They are drawn at equal distances along the sum of ω_j(‖a_j‖² + mean), so that
    samples of small clients and of rare features, which are large once standardised,
    are among them, with weights ω_j over their probability. (By ω_j alone Newton's
    method needed five times the Hessian products on Covertype.)
    """
    count = SAMPLES_PER_PARAMETER * f.classes * f.features.shape[1]
    if 2 * count > len(f.labels):
        return f
    squares = f.norms**2
    probability_mass = f.weights * (squares + squares.mean())
    ends = np.cumsum(probability_mass)
    marks = (np.arange(count) + 0.5) * (ends[-1] / count)
    rows, hits = np.unique(np.searchsorted(ends, marks), return_counts=True)
    weights = f.weights[rows] * hits * (ends[-1] / count) / probability_mass[rows]
    return f.of_rows(rows, weights)


def _descend(
    f: WeightedSoftmax,
    W: Float64[Array, "c p"],
    preconditioner: Preconditioner,
    steps: int,
) -> Float64[Array, "c p"]:
    """Steps of L-BFGS from W, in the variables of a preconditioner."""
    import scipy.optimize  # noqa: PLC0415 - slow to import

    def value_and_slope(v: Float64[Array, " d"]) -> tuple[float, Float64[Array, " d"]]:
        point = f.at(preconditioner.model(v, f.classes), f.features.dtype)
        return point.value, preconditioner.slope(point.gradient)

    # below the rounding of values line searches fail
    tolerance = float(np.finfo(f.features.dtype).eps)
    options: Any = {"maxiter": steps, "maxcor": LBFGS_MEMORY, "gtol": 1e-6}
    result = scipy.optimize.minimize(
        value_and_slope,
        preconditioner.variables(W),
        jac=True,
        method="L-BFGS-B",
        options=options | {"ftol": tolerance},
    )
    return preconditioner.model(result.x, f.classes)


def _newton_direction(
    f: WeightedSoftmax, point: Point, preconditioner: Preconditioner, tolerance: float
) -> tuple[Float64[Array, "c p"], int]:
    """D with ‖H D + ∇f‖ ≤ tolerance ‖∇f‖ by preconditioned conjugate gradients."""
    g = _centred(point.gradient)
    D, r = np.zeros_like(g), -g
    z = preconditioner.solve(r)
    Q, rz, steps = z, np.vdot(r, z), 0
    while np.linalg.norm(r) > tolerance * np.linalg.norm(g) and steps < CG_STEPS:
        HQ = _centred(f.hessian_product(point.probabilities, Q))
        curvature = np.vdot(Q, HQ)
        if curvature <= 0:  # rounding, where f is flat
            break
        step = rz / curvature
        D, r, steps = D + step * Q, r - step * HQ, steps + 1
        z = preconditioner.solve(r)
        previous, rz = rz, np.vdot(r, z)
        Q = z + (rz / previous) * Q
    return D, steps


def _line_search(
    f: WeightedSoftmax, point: Point, direction: Float64[Array, "c p"]
) -> Point | None:
    """The first of the steps 1, ½, ¼, … that Armijo or approximate Wolfe accepts."""
    slope = float(np.vdot(point.gradient, direction))
    rounding = 1e-12 * abs(point.value)  # of differences of values
    for halvings in range(30):
        t = 0.5**halvings
        trial = f.at(point.W + t * direction)
        if trial.value <= point.value + DECREASE * t * slope:
            return trial
        is_flat = np.vdot(trial.gradient, direction) <= SLOPE * abs(slope)
        if trial.value <= point.value + rounding and is_flat:
            return trial
    return None
