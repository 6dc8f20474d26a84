"""The paper's statements about many rounds, by label, in one form."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, final

from hewfl.core.checks import ArrayLike, as_float64, invalid
from hewfl.core.shapes import broadcasting
from hewfl.predictive.certificate import VARIANTS, Variant
from hewfl.theory import curves
from hewfl.theory.case import Case
from hewfl.theory.counts import Algorithm
from hewfl.theory.curves import Curve
from hewfl.theory.post_local import PostLocal, is_homogeneous
from hewfl.theory.statement import Rate, at_most

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
        curves.optimised,
    ),
    Theorem(
        "th:direct-bellman",
        "control",
        "uniform weights, convex",
        "Convex objective, equal weights: the gap falls like 1/rounds to a floor",
        _EQUAL,
        curves.direct,
        variants=VARIANTS,
    ),
    Theorem(
        "th:pl-global",
        "control",
        "uniform weights, PL",
        "PL objective, equal weights: the gap shrinks geometrically to a floor",
        _EQUAL,
        curves.contracting,
        needs=("pl_constant",),
    ),
    Theorem(
        "th:ho-main",
        "control",
        "uniform weights, similar Hessians",
        "Convex objective, similar Hessians, equal weights: local steps cost less",
        _EQUAL,
        curves.similar,
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
        curves.corrected,
        variants=_POST_LOCAL,
        has_curvature=True,
    ),
    Theorem(
        "cor:realized-hom-rate",
        "hom",
        "Algorithm 3, convex",
        "Convex objective, exact weights, clients that share it (Algorithm 3)",
        f"{_AFTER}; every batch from the common pool",
        curves.plain,
        variants=_POST_LOCAL,
        has_curvature=True,
    ),
    Theorem(
        "cor:realized-hom-PL",
        "hom",
        "Algorithm 3, PL",
        "PL objective, exact weights, clients that share it (Algorithm 3)",
        f"{_AFTER}; every batch from the common pool",
        curves.plain_contracting,
        needs=("pl_constant",),
        variants=_POST_LOCAL,
        has_curvature=True,
    ),
)
THEOREMS: dict[str, Theorem] = {theorem.label: theorem for theorem in _ALL}
"""The statements about many rounds, by label."""
