"""Certificates: what the paper guarantees for a given federation.

`certify` evaluates every statement whose constants are known: whether it holds, its
bound after so many rounds, its floor, and the rounds to a target. Leading axes are
configurations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import final

import numpy as np

from hewfl.control.certificate import VARIANTS, Variant
from hewfl.core.array_types import Bool, Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, Mask, Reals, as_float64, invalid
from hewfl.theory.absent_clients import LABEL, absent_clients, best_absent_clients
from hewfl.theory.designer import Design, design_and_range
from hewfl.theory.noise import (
    best_comparator,
    noise_optimal,
    noise_optimal_level,
    noise_term,
    uniform_mean_noise,
    uniform_noise_of_mean,
)
from hewfl.theory.one_step_bound import largest_descent_amplitude, one_step, situation
from hewfl.theory.post_local import PostLocal, heterogeneous_noise
from hewfl.theory.recursion import Recursion, State
from hewfl.theory.round_costs import Algorithm, communication
from hewfl.theory.rounds_to_target import rounds_needed, single_trajectory
from hewfl.theory.statement import Hypothesis, all_hold
from hewfl.theory.systems import Case, coarsen, group_clients
from hewfl.theory.theorem_table import FORMS, THEOREMS, Form, Theorem, theorem_curve

MOST_ITERATED = 10_000
"""Recursions are iterated up to so many rounds; closed bounds have no limit."""
MOST_KINDS = 2048
"""More kinds of client than this are coarsened, none better than those it replaces."""
TARGET = 0.1
"""The target by default, as a share of the cap f̄."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Guarantee:
    """The bound of one theorem for a federation.

    Attributes:
        label: LaTeX label.
        algorithm: the algorithm, as `communication` names it.
        about: method and assumption.
        title: the statement in words.
        weights: the weights it is about.
        iterate: the iterate it is about.
        variant: the set of constants.
        amplitude: ϑ at which all is evaluated.
        curvature: Λ likewise; of no effect for rules without one.
        value: bound on the expected gap after T rounds; infinite where the formula is
            undefined.
        iterated: the same by iterating the recursion, often far smaller; NaN where
            there is none, beyond `MOST_ITERATED`, or if the theorem does not hold.
        floor: the limit of the better of both bounds.
        closed_floor: the limit of the closed one.
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
        variant: the set of constants.
        uniform: largest common θ at which uniform weights are certified not to raise
            the gap; zero where there is none.
        noise_optimal: the same for the weights a*.
        amplitude: the θ of `value`: the one given, else half of `uniform`.
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
    """Noise levels of the clients, and the weights of least noise.

    Attributes:
        levels: M_i = v_i²/(H_i b_i), clients last.
        mean: V̄₁, the mean level.
        of_mean: V_u, the noise of the uniform mean.
        optimal: a*, the weights of least V₂ (eq:realized-het-positive-v).
        optimal_level: α = V₂(a*).
        comparator: the weights of least noise term δ in Algorithm 2's bound (E-15); a*
            if that bound was not evaluated.
        comparator_term: δ at these weights, zero if not evaluated.
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
class Communication:
    """Numbers sent by one algorithm.

    Attributes:
        algorithm: control, het or hom (Algorithms 1, 2 and 3).
        per_round: in a round, as needed (E-17).
        printed: in a round, by the paper's count.
        to_target: `per_round` times the fewest rounds of any guarantee for the
            algorithm.
    """

    algorithm: Algorithm
    per_round: Reals
    printed: Reals
    to_target: Reals


@final
@dataclass(frozen=True, slots=True, eq=False)
class Certificate:
    """All guarantees of the theory for a case.

    Attributes:
        case: what is known.
        target: ε.
        rounds: T.
        guarantees: one for each theorem and set of constants.
        first_round: one for each set of constants.
        noise: of the clients.
        communication: of each algorithm; empty if the dimension is not known.
        not_evaluated: theorems left out, each with the constants it needs.
        participation: one sentence on how many clients take part (E-19).
    """

    case: Case
    target: Reals
    rounds: int
    guarantees: tuple[Guarantee, ...]
    first_round: tuple[FirstRound, ...]
    noise: Noise
    communication: tuple[Communication, ...]
    not_evaluated: tuple[tuple[str, tuple[str, ...]], ...]
    participation: str


@broadcasting
def certify(
    case: Case,
    target: ArrayLike | None = None,
    *,
    rounds: int = 1000,
    amplitude: ArrayLike | None = None,
    curvature: ArrayLike | None = None,
    variants: Sequence[Form] = VARIANTS,
) -> Certificate:
    """Evaluate every statement about many rounds whose constants are known.

    Args:
        case: what is known.
        target: ε, the gap to reach, below f̄; a tenth of f̄ by default.
        rounds: T, the rounds after which bounds are evaluated.
        amplitude: ϑ; by default each theorem gets the one of its `design`.
        curvature: Λ of the post-local rules; by default that of the design, and 2L
            where an amplitude is given.
        variants: sets of constants; a theorem is listed for those it comes with.

    Returns:
        Guarantees, first rounds, noise and numbers sent, in one record.
    """
    for variant in variants:
        if variant not in FORMS:
            raise invalid("variants", f"among {', '.join(FORMS)}", repr(variant))
    if rounds < 1:
        raise invalid("rounds", "a whole number of at least 1", rounds)
    share = TARGET * case.system.cap
    goal = as_float64("target", share if target is None else target)
    if amplitude is not None and curvature is None:
        curvature = 2 * case.system.L
    few = _grouped(case)
    known = [theorem for theorem in THEOREMS.values() if not theorem.missing(case)]
    guarantees = tuple(
        _guarantee(theorem, few, (goal, rounds), (amplitude, curvature), variant)
        for theorem in known
        for variant in variants
        if variant in theorem.variants
    )
    certified = [v for v in VARIANTS if v in variants] or [VARIANTS[0]]
    given = 0.0 if amplitude is None else amplitude
    several = case.system.cap.ndim or goal.ndim or np.ndim(given)
    if case.is_partial and not several:
        guarantees += tuple(
            partial_guarantee(case, float(goal), rounds, amplitude, v)
            for v in certified
        )
    missing = ((t.label, t.missing(case)) for t in THEOREMS.values())
    return Certificate(
        case=case,
        target=goal,
        rounds=rounds,
        guarantees=guarantees,
        first_round=tuple(_first_round(few, amplitude, v) for v in certified),
        noise=_noise(case, guarantees),
        communication=_communication(case, guarantees),
        not_evaluated=tuple((label, names) for label, names in missing if names),
        participation=_participation(case),
    )


def _grouped(case: Case) -> Case:
    """The case with few kinds of client and one number of participants."""
    kinds, active = coarsen(group_clients(case.system), MOST_KINDS), case.active
    if case.rotation is not None:
        active = max(1, min(map(len, case.rotation)))
    return replace(
        case,
        system=kinds,
        tracking=case.start[1],
        active=active,
        rotation=None,
        absence=None,
    )


def _guarantee(
    theorem: Theorem,
    case: Case,
    goal: tuple[Array, int],
    given: tuple[ArrayLike | None, ArrayLike | None],
    variant: Form,
) -> Guarantee:
    (target, rounds), (amplitude, curvature) = goal, given
    best, amplitudes = design_and_range(
        theorem.label, case, target, curvature=curvature, variant=variant
    )
    controls = PostLocal(best.amplitude, best.curvature)
    if amplitude is not None:
        controls = replace(controls, amplitude=amplitude)
    bound = theorem_curve(theorem.label, case, controls, variant)
    rate = bound.rate(rounds)
    needed = rounds_needed(bound, target, least=theorem.least)
    iterated = np.full(rate.value.shape, np.nan)
    if bound.recursion is not None and rounds <= MOST_ITERATED:
        iterated = np.where(
            rate.holds, _last_bound(bound.recursion, bound.start, rounds), np.nan
        )
    floor = bound.floor
    return Guarantee(
        theorem.label,
        theorem.algorithm,
        theorem.about,
        theorem.title,
        theorem.weights,
        theorem.iterate,
        variant,
        amplitude=as_float64("amplitude", controls.amplitude),
        curvature=as_float64("curvature", controls.curvature),
        value=rate.value,
        iterated=iterated,
        floor=floor,
        closed_floor=rate.floor,
        vacuous=np.asarray(floor >= case.system.cap),
        rounds_to_target=needed.fewest,
        closed_rounds=needed.closed,
        iterated_rounds=needed.iterated,
        amplitudes=amplitudes,
        design=best,
        hypotheses=rate.hypotheses,
    )


def partial_guarantee(
    case: Case,
    target: float,
    rounds: int,
    amplitude: ArrayLike | None,
    variant: Variant,
) -> Guarantee:
    """Algorithm 1's bound where not all clients take part (th:sur-system, E-19).

    There is no closed form: `value` and the closed rounds are NaN. `floor` is the
    lowest bound met in the rounds that are iterated.
    """
    theta, largest, least = _partial_amplitude(case, target, amplitude, variant)
    bound = absent_clients(case, theta, variant=variant)
    holds = bool(all_hold(bound.hypotheses))
    needed, lowest = bound.lowest(target)
    _, floor = bound.lowest(0.0)
    if not holds:
        needed = floor = lowest = np.inf
    nan, cap = np.asarray(np.nan), float(case.system.cap)
    needs = np.asarray(needed)
    curvature = np.asarray(2 * case.system.L)
    best = Design(
        LABEL,
        variant,
        amplitude=np.asarray(theta),
        curvature=curvature,
        rounds=needs,
        value=np.asarray(lowest),
        floor=np.asarray(floor),
        least_target=np.asarray(min(least, floor)),
        certified=np.asarray(np.isfinite(needed)),
        hypotheses=bound.hypotheses,
    )
    iterated = holds and rounds <= MOST_ITERATED
    return Guarantee(
        LABEL,
        "control",
        "Algorithm 1 with θ̄ = ϑ, absent clients",
        "Convex objective, predicted weights, absent clients: tracking errors grow "
        "until a client returns",
        "weights and amplitudes that Algorithm 1 computes before each round, none "
        "above ϑ",
        "the last iterate",
        variant,
        amplitude=np.asarray(theta),
        curvature=curvature,
        value=nan,
        iterated=np.asarray(bound.after(rounds)) if iterated else nan,
        floor=np.asarray(floor),
        closed_floor=nan,
        vacuous=np.asarray(floor >= cap),
        rounds_to_target=needs,
        closed_rounds=nan,
        iterated_rounds=needs,
        amplitudes=(np.asarray(0.0), np.asarray(largest)),
        design=best,
        hypotheses=bound.hypotheses,
    )


def _partial_amplitude(
    case: Case, target: float, amplitude: ArrayLike | None, variant: Variant
) -> tuple[float, float, float]:
    """The amplitude to use, the largest of use, and the lowest bound of the search."""
    if amplitude is None:
        return best_absent_clients(case, target, variant=variant)
    theta = float(np.asarray(amplitude))
    bound = absent_clients(case, theta, variant=variant)
    lowest = bound.lowest(0.0)[1] if all_hold(bound.hypotheses) else np.inf
    return theta, theta if lowest < bound.cap else 0.0, lowest


def _last_bound(recursion: Recursion, start: State, rounds: int) -> Array:
    """The bound after T rounds by the recursion."""
    if recursion.cap.ndim or any(map(np.ndim, (*recursion.coefficients, *start))):
        return np.asarray(recursion.trajectory(start, rounds).gap[-1])
    return np.asarray(single_trajectory(recursion, start, rounds)[-1])


def _first_round(
    case: Case, amplitude: ArrayLike | None, variant: Variant
) -> FirstRound:
    system = case.system
    at, m = situation(system, *case.start), system.multiplicity
    w = np.broadcast_to(m / system.n, (system.kinds,))
    uniform = largest_descent_amplitude(w, at, variant=variant)
    best = noise_optimal(system)
    theta = uniform / 2 if amplitude is None else as_float64("amplitude", amplitude)
    step = one_step((w, theta[..., None]), at, variant=variant)
    return FirstRound(
        variant,
        uniform=uniform,
        noise_optimal=largest_descent_amplitude(best, at, variant=variant),
        amplitude=np.asarray(theta),
        value=step.value,
        hypotheses=step.hypotheses,
    )


def _noise(case: Case, guarantees: Sequence[Guarantee]) -> Noise:
    system, best = case.system, noise_optimal(case.system)
    comparator, at_comparator, at_best = best, np.asarray(0.0), np.asarray(0.0)
    for guarantee in guarantees:
        if guarantee.algorithm == "het":
            controls = PostLocal(guarantee.amplitude, guarantee.curvature)
            known: Variant = "sharp" if guarantee.variant == "sharp" else "paper"
            linear, quadratic = heterogeneous_noise(system, controls, variant=known)
            comparator = best_comparator(linear, quadratic)
            at_comparator = noise_term(comparator, linear, quadratic)
            at_best = noise_term(best, linear, quadratic)
            break
    return Noise(
        levels=system.noise,
        mean=uniform_mean_noise(system),
        of_mean=uniform_noise_of_mean(system),
        optimal=best,
        optimal_level=noise_optimal_level(system),
        comparator=comparator,
        comparator_term=at_comparator,
        optimal_term=at_best,
    )


def _communication(
    case: Case, guarantees: Sequence[Guarantee]
) -> tuple[Communication, ...]:
    if case.dimension is None:
        return ()
    counts = []
    for algorithm in ("control", "het", "hom"):
        needed, printed = (
            communication(algorithm, case.participants, case.dimension, printed=form)
            for form in (False, True)
        )
        rounds = [p.rounds_to_target for p in guarantees if p.algorithm == algorithm]
        fewest = reduce(np.minimum, rounds, np.asarray(np.inf))
        to_target = np.asarray(needed * fewest)
        counts.append(Communication(algorithm, needed, printed, to_target))
    return tuple(counts)


def _participation(case: Case) -> str:
    n, active, rotation = case.system.n, case.participants, case.rotation
    if not case.is_partial:
        return f"All {n:,} clients take part."
    if rotation is not None:
        who = f"The clients of each round are given, for {len(rotation):,} rounds"
    else:
        limit = "for ever" if case.absence is None else f"{case.absence:,} in a row"
        who = f"{active:,} of {n:,} clients take part, rounds of absence: {limit}"
    return (
        f"{who}: over several rounds only Algorithm 1 has a bound, with tracking "
        "errors that grow while a client is absent (erratum E-19)."
    )
