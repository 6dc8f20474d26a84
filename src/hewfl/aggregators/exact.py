"""Exact weights against any reference: the weight problem of Algorithms 2 and 3."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np

from hewfl.aggregators.aggregator import Aggregator
from hewfl.aggregators.averaging import Weighting, client_shares, weighting_needs
from hewfl.aggregators.quadratic_model import (
    kappa_model,
    leave_one_out_weights,
    minimise_cross_fitted,
    minimise_model,
    unit_lengths,
)
from hewfl.core.algorithm import Need, RoundModel
from hewfl.core.array_types import Float64
from hewfl.core.displacements import LinearCombination
from hewfl.core.round import Decision, Round
from hewfl.core.validation import (
    Array,
    Schedule,
    as_float64,
    at_round,
    check_fields,
    invalid,
)

Normalization = Literal["none", "total_step", "length"]
_NAMED = ("mean", "variate", "root")


@final
@dataclass(frozen=True, slots=True)
class ExactWeights(Aggregator):
    """Weights that minimise a quadratic model of the next objective, exactly.

        w = argmin over w ∈ Δ_n of ⟨g, Σ w_iΔ_i⟩ + (Λ/2)‖Σ w_iΔ_i‖²

    The reference g says where the objective falls:

    "mean"     −Σ_i p_iΔ_i/s_i: the mean update (s_i = 1), the mean local gradient of
               Algorithm 3 (`normalize="total_step"`, s_i = η_iH_i), or the mean
               direction (`normalize="length"`, s_i = ‖Δ_i‖), for local optimisers with
               momentum or step sizes of their own.
    "variate"  c_t, the control variate of the server, as in Algorithm 2. Clients need
               `LocalSGD(variates=…)`.
    "root"     a gradient that the server computes itself on clean samples.
    a vector   any other gradient at the anchor.

    Λ is `curvature`, or follows from `kappa`, which has no units: Λ = κ(−⟨g, m⟩)/‖m‖²
    with m the mean update, so that the model is least at m/κ along m. With the mean as
    reference the exact weights are the projection of m/κ onto the hull of the updates:
    κ = 1 is plain averaging, κ → ∞ the point of least norm. Nothing is certified
    without an L: use `HewHet` and `HewHom` for that.

    The slope of a client against a mean that contains it holds a reward for its own
    noise. With `cross_fit` client i is compared with the mean of the others,
    Σ_{j≠i} p_jΔ_j/(1 − p_i). With κ = 1, equal means and independent noise, what is
    minimised is an unbiased estimate of ½‖Σ w_iΔ_i − E Δ‖², up to a constant.

    Attributes:
        reference: "mean", "variate", "root" or a vector.
        kappa: κ > 0, a number or a function of the round; 1 where no `curvature` is
            given.
        curvature: Λ > 0, a number or a function of the round.
        by: shares p_i of the mean.
        normalize: s_i of the mean.
        cross_fit: compare each client with the others alone; the default for the mean.
        null_endpoint: add Δ_0 = 0 to the choice, so that the model never rises
            (erratum E-30); weights may then sum to less than one.

    Raises:
        InvalidInputError: a field is out of range, or has no effect beside another.
    """

    reference: Any = "mean"
    kappa: Schedule | None = None
    curvature: Schedule | None = None
    by: Weighting = "equal"
    normalize: Normalization = "none"
    cross_fit: bool | None = None
    null_endpoint: bool = False

    name: ClassVar[str] = "Exact weights"

    def __post_init__(self) -> None:
        """Check ranges, and that every field that is set has an effect."""
        check_fields(self)
        if isinstance(self.reference, str):
            if self.reference not in _NAMED:
                rule = f"one of {', '.join(_NAMED)}, or a vector"
                raise invalid("reference", rule, repr(self.reference))
        else:
            vector = as_float64("reference", self.reference)
            if vector.ndim != 1:
                raise invalid("reference", "a vector", f"shape {vector.shape}")
            # a tuple: records are compared, hashed and shown whole in checkpoints
            object.__setattr__(self, "reference", tuple(vector.tolist()))
        if self.kappa is not None and self.curvature is not None:
            raise invalid("curvature", "left out beside `kappa`", self.curvature)
        if not self._is_mean:
            for name, value, default in (
                ("by", self.by, "equal"),
                ("normalize", self.normalize, "none"),
                ("cross_fit", bool(self.cross_fit), False),
            ):
                if value != default:
                    raise invalid(name, 'left out unless reference = "mean"', value)

    @property
    def _is_mean(self) -> bool:
        return isinstance(self.reference, str) and self.reference == "mean"

    @property
    def needs(self) -> frozenset[Need]:
        """What the reference is made of."""
        if not isinstance(self.reference, str):
            return frozenset({"entries"})
        if self.reference == "root":
            return frozenset({"root"})
        if self.reference == "variate":
            return frozenset({"variate"})
        needs = weighting_needs(self.by)
        if self.normalize == "total_step":
            needs |= {"steps", "step_sizes"}
        return needs

    def model(self, round_: Round, state: None) -> RoundModel:
        """The quadratic that is minimised; nothing is certified without an L."""
        reference, scales = self._reference(round_)
        if self.curvature is not None:
            value = at_round("curvature", self.curvature, round_.cohort.round)
            return RoundModel(reference, value, None)
        kappa = 1.0 if self.kappa is None else self.kappa
        if self._is_mean and self.by == "equal":
            return kappa_model(round_, reference, kappa, scales)
        if self._is_mean and self.normalize == "none":
            value = at_round("kappa", kappa, round_.cohort.round)
            return RoundModel(reference, value, None)  # (κ/2)‖d − m/κ‖²
        return kappa_model(round_, reference, kappa)

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """The exact weights of the model."""
        n, null = round_.displacements.n, self.null_endpoint
        model = self.model(round_, state)
        if not self._is_mean:
            return minimise_model(round_, model, null=null), state
        p = client_shares(self.by, round_.cohort)
        cross_fit = True if self.cross_fit is None else self.cross_fit
        if cross_fit and n > 1 and model.reference is not None:
            V = -leave_one_out_weights(p) / self._scales(round_)
            decision = minimise_cross_fitted(round_, V, model.curvature, null=null)
            return decision, state
        is_mean = self.normalize == "none" and model.curvature == 1 and not null
        if is_mean:  # m is in the hull: many weights may give it, p does
            return Decision(p, "the mean itself"), state
        return minimise_model(round_, model, null=null), state

    def _scales(self, round_: Round) -> Float64[Array, " s"]:
        """s_i, by which updates are divided in the mean."""
        if self.normalize == "total_step":
            return round_.total_step
        if self.normalize == "length":
            return unit_lengths(round_)
        return np.ones(round_.displacements.n)

    def _reference(self, round_: Round) -> tuple[Any, Float64[Array, " s"] | None]:
        """The vector g, and s_i where it is a mean."""
        if self._is_mean:
            scales = self._scales(round_)
            p = client_shares(self.by, round_.cohort)
            return LinearCombination(-p / scales), scales
        if not isinstance(self.reference, str):
            return np.array(self.reference), None
        vector = round_.variate if self.reference == "variate" else round_.root
        if vector is None:
            rule = {
                "variate": "used with local work that has control variates",
                "root": "used where the server gives a root gradient",
            }[self.reference]
            raise invalid(f'reference="{self.reference}"', rule, "none")
        return vector, None
