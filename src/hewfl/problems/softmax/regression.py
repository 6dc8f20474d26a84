"""Softmax regression with an l2 penalty over clients' samples.

    φ_j(W) = log Σ_k exp(w_k·a_j) − w_{y_j}·a_j + (λ/2)‖W‖²
    ∇φ_j(W) = (p_j − e_{y_j}) a_jᵀ + λW,      p_j = softmax(W a_j)

W has one row per class. A model is W row by row, d = classes × features. In this order
scores, residuals and gradients of all models are matrix products of the models in
memory order, without a copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import array_api_compat as compat
import numpy as np

from hewfl.core.array_types import Float, Float64, Int, Int64
from hewfl.core.round import Cohort, LocalPlan
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Ints,
    invalid,
    nonnegative,
    whole,
)
from hewfl.displacements.backend import to_host
from hewfl.problems.array_operations import (
    check_pair,
    check_ranges,
    checked_shards,
    conform,
    gather,
    score,
    shares,
    two_means,
    weighted_sums,
)
from hewfl.problems.problem import LocalTests, Optimum, grouped_means
from hewfl.problems.softmax.kernel import compiled_branches, takes_samples
from hewfl.problems.softmax.optimum import minimise
from hewfl.problems.softmax.passes import (
    hits_and_loss,
    largest_eigenvalue,
    mean_gradients,
    mean_losses,
    residuals,
    second_moment,
    squared_norms,
)
from hewfl.problems.softmax.sparse import sparse_rows
from hewfl.problems.softmax.weighted_losses import WeightedSoftmax

Samples = tuple[Any, Any]
"""Features (m, p) and labels (m,), both of one array library."""


@final
@dataclass(frozen=True, eq=False)  # no slots: norms of the samples are cached
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
        local_tests: the test samples that each client is judged by, or None.

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
    local_tests: LocalTests | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        whole("classes", self.classes, least=2)
        nonnegative("l2", self.l2)
        _check_samples("", self.features, self.labels, self.classes)
        check_ranges(self.offsets, self.data_sizes, self.features.shape[0])
        if self.test is not None:
            _check_samples("test ", *self.test, self.classes)
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

        The limit bounds the curvature of the mean over all rows, but not that of one
        client or sample. It serves to normalise step sizes, as in the paper's
        experiments; theorems need `smoothness`. The iteration approaches it from below.

        Returns:
            An estimate of L, not a bound.
        """
        top = largest_eigenvalue(second_moment(self.features))
        return 0.5 * top + self.l2

    def variance_bounds(self) -> Float64[Array, " n"]:
        """v_i² ≤ (2/m_i) Σ_j ‖a_ij‖², whatever the model (erratum E-27).

        The penalty is common to all samples, and ‖p − e_y‖² ≤ 2 on the simplex:
        (1/m_i) Σ_j ‖∇φ_ij − ∇F_i‖² ≤ (1/m_i) Σ_j ‖p_j − e_{y_j}‖² ‖a_ij‖².

        Returns:
            A bound on v_i² of each client, at every model.
        """
        spans, span_of = self._spans
        means = np.array([self._sq_norms[lo:hi].mean() for lo, hi in spans])
        return 2 * means[span_of]

    def class_labels(self) -> tuple[Int64[Ints, " m"], int]:
        """A copy of all labels on the host, and c."""
        return np.array(to_host(self.labels), dtype=np.int64), self.classes

    def with_labels(self, labels: Int64[Ints, " m"]) -> "Softmax":
        """The regression of the same samples with other labels."""
        return replace(self, labels=conform(labels, self.labels))

    def minibatch_gradients(
        self,
        models: Float[Any, "models a d"],
        samples: Int[Any, "a b"],
        counts: Int[Any, " a"],
    ) -> Float[Any, "models a d"]:
        """g_i = (1/b_i) Σ_{j ≤ b_i} (p_j − e_{y_j}) a_jᵀ + λW_i at the client's W_i."""
        y = conform(models, self.features)
        xp = compat.array_namespace(y)
        W = xp.reshape(y, (*y.shape[:2], self.classes, -1))  # models a c p
        A = gather(self.features, samples, y.dtype)  # a b p, once for all models
        labels = gather(self.labels, samples, self.labels.dtype)
        R = residuals(score(W, A), labels)  # models a c b
        R *= shares(samples, counts, y)[:, None, :]
        G = weighted_sums(R, A)
        G += self.l2 * W
        return conform(xp.reshape(G, y.shape), models)

    def branches(
        self,
        anchors: Float[Array, "models d"],
        cohort: Cohort,
        plans: Sequence[LocalPlan],
        samples: Int64[Ints, "steps s b"],
    ) -> Float[Array, "models s d"] | None:
        """Whole branches by the compiled kernel, if it takes the data."""
        if not takes_samples(self.features, self.labels, anchors.dtype):
            return None
        data = (self.features, self.labels, self.classes, self.l2)
        return compiled_branches(data, anchors, cohort, plans, samples)

    def full_gradients(
        self, anchors: Float[Any, "models d"]
    ) -> Float[Any, "models n d"]:
        """∇F_i(W) = (1/m_i) Σ_j (p_j − e_{y_j}) a_jᵀ + λW for every client."""
        W = self._matrices(anchors)
        means = mean_gradients(W, self.features, self.labels, self._spans[0])
        each = [(G + self.l2 * W).reshape((-1, self.d)) for G in means]
        return self._by_client(each, anchors)

    def client_losses(
        self, anchors: Float[Any, "models d"]
    ) -> Float64[Any, "models n"]:
        """F_i(W) = (1/m_i) Σ_j (log Σ_k exp s_jk − s_{j y_j}) + (λ/2)‖W‖²."""
        W = self._matrices(anchors)
        means = mean_losses(W, self.features, self.labels, self._spans[0])
        penalty = self._penalty(W)
        return self._by_client([F + penalty for F in means], anchors)

    def sample_losses(
        self, anchors: Float[Any, "models d"], samples: Int[Any, "a b"]
    ) -> Float64[Any, "models a"]:
        """Mean losses with the penalty, on chosen samples of each client."""
        W = self._matrices(anchors)
        xp = compat.array_namespace(W)
        X = gather(self.features, samples, W.dtype)
        y = gather(self.labels, samples, self.labels.dtype)
        size = samples.shape[1]
        spans = [(k * size, (k + 1) * size) for k in range(samples.shape[0])]
        rows = xp.reshape(X, (-1, X.shape[-1]))
        means = mean_losses(W, rows, xp.reshape(y, (-1,)), spans)
        penalty = self._penalty(W)
        return conform(xp.stack([F + penalty for F in means], axis=1), anchors)

    def objectives(self, anchors: Float[Any, "models d"]) -> Float64[Any, "models 2"]:
        """(1/n) Σ F_i and Σ m_i F_i/Σ m_i, both with the penalty."""
        return two_means(self.client_losses(anchors), self.data_sizes)

    def evaluate(
        self, anchors: Float[Any, "models d"]
    ) -> dict[str, Float64[Any, "models ..."]]:
        """Accuracy and mean loss, without penalty, on the test set if there is one.

        And the accuracy of each `class` and, with `local_tests`, of each `client`.
        """
        if self.test is None:
            return {}
        hits, loss = hits_and_loss(self._matrices(anchors), *self.test)
        xp = compat.array_namespace(hits)
        measures = {"test_accuracy": xp.mean(xp.astype(hits, xp.float64), axis=1)}
        measures |= {"test_loss": loss}
        labels, right = to_host(self.test[1]), to_host(hits)
        measures["class"] = grouped_means(right, labels, self.classes)
        if self.local_tests is not None:
            measures["client"] = self.local_tests.accuracies(right)
        return {name: conform(value, anchors) for name, value in measures.items()}

    def optimum(
        self, start: Float64[Array, " d"] | None = None, *, gap: float = 0.0
    ) -> Optimum:
        """The minimiser of (1/n) Σ F_i, on the host; see `optimum.minimise`.

        Args:
            start: initial model, such as the minimiser of a similar problem.
            gap: accepted distance from the minimum; 0 for rounding.

        Raises:
            SolverError: there is no minimiser (λ = 0 and separable data), or rounding
                prevents convergence.
        """
        return self._minimiser(1 / (self.n * self.data_sizes), start, gap)

    def pooled_optimum(
        self, start: Float64[Array, " d"] | None = None, *, gap: float = 0.0
    ) -> Optimum:
        """The minimiser of Σ m_i F_i/Σ m_i, on the host; see `optimum.minimise`.

        Args:
            start: initial model, such as the minimiser of a similar problem.
            gap: accepted distance from the minimum; 0 for rounding.

        Raises:
            SolverError: there is no minimiser (λ = 0 and separable data), or rounding
                prevents convergence.
        """
        each = np.full(self.n, 1 / self.data_sizes.sum())
        return self._minimiser(each, start, gap)

    def _minimiser(
        self,
        per_sample: Float64[Array, " n"],
        start: Float64[Array, " d"] | None,
        gap: float,
    ) -> Optimum:
        """The minimiser with every sample of client i weighted by `per_sample`[i]."""
        X, y = to_host(self.features), to_host(self.labels)
        norms, weights = np.sqrt(self._sq_norms), np.zeros(len(y))
        for lo, m, each in zip(self.offsets, self.data_sizes, per_sample, strict=True):
            weights[lo : lo + m] += each  # clients may share rows
        given = (X, norms, y, weights, self.classes, self.l2)
        f = WeightedSoftmax(*given, sparse_rows(X))
        return minimise(f, start, gap=gap)

    def _penalty(self, W: Float[Any, "models c p"]) -> Float64[Any, " models"]:
        """(λ/2)‖W‖² of each model."""
        xp = compat.array_namespace(W)
        return 0.5 * self.l2 * xp.sum(xp.astype(W, xp.float64) ** 2, axis=(1, 2))

    def _matrices(self, anchors: Float[Any, "models d"]) -> Float[Any, "models c p"]:
        """The models as matrices W, in the array library of the data."""
        x = conform(anchors, self.features)
        return x.reshape((x.shape[0], self.classes, -1))

    @cached_property
    def _spans(self) -> tuple[list[tuple[int, int]], Int64[Ints, " n"]]:
        """The distinct ranges of rows, and the range of each client."""
        ranges = np.stack([self.offsets, self.offsets + self.data_sizes], axis=1)
        spans, span_of = np.unique(ranges, axis=0, return_inverse=True)
        return [(int(lo), int(hi)) for lo, hi in spans], span_of.reshape(-1)

    def _by_client(self, by_span: list[Any], like: Any) -> Any:
        """Values of each range of rows as values of each client."""
        xp = compat.array_namespace(by_span[0])
        return conform(xp.stack([by_span[k] for k in self._spans[1]], axis=1), like)

    @cached_property
    def _sq_norms(self) -> Float64[Array, " m"]:
        return squared_norms(self.features)


def softmax_from_arrays(
    X: Any,
    y: Any,
    partition: Sequence[ArrayLike],
    *,
    l2: float,
    test: Samples | None = None,
) -> Softmax:
    """Softmax regression over a partition of the rows of X.

    Rows are copied client by client; a row in no shard is left out, a row in two is
    copied twice. A bias is a column of ones in X.

    Args:
        X: samples, shape (m, p); NumPy, array-like, or torch on any device. float32 and
            float64 are kept, other types become float64.
        y: labels, whole numbers from 0; the largest, here or in `test`, sets c.
        partition: rows of each client, nonempty.
        l2: λ ≥ 0.
        test: features and labels held out.

    Returns:
        The problem, in the array library and on the device of X.

    Raises:
        InvalidInputError: shapes, labels or rows break a rule above.

    Examples:
        >>> problem = softmax_from_arrays(
        ...     [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]], [0, 1, 1], [[0, 1], [2]], l2=0.1
        ... )
        >>> problem.n, problem.d, problem.smoothness
        (2, 4, 2.6)
    """
    features, labels, classes, held_out = _convert(X, y, test)
    shards = checked_shards(partition, len(features))
    order = conform(np.concatenate(shards), features)
    sizes = np.array([len(rows) for rows in shards])
    xp = compat.array_namespace(features)
    return Softmax(
        features=xp.take(features, order, axis=0),
        labels=xp.take(labels, order, axis=0),
        offsets=np.cumsum(sizes) - sizes,
        data_sizes=sizes,
        classes=classes,
        l2=nonnegative("l2", l2),
        test=held_out,
    )


def softmax_common_pool(
    X: Any,
    y: Any,
    n: int,
    *,
    l2: float,
    test: Samples | None = None,
) -> Softmax:
    """Softmax regression of clients that all draw from all of X: F_i = F.

    This is the homogeneous case of the theory. A pool that is shuffled and split once
    is not homogeneous, as its shards stay different from round to round (erratum E-14).
    The rows are stored once.

    Args:
        X: samples, as for `softmax_from_arrays`.
        y: labels, likewise.
        n: clients.
        l2: λ ≥ 0.
        test: features and labels held out.

    Returns:
        The problem, in the array library and on the device of X.

    Raises:
        InvalidInputError: an argument breaks its rule.
    """
    n = whole("n", n, least=1)
    features, labels, classes, held_out = _convert(X, y, test)
    zeros = np.zeros(n, dtype=np.int64)
    sizes = np.full(n, len(features))
    penalty = nonnegative("l2", l2)
    return Softmax(features, labels, zeros, sizes, classes, penalty, held_out)


def _check_samples(kind: str, features: Any, labels: Any, classes: int) -> None:
    """Require finite features (m, p) and labels (m,) from 0 to classes − 1.

    Args:
        kind: prefix of the names in errors: empty, or "test ".
        features: a_j as rows, float32 or float64.
        labels: y_j, whole numbers of the same array library.
        classes: c.

    Raises:
        InvalidInputError: naming `kind` features or `kind` labels.
    """
    names = f"{kind}features", f"{kind}labels"
    if features.ndim != 2 or 0 in features.shape:
        raise invalid(names[0], "of shape (m, p) with m, p ≥ 1", tuple(features.shape))
    if not str(features.dtype).endswith(("float32", "float64")):
        raise invalid(names[0], "float32 or float64", features.dtype)
    if tuple(labels.shape) != (features.shape[0],):
        rule = f"of shape ({features.shape[0]},), one per sample"
        raise invalid(names[1], rule, tuple(labels.shape))
    xp = compat.array_namespace(features)
    if compat.array_namespace(labels) is not xp:
        rule = f"of the array library of `{names[0]}`"
        raise invalid(names[1], rule, type(labels).__name__)
    if not xp.isdtype(labels.dtype, "integral"):
        raise invalid(names[1], "whole numbers", f"dtype {labels.dtype}")
    if not bool(xp.all(xp.isfinite(features))):
        raise invalid(names[0], "finite", "NaN or infinite entries")
    low, high = int(xp.min(labels)), int(xp.max(labels))
    if low < 0 or high >= classes:
        raise invalid(names[1], f"from 0 to {classes - 1}", low if low < 0 else high)


def _convert(
    X: Any, y: Any, test: Samples | None
) -> tuple[Any, Any, int, Samples | None]:
    """Features, labels, number of classes c and test part from a user's arrays.

    All are in the library and on the device of X.
    """
    if test is not None:
        check_pair("test", test)
    sets = [("", X, y)] if test is None else [("", X, y), ("test ", *test)]
    library = X if compat.is_array_api_obj(X) else np.zeros(0)
    pairs: list[Samples] = []
    for kind, given, given_labels in sets:
        features = _features(f"{kind}features", given)
        labels = _array(f"{kind}labels", given_labels)
        if labels.ndim != 1 or 0 in labels.shape:
            rule = "a nonempty vector"
            raise invalid(f"{kind}labels", rule, f"shape {tuple(labels.shape)}")
        pairs.append((conform(features, library), conform(labels, library)))
    classes = max(2, *(int(labels.max()) + 1 for _, labels in pairs))
    for (kind, *_), (features, labels) in zip(sets, pairs, strict=True):
        _check_samples(kind, features, labels, classes)
    return (*pairs[0], classes, pairs[1] if test is not None else None)


def _array(name: str, value: Any) -> Any:
    if compat.is_array_api_obj(value):
        return value
    try:
        return np.asarray(value)
    except ValueError as error:  # ragged
        raise invalid(name, "an array", repr(value)[:80]) from error


def _features(name: str, value: Any) -> Any:
    """An array of real numbers; float32 and float64 stay as they are."""
    array = _array(name, value)
    xp = compat.array_namespace(array)
    if not xp.isdtype(array.dtype, ("bool", "real floating", "integral")):
        raise invalid(name, "an array of real numbers", f"dtype {array.dtype}")
    if str(array.dtype).endswith(("float32", "float64")):
        return array
    return xp.astype(array, xp.float64)
