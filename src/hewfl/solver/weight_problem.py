"""Weight problems: a stack of checked arguments, and one problem in its own units."""

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array, ArrayLike, as_float64, invalid
from hewfl.solver import lapack
from hewfl.solver.active_set import Index, error_scale
from hewfl.solver.least_norm import newton_polish, row_space


@final
@dataclass(frozen=True, slots=True)
class Stack:
    """Arguments of the solver, checked for shape, batch dimensions flattened.

    Attributes:
        batch: the dimensions that were flattened.
        G: Gram matrices.
        q: linear terms.
        curvature: Λ of each problem.
        tolerance: asymmetry and negative curvature that rounding explains; infinite
            for Gram matrices that hewfl formed, which are not tested.
    """

    batch: tuple[int, ...]
    G: Float64[Array, "b n n"]
    q: Float64[Array, "b n"]
    curvature: Float64[Array, " b"]
    tolerance: float

    @property
    def n(self) -> int:
        """Number of clients."""
        return int(self.q.shape[1])


def _array(name: str, value: ArrayLike) -> NDArray[Any]:
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        return value
    return as_float64(name, value)


def stack_problems(gram: ArrayLike, linear: ArrayLike, curvature: ArrayLike) -> Stack:
    """Arguments of `solve_simplex_qp` as one stack.

    The compiled solver or `check_gram` refuses later what is not finite or no Gram
    matrix.

    Args:
        gram: G, shape (*batch, n, n).
        linear: q, shape (*batch, n).
        curvature: Λ > 0, one number or one per problem.

    Raises:
        InvalidInputError: a shape does not fit, or a number is out of range.
    """
    G, q = _array("gram", gram), _array("linear", linear)
    if G.ndim < 2 or G.shape[-1] != G.shape[-2] or G.shape[-1] == 0:
        raise invalid("gram", "square, of shape (*batch, n, n), n ≥ 1", G.shape)
    if q.shape != G.shape[:-1]:
        raise invalid("linear", f"of shape {G.shape[:-1]} like `gram`", q.shape)
    batch, n = q.shape[:-1], q.shape[-1]
    if 0 in batch:
        raise invalid("gram", "a stack of at least one problem", G.shape)
    return Stack(
        batch,
        np.ascontiguousarray(G).reshape(-1, n, n),
        np.ascontiguousarray(q).reshape(-1, n),
        _curvature(curvature, batch),
        _tolerance(gram),
    )


def _tolerance(gram: ArrayLike) -> float:
    """Asymmetry and negative curvature that the rounding of a dtype explains."""
    if isinstance(gram, np.ndarray) and gram.dtype == np.float64:
        return 1e-10
    kind = str(getattr(gram, "dtype", "float64"))
    if "float32" in kind:
        return 1e-4
    return 5e-2 if "float16" in kind else 1e-10  # bfloat16 too


def _curvature(curvature: ArrayLike, batch: tuple[int, ...]) -> Float64[Array, " b"]:
    if isinstance(curvature, float) and 0 < curvature < math.inf:  # nearly always
        return np.full(math.prod(batch), curvature)
    value = as_float64("curvature", curvature)
    if (value <= 0).any():
        raise invalid("curvature", "a positive finite number", value.min())
    if value.ndim == 0:
        return np.full(math.prod(batch), value)
    if value.shape != batch:
        raise invalid("curvature", f"one number, or of shape {batch}", value.shape)
    return value.reshape(-1).copy()


def check_finite(stack: Stack) -> None:
    """Raise `InvalidInputError` where a matrix or a linear term is not finite.

    Args:
        stack: the problems.
    """
    as_float64("gram", stack.G)
    as_float64("linear", stack.q)


def check_symmetric(G: Float64[Array, "n n"], tolerance: float, where: str) -> None:
    """Raise `InvalidInputError` where two entries differ by more than rounding.

    Args:
        G: finite.
        tolerance: allowed difference, over the lengths of both columns.
        where: which problem, for the text.
    """
    if np.array_equal(G, G.T):
        return
    size = _sizes(G)
    skew = np.abs(G - G.T) / size / size[:, None]
    i, j = (int(k) for k in np.unravel_index(np.argmax(skew), skew.shape))
    if skew[i, j] > tolerance:
        got = f"{G[i, j]} at ({i}, {j}) and {G[j, i]} at ({j}, {i}){where}"
        raise invalid("gram", "symmetric", got)


def check_semidefinite(G: Float64[Array, "n n"], tolerance: float, where: str) -> None:
    """Raise `InvalidInputError` where a matrix has a direction of negative curvature.

    By a factorisation on unit diagonal: on the given one, an error among short columns
    would pass for rounding of a long one.

    Args:
        G: finite and symmetric.
        tolerance: negative curvature allowed, on unit diagonal.
        where: which problem, for the text.
    """
    size = _sizes(G)
    unit = G / size
    unit /= size[:, None]
    unit[np.diag_indices_from(unit)] += tolerance
    _, info = lapack.dpotrf(unit.T, overwrite_a=1)
    if info != 0:
        got = f"a negative leading minor of order {info}{where}"
        raise invalid("gram", "positive semidefinite", got)


def _sizes(G: Float64[Array, "n n"]) -> Float64[Array, " n"]:
    """Lengths of columns, at least 2^−50 of the longest: zero has no unit diagonal."""
    diagonal = np.abs(np.diagonal(G))
    size = np.sqrt(np.maximum(diagonal, np.ldexp(diagonal.max(), -100)))
    return np.where(size > 0, size, 1.0)


def check_gram(stack: Stack) -> None:
    """Raise `InvalidInputError` where a problem of the stack is no Gram matrix.

    Args:
        stack: the problems.
    """
    check_finite(stack)
    for t, G in enumerate(stack.G if stack.tolerance < np.inf else ()):
        where = f" (problem {t})" if len(stack.G) > 1 else ""
        check_symmetric(G, stack.tolerance, where)
        check_semidefinite(G, stack.tolerance, where)


@final
@dataclass(frozen=True, slots=True)
class WeightProblem:
    """The objective ⟨c, w⟩ + ½ wᵀHw, times 2^exponent; H and c are of size one.

    Attributes:
        H: Λ G scaled.
        c: q scaled.
        exponent: the power of two taken out, so that nothing over- or underflows.
    """

    H: Float64[Array, "n n"]
    c: Float64[Array, " n"]
    exponent: int

    @property
    def size(self) -> float:
        """Magnitude of the objective's variation over the simplex."""
        return float(np.diagonal(self.H).max() + np.ptp(self.c))

    def _gradient(self, w: Float64[Array, " n"]) -> tuple[Array, float]:
        """Gradient up to a constant, the constant: c is centred where the weight is.

        Reduced costs are differences of the gradient's entries: a constant far larger
        than they are would take their digits.
        """
        S = np.flatnonzero(w)
        shift = self.c[np.argmax(w)]
        return self.H[S].T @ w[S] + (self.c - shift), float(shift)

    def reduced_costs(
        self, w: Float64[Array, " n"]
    ) -> tuple[Float64[Array, " n"], Float64[Array, " n"]]:
        """∇_i − ⟨w, ∇⟩, negative where a client should enter; its error scale e_i."""
        gradient, shift = self._gradient(w)
        scale = error_scale(np.sqrt(np.diagonal(self.H)), self.c - shift, w)
        costs: Array = gradient - w @ gradient
        return costs, scale

    def polish(self, w: Float64[Array, " n"]) -> Float64[Array, " n"]:
        """Weights w with the rounding errors of their face removed.

        Two Newton steps: the second sees a gradient that the first has made small.
        """
        S = np.flatnonzero(w)
        for _ in range(2):
            gradient, _shift = self._gradient(w)
            w = w.copy()
            w[S] = newton_polish(self.H[np.ix_(S, S)], gradient[S], w[S])
        polished: Array = w / w.sum()
        return polished

    def face_basis(self, members: Index) -> Float64[Array, "m r"] | None:
        """Row space of the columns on a face, None if they are independent."""
        return row_space(self.H[np.ix_(members, members)])

    def certificate(
        self, w: Float64[Array, " n"]
    ) -> tuple[Float64[Array, " n"], float, float]:
        """Multipliers ∇_i − min ∇, value, gap = Σ w_i multipliers_i, in given units."""
        gradient, shift = self._gradient(w)
        multipliers = gradient - gradient.min()
        value = 0.5 * (w @ (gradient + self.c) + shift)
        k = self.exponent
        with np.errstate(over="ignore"):  # an infinite value is refused by the caller
            gap = np.ldexp(w @ multipliers, k)
            return np.ldexp(multipliers, k), float(np.ldexp(value, k)), float(gap)


def scale_problem(
    G: Float64[Array, "n n"], q: Float64[Array, " n"], curvature: float
) -> WeightProblem:
    """Divide ΛG and q by the power of two next to the larger of them.

    Args:
        G: Gram matrix; made symmetric.
        q: linear term.
        curvature: Λ > 0.

    Returns:
        The problem, exact up to the rounding of Λ G_ij.
    """
    # A power of two rounds nothing; without it squares of sizes near 1e200 overflow.
    if not np.array_equal(G, G.T):
        G = 0.5 * G + 0.5 * G.T
    mantissa, e = np.frexp(curvature)
    top, size = np.diagonal(G).max(), np.abs(q).max()
    sizes = [int(np.frexp(top)[1]) + int(e)] if top > 0 else []
    k = max([*sizes, int(np.frexp(size)[1])] if size > 0 else sizes, default=0)
    shift = int(e) - k
    if abs(shift) < 1000:
        return WeightProblem(G * np.ldexp(mantissa, shift), np.ldexp(q, -k), k)
    return WeightProblem(np.ldexp(G * mantissa, shift), np.ldexp(q, -k), k)
