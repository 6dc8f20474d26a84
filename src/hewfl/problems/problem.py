"""What simulated clients optimise, as the engine sees it.

    F(x) = (1/n) Σ_i F_i(x),     F_i(x) = (1/m_i) Σ_j φ_ij(x)             (eq:model)

with every φ_ij convex and L-smooth. The samples of all clients lie in pooled arrays,
client i holding rows offsets_i to offsets_i + m_i. Many models, the lanes of a
comparison, are served at once on the same samples.

Methods that take models work on NumPy arrays and torch tensors alike and answer in the
library, on the device and in the precision of the models they were given, except that
losses and objectives are summed and returned in float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

from hewfl.core.array_types import Float, Float64, Int, Int64
from hewfl.core.round import Cohort, LocalPlan
from hewfl.core.validation import Array, Ints


@final
@dataclass(frozen=True, slots=True)
class Optimum:
    """A minimiser with its proof.

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
        models: Float[Any, "lanes a d"],
        samples: Int[Any, "a b"],
        counts: Int[Any, " a"],
    ) -> Float[Any, "lanes a d"]:
        """g_i = (1/b_i) Σ_{j ≤ b_i} ∇φ_{s_ij}(y_i), each client at its own model.

        Args:
            models: y_i of a clients in every lane.
            samples: s_ij, rows of the pooled arrays, the same for all lanes.
            counts: b_i ≥ 1. Columns from b_i on are padding: any valid row, ignored.

        Returns:
            g_i of each client in every lane.
        """

    def full_gradients(self, anchors: Float[Any, "lanes d"]) -> Float[Any, "lanes n d"]:
        """∇F_i(x), exact, for every client.

        Args:
            anchors: models, one for each lane.

        Returns:
            One gradient for each lane and client.
        """

    def client_losses(self, anchors: Float[Any, "lanes d"]) -> Float64[Any, "lanes n"]:
        """F_i(x) for every client.

        Args:
            anchors: models, one for each lane.

        Returns:
            One loss for each lane and client.
        """

    def objectives(self, anchors: Float[Any, "lanes d"]) -> Float64[Any, "lanes 2"]:
        """(1/n) Σ F_i(x), the paper's F, and Σ m_i F_i(x)/Σ m_i, the pooled mean.

        Args:
            anchors: models, one for each lane.

        Returns:
            Both means, lane by lane.
        """

    def evaluate(
        self, anchors: Float[Any, "lanes d"]
    ) -> dict[str, Float64[Any, " lanes"]]:
        """Measures besides the objectives, by name.

        Args:
            anchors: models, one for each lane.

        Returns:
            Numbers by name, such as `test_accuracy`, lane by lane.
        """

    def optimum(self) -> Optimum:
        """The minimiser of (1/n) Σ F_i, to rounding. Costly: keep the answer.

        Returns:
            The minimiser with its proof.
        """

    def pooled_optimum(self) -> Optimum:
        """The minimiser of Σ m_i F_i/Σ m_i, to rounding.

        Returns:
            The minimiser with its proof.
        """


@runtime_checkable
class Branching(Protocol):
    """A problem with a kernel of its own for whole branches."""

    def branches(
        self,
        anchors: Float[Array, "lanes d"],
        cohort: Cohort,
        plans: Sequence[LocalPlan],
        samples: Int64[Ints, "steps s b"],
    ) -> Float[Array, "lanes s d"] | None:
        """Displacements as `hewfl.simulation.branches.run_branches` returns them, or None.

        None where the kernel does not take these data.

        Args:
            anchors: x_t of each lane.
            cohort: the clients, common to all lanes.
            plans: what each lane tells them.
            samples: rows of the pooled arrays for each step; client i counts its first
                b_i columns.

        Returns:
            One displacement for each lane and client, or None.
        """


@runtime_checkable
class Adaptive(Protocol):
    """A problem whose clients may step by an optimiser other than plain SGD."""

    @property
    def hides_gradients(self) -> bool:
        """Whether displacements do not show the mean gradient of a branch."""

    def measured_branches(
        self,
        anchors: Float[Array, "lanes d"],
        cohort: Cohort,
        plans: Sequence[LocalPlan],
        samples: Int64[Ints, "steps s b"],
    ) -> tuple[Float[Array, "lanes s d"], Float[Array, "corrected s d"]]:
        """Displacements, and mean gradients of the lanes whose plan has a correction.

        The gradients are those of the minibatches along each branch, before correction,
        proximal term and optimiser. Arguments are those of `Branching.branches`.

        Args:
            anchors: x_t of each lane.
            cohort: the clients.
            plans: what each lane tells them.
            samples: rows of the pooled arrays for each step.

        Returns:
            Both, lane by lane.
        """


@runtime_checkable
class Probed(Protocol):
    """A problem whose clients can tell their loss on chosen samples."""

    def sample_losses(
        self, anchors: Float[Any, "lanes d"], samples: Int[Any, "a b"]
    ) -> Float64[Any, "lanes a"]:
        """(1/b) Σ_j φ_{s_ij}(x) for every model and client, all clients at one model.

        Args:
            anchors: models.
            samples: s_ij, rows of the pooled arrays, b of each client.

        Returns:
            One mean for each lane and client.
        """
