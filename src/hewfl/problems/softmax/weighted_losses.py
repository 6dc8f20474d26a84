"""A weighted sum of softmax losses with exact first and second derivatives.

    f(W)  = Σ_j ω_j (log Σ_k exp(w_k·a_j) − w_{y_j}·a_j) + (λ/2)‖W‖²
    H V   = Σ_j ω_j (p_j ∘ t_j − p_j ⟨p_j, t_j⟩) a_jᵀ + λV,       t_j = V a_j
    H_kk  = Σ_j ω_j p_jk (1 − p_jk) a_j a_jᵀ + λI                 block of class k

Samples are read in blocks. Memory beside them: one column of probabilities per sample.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float, Float64, Int
from hewfl.core.validation import Array, Ints
from hewfl.problems.softmax.passes import BLOCK
from hewfl.problems.softmax.sparse import SparseRows

KEPT = 0.97
"""Fraction of the trace of a class block that the samples used for it must hold."""


@final
@dataclass(frozen=True, slots=True)
class Point:
    """f at one W.

    Attributes:
        W: the model.
        value: f(W).
        gradient: ∇f(W).
        probabilities: p_jk, one column per sample, in the precision of the data.
        unit: ε (Σ_j ω_j ‖p_j − e_{y_j}‖ ‖a_j‖ + λ‖W‖), the rounding of a gradient.
    """

    W: Float64[Array, "c p"]
    value: float
    gradient: Float64[Array, "c p"]
    probabilities: Float[Array, "c m"]
    unit: float


@final
@dataclass(frozen=True, slots=True, eq=False)
class WeightedSoftmax:
    """The weighted sum f, with its derivatives.

    Attributes:
        features: a_j as rows.
        norms: ‖a_j‖.
        labels: y_j from 0 to classes − 1.
        weights: ω_j ≥ 0.
        classes: c.
        l2: λ ≥ 0.
        sparse: the features in sparse form, if that is faster.
    """

    features: Float[Array, "m p"]
    norms: Float64[Array, " m"]
    labels: Int[Ints, " m"]
    weights: Float64[Array, " m"]
    classes: int
    l2: float
    sparse: SparseRows | None = None

    def of_rows(
        self, rows: Int[Ints, " q"], weights: Float64[Array, " q"]
    ) -> "WeightedSoftmax":
        """The sum over some of the samples, with other weights."""
        return replace(
            self,
            features=self.features[rows],
            sparse=None,
            norms=self.norms[rows],
            labels=self.labels[rows],
            weights=weights,
        )

    def blocks(self) -> Iterator[slice]:
        """Ranges of samples for one product each."""
        m, p = self.features.shape
        rows = max(1, BLOCK // (p + self.classes))
        return (slice(lo, min(lo + rows, m)) for lo in range(0, m, rows))

    def at(self, W: Float64[Array, "c p"], dtype: Any = np.float64) -> Point:
        """Value, gradient and probabilities at W; products in the given precision."""
        value, unit, G = 0.0, self.l2 * float(np.linalg.norm(W)), np.zeros_like(W)
        P = np.empty((self.classes, len(self.labels)), self.features.dtype)
        for at in self.blocks():
            y, w = self.labels[at], self.weights[at]
            S = self._scores(W.astype(dtype), at)
            top, each = S.max(axis=0), np.arange(len(y))
            E = np.exp(S - top)
            total = E.sum(axis=0)
            value += float(w @ (np.log(total) + (top - S[y, each])))
            E /= total
            P[:, at] = E
            # p_y − 1 as minus the sum of the others: where p_y is near 1 the difference
            # would keep no digits, and the gradient never fall to rounding.
            E[y, each] = 0
            E[y, each] = -E.sum(axis=0)
            unit += float((w * self.norms[at]) @ np.linalg.norm(E, axis=0))
            G += self._sums(E * w.astype(dtype), at)
        value += 0.5 * self.l2 * float((W**2).sum())
        eps = float(np.finfo(np.float64).eps)
        return Point(W, value, G + self.l2 * W, P, eps * unit)

    def hessian_product(
        self, P: Float[Array, "c m"], V: Float64[Array, "c p"]
    ) -> Float64[Array, "c p"]:
        """H V at the probabilities P."""
        v, total = V.astype(P.dtype), np.zeros_like(V)
        for at in self.blocks():
            p = P[:, at]
            t = self._scores(v, at)
            t -= (p * t).sum(axis=0)
            t *= p
            t *= self.weights[at].astype(P.dtype)
            total += self._sums(t, at)
        return np.asarray(total + self.l2 * V)

    def _scores(self, W: Float[Array, "c p"], at: slice) -> Float[Array, "c b"]:
        """W Aᵀ for a range of samples, in the precision of W."""
        if self.sparse is not None:
            return self.sparse.scores(W, at)
        return np.asarray(W @ self.features[at].astype(W.dtype, copy=False).T)

    def _sums(self, R: Float[Array, "c b"], at: slice) -> Float[Array, "c p"]:
        """R A for a range of samples, in the precision of R."""
        if self.sparse is not None:
            return self.sparse.sums(R, at)
        return np.asarray(R @ self.features[at].astype(R.dtype, copy=False))

    def gram(self, weights: Float64[Array, " m"]) -> Float64[Array, "p p"]:
        """Σ_j weights_j a_j a_jᵀ + λI, shifted to be positive definite.

        Rounding of the sum may make its least eigenvalues negative; a shift by a few
        units of rounding of the trace lets Cholesky's method through.
        """
        K = self._product(weights)
        shift = 4 * float(np.finfo(self.features.dtype).eps) * np.trace(K)
        return np.asarray(K + (self.l2 + shift) * np.eye(len(K)))

    def _product(self, weights: Float64[Array, " m"]) -> Float64[Array, "p p"]:
        """Σ_j weights_j a_j a_jᵀ."""
        p = self.features.shape[1]
        K = np.zeros((p, p))
        roots = np.sqrt(weights).astype(self.features.dtype)
        for at in self.blocks():
            B = self.features[at] * roots[at, None]
            K += B.T @ B
        return K

    def hessian(self, P: Float[Array, "c m"]) -> Float64[Array, "d d"]:
        """H as one matrix, regularised along vectors common to all classes.

        A vector common to all classes changes no probability: without the addition, and
        without penalty, H would be singular.
        """
        c, p = self.classes, self.features.shape[1]
        H = np.zeros((c, p, c, p))
        wide = P.astype(np.float64)
        for k in range(c):
            H[k, :, k] = self.gram(self.weights * wide[k] * (1 - wide[k]))
            for j in range(k):
                both = self.weights * wide[k] * wide[j]
                H[k, :, j] = H[j, :, k] = -self._product(both)
        whole = H.reshape(c * p, c * p)
        common = np.kron(np.full((c, c), 1 / c), np.eye(p))
        return np.asarray(whole + np.trace(whole) / (c * p) * common)

    def class_blocks(self, P: Float[Array, "c m"]) -> list[Float64[Array, "p p"]]:
        """H_kk, k = 1, …, c, without samples of negligible weight.

        Near the minimiser p(1 − p) is almost zero for most samples: an eighth of those
        of MNIST holds 97 % of the trace of a block and suffices for a preconditioner.
        The others contribute their diagonal. Without it, directions that only they
        span, such as rare features, would look flat.
        """
        sizes = self.weights * P * (1.0 - P)
        rest, blocks = sizes.astype(self.features.dtype), []
        for k, share in enumerate(sizes * self.norms**2):
            order = np.argsort(-share)
            held = np.cumsum(share[order])
            few = np.searchsorted(held, KEPT * held[-1]) + 1
            rows = np.sort(order[:few])
            rest[k, rows] = 0
            part = self.of_rows(rows, sizes[k, rows])
            blocks.append(part.gram(part.weights))
        squares = np.zeros((self.classes, self.features.shape[1]))
        for at in self.blocks():  # Σ_j rest_j a_j ∘ a_j of all classes in one pass
            squares += rest[:, at] @ self.features[at] ** 2
        return [
            K + np.diag(diagonal) for K, diagonal in zip(blocks, squares, strict=True)
        ]
