"""The contract of a problem: what simulated clients optimise.

    F(x) = (1/n) Σ_i F_i(x),     F_i(x) = (1/m_i) Σ_j φ_ij(x)             (eq:model)

with every φ_ij convex and L-smooth. The samples of all clients lie in pooled arrays,
client i holding rows offsets_i to offsets_i + m_i. Every method takes many
models at once, those of the entries of a comparison, on the same samples.

Methods take NumPy arrays and torch tensors. Results are in the library, on the device
and in the precision of the models, except for losses and objectives, which are summed
and returned in float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

import numpy as np

from hewfl.core.array_types import Bool, Float, Float64, Int, Int64
from hewfl.core.round import Cohort, LocalPlan
from hewfl.core.validation import Array, Ints


@final
@dataclass(frozen=True, slots=True)
class Optimum:
    """A minimiser with a bound on its error.

        ‖∇F(x)‖ = residual,     F(x) − F* ≤ gap = residual²/(2μ)

    Attributes:
        x: the minimiser.
        objective: F(x), equal to F* to rounding.
        residual: norm of the gradient at x, as computed in float64.
        gap: the bound above with the strong convexity μ; infinite where μ = 0.

    Examples:
        >>> from hewfl.problems import random_quadratic
        >>> best = random_quadratic(seed=0, n=3, d=2).optimum()
        >>> bool(best.residual < 1e-12)
        True
    """

    x: Float64[Array, " d"]
    objective: float
    residual: float
    gap: float


@final
@dataclass(frozen=True, slots=True, eq=False)
class LocalTests:
    """The part of a test set that each client is judged by.

    Client i has the accuracy Σ_g shares[i, g] · (accuracy on the samples of group g):
    with groups that are the clients of the samples, that on its own samples; with
    groups that are classes, the expected one on a test set with its mix of classes.

    Attributes:
        groups: group of each test sample, whole numbers from 0.
        count: number of groups.
        shares: of each client and group; None if group i is client i.
    """

    groups: Int64[Ints, " k"]
    count: int
    shares: Float64[Array, "n g"] | None = None

    def accuracies(self, hits: Bool[Any, "models k"]) -> Float64[Array, "models n"]:
        """Accuracy of each model for each client; NaN without test samples.

        Args:
            hits: of each model and test sample, whether it is classified correctly.
        """
        means = grouped_means(hits, self.groups, self.count)
        if self.shares is None:
            return means
        known = np.isfinite(means[0])  # a class may have no test samples
        weights = self.shares[:, known]
        with np.errstate(invalid="ignore"):
            accuracies: Array = (means[:, known] @ weights.T) / weights.sum(axis=1)
        return accuracies


def grouped_means(
    hits: Bool[Any, "models k"], groups: Int64[Ints, " k"], count: int
) -> Float64[Array, "models g"]:
    """The mean of each row over each group of columns; NaN for an empty group."""
    sizes = np.bincount(groups, minlength=count)
    sums = np.stack([np.bincount(groups, row, minlength=count) for row in hits])
    with np.errstate(invalid="ignore"):
        return sums / sizes


@runtime_checkable
class Problem(Protocol):
    """A finite sum over clients, with exact answers for audits.

    Examples:
        >>> from hewfl.problems import random_quadratic
        >>> isinstance(random_quadratic(seed=0, n=3, d=2), Problem)
        True
    """

    @property
    def n(self) -> int:
        """Number of clients."""

    @property
    def d(self) -> int:
        """Number of parameters."""

    @property
    def data_sizes(self) -> Int64[Ints, " n"]:
        """m_i, samples of each client."""

    @property
    def offsets(self) -> Int64[Ints, " n"]:
        """First row of each client's samples in the pooled arrays."""

    @property
    def smoothness(self) -> float:
        """L: every sample loss has an L-Lipschitz gradient (proven, not estimated)."""

    def minibatch_gradients(
        self,
        models: Float[Any, "models a d"],
        samples: Int[Any, "a b"],
        counts: Int[Any, " a"],
    ) -> Float[Any, "models a d"]:
        """g_i = (1/b_i) Σ_{j ≤ b_i} ∇φ_{s_ij}(y_i), each client at its own model.

        Args:
            models: y_i, several models of each of a clients.
            samples: s_ij, rows of the pooled arrays, the same for all models.
            counts: b_i ≥ 1. Columns from b_i on are padding: any valid row, ignored.

        Returns:
            g_i, in the shape of `models`.
        """

    def full_gradients(
        self, anchors: Float[Any, "models d"]
    ) -> Float[Any, "models n d"]:
        """∇F_i(x), exact, for every client.

        Args:
            anchors: models, one per row.

        Returns:
            One gradient for each model and client.
        """

    def client_losses(
        self, anchors: Float[Any, "models d"]
    ) -> Float64[Any, "models n"]:
        """F_i(x) for every client.

        Args:
            anchors: models, one per row.

        Returns:
            One loss for each model and client.
        """

    def objectives(self, anchors: Float[Any, "models d"]) -> Float64[Any, "models 2"]:
        """(1/n) Σ F_i(x), the paper's F, and Σ m_i F_i(x)/Σ m_i, the pooled mean.

        Args:
            anchors: models, one per row.

        Returns:
            Both means of each model.
        """

    def evaluate(
        self, anchors: Float[Any, "models d"]
    ) -> dict[str, Float64[Any, "models ..."]]:
        """Measures besides the objectives, by name.

        Args:
            anchors: models, one per row.

        Returns:
            By name, such as `test_accuracy`, one number for each model. The names
            `class` and `client` are of a row for each model: the test accuracy of each
            class and of each client.
        """

    def optimum(self) -> Optimum:
        """The minimiser of (1/n) Σ F_i, to rounding. This is expensive.

        Returns:
            The minimiser with its residual.
        """

    def pooled_optimum(self) -> Optimum:
        """The minimiser of Σ m_i F_i/Σ m_i, to rounding.

        Returns:
            The minimiser with its residual.
        """


@runtime_checkable
class Branching(Protocol):
    """A problem that computes whole local branches itself, by a compiled kernel."""

    def branches(
        self,
        anchors: Float[Array, "models d"],
        cohort: Cohort,
        plans: Sequence[LocalPlan],
        samples: Int64[Ints, "steps s b"],
    ) -> Float[Array, "models s d"] | None:
        """Displacements of all clients, or None if the kernel does not take these data.

        Args:
            anchors: x_t, one model per row.
            cohort: the clients, common to all models.
            plans: local work for each model.
            samples: rows of the pooled arrays for each step; client i counts its first
                b_i columns.

        Returns:
            One displacement for each model and client, or None.
        """


@runtime_checkable
class Adaptive(Protocol):
    """A problem whose clients may step by an optimiser other than plain SGD."""

    @property
    def hides_gradients(self) -> bool:
        """Whether displacements do not show the mean gradient of a branch."""

    def measured_branches(
        self,
        anchors: Float[Array, "models d"],
        cohort: Cohort,
        plans: Sequence[LocalPlan],
        samples: Int64[Ints, "steps s b"],
    ) -> tuple[Float[Array, "models s d"], Float[Array, "corrected s d"]]:
        """Displacements, and mean gradients of the models whose plan has a correction.

        The gradients are those of the minibatches along each branch, before correction,
        proximal term and optimiser. Arguments are those of `Branching.branches`.

        Args:
            anchors: x_t, one model per row.
            cohort: the clients.
            plans: local work for each model.
            samples: rows of the pooled arrays for each step.

        Returns:
            Both.
        """


@runtime_checkable
class Probed(Protocol):
    """A problem that computes losses on chosen samples."""

    def sample_losses(
        self, anchors: Float[Any, "models d"], samples: Int[Any, "a b"]
    ) -> Float64[Any, "models a"]:
        """(1/b) Σ_j φ_{s_ij}(x) for every model and client, all clients at one model.

        Args:
            anchors: models.
            samples: s_ij, rows of the pooled arrays, b of each client.

        Returns:
            One mean for each model and client.
        """
