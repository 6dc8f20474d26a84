"""Certificates: what the paper guarantees for a given federation.

`certify` evaluates every statement whose constants are known: whether it holds, its
bound after so many rounds, its floor, and the rounds to a target. `improvements` does
so after one change at a time. Both are about one configuration.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from hewfl.control.certificate import VARIANTS, Variant
from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, Reals, invalid
from hewfl.theory.absent_clients import LABEL, absent_clients, best_absent_clients
from hewfl.theory.designer import Design, design, one_positive, target_below_cap
from hewfl.theory.noise import (
    best_comparator,
    noise_optimal,
    noise_optimal_level,
    noise_term,
    uniform_mean_noise,
    uniform_noise_of_mean,
)
from hewfl.theory.one_step_bound import largest_descent_amplitude, one_step, situation
from hewfl.theory.other_methods import OtherMethod, literature
from hewfl.theory.post_local import PostLocal, heterogeneous_noise
from hewfl.theory.round_costs import Algorithm, communication
from hewfl.theory.rounds_to_target import rounds_needed, single_trajectory
from hewfl.theory.statement import Constants, Hypothesis, all_hold
from hewfl.theory.systems import Case, coarsen, group_clients
from hewfl.theory.theorem_table import FORMS, THEOREMS, Form, Theorem, theorem_curve

MOST_ITERATED = 10_000
"""Recursions are iterated up to so many rounds; closed bounds have no limit."""
MOST_KINDS = 2048
"""More kinds of client than this are coarsened, none better than those it replaces."""
TARGET = 0.1
"""The target by default, as a share of the cap f̄."""
_CONSTANTS: tuple[Constants, ...] = (*VARIANTS, "joint")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Guarantee:
    """The bound of one theorem for a federation.

    The words are those of `Theorem`. Rounds are infinite for never, or if the theorem
    does not hold.
    """

    label: str
    algorithm: Algorithm
    about: str
    title: str
    weights: str
    iterate: str
    variant: Form
    amplitude: float  # ϑ at which all is evaluated
    curvature: float  # Λ likewise; of no effect for rules without one
    value: float  # closed bound on the gap after T rounds; infinite where undefined
    iterated: float  # the same by the recursion, often far smaller; NaN for none
    floor: float  # the limit of the better of both bounds
    closed_floor: float  # the limit of the closed one
    vacuous: bool  # whether the floor is at the cap f̄ or above
    rounds_to_target: float  # the fewest by the better of both
    closed_rounds: float  # by the closed bound
    iterated_rounds: float  # by the recursion
    amplitudes: tuple[float, float]  # `certified_amplitudes`
    design: Design  # the amplitude that needs the fewest rounds
    hypotheses: tuple[Hypothesis, ...]

    @property
    def holds(self) -> bool:
        """Whether all hypotheses are met."""
        return bool(all_hold(self.hypotheses))


@final
@dataclass(frozen=True, slots=True, eq=False)
class FirstRound:
    """The one-step certificate at the start (th:predictive-majorant)."""

    variant: Constants
    uniform: float  # largest common θ at which weights 1/n are certified not to rise
    noise_optimal: float  # the same for the weights a*
    amplitude: float  # the θ of `value`: the one given, else half of `uniform`
    value: float  # J at weights 1/n, a bound on the expected gap after one round
    hypotheses: tuple[Hypothesis, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """Noise levels of the clients, and the weights of least noise.

    The comparator is a* if Algorithm 2's bound was not evaluated, and δ is then zero.
    """

    levels: Float64[Array, "... n"]  # M_i = v_i²/(H_i b_i), clients last
    mean: Reals  # V̄₁, the mean level
    of_mean: Reals  # V_u, the noise of the uniform mean
    optimal: Float64[Array, "... n"]  # a*, of least V₂ (eq:realized-het-positive-v)
    optimal_level: Reals  # α = V₂(a*)
    comparator: Float64[Array, "... n"]  # of least δ in Algorithm 2's bound (E-15)
    comparator_term: Reals  # δ at these weights
    optimal_term: Reals  # δ at a*


@final
@dataclass(frozen=True, slots=True, eq=False)
class Communication:
    """Numbers sent by one algorithm."""

    algorithm: Algorithm
    per_round: float  # as needed (E-17)
    printed: float  # by the paper's count
    to_target: float  # `per_round` times the fewest rounds of any guarantee for it


@final
@dataclass(frozen=True, slots=True, eq=False)
class Certificate:
    """All guarantees of the theory for a case."""

    case: Case
    target: float  # ε
    rounds: int  # T
    guarantees: tuple[Guarantee, ...]  # one for each theorem and set of constants
    first_round: tuple[FirstRound, ...]  # one for each set of constants
    noise: Noise
    communication: tuple[Communication, ...]  # empty if the dimension is not known
    literature: tuple[OtherMethod, ...]  # other methods, at ϑ of the best guarantee
    not_evaluated: tuple[tuple[str, tuple[str, ...]], ...]  # with the constants needed
    participation: str  # one sentence on how many clients take part (E-19)


@broadcasting
def certify(
    case: Case,
    target: ArrayLike | None = None,
    *,
    rounds: int = 1000,
    amplitude: ArrayLike | None = None,
    curvature: ArrayLike | None = None,
    variants: Sequence[Form] = FORMS[1:],
) -> Certificate:
    """Evaluate every statement about many rounds whose constants are known.

    Args:
        case: what is known, of one configuration.
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
    goal = float(target_below_cap(share if target is None else target, case))
    theta, _ = given = _controls(case, amplitude, curvature)
    few = _with_few_kinds(case)
    guarantees = tuple(
        _guarantee(theorem, few, goal, rounds, given, variant)
        for theorem in THEOREMS.values()
        for variant in variants
        if variant in theorem.variants and not theorem.missing(case)
    )
    certified = [v for v in VARIANTS if v in variants] or [VARIANTS[0]]
    if case.is_partial:
        guarantees += tuple(
            _partial_guarantee(case, goal, rounds, theta, v) for v in certified
        )
    best = best_guarantee(guarantees)
    missing = ((t.label, t.missing(case)) for t in THEOREMS.values())
    return Certificate(
        case=case,
        target=goal,
        rounds=rounds,
        guarantees=guarantees,
        first_round=tuple(
            _first_round(few, theta, v)
            for v in [v for v in _CONSTANTS if v in variants] or certified
        ),
        noise=_noise(case, guarantees),
        communication=_communication(case, guarantees),
        literature=literature(few, goal, rounds=rounds, amplitude=best.amplitude),
        not_evaluated=tuple((label, names) for label, names in missing if names),
        participation=_participation(case),
    )


def best_guarantee(rows: Sequence[Guarantee]) -> Guarantee:
    """The row that holds with the fewest rounds, else with the lowest floor."""
    return min(rows, key=lambda p: (not p.holds, p.rounds_to_target, p.floor))


_Given = tuple[float | None, float | None]
"""ϑ and Λ, None where they are searched."""


def _controls(
    case: Case, amplitude: ArrayLike | None, curvature: ArrayLike | None
) -> _Given:
    """The given ϑ and Λ, 2L where an amplitude is given."""
    Lambda = None if curvature is None else one_positive("curvature", curvature)
    if amplitude is None:
        return None, Lambda
    theta = one_positive("amplitude", amplitude)
    return theta, float(2 * case.system.L) if Lambda is None else Lambda


def _with_few_kinds(case: Case) -> Case:
    """The case with few kinds of client and one number of participants."""
    kinds, active = coarsen(group_clients(case.system), MOST_KINDS), case.active
    if case.rotation is not None:
        active = max(1, min(map(len, case.rotation)))
    start = case.start[1]
    few = replace(case, rotation=None, absence=None, active=None)
    return replace(few, system=kinds, tracking=start, active=active)


def _guarantee(
    theorem: Theorem,
    case: Case,
    target: float,
    rounds: int,
    given: _Given,
    variant: Form,
) -> Guarantee:
    amplitude, curvature = given
    best = design(theorem.label, case, target, curvature=curvature, variant=variant)
    theta = best.amplitude if amplitude is None else amplitude
    controls = PostLocal(theta, best.curvature)
    curve = theorem_curve(theorem.label, case, controls, variant)
    rate, iterated = curve.rate(rounds), np.nan
    needed = rounds_needed(curve, target, least=theorem.least)
    if curve.recursion is not None and rounds <= MOST_ITERATED and rate.holds:
        iterated = single_trajectory(curve.recursion, curve.start, rounds)[-1]
    floor = float(curve.floor)
    return Guarantee(
        theorem.label,
        theorem.algorithm,
        theorem.about,
        theorem.title,
        theorem.weights,
        theorem.iterate,
        variant,
        amplitude=theta,
        curvature=best.curvature,
        value=float(rate.value),
        iterated=iterated,
        floor=floor,
        closed_floor=float(rate.floor),
        vacuous=bool(floor >= case.system.cap),
        rounds_to_target=float(needed.fewest),
        closed_rounds=float(needed.closed),
        iterated_rounds=float(needed.iterated),
        amplitudes=best.amplitudes,
        design=best,
        hypotheses=rate.hypotheses,
    )


def _partial_guarantee(
    case: Case, target: float, rounds: int, amplitude: float | None, variant: Variant
) -> Guarantee:
    """Algorithm 1's bound where not all clients take part (th:sur-system, E-19).

    There is no closed form: `value` and the closed rounds are NaN. `floor` is the
    lowest bound met in the rounds that are iterated.
    """
    if amplitude is None:
        theta, largest, least = best_absent_clients(case, target, variant=variant)
    else:
        theta = largest = float(amplitude)
        least = np.inf
    bound = absent_clients(case, theta, variant=variant)
    needed = floor = lowest = np.inf
    holds = bool(all_hold(bound.hypotheses))
    if holds:
        needed, lowest = bound.lowest(target)
        floor = bound.lowest(0.0)[1]
    if amplitude is not None and not floor < bound.cap:
        largest = 0.0
    curvature, amplitudes = float(2 * case.system.L), (0.0, largest)
    best = Design(
        LABEL,
        variant,
        amplitude=theta,
        curvature=curvature,
        rounds=needed,
        value=lowest,
        floor=floor,
        least_target=min(least, floor),
        certified=bool(np.isfinite(needed)),
        amplitudes=amplitudes,
        hypotheses=bound.hypotheses,
    )
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
        amplitude=theta,
        curvature=curvature,
        value=np.nan,
        iterated=bound.after(rounds) if holds and rounds <= MOST_ITERATED else np.nan,
        floor=floor,
        closed_floor=np.nan,
        vacuous=bool(floor >= bound.cap),
        rounds_to_target=needed,
        closed_rounds=np.nan,
        iterated_rounds=needed,
        amplitudes=amplitudes,
        design=best,
        hypotheses=bound.hypotheses,
    )


def _first_round(case: Case, amplitude: float | None, variant: Constants) -> FirstRound:
    system = case.system
    at, m = situation(system, *case.start), system.multiplicity
    w = np.broadcast_to(m / system.n, (system.kinds,))
    uniform = float(largest_descent_amplitude(w, at, variant=variant))
    best = largest_descent_amplitude(noise_optimal(system), at, variant=variant)
    theta = uniform / 2 if amplitude is None else amplitude
    step = one_step((w, theta), at, variant=variant)
    value, met = float(step.value), step.hypotheses
    return FirstRound(variant, uniform, float(best), theta, value, met)


def _noise(case: Case, guarantees: Sequence[Guarantee]) -> Noise:
    system, best = case.system, noise_optimal(case.system)
    comparator, at_comparator, at_best = best, np.asarray(0.0), np.asarray(0.0)
    het = next((p for p in guarantees if p.algorithm == "het"), None)
    if het is not None:
        controls = PostLocal(het.amplitude, het.curvature)
        known: Variant = "sharp" if het.variant == "sharp" else "paper"
        linear, quadratic = heterogeneous_noise(system, controls, variant=known)
        comparator = best_comparator(linear, quadratic)
        at_comparator = noise_term(comparator, linear, quadratic)
        at_best = noise_term(best, linear, quadratic)
    return Noise(
        system.noise,
        uniform_mean_noise(system),
        uniform_noise_of_mean(system),
        best,
        noise_optimal_level(system),
        comparator,
        at_comparator,
        at_best,
    )


def _communication(
    case: Case, guarantees: Sequence[Guarantee]
) -> tuple[Communication, ...]:
    if case.dimension is None:
        return ()
    counts = []
    for algorithm in ("control", "het", "hom"):
        needed, printed = (
            float(
                communication(algorithm, case.participants, case.dimension, printed=p)
            )
            for p in (False, True)
        )
        rounds = [p.rounds_to_target for p in guarantees if p.algorithm == algorithm]
        to_target = needed * min(rounds, default=np.inf)
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


@final
@dataclass(frozen=True, slots=True)
class Improvement:
    """The best guarantee after one change."""

    change: str  # in words
    rounds: float  # the fewest to the target after it; infinite for never
    least_gap: float  # the lowest gap any theorem certifies; NaN: the target is reached
    theorem: str  # label of the theorem behind it
    factor: float  # rounds (out of reach: least gap) after over before; below 1 helps


@broadcasting
def improvements(
    case: Case,
    target: ArrayLike,
    *,
    amplitude: ArrayLike | None = None,
    curvature: ArrayLike | None = None,
    variants: Sequence[Form] = ("absorbed", "sharp", "joint"),
) -> tuple[Improvement, ...]:
    """Evaluate one change at a time, the most helpful first.

    The changes are twice the clients, twice the batch, twice and half the local steps,
    one number of local steps for all, all clients in every round, batches from a common
    pool; and, where an amplitude is given, half of it and the best one. After each, all
    theorems are searched anew for the fewest rounds to the target.

    Args:
        case: of one configuration.
        target: ε.
        amplitude: ϑ; by default the best one for each theorem.
        curvature: Λ; by default it is searched.
        variants: constants to use; a theorem takes the first it has.

    Returns:
        One record for each change.
    """
    eps = float(target_below_cap(target, case))
    if case.rotation is None:
        case = replace(case, system=coarsen(group_clients(case.system), MOST_KINDS))
    theta, Lambda = given = _controls(case, amplitude, curvature)
    now = _best(case, eps, given, variants)
    changed = [(x, _best(other, eps, given, variants)) for x, other in _changes(case)]
    if theta is not None:
        half = _best(case, eps, (theta / 2, Lambda), variants)
        changed.append(("half the amplitude ϑ", half))
        free = None if curvature is None else Lambda
        best = _best(case, eps, (None, free), variants)
        changed.append(("the best amplitude ϑ", best))
    rows = [_compare(change, now, then) for change, then in changed]
    return tuple(sorted(rows, key=lambda x: x.factor))


_Best = tuple[float, float, str]
"""Fewest rounds, lowest gap (at most f̄, which holds anyway), and the theorem."""


def _best(
    case: Case,
    target: float,
    given: _Given,
    variants: Sequence[Form],
) -> _Best:
    (amplitude, curvature), cap = given, float(case.system.cap)
    if case.is_partial:  # the other bounds need all clients
        known = [v for v in variants if v in VARIANTS] or list(VARIANTS)
        bound = _partial_guarantee(case, target, 1, amplitude, known[0]).design
        return bound.rounds, min(bound.least_target, cap), LABEL
    rows: list[_Best] = []
    for label, theorem in THEOREMS.items():
        allowed = [v for v in variants if v in theorem.variants]
        if theorem.missing(case):
            continue
        # "joint" and the first of the others: neither is always the better
        joint = [v for v in allowed if v == "joint"]
        for variant in dict.fromkeys([*allowed[:1], *joint]):
            if amplitude is None:
                best = design(label, case, target, curvature=curvature, variant=variant)
                rows.append((best.rounds, min(best.least_target, cap), label))
                continue
            assert curvature is not None
            curve = theorem_curve(label, case, PostLocal(amplitude, curvature), variant)
            rounds = float(rounds_needed(curve, target, least=theorem.least).fewest)
            floor = min(float(curve.floor), cap)
            holds = curve.rate(theorem.least).holds
            rows.append((rounds, floor if holds else cap, label))
    return min(rows)


def _compare(change: str, now: _Best, then: _Best) -> Improvement:
    rounds, least, label = then
    if np.isfinite(now[0]):
        factor = rounds / now[0] if now[0] > 0 else 1.0
    elif np.isfinite(rounds):
        factor = 0.0
    else:
        factor = least / now[1] if now[1] > 0 else float(not least < now[1])
    return Improvement(
        change, rounds, np.nan if np.isfinite(rounds) else least, label, factor
    )


def _changes(case: Case) -> Iterator[tuple[str, Case]]:
    s = case.system
    H, b, m = np.asarray(s.horizon), np.asarray(s.batch_size), s.multiplicity
    m = np.broadcast_to(m, H.shape)
    active = None if case.active is None else 2 * case.active
    if case.rotation is None:
        yield (
            "twice as many clients of each kind",
            replace(case, system=replace(s, count=2 * m), active=active),
        )
    yield "twice the batch size", replace(case, system=replace(s, batch_size=2 * b))
    yield "twice the local steps", replace(case, system=replace(s, horizon=2 * H))
    if H.max() > 1:
        half = np.ceil(H / 2)
        yield "half the local steps", replace(case, system=replace(s, horizon=half))
    if H.max() > H.min() or b.max() > b.min():
        mean, size = np.round(np.average(H, weights=m)), np.floor(np.median(b))
        even = replace(s, horizon=mean, batch_size=size)
        text = f"the same H = {mean:g} and b = {size:g} for all clients"
        yield text, replace(case, system=even)
    if case.is_partial:
        everyone = replace(case, active=None, rotation=None, absence=None)
        yield "all clients in every round", everyone
    if case.sampling == "fixed shards":
        text = "batches drawn afresh from one common pool"
        yield text, replace(case, sampling="fresh draws")
