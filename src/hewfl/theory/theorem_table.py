"""The paper's statements about many rounds, by label and in one form.

A `Theorem` turns what is known of a federation (`Case`) and the controls ϑ and Λ into
a `Curve`: its bound as a function of the rounds alone. Where a formula is undefined
(C ≥ 1, ρ ≤ 0) a curve is infinite, so that a search may pass through.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from hewfl.control.certificate import VARIANTS, Variant
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Reals,
    as_float64,
    format_value,
    invalid,
    positives,
)
from hewfl.theory.comparators import comparator_coefficients, least_noise_weights
from hewfl.theory.noise import best_comparator
from hewfl.theory.post_local import (
    PostLocal,
    heterogeneous_coefficients,
    homogeneous_coefficients,
    homogeneous_pl_rate,
)
from hewfl.theory.recursion import Closed, Recursion, State, mask_undefined
from hewfl.theory.round_costs import Algorithm
from hewfl.theory.statement import Constants, Rate, at_most
from hewfl.theory.systems import Case, System, is_homogeneous
from hewfl.theory.uniform import (
    best_iterate_rate,
    higher_order,
    pl_rate,
    uniform_coefficients,
)

if TYPE_CHECKING:
    Form = Literal["printed", "paper", "sharp", "absorbed", "joint"]
else:  # run-time type checks pass a wrong name on to `theorem_curve` and its error
    Form = str
FORMS: tuple[Form, ...] = ("printed", *VARIANTS, "joint")
"""Sets of constants: as printed, as printed but corrected, and the sharper ones."""
_ALONE: tuple[Form, ...] = FORMS[:-1]
"""Those that take clients one by one."""
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

    `rate` is the closed bound, infinite where it is undefined; `start` bounds gap and
    tracking error at the start; `recursion` is behind the closed bound, None for
    printed forms, which are taken literally.
    """

    rate: Callable[[ArrayLike], Rate]
    start: State
    recursion: Recursion | None = None

    @property
    def floor(self) -> Reals:
        """The limit of the better of the two bounds, where the hypotheses hold."""
        return self.floor_beside(self.rate(1))

    def floor_beside(self, rate: Rate) -> Reals:
        """`floor`, where the closed rate is already computed."""
        if self.recursion is None:
            return rate.floor
        return np.asarray(np.minimum(rate.floor, self.recursion.floor))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """What a statement is evaluated at: the constants, and the controls.

    θ_i with clients last are for th:sur-cvx. Defaults: Λ = 2L, weights and comparator
    of least noise, and a box that ends at the amplitude.
    """

    system: System
    amplitude: ArrayLike
    curvature: ArrayLike | None = None
    weights: ArrayLike | None = None
    comparator: ArrayLike | None = None
    pl_constant: ArrayLike | None = None
    similarity: ArrayLike | None = None
    hessian_lipschitz: ArrayLike | None = None
    box_end: ArrayLike | None = None

    @property
    def controls(self) -> PostLocal:
        """ϑ and Λ, 2L by default."""
        Lambda = 2 * self.system.L if self.curvature is None else self.curvature
        return PostLocal(self.amplitude, Lambda)

    def require(self, name: str) -> Array:
        """A constant that the statement needs."""
        value = getattr(self, name)
        if value is None:
            raise invalid(name, "given", None)
        return as_float64(name, value)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Theorem:
    """A statement about many rounds, in words, and how its recursion is built."""

    label: str  # in the LaTeX
    word: str  # a name beside the label
    algorithm: Algorithm  # as `communication` names it
    about: str  # method and assumption, in a few words
    title: str  # the statement in words
    weights: str  # the weights it is about
    build: Callable[[Given, Any, bool], Recursion] = field(repr=False)
    needs: tuple[str, ...] = ()  # fields of `Case` that must be known
    variants: tuple[Form, ...] = _ALONE
    options: tuple[str, ...] = ()  # further arguments of `theorem`
    least: int = 0  # the fewest rounds for which it is stated
    iterate: str = "the last iterate"

    @property
    def has_curvature(self) -> bool:
        """Whether Λ matters."""
        return "curvature" in self.options

    def missing(self, case: Case) -> tuple[str, ...]:
        """Fields of `Case` that must be known and are not."""
        return tuple(name for name in self.needs if getattr(case, name) is None)


@broadcasting
def theorem_curve(
    theorem: str, case: Case, controls: PostLocal, variant: Form = "paper"
) -> Curve:
    """The bound of a theorem at given ϑ and Λ, as a function of the rounds.

    Two hypotheses join the theorem's own: full participation, n ≤ S (E-19), and for
    Algorithm 3 a homogeneous oracle, that every client sees ∇F (E-14). ϑ and Λ have
    shapes that broadcast with (*c); only Algorithms 2 and 3 have Λ.
    """
    statement = find_theorem(theorem, variant)
    for name in statement.missing(case):
        raise invalid(name, f"given for {theorem}", None)
    theta = as_float64("amplitude", controls.amplitude)
    outside = (theta <= 0) | (theta > LARGEST)
    if outside.any():
        rule = f"positive and at most {LARGEST:g}"
        raise invalid("amplitude", rule, theta[outside].flat[0])
    given = Given(
        case.system,
        theta,
        controls.curvature,
        pl_constant=case.pl_constant,
        similarity=case.similarity,
        hessian_lipschitz=case.hessian_lipschitz,
    )
    recursion, printed = _build(statement, given, variant), variant == "printed"
    facts = [at_most(FULL_PARTICIPATION, case.system.n, case.participants)]
    if statement.algorithm == "hom":
        others = 0 if is_homogeneous(case.sampling) else case.system.n
        facts.append(at_most(HOMOGENEOUS_ORACLE, others, 0))

    def rate(rounds: ArrayLike) -> Rate:
        bound = recursion.rate(case.start, rounds, printed=printed)
        bound = mask_undefined(np.asarray(~np.isnan(bound.value)), bound, np.inf)
        return replace(bound, hypotheses=(*bound.hypotheses, *facts))

    return Curve(rate, case.start, None if printed else recursion)


def find_theorem(theorem: str, variant: Form) -> Theorem:
    """The theorem of a label or a word, if it has constants of that name."""
    for statement in _ALL:
        if theorem in (statement.label, statement.word):
            if variant in statement.variants:
                return statement
            rule = f"one of {', '.join(statement.variants)} for {theorem}"
            raise invalid("variant", rule, repr(variant))
    names = ", ".join([*THEOREMS, *(statement.word for statement in _ALL)])
    raise invalid("theorem", f"one of {names}", repr(theorem))


@broadcasting
def theorem(  # noqa: PLR0913 - public; all but three are optional
    label: str,
    system: System,
    *,
    amplitude: ArrayLike,
    curvature: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    comparator: ArrayLike | None = None,
    box_end: ArrayLike | None = None,
    pl_constant: ArrayLike | None = None,
    similarity: ArrayLike | None = None,
    hessian_lipschitz: ArrayLike | None = None,
    variant: Form = "paper",
) -> Recursion:
    """The recursion of a theorem about many rounds, with its closed rate.

    | label | word | about |
    |---|---|---|
    | `th:sur-cvx` | `comparator` | Algorithm 1, against fixed weights and amplitudes |
    | `th:direct-bellman` | `uniform` | equal weights, convex |
    | `th:pl-global` | `uniform-pl` | equal weights, PL |
    | `th:ho-main` | `higher-order` | equal weights, similar Hessians |
    | `cor:realized-het-rate` | `hew-het` | Algorithm 2, convex |
    | `cor:realized-hom-rate` | `hew-hom` | Algorithm 3, convex |
    | `cor:realized-hom-PL` | `hew-hom-pl` | Algorithm 3, PL |

    Args:
        label: as in the paper, or the word.
        system: the constants; all clients take part.
        amplitude: ϑ > 0; for `comparator` also θ_i, clients last.
        curvature: Λ > L of Algorithms 2 and 3; 2L by default.
        weights: w of `comparator`; by default those of least noise at ϑ.
        comparator: a of `hew-het`; by default that of least noise.
        box_end: θ̄ of `comparator` and `hew-het`; by default the largest amplitude.
        pl_constant: μ, where the statement is about PL.
        similarity: S ≥ ‖∇²F_i − ∇²F‖, for `higher-order`.
        hessian_lipschitz: M, for `higher-order`.
        variant: the set of constants; "printed" is the literal text.

    Returns:
        The recursion. A hypothesis that fails makes a rate NaN where it is undefined,
        and is in `hypotheses` either way.

    Raises:
        InvalidInputError: an unknown label or variant, or an argument that is missing,
            not for this statement, or out of range.

    Examples:
        >>> from hewfl.theory import System, theorem
        >>> system = System(1.0, 1.0, [1] * 10, 1, 0.0)
        >>> k = theorem("hew-hom", system, amplitude=0.25, variant="sharp")
        >>> k.label, float(k.a), float(k.beta), float(k.floor)
        ('cor:realized-hom-rate', 0.0625, 0.0, 0.0)
    """
    statement = find_theorem(label, variant)
    optional = {
        "curvature": curvature,
        "weights": weights,
        "comparator": comparator,
        "box_end": box_end,
        "pl_constant": pl_constant,
        "similarity": similarity,
        "hessian_lipschitz": hessian_lipschitz,
    }
    for name, value in optional.items():
        is_used = name in (*statement.needs, *statement.options)
        if value is not None and not is_used:
            raise invalid(name, f"left out for {statement.label}", format_value(value))
    return _build(statement, Given(system, amplitude, **optional), variant)


def _build(statement: Theorem, given: Given, variant: Form) -> Recursion:
    positives("amplitude", given.amplitude)
    constants: Constants = "paper" if variant == "printed" else variant
    return statement.build(given, constants, variant == "printed")


def _comparator(given: Given, variant: Variant, printed: bool) -> Recursion:
    """th:sur-cvx for a box that ends at θ̄, by default against weights of least noise.

    In the certificates all clients have one amplitude ϑ of shape (*c).
    """
    system, theta = given.system, as_float64("amplitude", given.amplitude)
    per_client = theta.ndim > system.cap.ndim and theta.shape[-1] == system.kinds
    if not (per_client and given.weights is not None):
        theta = np.asarray(theta[..., None])
    if given.weights is not None:
        w = as_float64("weights", given.weights)
    elif printed:
        linear = np.asarray(32 * theta**2 / system.L[..., None] * system.noise)
        w = best_comparator(linear, linear / 2 / system.multiplicity)
    else:
        w = least_noise_weights(system, theta, variant)
    return comparator_coefficients(
        system, w, theta, box_end=given.box_end, variant=variant, printed=printed
    )


def _uniform(given: Given, variant: Constants, printed: bool) -> Recursion:
    """th:direct-bellman, not in printed form; lem:scalar closes it, q at its cap."""
    assert not printed
    controller = uniform_coefficients(given.system, given.amplitude, variant=variant)
    return controller.recursion


def _uniform_pl(given: Given, variant: Constants, printed: bool) -> Recursion:
    """th:pl-global, infinite where ρ ≤ 0; its recursion is that of cor:direct-pl."""
    k = uniform_coefficients(given.system, given.amplitude, variant=variant)
    mu = given.require("pl_constant")

    def closed(start: State, rounds: ArrayLike, _: ArrayLike) -> Rate:
        return pl_rate(k, mu, start, rounds, printed=printed)

    return _pl_recursion(k.recursion, "th:pl-global", mu, closed)


def _higher_order(given: Given, variant: Variant, printed: bool) -> Recursion:
    """th:ho-main for the last iterate; as printed, for the best one."""
    k = uniform_coefficients(given.system, given.amplitude, variant=variant)
    S, M = given.require("similarity"), given.require("hessian_lipschitz")
    bound = higher_order(k, S, M, printed=printed)

    def closed(start: State, rounds: ArrayLike, _: ArrayLike) -> Rate:
        return best_iterate_rate(bound, start, rounds, printed=True)

    return replace(bound.recursion, closed=closed if printed else None)


def _heterogeneous(given: Given, variant: Variant, printed: bool) -> Recursion:
    """cor:realized-het-rate, by default against the weights of least noise."""
    return heterogeneous_coefficients(
        given.system,
        given.controls,
        comparator=given.comparator,
        box_end=given.box_end,
        variant=variant,
        printed=printed,
    )


def _homogeneous(given: Given, variant: Constants, printed: bool) -> Recursion:
    """cor:realized-hom-rate; as printed it has the same coefficients."""
    del printed
    return homogeneous_coefficients(given.system, given.controls, variant=variant)


def _homogeneous_pl(given: Given, variant: Constants, printed: bool) -> Recursion:
    """cor:realized-hom-PL, NaN where ρ ≤ 0."""
    k, mu = _homogeneous(given, variant, printed), given.require("pl_constant")

    def closed(start: State, rounds: ArrayLike, eps: ArrayLike) -> Rate:
        return homogeneous_pl_rate(
            k, mu, start[0], rounds, solver_gap=eps, printed=printed
        )

    return _pl_recursion(k, "cor:realized-hom-PL", mu, closed)


def _pl_recursion(k: Recursion, label: str, mu: Array, closed: Closed) -> Recursion:
    """The recursion under the PL condition: g⁺ ≤ (1 − a)g + γq + δ, with β = −a."""
    growth, none = np.asarray(-k.contraction(mu)), np.zeros(())
    return replace(
        k, label=label, descent=none, growth=growth, flows=False, closed=closed
    )


_POST_LOCAL: tuple[Form, ...] = ("printed", "paper", "sharp")
_BEFORE = "weights and amplitudes that Algorithm 1 computes before each round"
_EQUAL = "equal weights 1/n, control variates"
_AFTER = "weights solved after the local steps from the displacements"
_ALL = (
    Theorem(
        "th:sur-cvx",
        "comparator",
        "control",
        "Algorithm 1 with θ̄ = ϑ, convex",
        "Convex objective, predicted weights: the gap falls like 1/rounds to a floor",
        f"{_BEFORE}, none above ϑ",
        _comparator,
        options=("weights", "box_end"),
    ),
    Theorem(
        "th:direct-bellman",
        "uniform",
        "control",
        "uniform weights, convex",
        "Convex objective, equal weights: the gap falls like 1/rounds to a floor",
        _EQUAL,
        _uniform,
        variants=FORMS[1:],
    ),
    Theorem(
        "th:pl-global",
        "uniform-pl",
        "control",
        "uniform weights, PL",
        "PL objective, equal weights: the gap shrinks geometrically to a floor",
        _EQUAL,
        _uniform_pl,
        needs=("pl_constant",),
        variants=FORMS,
    ),
    Theorem(
        "th:ho-main",
        "higher-order",
        "control",
        "uniform weights, similar Hessians",
        "Convex objective, similar Hessians, equal weights: local steps cost less",
        f"{_EQUAL}, one H and one b for all clients",
        _higher_order,
        needs=("similarity", "hessian_lipschitz"),
        least=1,
        iterate="the last iterate; as printed, the best one so far",
    ),
    Theorem(
        "cor:realized-het-rate",
        "hew-het",
        "het",
        "Algorithm 2, convex",
        "Convex objective, exact weights with control variates (Algorithm 2)",
        f"{_AFTER}; control variates correct the local steps",
        _heterogeneous,
        variants=_POST_LOCAL,
        options=("curvature", "comparator", "box_end"),
    ),
    Theorem(
        "cor:realized-hom-rate",
        "hew-hom",
        "hom",
        "Algorithm 3, convex",
        "Convex objective, exact weights, clients that share it (Algorithm 3)",
        f"{_AFTER}; every batch from the common pool",
        _homogeneous,
        variants=(*_POST_LOCAL, "joint"),
        options=("curvature",),
    ),
    Theorem(
        "cor:realized-hom-PL",
        "hew-hom-pl",
        "hom",
        "Algorithm 3, PL",
        "PL objective, exact weights, clients that share it (Algorithm 3)",
        f"{_AFTER}; every batch from the common pool",
        _homogeneous_pl,
        needs=("pl_constant",),
        variants=(*_POST_LOCAL, "joint"),
        options=("curvature",),
    ),
)
THEOREMS: dict[str, Theorem] = {theorem.label: theorem for theorem in _ALL}
"""The statements about many rounds, by label."""


def theorems() -> tuple[Theorem, ...]:
    """The statements about many rounds that `theorem` and `certify` know.

    Returns:
        Records with `label`, `word`, `title`, `weights`, `needs` and `variants`.

    Examples:
        >>> from hewfl.theory import theorems
        >>> [statement.word for statement in theorems()][:3]
        ['comparator', 'uniform', 'uniform-pl']
    """
    return _ALL
