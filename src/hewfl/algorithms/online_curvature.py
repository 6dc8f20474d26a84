"""Curvature seen along the server's own path, where no L is known.

    ℓ_t = ‖g_t − g_{t−1}‖ / ‖x_t − x_{t−1}‖,     g_t = −(1/|S|) Σ_i Δ_i/(η_i H_i)

the secant of the mean local gradient, which every round brings anyway. Without noise it
is the curvature met on the way, in the convex theory at most L. Noise of variance V in
each g adds 2V/‖x_t − x_{t−1}‖² to its square, so it errs upwards: to a larger Λ, which
is the cautious side. Where noise outweighs the change of the gradient, as with few
sampled clients and short steps, it measures noise and not curvature. Gradients along a
branch of several steps are those of points further down: there it errs downwards, by
the share of the gradient that the branch takes away.
"""

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from hewfl.algorithms.hew_het import HewHet
from hewfl.algorithms.hew_hom import HewHom
from hewfl.core.algorithm import Demands, FirstGradients
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import BelowOne, Share, check_fields, invalid, positive
from hewfl.displacements.post_local import combine

MIN_RELATIVE_MOVE = 1e-12
"""A move shorter than this share of the model is rounding, not a step."""
MAX_CHANGE = 4.0
"""κ, by which one secant may differ from the estimate before it is clipped."""


@final
@dataclass(frozen=True, slots=True)
class Curvature:
    """What is known of the curvature after some rounds.

    Attributes:
        value: the estimate; the guess it started from until two rounds were seen.
        anchor: x of the last round seen.
        gradient: g of that round.
        met: whether there was such a round.
    """

    value: float
    anchor: Any
    gradient: Any
    met: bool


def first_curvature(guess: float, d: int) -> Curvature:
    """Before the first round.

    Raises:
        InvalidInputError: the guess is not a positive finite number.
    """
    return Curvature(positive("guess", guess), np.zeros(d), np.zeros(d), met=False)


def mean_local_gradient(round_: Round) -> Any:
    """−(1/|S|) Σ_i Δ_i/(η_i H_i), as in Algorithm 3, l. 9.

    With corrected branches it is the mean of g_i − c_i + c: what absent clients would
    have said is then in it as they said it last.
    """
    weights = -1 / (round_.total_step * len(round_.cohort.clients))
    return combine(round_.displacements, weights, wide=True)


def updated_curvature(
    known: Curvature,
    round_: Round,
    *,
    memory: float = 0.8,
    floor: float = 0.0,
) -> Curvature:
    """The estimate after one more round.

        value ← max(floor, value^β · clip(ℓ_t, value/κ, κ value)^(1−β))

    A geometric mean, so that halvings and doublings weigh the same; one round moves the
    estimate by a factor of κ^(1−β) at most, however noisy: 1.32 by default, so that a
    guess a hundred times wrong is mended in 17 rounds. A round whose step or secant is
    zero or not finite leaves the value as it is.

    Args:
        known: from the rounds before; `first_curvature(1 / learning_rate, d)` at first.
        round_: what the server saw.
        memory: β in [0, 1).
        floor: the estimate never goes below it.

    Raises:
        InvalidInputError: a number is out of range.
    """
    positive("value", known.value)
    if not 0 <= memory < 1:
        raise invalid("memory", "at least 0 and below 1", memory)
    if not 0 <= floor < np.inf:
        raise invalid("floor", "a nonnegative finite number", floor)
    with np.errstate(all="ignore"):  # what is not finite teaches nothing
        x, g = round_.anchor, mean_local_gradient(round_)
        dot = round_.displacements.dot
        # 0·v is NaN where v is not finite, and a square may overflow where it is
        if not (dot(x, 0 * x) == 0 and dot(g, 0 * g) == 0):
            return known
        secant = _secant(known, round_, g)
    if not (np.isfinite(secant) and secant > 0):
        return Curvature(known.value, x, g, met=True)
    kappa = MAX_CHANGE
    clipped = min(max(secant, known.value / kappa), known.value * kappa)
    value = known.value**memory * clipped ** (1 - memory)
    return Curvature(max(floor, value), x, g, met=True)


def _secant(known: Curvature, round_: Round, g: Any) -> float:
    """ℓ_t; zero where there was no round before, or no step since."""
    if not known.met:
        return 0.0
    dot, x = round_.displacements.dot, round_.anchor
    moved, turned = x - known.anchor, g - known.gradient
    step, change = np.sqrt(dot(moved, moved)), np.sqrt(dot(turned, turned))
    return (
        float(change / step) if step > MIN_RELATIVE_MOVE * np.sqrt(dot(x, x)) else 0.0
    )


# ------------------ Algorithms 2 and 3 with a Λ that follows the curvature met on


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
    step sizes for good, and is the guess ℓ̂ starts from. ℓ̂_t is the secant estimate
    above; round t is in it, and successive server steps are all that it needs. Nothing
    certifies that ℓ̂_t is above the curvature, so the weights are exact for their model
    and the model is no bound: `pathwise_audit` does not judge it.

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
        check_fields(self)

    @property
    def name(self) -> str:
        """How tables call it."""
        return f"{self.rule.name}, online curvature"

    @property
    def _guess(self) -> float:
        """What ℓ̂ starts from: 1/learning rate."""
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

    def plan(self, cohort: Cohort, state: OnlineState) -> LocalPlan:
        """The rule's: step sizes keep the L they were given."""
        return self.rule.plan(cohort, state.rule)

    def decide(self, round_: Round, state: OnlineState) -> tuple[Decision, OnlineState]:
        """ℓ̂_t from this server step and the last, then the rule under it."""
        least = self.curvature_floor * self._guess
        seen = updated_curvature(
            state.curvature, round_, memory=self.curvature_memory, floor=least
        )
        rule: Any = replace(self.rule, smoothness=seen.value)  # Λ_t = (Λ/L) ℓ̂_t
        decision, following = rule.decide(round_, state.rule)
        return decision, OnlineState(seen, following)
