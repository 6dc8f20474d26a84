"""Softmax regression with an l2 penalty, over clients' samples, and its constants.

    φ_j(W) = log Σ_k exp(w_k·a_j) − w_{y_j}·a_j + (λ/2)‖W‖²
    ∇φ_j(W) = (p_j − e_{y_j}) a_jᵀ + λW,      p_j = softmax(W a_j)

W has one row per class; a model is W row by row, d = classes × features. In this order
scores, residuals and gradients of all lanes are matrix products of the models as they
lie in memory, without a copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import array_api_compat as compat
import numpy as np
from jaxtyping import Float, Float64, Int, Int64

from hewfl.core.checks import Array, Ints, invalid, nonnegative, whole
from hewfl.core.displacements import to_host
from hewfl.core.round import LocalPlan, Roster
from hewfl.problems.arrays import (
    check_ranges,
    conform,
    gather,
    score,
    shares,
    spread,
    two_means,
)
from hewfl.problems.problem import Optimum
from hewfl.problems.softmax.cross_entropy import (
    losses,
    losses_and_hits,
    outer_sum,
    residuals,
    score_blocks,
)
from hewfl.problems.softmax.kernel import compiled_branches, takes_samples
from hewfl.problems.softmax.optimum import WeightedSoftmax, minimise
from hewfl.problems.softmax.samples import check_samples

POWER_TOLERANCE, POWER_STEPS = 1e-6, 5000
"""Residual ‖Mv − θv‖/θ of the power iteration; θ is off by about its square."""


@final
@dataclass(frozen=True, eq=False)  # no slots: norms of the samples are kept once known
class Softmax:
    """Multinomial logistic regression over clients' samples.

    Clients may share rows: with all offsets 0 and all sizes m every client draws from
    one common pool, and F_i = F exactly (erratum E-14).

    Attributes:
        features: a_j, shape (m, p), with a column of ones where a bias is wanted;
            float32 or float64, NumPy or torch. The problem is that of these numbers.
        labels: y_j from 0 to classes − 1, shape (m,), in the same library.
        offsets: first row of each client's samples, shape (n,).
        data_sizes: m_i ≥ 1, shape (n,).
        classes: c ≥ 2.
        l2: λ ≥ 0.
        test: features (k, p) and labels (k,) held out, or None.

    Raises:
        InvalidInputError: an argument breaks a rule above.
    """

    features: Any
    labels: Any
    offsets: Ints
    data_sizes: Ints
    classes: int
    l2: float
    test: tuple[Any, Any] | None = None

    def __post_init__(self) -> None:
        """Check ranges and that the arrays fit together."""
        whole("classes", self.classes, least=2)
        nonnegative("l2", self.l2)
        check_samples("", self.features, self.labels, self.classes)
        check_ranges(self.offsets, self.data_sizes, self.features.shape[0])
        if self.test is not None:
            check_samples("test ", *self.test, self.classes)
            p, q = self.features.shape[1], self.test[0].shape[1]
            if p != q:
                raise invalid("test features", f"of {p} columns like `features`", q)

    @property
    def n(self) -> int:
        """Number of clients."""
        return len(self.data_sizes)

    @property
    def d(self) -> int:
        """Number of parameters, classes × features."""
        return int(self.classes * self.features.shape[1])

    @property
    def smoothness(self) -> float:
        """L = ½ max_j ‖a_j‖² + λ: a proven bound for every sample loss.

        ∇²φ_j = (diag p − ppᵀ) ⊗ a_j a_jᵀ + λI, and diag p − ppᵀ ≼ ½I on the simplex.
        """
        return float(0.5 * self._sq_norms.max() + self.l2)

    def smoothness_estimate(self) -> float:
        """½ λ_max((1/m) Σ_j a_j a_jᵀ) + λ by power iteration.

        The limit bounds the curvature of the mean over all rows, but neither that of
        one client nor that of one sample: it is for normalising step sizes, as the
        paper's experiments do; where a theorem asks for L, `smoothness` answers. The
        iteration approaches it from below.
        """
        M = self._second_moment()
        v = np.random.default_rng(0).standard_normal(len(M))  # generic but fixed
        top = 0.0
        for _ in range(POWER_STEPS):
            v /= np.linalg.norm(v)
            w = M @ v
            top = float(v @ w)
            if np.linalg.norm(w - top * v) <= POWER_TOLERANCE * top:
                break
            v = w
        return 0.5 * top + self.l2

    def variance_bounds(self) -> Float64[Array, " n"]:
        """v_i² ≤ (2/m_i) Σ_j ‖a_ij‖², whatever the model (erratum E-27).

        The penalty is common to all samples, and ‖p − e_y‖² ≤ 2 on the simplex:
        (1/m_i) Σ_j ‖∇φ_ij − ∇F_i‖² ≤ (1/m_i) Σ_j ‖p_j − e_{y_j}‖² ‖a_ij‖².
        """
        spans, span_of = self._spans
        means = np.array([self._sq_norms[lo:hi].mean() for lo, hi in spans])
        return 2 * means[span_of]

    def variances(self, anchors: Float[Any, "lanes d"]) -> Float64[Any, "lanes n"]:
        """(1/m_i) Σ_j ‖∇φ_ij(x) − ∇F_i(x)‖² at given models, exact.

        With r_j = p_j − e_{y_j}:  (1/m_i) Σ_j ‖r_j‖²‖a_j‖² − ‖(1/m_i) Σ_j r_j a_jᵀ‖².
        """
        xp, W = self._matrices(anchors)
        sq_norms = conform(self._sq_norms, W)
        values = []
        for lo, hi in self._spans[0]:
            total, G = 0.0, xp.zeros_like(W)
            for at, A, S in score_blocks(W, self.features, lo, hi):
                R = residuals(S, self.labels[at])
                G += outer_sum(R, A)
                sq = xp.sum(xp.astype(R, xp.float64) ** 2, axis=1)  # lanes b
                total = total + xp.sum(sq * sq_norms[at], axis=1)
            mean = xp.astype(G, xp.float64) / (hi - lo)
            values.append(total / (hi - lo) - xp.sum(mean**2, axis=(1, 2)))
        return conform(self._by_client(xp, values), anchors)

    def residuals(
        self, scores: Float[Any, "lanes a c b"], samples: Int[Any, "a b"]
    ) -> Float[Any, "lanes a c b"]:
        """softmax(scores) − e_y for the labels of the samples."""
        labels = gather(self.labels, samples, self.labels.dtype)
        return residuals(scores, labels)

    def minibatch_gradients(
        self,
        models: Float[Any, "lanes a d"],
        samples: Int[Any, "a b"],
        counts: Int[Any, " a"],
    ) -> Float[Any, "lanes a d"]:
        """g_i = (1/b_i) Σ_{j ≤ b_i} (p_j − e_{y_j}) a_jᵀ + λW_i at the client's W_i."""
        y = conform(models, self.features)
        xp = compat.array_namespace(y)
        W = xp.reshape(y, (*y.shape[:2], self.classes, -1))  # lanes a c p
        A = gather(self.features, samples, y.dtype)  # a b p, once for all lanes
        R = self.residuals(score(W, A), samples)  # lanes a c b
        R *= shares(samples, counts, y)[:, None, :]
        G = spread(R, A)
        G += self.l2 * W
        return conform(xp.reshape(G, y.shape), models)

    def branches(
        self,
        anchors: Float[Array, "lanes d"],
        roster: Roster,
        plans: Sequence[LocalPlan],
        samples: Int64[Ints, "steps s b"],
    ) -> Float[Array, "lanes s d"] | None:
        """Whole branches by the compiled kernel, if it is there and fits the data."""
        if not takes_samples(self.features, self.labels, anchors.dtype):
            return None
        data = (self.features, self.labels, self.classes, self.l2)
        return compiled_branches(data, anchors, roster, plans, samples)

    def full_gradients(self, anchors: Float[Any, "lanes d"]) -> Float[Any, "lanes n d"]:
        """∇F_i(W) = (1/m_i) Σ_j (p_j − e_{y_j}) a_jᵀ + λW for every client."""
        xp, W = self._matrices(anchors)
        means = []
        for lo, hi in self._spans[0]:
            G = xp.zeros_like(W)
            for at, A, S in score_blocks(W, self.features, lo, hi):
                G += outer_sum(residuals(S, self.labels[at]), A)
            means.append(xp.reshape(G / (hi - lo) + self.l2 * W, (-1, self.d)))
        return conform(self._by_client(xp, means), anchors)

    def client_losses(self, anchors: Float[Any, "lanes d"]) -> Float64[Any, "lanes n"]:
        """F_i(W) = (1/m_i) Σ_j (log Σ_k exp s_jk − s_{j y_j}) + (λ/2)‖W‖²."""
        xp, W = self._matrices(anchors)
        spans = self._spans[0]
        means = [xp.zeros_like(W[:, 0, 0], dtype=xp.float64) for _ in spans]
        for at, _, S in score_blocks(W, self.features, 0, self.features.shape[0]):
            found = losses(S, self.labels[at])
            for k, (lo, hi) in enumerate(spans):
                if lo < at.stop and at.start < hi:
                    own = found[:, max(lo - at.start, 0) : hi - at.start]
                    means[k] += xp.sum(own, axis=1) / (hi - lo)
        sq_norms = xp.sum(xp.astype(W, xp.float64) ** 2, axis=(1, 2))
        F = self._by_client(xp, means) + 0.5 * self.l2 * sq_norms[:, None]
        return conform(F, anchors)

    def objectives(self, anchors: Float[Any, "lanes d"]) -> Float64[Any, "lanes 2"]:
        """(1/n) Σ F_i and Σ m_i F_i/Σ m_i, both with the penalty."""
        return two_means(self.client_losses(anchors), self.data_sizes)

    def evaluate(
        self, anchors: Float[Any, "lanes d"]
    ) -> dict[str, Float64[Any, " lanes"]]:
        """Accuracy and mean loss, without penalty, on the test set if there is one."""
        if self.test is None:
            return {}
        xp, W = self._matrices(anchors)
        X, y = self.test
        right, lost = [], []
        for at, _, S in score_blocks(W, X, 0, X.shape[0]):
            loss, hits = losses_and_hits(S, y[at])
            lost.append(loss)
            right.append(xp.astype(hits, xp.float64))
        accuracy = xp.mean(xp.concat(right, axis=1), axis=1)
        mean_loss = xp.mean(xp.concat(lost, axis=1), axis=1)
        names = {"test_accuracy": accuracy, "test_loss": mean_loss}
        return {name: conform(value, anchors) for name, value in names.items()}

    def optimum(self, start: Float64[Array, " d"] | None = None) -> Optimum:
        """The minimiser of (1/n) Σ F_i, on the host; see `softmax_optimum`.

        Raises:
            SolverError: there is none (λ = 0 and separable data), or rounding forbids.
        """
        return self._minimiser(1 / (self.n * self.data_sizes), start)

    def pooled_optimum(self, start: Float64[Array, " d"] | None = None) -> Optimum:
        """The minimiser of Σ m_i F_i/Σ m_i, likewise."""
        return self._minimiser(np.full(self.n, 1 / self.data_sizes.sum()), start)

    def _minimiser(
        self, per_sample: Float64[Array, " n"], start: Float64[Array, " d"] | None
    ) -> Optimum:
        X, y = to_host(self.features), to_host(self.labels)
        norms, weights = np.sqrt(self._sq_norms), np.zeros(len(y))
        for lo, m, each in zip(self.offsets, self.data_sizes, per_sample, strict=True):
            weights[lo : lo + m] += each  # clients may share rows
        f = WeightedSoftmax(X, norms, y, weights, self.classes, self.l2)
        return minimise(f, start)

    def _matrices(self, anchors: Float[Any, "lanes d"]) -> tuple[Any, Any]:
        """The namespace of the data, and the models in it as matrices W."""
        x = conform(anchors, self.features)
        xp = compat.array_namespace(x)
        return xp, xp.reshape(x, (x.shape[0], self.classes, -1))

    @cached_property
    def _spans(self) -> tuple[list[tuple[int, int]], Int64[Ints, " n"]]:
        """The distinct ranges of rows, and which of them each client holds."""
        ranges = np.stack([self.offsets, self.offsets + self.data_sizes], axis=1)
        spans, span_of = np.unique(ranges, axis=0, return_inverse=True)
        return [(int(lo), int(hi)) for lo, hi in spans], span_of.reshape(-1)

    def _by_client(self, xp: Any, by_span: list[Any]) -> Any:
        return xp.stack([by_span[k] for k in self._spans[1]], axis=1)

    def _second_moment(self) -> Float64[Array, "p p"]:
        X = to_host(self.features)
        parts = np.array_split(X, -(-X.size // 2**20))
        wide = (A.astype(np.float64) for A in parts)
        return np.asarray(sum(A.T @ A for A in wide) / len(X))

    @cached_property
    def _sq_norms(self) -> Float64[Array, " m"]:
        X = to_host(self.features)
        parts = np.array_split(X, -(-X.size // 2**20))
        return np.concatenate([(A.astype(np.float64) ** 2).sum(axis=1) for A in parts])
