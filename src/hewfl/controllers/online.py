"""Algorithms 2 and 3 with a Λ that follows the curvature met on the way."""

from dataclasses import dataclass, replace
from typing import Any, final

from hewfl.aggregate.curvature import Curvature, first_curvature, updated_curvature
from hewfl.controllers.het import HewHet
from hewfl.controllers.hom import HewHom
from hewfl.core.algorithm import Demands, FirstGradients
from hewfl.core.checks import invalid
from hewfl.core.fields import BelowOne, Share, check_fields
from hewfl.core.round import Decision, LocalPlan, Roster, Round


@final
@dataclass(frozen=True, slots=True)
class OnlineState:
    """What is known of the curvature, beside the rule's own state."""

    curvature: Curvature
    rule: Any


@final
@dataclass(frozen=True, slots=True)
class OnlineCurvature:
    """A post-local rule under Λ_t = (Λ/L) ℓ̂_t instead of (Λ/L) L.

    For models without a known L. `rule.smoothness` is then 1/learning rate: it sets the
    step sizes for good, and is the guess ℓ̂ starts from. ℓ̂_t is the secant estimate of
    `hewfl.aggregate.curvature`; round t is in it, and successive server steps are all
    that it needs. Nothing certifies that ℓ̂_t is above the curvature, so the weights are
    exact for their model and the model is no bound: `pathwise_audit` does not judge it.

    Attributes:
        rule: Algorithm 2 or 3.
        curvature_memory: β in [0, 1) of the estimate; 0 takes each secant as it comes.
        curvature_floor: φ; ℓ̂_t ≥ φL, a share in (0, 1] of the guess. Without one a flat
            stretch would leave the linear term alone, and one client would get all.

    Raises:
        InvalidInputError: a hyper-parameter is out of its range.
    """

    rule: HewHom | HewHet
    curvature_memory: BelowOne = 0.8
    curvature_floor: Share = 0.01

    def __post_init__(self) -> None:
        """Check the kind of rule and that β and φ are in range."""
        if not isinstance(self.rule, HewHom | HewHet):
            raise invalid("rule", "HewHom or HewHet", repr(self.rule))
        if self.rule.smoothness is None:
            raise invalid("rule", "one with a `smoothness`, not `kappa`", self.rule)
        check_fields(self)

    @property
    def name(self) -> str:
        """How tables call it."""
        return f"{self.rule.name}, online curvature"

    @property
    def _guess(self) -> float:
        """What ℓ̂ starts from: 1/learning rate."""
        assert self.rule.smoothness is not None, "checked when it was made"
        return self.rule.smoothness

    @property
    def demands(self) -> Demands:
        """The rule's: the estimate takes what was sent anyway."""
        return self.rule.demands

    def init(self, n: int, d: int, gradients: FirstGradients) -> OnlineState:
        """The guess, and the rule's own start."""
        guess = first_curvature(self._guess, d)
        return OnlineState(guess, self.rule.init(n, d, gradients))

    def variates(self, state: OnlineState) -> Any:
        """The control variates in the rule's own state; None in Algorithm 3's."""
        return state.rule

    def plan(self, roster: Roster, state: OnlineState) -> LocalPlan:
        """The rule's: step sizes keep the L they were given."""
        return self.rule.plan(roster, state.rule)

    def decide(self, round_: Round, state: OnlineState) -> tuple[Decision, OnlineState]:
        """ℓ̂_t from this server step and the last, then the rule under it."""
        least = self.curvature_floor * self._guess
        seen = updated_curvature(
            state.curvature, round_, memory=self.curvature_memory, floor=least
        )
        rule: Any = replace(self.rule, smoothness=seen.value)  # Λ_t = (Λ/L) ℓ̂_t
        decision, following = rule.decide(round_, state.rule)
        return decision, OnlineState(seen, following)
