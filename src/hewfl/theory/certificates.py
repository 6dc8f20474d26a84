"""What the theory says about a federation, as records; `certifier` fills them in."""

from dataclasses import dataclass
from typing import final

from hewfl.control.certificate import Variant
from hewfl.core.array_types import Bool, Float64
from hewfl.core.validation import Array, Mask, Reals
from hewfl.theory.case import Case
from hewfl.theory.designer import Design
from hewfl.theory.round_costs import Algorithm
from hewfl.theory.statement import Hypothesis, all_hold
from hewfl.theory.theorems import Form


@final
@dataclass(frozen=True, slots=True, eq=False)
class Promise:
    """What one theorem says about the run.

    Attributes:
        label: LaTeX label.
        algorithm: whose rounds, as `communication` names them.
        about: method and assumption.
        title: what is promised, in words.
        weights: for which weights.
        iterate: for which iterate.
        variant: which constants.
        amplitude: ϑ at which all is evaluated.
        curvature: Λ likewise; of no effect for rules without one.
        value: bound on the expected gap after the rounds asked for; infinite where the
            formula is undefined.
        iterated: the same by iterating the recursion behind the closed form, often far
            smaller; NaN where there is none, beyond `MOST_ITERATED`, or if the theorem
            does not hold.
        floor: what the better of both bounds tends to.
        closed_floor: what the closed one tends to.
        vacuous: whether the floor is at the cap f̄ or above.
        rounds_to_target: the fewest rounds to the target by the better of both;
            infinite for never, or if the theorem does not hold.
        closed_rounds: by the closed bound.
        iterated_rounds: by the recursion; infinite where there is none.
        amplitudes: the least and the largest ϑ at which the theorem holds and is not
            vacuous; zeros where there is none.
        design: the amplitude that needs the fewest rounds to the target.
        hypotheses: the conditions with their numbers.
    """

    label: str
    algorithm: Algorithm
    about: str
    title: str
    weights: str
    iterate: str
    variant: Form
    amplitude: Reals
    curvature: Reals
    value: Reals
    iterated: Reals
    floor: Reals
    closed_floor: Reals
    vacuous: Bool[Mask, "..."]
    rounds_to_target: Reals
    closed_rounds: Reals
    iterated_rounds: Reals
    amplitudes: tuple[Reals, Reals]
    design: Design
    hypotheses: tuple[Hypothesis, ...]

    @property
    def holds(self) -> Bool[Mask, "..."]:
        """Whether all hypotheses are met."""
        return all_hold(self.hypotheses)


@final
@dataclass(frozen=True, slots=True, eq=False)
class FirstRound:
    """The one-step certificate at the start (th:predictive-majorant).

    Attributes:
        variant: which constants.
        uniform: largest common θ at which uniform weights are certified not to raise
            the gap; zero where there is none.
        noise_optimal: the same for the weights a*.
        amplitude: the θ of `value`: as asked for, else half of `uniform`.
        value: J at uniform weights, a bound on the expected gap after one round.
        hypotheses: the conditions with their numbers.
    """

    variant: Variant
    uniform: Reals
    noise_optimal: Reals
    amplitude: Reals
    value: Reals
    hypotheses: tuple[Hypothesis, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """How noisy the clients are, and the weights that make the best of it.

    Attributes:
        levels: M_i = v_i²/(H_i b_i), clients last.
        mean: V̄₁, the mean level.
        of_mean: V_u, the noise of the uniform mean.
        optimal: a*, the weights of least V₂ (eq:realized-het-positive-v).
        optimal_level: α = V₂(a*).
        comparator: the weights of least noise term δ in Algorithm 2's bound (E-15); a*
            if that bound was not asked for.
        comparator_term: δ at these weights, zero if not asked for.
        optimal_term: δ at a*, likewise.
    """

    levels: Float64[Array, "... n"]
    mean: Reals
    of_mean: Reals
    optimal: Float64[Array, "... n"]
    optimal_level: Reals
    comparator: Float64[Array, "... n"]
    comparator_term: Reals
    optimal_term: Reals


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """Numbers sent by one algorithm.

    Attributes:
        algorithm: control, het or hom (Algorithms 1, 2 and 3).
        lean: in a round, as needed (E-17).
        printed: in a round, by the paper's count.
        to_target: `lean` times the fewest rounds any promise about the algorithm needs.
    """

    algorithm: Algorithm
    lean: Reals
    printed: Reals
    to_target: Reals


@final
@dataclass(frozen=True, slots=True, eq=False)
class Certificate:
    """All that the theory says about a case.

    Attributes:
        case: what is known.
        target: ε asked for.
        rounds: T asked for.
        promises: one for each theorem and set of constants.
        first_round: one for each set of constants.
        noise: of the clients.
        sent: by each algorithm; empty if the dimension is not known.
        unasked: theorems left out, each with the constants it needs.
        participation: one sentence on who takes part and what follows (E-19).
    """

    case: Case
    target: Reals
    rounds: int
    promises: tuple[Promise, ...]
    first_round: tuple[FirstRound, ...]
    noise: Noise
    sent: tuple[Sent, ...]
    unasked: tuple[tuple[str, tuple[str, ...]], ...]
    participation: str
