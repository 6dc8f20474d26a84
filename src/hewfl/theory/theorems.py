"""Each theorem about many rounds as a curve: everything is fixed but the rounds.

Where a formula is undefined (C ≥ 1, ρ ≤ 0) a curve is infinite instead of an error, so
that a search may pass through.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from hewfl.control.certificate import VARIANTS, Variant, mean_penalty, variance_bound
from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, Reals, as_float64, invalid
from hewfl.theory.case import Case
from hewfl.theory.comparators import comparator_coefficients, comparator_rate
from hewfl.theory.heterogeneous import corrected_coefficients, corrected_rate
from hewfl.theory.homogeneous import (
    PostLocal,
    is_homogeneous,
    plain_coefficients,
    plain_pl_rate,
    plain_rate,
)
from hewfl.theory.noise import best_comparator
from hewfl.theory.one_step_bound import situation
from hewfl.theory.pl import pl_rate
from hewfl.theory.recursion import Recursion, only_where
from hewfl.theory.round_costs import Algorithm
from hewfl.theory.similar_hessians import (
    best_iterate_rate,
    higher_order,
    last_iterate_rate,
)
from hewfl.theory.statement import Hypothesis, Rate, at_most
from hewfl.theory.trajectories import State
from hewfl.theory.uniform_controller import uniform_coefficients


@final
@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A bound on the expected gap as a function of the rounds alone.

    Attributes:
        rate: the closed bound after so many rounds; infinite where it is undefined.
        start: bounds on gap and tracking error at the start.
        law: the recursion behind the closed bound; None for printed forms, which are
            taken to the letter.
    """

    rate: Callable[[ArrayLike], Rate]
    start: State
    law: Recursion | None = None

    def path(self, rounds: int) -> Float64[Array, "rounds_1 ..."]:
        """Bounds of rounds 0 to T by the recursion, to be read where the rate holds.

        Args:
            rounds: T.

        Returns:
            T + 1 bounds, rounds first.

        Raises:
            InvalidInputError: the curve has no recursion.
        """
        if self.law is None:
            raise invalid("curve", "one with a recursion", "a printed form")
        return self.law.trajectory(self.start, rounds).gap

    @property
    def floor(self) -> Reals:
        """What the better of the two bounds tends to, where the hypotheses hold."""
        return self.floor_beside(self.rate(1))

    def floor_beside(self, rate: Rate) -> Reals:
        """`floor`, where the closed rate is at hand.

        Args:
            rate: the closed bound.

        Returns:
            The lower of both floors.
        """
        closed = rate.floor
        if self.law is None:
            return closed
        return np.asarray(np.minimum(closed, self.law.floor))


def optimised(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Curve:
    """th:sur-cvx for a box that ends at ϑ, against the weights of least noise there."""
    system, theta = case.system, as_float64("amplitude", controls.amplitude)[..., None]
    at, L = situation(system, 0, 0), system.L[..., None]
    linear = mean_penalty(theta, at, variant)
    quadratic: Array = L / 2 * variance_bound(theta, at, variant)
    if printed:
        linear = np.asarray(32 * theta**2 / L * system.noise)
        quadratic = linear / 2
    w = best_comparator(linear, quadratic / system.multiplicity)
    k = comparator_coefficients(system, w, theta, variant=variant, printed=printed)
    several = _several(k)
    rate = partial(comparator_rate, several, case.start, printed=printed)
    return _curve(rate, case, None if printed else k)


def direct(case: Case, controls: PostLocal, variant: Variant, printed: bool) -> Curve:
    """th:direct-bellman with q at its cap, closed by lem:scalar."""
    assert not printed  # there is no printed form
    found = uniform_coefficients(case.system, controls.amplitude, variant=variant)
    several = _several(found.recursion)
    return _curve(
        lambda T: replace(several.rate(case.start, T), label="th:direct-bellman"),
        case,
        found.recursion,
    )


def contracting(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Curve:
    """th:pl-global, infinite where ρ ≤ 0; its recursion is that of cor:direct-pl."""
    k = uniform_coefficients(case.system, controls.amplitude, variant=variant)
    mu = case.known("pl_constant")
    law = None if printed else _linear(k.recursion, mu)
    return _curve(lambda T: pl_rate(k, mu, case.start, T, printed=printed), case, law)


def similar(case: Case, controls: PostLocal, variant: Variant, printed: bool) -> Curve:
    """th:ho-main for the last iterate; as printed, for the best one."""
    k = uniform_coefficients(case.system, controls.amplitude, variant=variant)
    S, M = case.known("similarity"), case.known("hessian_lipschitz")
    bound = higher_order(k, S, M, printed=printed)
    several = replace(bound, recursion=_several(bound.recursion))
    if printed:
        rate = partial(best_iterate_rate, several, case.start, printed=True)
        return _curve(rate, case, None)
    law = bound.recursion
    return _curve(lambda T: last_iterate_rate(several, case.start, T), case, law)


def corrected(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Curve:
    """cor:realized-het-rate against the weights of least noise."""
    k = corrected_coefficients(case.system, controls, variant=variant, printed=printed)
    several = _several(k)
    rate = partial(corrected_rate, several, case.start, printed=printed)
    return _curve(rate, case, None if printed else k)


def plain(case: Case, controls: PostLocal, variant: Variant, printed: bool) -> Curve:
    """cor:realized-hom-rate."""
    k = plain_coefficients(case.system, controls, variant=variant)
    rate = partial(plain_rate, k, case.start[0], printed=printed)
    return _curve(rate, case, None if printed else k)


def plain_contracting(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Curve:
    """cor:realized-hom-PL, infinite where ρ ≤ 0."""
    k = plain_coefficients(case.system, controls, variant=variant)
    mu = case.known("pl_constant")
    law = None if printed else _linear(k, mu)
    k = _several(k)
    return _curve(
        lambda T: plain_pl_rate(k, mu, case.start[0], T, printed=printed), case, law
    )


def _curve(
    closed: Callable[[ArrayLike], Rate], case: Case, law: Recursion | None
) -> Curve:
    """The curve of a closed rate, infinite where that is NaN."""
    return Curve(lambda T: _infinite(closed(T), T), case.start, law)


def _infinite(found: Rate, rounds: ArrayLike) -> Rate:
    """The rate with infinity for NaN, and without the axis that `_several` gave it."""
    found = only_where(np.asarray(~np.isnan(found.value)), found, np.inf)
    return found if np.ndim(rounds) else _single(found)


def _several(k: Recursion) -> Recursion:
    """The recursion as one of several: NaN where a single one would raise."""
    stale, growth = np.atleast_1d(k.staleness), np.atleast_1d(k.growth)
    return replace(k, staleness=stale, growth=growth)


def _single(rate: Rate) -> Rate:
    """The rate of a configuration that `_several` gave an axis, without it."""
    if rate.value.shape != (1,):
        return rate
    met = tuple(
        Hypothesis(h.name, np.squeeze(h.left), np.squeeze(h.right), h.holds.reshape(()))
        if h.holds.size == 1
        else h
        for h in rate.hypotheses
    )
    return replace(
        rate,
        value=rate.value.reshape(()),
        floor=np.broadcast_to(rate.floor, (1,)).reshape(()),
        vacuous=np.broadcast_to(rate.vacuous, (1,)).reshape(()),
        hypotheses=met,
    )


def _linear(k: Recursion, mu: Array) -> Recursion:
    """The recursion under the PL condition: g⁺ ≤ (1 − a)g + γq + δ, with β = −a."""
    nothing = np.zeros(())
    return replace(
        k,
        descent=nothing,
        capped_descent=nothing,
        growth=np.asarray(-k.contraction(mu)),
        flows=False,
    )


# ------------------ The paper's statements about many rounds, by label, in one form

if TYPE_CHECKING:
    Form = Literal["printed", "paper", "sharp", "absorbed"]
else:  # run-time type checks let a wrong name through to `theorem_curve` and its text
    Form = str
FORMS: tuple[Form, ...] = ("printed", *VARIANTS)
"""Sets of constants: as printed, as printed but corrected, and the sharper two."""

LARGEST = 100.0
"""No statement reaches an amplitude above one; above this one we do not evaluate."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Theorem:
    """A statement about many rounds.

    Attributes:
        label: its LaTeX label.
        algorithm: whose rounds it speaks of, as `communication` names them.
        about: the method and the assumption, in a few words.
        title: what is promised, in words.
        weights: for which weights.
        iterate: for which iterate.
        curve: builds its curve.
        needs: fields of `Case` that must be known.
        variants: constants it comes with.
        has_curvature: whether Λ matters.
        least: the fewest rounds it speaks of.
    """

    label: str
    algorithm: Algorithm
    about: str
    title: str
    weights: str
    curve: Callable[[Case, PostLocal, Variant, bool], Curve] = field(repr=False)
    needs: tuple[str, ...] = ()
    variants: tuple[Form, ...] = FORMS
    has_curvature: bool = False
    least: int = 0
    iterate: str = "the last iterate"

    def missing(self, case: Case) -> tuple[str, ...]:
        """What must be known and is not."""
        return tuple(name for name in self.needs if getattr(case, name) is None)


@broadcasting
def theorem_curve(
    theorem: str, case: Case, controls: PostLocal, variant: Form = "paper"
) -> Curve:
    """What a theorem promises at given ϑ and Λ, as a function of the rounds.

    To the theorem's own hypotheses come n ≤ S, that all clients take part (E-19), and
    for Algorithm 3 that every client sees ∇F (E-14).

    Args:
        theorem: label, a key of `THEOREMS`.
        case: what is known.
        controls: ϑ and Λ, shapes that broadcast with (*c); Λ matters to rules with one.
        variant: which constants.

    Returns:
        The closed bound and the recursion behind it, as functions of the rounds.

    Raises:
        InvalidInputError: an unknown name, a missing constant, or ϑ beyond `LARGEST`.
    """
    statement = find_theorem(theorem, variant)
    for name in statement.missing(case):
        raise invalid(name, f"given for {theorem}", None)
    theta = as_float64("amplitude", controls.amplitude)
    outside = (theta <= 0) | (theta > LARGEST)
    if outside.any():
        rule = f"positive and at most {LARGEST:g}"
        raise invalid("amplitude", rule, theta[outside].flat[0])
    known: Variant = "paper" if variant == "printed" else variant
    found = statement.curve(case, controls, known, variant == "printed")
    facts = [at_most("n ≤ S", case.system.n, case.participants)]
    if statement.algorithm == "hom":
        blind = 0 if is_homogeneous(case.sampling) else case.system.n
        facts.append(at_most("clients that do not see ∇F ≤ 0", blind, 0))

    def rate(rounds: ArrayLike) -> Rate:
        closed = found.rate(rounds)
        return replace(closed, hypotheses=(*closed.hypotheses, *facts))

    return replace(found, rate=rate)


def find_theorem(theorem: str, variant: Form) -> Theorem:
    """The theorem of a label, if it has constants of that name."""
    if theorem not in THEOREMS:
        raise invalid("theorem", f"one of {', '.join(THEOREMS)}", repr(theorem))
    statement = THEOREMS[theorem]
    if variant not in statement.variants:
        rule = f"one of {', '.join(statement.variants)} for {theorem}"
        raise invalid("variant", rule, repr(variant))
    return statement


_POST_LOCAL: tuple[Form, ...] = ("printed", "paper", "sharp")
_BEFORE = "weights and amplitudes that Algorithm 1 computes before each round"
_EQUAL = "equal weights 1/n, control variates, one H and one b for all clients"
_AFTER = "weights solved after the local steps from what was sent"
_ALL = (
    Theorem(
        "th:sur-cvx",
        "control",
        "Algorithm 1 with θ̄ = ϑ, convex",
        "Convex objective, predicted weights: the gap falls like 1/rounds to a floor",
        f"{_BEFORE}, none above ϑ",
        optimised,
    ),
    Theorem(
        "th:direct-bellman",
        "control",
        "uniform weights, convex",
        "Convex objective, equal weights: the gap falls like 1/rounds to a floor",
        _EQUAL,
        direct,
        variants=VARIANTS,
    ),
    Theorem(
        "th:pl-global",
        "control",
        "uniform weights, PL",
        "PL objective, equal weights: the gap shrinks geometrically to a floor",
        _EQUAL,
        contracting,
        needs=("pl_constant",),
    ),
    Theorem(
        "th:ho-main",
        "control",
        "uniform weights, similar Hessians",
        "Convex objective, similar Hessians, equal weights: local steps cost less",
        _EQUAL,
        similar,
        needs=("similarity", "hessian_lipschitz"),
        least=1,
        iterate="the last iterate; as printed, the best one so far",
    ),
    Theorem(
        "cor:realized-het-rate",
        "het",
        "Algorithm 2, convex",
        "Convex objective, exact weights with control variates (Algorithm 2)",
        f"{_AFTER}; control variates correct the local steps",
        corrected,
        variants=_POST_LOCAL,
        has_curvature=True,
    ),
    Theorem(
        "cor:realized-hom-rate",
        "hom",
        "Algorithm 3, convex",
        "Convex objective, exact weights, clients that share it (Algorithm 3)",
        f"{_AFTER}; every batch from the common pool",
        plain,
        variants=_POST_LOCAL,
        has_curvature=True,
    ),
    Theorem(
        "cor:realized-hom-PL",
        "hom",
        "Algorithm 3, PL",
        "PL objective, exact weights, clients that share it (Algorithm 3)",
        f"{_AFTER}; every batch from the common pool",
        plain_contracting,
        needs=("pl_constant",),
        variants=_POST_LOCAL,
        has_curvature=True,
    ),
)
THEOREMS: dict[str, Theorem] = {theorem.label: theorem for theorem in _ALL}
"""The statements about many rounds, by label."""
