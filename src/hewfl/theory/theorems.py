"""The paper's statements about many rounds, by label and in one form.

A `Theorem` turns what is known of a federation (`Case`) and the controls ϑ and Λ into
a `Curve`: its bound as a function of the rounds alone. Where a formula is undefined
(C ≥ 1, ρ ≤ 0) a curve is infinite, so that a search may pass through.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from hewfl.control.certificate import VARIANTS, Variant
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, Reals, as_float64, invalid
from hewfl.theory.comparators import comparator_coefficients, least_noise_recursion
from hewfl.theory.heterogeneous import heterogeneous_coefficients
from hewfl.theory.homogeneous import (
    PostLocal,
    homogeneous_coefficients,
    homogeneous_pl_rate,
)
from hewfl.theory.noise import best_comparator
from hewfl.theory.pl import pl_rate
from hewfl.theory.recursion import Recursion, State, mask_undefined
from hewfl.theory.round_costs import Algorithm
from hewfl.theory.similar_hessians import best_iterate_rate, higher_order
from hewfl.theory.statement import Rate, at_most
from hewfl.theory.systems import Case, is_homogeneous
from hewfl.theory.uniform_controller import uniform_coefficients

if TYPE_CHECKING:
    Form = Literal["printed", "paper", "sharp", "absorbed"]
else:  # run-time type checks pass a wrong name on to `theorem_curve` and its error
    Form = str
FORMS: tuple[Form, ...] = ("printed", *VARIANTS)
"""Sets of constants: as printed, as printed but corrected, and the sharper two."""
FULL_PARTICIPATION = "full participation"
"""Name of the hypothesis n ≤ S (E-19): left is n, right is S."""
HOMOGENEOUS_ORACLE = "homogeneous oracle"
"""Name of the hypothesis that every client sees ∇F (E-14): left counts the others."""
LARGEST = 100.0
"""No statement holds at an amplitude above one; above this one we do not evaluate."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A bound on the expected gap as a function of the rounds alone.

    Attributes:
        rate: the closed bound after so many rounds; infinite where it is undefined.
        start: bounds on gap and tracking error at the start.
        recursion: the recursion behind the closed bound; None for printed forms, which
            are taken literally.
    """

    rate: Callable[[ArrayLike], Rate]
    start: State
    recursion: Recursion | None = None

    @property
    def floor(self) -> Reals:
        """The limit of the better of the two bounds, where the hypotheses hold."""
        return self.floor_beside(self.rate(1))

    def floor_beside(self, rate: Rate) -> Reals:
        """`floor`, where the closed rate is already computed.

        Args:
            rate: the closed bound.

        Returns:
            The lower of both floors.
        """
        if self.recursion is None:
            return rate.floor
        return np.asarray(np.minimum(rate.floor, self.recursion.floor))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Theorem:
    """A statement about many rounds.

    Attributes:
        label: its LaTeX label.
        algorithm: the algorithm it is about, as `communication` names it.
        about: the method and the assumption, in a few words.
        title: the statement in words.
        weights: the weights it is about.
        curve: builds its curve.
        needs: fields of `Case` that must be known.
        variants: constants it comes with.
        has_curvature: whether Λ matters.
        least: the fewest rounds for which it is stated.
        iterate: the iterate it is about.
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
        """Fields of `Case` that must be known and are not."""
        return tuple(name for name in self.needs if getattr(case, name) is None)


@broadcasting
def theorem_curve(
    theorem: str, case: Case, controls: PostLocal, variant: Form = "paper"
) -> Curve:
    """The bound of a theorem at given ϑ and Λ, as a function of the rounds.

    Two hypotheses join the theorem's own: full participation, n ≤ S (E-19), and for
    Algorithm 3 a homogeneous oracle, that every client sees ∇F (E-14).

    Args:
        theorem: label, a key of `THEOREMS`.
        case: what is known.
        controls: ϑ and Λ, shapes that broadcast with (*c); only Algorithms 2 and 3
            have Λ.
        variant: the set of constants.

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
    constants: Variant = "paper" if variant == "printed" else variant
    curve = statement.curve(case, controls, constants, variant == "printed")
    facts = [at_most(FULL_PARTICIPATION, case.system.n, case.participants)]
    if statement.algorithm == "hom":
        others = 0 if is_homogeneous(case.sampling) else case.system.n
        facts.append(at_most(HOMOGENEOUS_ORACLE, others, 0))

    def rate(rounds: ArrayLike) -> Rate:
        closed = curve.rate(rounds)
        return replace(closed, hypotheses=(*closed.hypotheses, *facts))

    return replace(curve, rate=rate)


def find_theorem(theorem: str, variant: Form) -> Theorem:
    """The theorem of a label, if it has constants of that name."""
    if theorem not in THEOREMS:
        raise invalid("theorem", f"one of {', '.join(THEOREMS)}", repr(theorem))
    statement = THEOREMS[theorem]
    if variant not in statement.variants:
        rule = f"one of {', '.join(statement.variants)} for {theorem}"
        raise invalid("variant", rule, repr(variant))
    return statement


def _predicted_curve(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Curve:
    """th:sur-cvx for a box that ends at ϑ, against the weights of least noise there."""
    system, theta = case.system, as_float64("amplitude", controls.amplitude)[..., None]
    if not printed:
        return _convex_curve(least_noise_recursion(system, theta, variant), case, False)
    linear = np.asarray(32 * theta**2 / system.L[..., None] * system.noise)
    w = best_comparator(linear, linear / 2 / system.multiplicity)
    k = comparator_coefficients(system, w, theta, variant=variant, printed=True)
    return _convex_curve(k, case, True)


def _uniform_curve(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Curve:
    """th:direct-bellman with q at its cap, closed by lem:scalar."""
    assert not printed  # there is no printed form
    k = uniform_coefficients(case.system, controls.amplitude, variant=variant)
    return _convex_curve(k.recursion, case, printed)


def _uniform_pl_curve(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Curve:
    """th:pl-global, infinite where ρ ≤ 0; its recursion is that of cor:direct-pl."""
    k = uniform_coefficients(case.system, controls.amplitude, variant=variant)
    mu = case.require("pl_constant")
    recursion = None if printed else _pl_recursion(k.recursion, mu)
    return _curve(
        lambda T: pl_rate(k, mu, case.start, T, printed=printed), case, recursion
    )


def _similar_hessians_curve(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Curve:
    """th:ho-main for the last iterate; as printed, for the best one."""
    k = uniform_coefficients(case.system, controls.amplitude, variant=variant)
    S, M = case.require("similarity"), case.require("hessian_lipschitz")
    bound = higher_order(k, S, M, printed=printed)
    if not printed:
        return _convex_curve(bound.recursion, case, printed)
    rate = partial(best_iterate_rate, bound, case.start, printed=True)
    return _curve(rate, case, None)


def _heterogeneous_curve(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Curve:
    """cor:realized-het-rate against the weights of least noise."""
    k = heterogeneous_coefficients(
        case.system, controls, variant=variant, printed=printed
    )
    return _convex_curve(k, case, printed)


def _homogeneous_curve(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Curve:
    """cor:realized-hom-rate."""
    k = homogeneous_coefficients(case.system, controls, variant=variant)
    return _convex_curve(k, case, printed)


def _homogeneous_pl_curve(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Curve:
    """cor:realized-hom-PL, infinite where ρ ≤ 0."""
    k = homogeneous_coefficients(case.system, controls, variant=variant)
    mu, gap = case.require("pl_constant"), case.start[0]
    recursion = None if printed else _pl_recursion(k, mu)
    return _curve(
        lambda T: homogeneous_pl_rate(k, mu, gap, T, printed=printed),
        case,
        recursion,
    )


def _convex_curve(recursion: Recursion, case: Case, printed: bool) -> Curve:
    """The curve of a recursion and of its closed convex rate."""
    rate = partial(recursion.rate, case.start, printed=printed)
    return _curve(rate, case, None if printed else recursion)


def _curve(
    closed: Callable[[ArrayLike], Rate], case: Case, recursion: Recursion | None
) -> Curve:
    """The curve of a closed rate, infinite where that is NaN."""

    def rate(rounds: ArrayLike) -> Rate:
        bound = closed(rounds)
        return mask_undefined(np.asarray(~np.isnan(bound.value)), bound, np.inf)

    return Curve(rate, case.start, recursion)


def _pl_recursion(k: Recursion, mu: Array) -> Recursion:
    """The recursion under the PL condition: g⁺ ≤ (1 − a)g + γq + δ, with β = −a."""
    growth = np.asarray(-k.contraction(mu))
    return replace(k, descent=np.zeros(()), growth=growth, flows=False)


_POST_LOCAL: tuple[Form, ...] = ("printed", "paper", "sharp")
_BEFORE = "weights and amplitudes that Algorithm 1 computes before each round"
_EQUAL = "equal weights 1/n, control variates, one H and one b for all clients"
_AFTER = "weights solved after the local steps from the displacements"
_ALL = (
    Theorem(
        "th:sur-cvx",
        "control",
        "Algorithm 1 with θ̄ = ϑ, convex",
        "Convex objective, predicted weights: the gap falls like 1/rounds to a floor",
        f"{_BEFORE}, none above ϑ",
        _predicted_curve,
    ),
    Theorem(
        "th:direct-bellman",
        "control",
        "uniform weights, convex",
        "Convex objective, equal weights: the gap falls like 1/rounds to a floor",
        _EQUAL,
        _uniform_curve,
        variants=VARIANTS,
    ),
    Theorem(
        "th:pl-global",
        "control",
        "uniform weights, PL",
        "PL objective, equal weights: the gap shrinks geometrically to a floor",
        _EQUAL,
        _uniform_pl_curve,
        needs=("pl_constant",),
    ),
    Theorem(
        "th:ho-main",
        "control",
        "uniform weights, similar Hessians",
        "Convex objective, similar Hessians, equal weights: local steps cost less",
        _EQUAL,
        _similar_hessians_curve,
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
        _heterogeneous_curve,
        variants=_POST_LOCAL,
        has_curvature=True,
    ),
    Theorem(
        "cor:realized-hom-rate",
        "hom",
        "Algorithm 3, convex",
        "Convex objective, exact weights, clients that share it (Algorithm 3)",
        f"{_AFTER}; every batch from the common pool",
        _homogeneous_curve,
        variants=_POST_LOCAL,
        has_curvature=True,
    ),
    Theorem(
        "cor:realized-hom-PL",
        "hom",
        "Algorithm 3, PL",
        "PL objective, exact weights, clients that share it (Algorithm 3)",
        f"{_AFTER}; every batch from the common pool",
        _homogeneous_pl_curve,
        needs=("pl_constant",),
        variants=_POST_LOCAL,
        has_curvature=True,
    ),
)
THEOREMS: dict[str, Theorem] = {theorem.label: theorem for theorem in _ALL}
"""The statements about many rounds, by label."""
