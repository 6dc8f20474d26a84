"""Instances as hewfl prepares them, and what every answer has to prove."""

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.known_solutions import QPInstance
from tests.tolerances import GAP

from hewfl import SimplexSolution, solve_simplex_qp

Array = NDArray[np.floating]


def prepared(instance: QPInstance) -> tuple[Array, Array, float]:
    """Gram matrix and slope shifted by the shortest row, as hewfl forms them."""
    D = instance.displacements
    r = D[int(np.argmin(np.einsum("ij,ij->i", D, D)))]
    C = D - r
    slope = instance.reference + np.longdouble(instance.curvature) * r
    return C @ C.T, C @ slope.astype(np.float64), instance.curvature


def solve(instance: QPInstance) -> SimplexSolution:
    gram, linear, curvature = prepared(instance)
    return solve_simplex_qp(gram, linear, curvature=curvature)


def frank_wolfe_gap(gram: Array, linear: Array, curvature: float, w: Array) -> float:
    gradient = curvature * (gram @ w) + linear
    return float(np.max(w @ gradient - gradient))


def scale(gram: Array, linear: Array, curvature: float) -> float:
    return float(curvature * np.diagonal(gram).max() + np.ptp(linear)) or 1.0


def assert_proved(
    solution: SimplexSolution, gram: Array, linear: Array, curvature: float
) -> None:
    """The certificate is right and small; weights are on the simplex."""
    w = solution.weights
    assert w.min() >= 0
    assert abs(w.sum() - 1) < 1e-13
    unit = scale(gram, linear, curvature)
    recomputed = frank_wolfe_gap(gram, linear, curvature, w)
    assert float(solution.gap) <= GAP * unit
    assert abs(recomputed - float(solution.gap)) <= GAP * unit
    value = float(linear @ w + 0.5 * curvature * (w @ gram @ w))
    assert float(solution.value) == pytest.approx(value, abs=1e-13 * unit + 1e-300)
    assert float(w @ solution.multipliers) == pytest.approx(float(solution.gap))
    assert (solution.multipliers >= 0).all()
    assert np.array_equal(solution.support, w > 0)


def scaled_problem(instance: QPInstance) -> tuple[Array, Array]:
    """H and c of size one, the linear term counted from the best vertex."""
    gram, linear, curvature = prepared(instance)
    unit = scale(gram, linear, curvature)
    H, c = curvature * gram / unit, linear / unit
    return H, c - c[int(np.argmin(0.5 * np.diagonal(H) + c))]
