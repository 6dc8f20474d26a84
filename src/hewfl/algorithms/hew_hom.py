"""Algorithm 3: homogeneous post-local HEW-Local SGD."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from hewfl.algorithms.quadratic_model import (
    RATIO,
    check_scale,
    kappa_model,
    least_cross_fitted,
    least_model,
    leave_one_out_weights,
    ratio_at,
    step_sizes,
    unit_lengths,
)
from hewfl.core.algorithm import Demands, FirstGradients, RoundModel, Traffic
from hewfl.core.array_types import Float64
from hewfl.core.displacements import LinearCombination
from hewfl.core.provenance import shown_record
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import Array, Positive, Schedule, check_fields, invalid


@final
@dataclass(frozen=True, slots=True)
class HewHom:
    """Plain local branches, exact weights against the mean local gradient.

    Give L and Λ/L, as the paper does, or `kappa` instead of both:

        HewHom(smoothness=L, amplitude=0.5, curvature_ratio=1.25)
        HewHom(kappa=10.0, amplitude=0.05)

    Attributes:
        smoothness: L; None where `kappa` is given.
        amplitude: ϑ_t, a number or a function of t; client i steps by
            η_i = ϑ_t/(L H_i), so all cover the same ground. Without an L it is that
            ground itself: η_i = ϑ_t/H_i.
        curvature_ratio: Λ_t/L > 1, a number or a function of t.
        null_endpoint: add Δ_0 = 0 to the choice, so that Ψ ≤ 0 always (erratum E-30);
            weights then may sum to less than one.
        kappa: κ > 0, a number or a function of t: Λ_t = κ (−⟨ḡ, m⟩)/‖m‖² with m the
            mean displacement. 1 gives equal weights where all covered the same ground,
            and the larger it is, the nearer is the step to the shortest combination of
            displacements (`hewfl.algorithms.quadratic_model`). It certifies nothing.
        cross_fit: judge client i by the gradients of the others alone,
            q_i = −(1/(S − 1)) Σ_{j≠i} ⟨Δ_i, Δ_j⟩/(η_j H_j). The plain slope ⟨ḡ, Δ_i⟩
            holds −‖noise of i‖²/(S η_i H_i), a reward for being noisy.
        by: what displacements are divided by in the reference. "rate" is the paper's
            η_iH_i, which gives mean gradients under plain SGD. "length" is ‖Δ_i‖, for
            local optimisers with momentum or step sizes of their own, under which
            Δ_i/(η_iH_i) lets slow clients dominate; every client then counts as one
            direction. Only with `kappa`: it has no unit that L could be given in.

    Raises:
        InvalidInputError: a hyper-parameter is out of its range.
    """

    smoothness: Positive | None = None
    amplitude: Schedule | None = None
    curvature_ratio: Schedule = RATIO
    null_endpoint: bool = False
    kappa: Schedule | None = None
    cross_fit: bool = False
    by: Literal["rate", "length"] = "rate"

    name: ClassVar[str] = "HEW (plain)"
    demands: ClassVar[Demands] = Demands(Traffic(common_scalars=1))  # ϑ

    def __post_init__(self) -> None:
        """Check that one of the two ways is given, and that numbers are in range."""
        check_fields(self)
        check_scale(self.smoothness, self.amplitude, self.curvature_ratio, self.kappa)
        if self.by == "length" and self.kappa is None:
            raise invalid("by", '"rate" without `kappa`', repr(self.by))

    def __repr__(self) -> str:
        """All hyper-parameters; κ and what goes with it where they are used."""
        return shown_record(self, ("kappa", "cross_fit", "by"))

    def init(self, n: int, d: int, gradients: FirstGradients) -> None:
        """There is no state."""

    def plan(self, cohort: Cohort, state: None) -> LocalPlan:
        """Equal ground for all: η_i H_i = ϑ_t/L."""
        eta = step_sizes(self.smoothness, self.amplitude, cohort)  # Alg. 3, l. 2
        return LocalPlan(eta)

    def model(self, round_: Round, state: None) -> RoundModel:
        """The quadratic about ḡ = −(1/S) Σ Δ_i/(η_i H_i)."""
        ground = self._ground(round_)
        mean_gradient = LinearCombination(-1 / (len(ground) * ground))  # Alg. 3, l. 9
        if self.kappa is not None:
            return kappa_model(round_, mean_gradient, self.kappa, ground)
        assert self.smoothness is not None, "checked when the rule was made"
        ratio = ratio_at(self.curvature_ratio, round_.cohort.round)
        return RoundModel(mean_gradient, ratio * self.smoothness, self.smoothness)

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """Exact weights against the mean of the normalised local displacements."""
        model = self.model(round_, state)  # Alg. 3, l. 9-10
        n, null = round_.displacements.n, self.null_endpoint
        if not self.cross_fit or n == 1 or model.reference is None:
            return least_model(round_, model, null=null), state
        ground = self._ground(round_)
        slopes = (
            -leave_one_out_weights(np.ones(n)) / ground
        )  # Σ_{j≠i} −Δ_j/((S−1) η_jH_j)
        return least_cross_fitted(round_, slopes, model.curvature, null=null), state

    def _ground(self, round_: Round) -> Float64[Array, " s"]:
        return round_.ground if self.by == "rate" else unit_lengths(round_)
