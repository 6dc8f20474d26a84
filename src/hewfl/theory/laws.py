"""The paper's statements about many rounds in one form: all is fixed but the rounds.

Where a formula is undefined (C ≥ 1, ρ ≤ 0) a law is infinite instead of an error, so
that a search may pass through.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, final

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import (
    Array,
    ArrayLike,
    as_float64,
    invalid,
    nonnegatives,
    positives,
)
from hewfl.core.shapes import broadcasting
from hewfl.predictive.certificate import (
    VARIANTS,
    Variant,
    mean_penalty,
    variance_bound,
)
from hewfl.predictive.tracking import Tracking, tracking_cap
from hewfl.theory.comparator_rates import comparator_rate, comparator_recursion
from hewfl.theory.comparators import best_comparator, comparator_coefficients
from hewfl.theory.corrected import (
    PostLocal,
    corrected_coefficients,
    corrected_rate,
    corrected_recursion,
)
from hewfl.theory.counts import Algorithm
from hewfl.theory.one_step_bound import situation
from hewfl.theory.pl import pl_rate
from hewfl.theory.plain import (
    Sampling,
    is_homogeneous,
    plain_coefficients,
    plain_contraction,
    plain_pl_rate,
    plain_rate,
    plain_recursion,
)
from hewfl.theory.scalar import scalar_rate
from hewfl.theory.similar_hessians import (
    best_iterate_rate,
    higher_order,
    higher_order_trajectory,
)
from hewfl.theory.statement import Hypothesis, Rate, at_most, below
from hewfl.theory.systems import System
from hewfl.theory.uniform_controller import Uniform, uniform, uniform_trajectory

if TYPE_CHECKING:
    Form = Literal["printed", "paper", "sharp", "absorbed"]
else:  # run-time type checks let a wrong name through to `law` and its text
    Form = str
FORMS: tuple[Form, ...] = ("printed", *VARIANTS)
"""Sets of constants: as printed, as printed but corrected, and the sharper two."""

LARGEST = 100.0
"""No statement reaches an amplitude above one; above this one we do not evaluate."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """What is known of a federation; what is None is not known.

    Attributes:
        system: the constants.
        gap: g_0 or a bound on it; by default f̄, which lem:gap always allows.
        tracking: bound on E‖c_i,0 − ∇F_i(x_0)‖²; by default max v_i²/b_i, true if every
            c_i,0 is a minibatch gradient at x_0. It depends on the data if c_i,0 = 0.
        pl_constant: μ of ‖∇F‖² ≥ 2μ(F − F*).
        similarity: S ≥ ‖∇²F_i − ∇²F‖.
        hessian_lipschitz: Lipschitz constant of the Hessians.
        sampling: what the clients draw from; "fixed shards" promises nothing.
        active: clients that take part in a round; by default all.
        dimension: d, parameters of the model, to count what is sent.
    """

    system: System
    gap: ArrayLike | None = None
    tracking: ArrayLike | None = None
    pl_constant: ArrayLike | None = None
    similarity: ArrayLike | None = None
    hessian_lipschitz: ArrayLike | None = None
    sampling: Sampling = "fixed shards"
    active: int | None = None
    dimension: int | None = None

    def __post_init__(self) -> None:
        """Check ranges."""
        is_homogeneous(self.sampling)
        for name in ("gap", "tracking", "similarity", "hessian_lipschitz"):
            if getattr(self, name) is not None:
                nonnegatives(name, getattr(self, name))
        if self.pl_constant is not None:
            positives("pl_constant", self.pl_constant)
        n, S = self.system.n, self.active
        if S is not None and not 1 <= S <= n:
            raise invalid("active", f"between 1 and the number of clients, {n}", S)

    @property
    def participants(self) -> int:
        """S, the clients that take part in a round."""
        return self.system.n if self.active is None else self.active

    @property
    def start(self) -> tuple[Float64[Array, "..."], Float64[Array, "..."]]:
        """Bounds on gap and tracking error to start from."""
        v2, b = np.asarray(self.system.variance), np.asarray(self.system.batch_size)
        gap = self.system.cap if self.gap is None else self.known("gap")
        tracking = (v2 / b).max(-1) if self.tracking is None else self.known("tracking")
        return gap, np.asarray(tracking)

    def known(self, name: str) -> Float64[Array, "..."]:
        """A field that a statement cannot do without.

        Raises:
            InvalidInputError: it is None.
        """
        value = getattr(self, name)
        if value is None:
            raise invalid(name, "given", value)
        return as_float64(name, value)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """A bound on the expected gap with everything fixed but the rounds.

    Attributes:
        rate: the closed bound after so many rounds; infinite where it is undefined.
        recursion: the recursion behind it, iterated; None where the closed bound is all
            there is.
    """

    rate: Callable[[ArrayLike], Rate]
    recursion: Callable[[int], Array] | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Theorem:
    """A statement about many rounds.

    Attributes:
        label: its LaTeX label.
        algorithm: whose rounds it speaks of, as `communication` names them.
        about: the method and the assumption, in a few words.
        law: builds its law.
        needs: fields of `Case` that must be known.
        variants: constants it comes with.
        has_curvature: whether Λ matters.
        least: the fewest rounds it speaks of.
    """

    label: str
    algorithm: Algorithm
    about: str
    law: Callable[[Case, PostLocal, Variant, bool], Law] = field(repr=False)
    needs: tuple[str, ...] = ()
    variants: tuple[Form, ...] = FORMS
    has_curvature: bool = False
    least: int = 0

    def missing(self, case: Case) -> tuple[str, ...]:
        """What must be known and is not."""
        return tuple(name for name in self.needs if getattr(case, name) is None)


@broadcasting
def law(theorem: str, case: Case, controls: PostLocal, variant: Form = "paper") -> Law:
    """The law of a theorem at given ϑ and Λ.

    To the theorem's own hypotheses come n ≤ S, that all clients take part (E-19), and
    for Algorithm 3 that every client sees ∇F (E-14).

    Args:
        theorem: label, a key of `THEOREMS`.
        case: what is known.
        controls: ϑ and Λ, shapes that broadcast with (*c); Λ matters to rules with one.
        variant: which constants.

    Raises:
        InvalidInputError: an unknown name, a missing constant, or ϑ beyond `LARGEST`.
    """
    statement = named(theorem, variant)
    for name in statement.missing(case):
        raise invalid(name, f"given for {theorem}", None)
    theta = as_float64("amplitude", controls.amplitude)
    outside = (theta <= 0) | (theta > LARGEST)
    if outside.any():
        rule = f"positive and at most {LARGEST:g}"
        raise invalid("amplitude", rule, theta[outside].flat[0])
    known: Variant = "paper" if variant == "printed" else variant
    found = statement.law(case, controls, known, variant == "printed")
    facts = [at_most("n ≤ S", case.system.n, case.participants)]
    if statement.algorithm == "hom":
        blind = 0 if is_homogeneous(case.sampling) else case.system.n
        facts.append(at_most("clients that do not see ∇F ≤ 0", blind, 0))

    def rate(rounds: ArrayLike) -> Rate:
        closed = found.rate(rounds)
        return replace(closed, hypotheses=(*closed.hypotheses, *facts))

    return replace(found, rate=rate)


def named(theorem: str, variant: Form) -> Theorem:
    """The theorem of a label, if it has constants of that name."""
    if theorem not in THEOREMS:
        raise invalid("theorem", f"one of {', '.join(THEOREMS)}", repr(theorem))
    statement = THEOREMS[theorem]
    if variant not in statement.variants:
        rule = f"one of {', '.join(statement.variants)} for {theorem}"
        raise invalid("variant", rule, repr(variant))
    return statement


# ------------------------------------------------------------------ the theorems


def _optimised(case: Case, controls: PostLocal, variant: Variant, printed: bool) -> Law:
    """th:sur-cvx for a box that ends at ϑ, against the weights of least noise there."""
    system, theta = case.system, as_float64("amplitude", controls.amplitude)[..., None]
    at, L = situation(system, 0, 0), system.L[..., None]
    linear = mean_penalty(theta, at, variant)
    quadratic: Array = L / 2 * variance_bound(theta, at, variant)
    if printed:
        linear = np.asarray(32 * theta**2 / L * system.noise)
        quadratic = linear / 2
    w = best_comparator(linear, quadratic)
    k = comparator_coefficients(system, w, theta, variant=variant, printed=printed)
    contracts, track = _steady(k.tracking)
    # "absorbed" has no descent left for some amplitudes with C ≥ 1
    k = replace(k, tracking=track, descent=np.where(k.descent > 0, k.descent, 1.0))
    return Law(
        lambda T: _where(contracts, comparator_rate(k, case.start, T, printed=printed)),
        lambda T: comparator_recursion(k, case.start, T).gap[-1],
    )


def _direct(case: Case, controls: PostLocal, variant: Variant, printed: bool) -> Law:
    """th:direct-bellman with q at its cap, closed by lem:scalar."""
    assert not printed  # there is no printed form
    k = uniform(case.system, controls.amplitude, variant=variant)
    contracts, k = _steady_uniform(k)
    k = replace(k, a=np.where(k.a > 0, k.a, 1.0))
    g, q = case.start
    d = k.gamma * tracking_cap(k.tracking, q, case.system.cap) + k.delta

    def rate(T: ArrayLike) -> Rate:
        closed = scalar_rate(g, k.a, k.beta, d, T)
        vacuous = np.asarray(closed.floor >= case.system.cap)
        hypotheses = (*k.hypotheses, *closed.hypotheses)
        closed = replace(closed, vacuous=vacuous, hypotheses=hypotheses)
        return _where(contracts, replace(closed, label="th:direct-bellman"))

    return Law(rate, lambda T: uniform_trajectory(k, case.start, T).gap[-1])


def _contracting(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Law:
    k, mu = (
        uniform(case.system, controls.amplitude, variant=variant),
        case.known("pl_constant"),
    )
    return Law(lambda T: pl_rate(k, mu, case.start, T, printed=printed))


def _similar(case: Case, controls: PostLocal, variant: Variant, printed: bool) -> Law:
    k = uniform(case.system, controls.amplitude, variant=variant)
    contracts, k = _steady_uniform(k)
    S, M = case.known("similarity"), case.known("hessian_lipschitz")
    bound = higher_order(k, S, M, printed=printed)
    return Law(
        lambda T: _where(
            contracts, best_iterate_rate(bound, case.start, T, printed=printed)
        ),
        lambda T: higher_order_trajectory(bound, case.start, T).gap[-1],
    )


def _corrected(case: Case, controls: PostLocal, variant: Variant, printed: bool) -> Law:
    k = corrected_coefficients(case.system, controls, variant=variant, printed=printed)
    contracts, track = _steady(k.tracking)
    k = replace(k, tracking=track)
    return Law(
        lambda T: _where(contracts, corrected_rate(k, case.start, T, printed=printed)),
        lambda T: corrected_recursion(k, case.start, T).gap[-1],
    )


def _plain(case: Case, controls: PostLocal, variant: Variant, printed: bool) -> Law:
    k = plain_coefficients(case.system, controls, variant=variant)
    return Law(
        lambda T: plain_rate(k, case.start[0], T, printed=printed),
        lambda T: plain_recursion(k, case.start[0], T)[-1],
    )


def _plain_contracting(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Law:
    k, mu = (
        plain_coefficients(case.system, controls, variant=variant),
        case.known("pl_constant"),
    )
    rho = plain_contraction(k, mu)
    contracts = below("0 < ρ", 0.0, rho)
    k = replace(k, growth=np.where(rho > 0, k.growth, 0.0))
    return Law(
        lambda T: _where(
            contracts, plain_pl_rate(k, mu, case.start[0], T, printed=printed)
        )
    )


def _steady(tracking: Tracking) -> tuple[Hypothesis, Tracking]:
    """Whether C < 1, and a recursion that can be evaluated where it is not."""
    C = tracking.tracking
    return below("C < 1", C, 1.0), replace(tracking, tracking=np.where(C < 1, C, 0.0))


def _steady_uniform(controller: Uniform) -> tuple[Hypothesis, Uniform]:
    contracts, track = _steady(controller.tracking)
    return contracts, replace(controller, tracking=track)


def _where(defined: Hypothesis, rate: Rate) -> Rate:
    """The rate where it is defined and infinity elsewhere.

    Of the rate's own hypotheses, the one about being defined was met by the stand-ins,
    and those about the floor compare numbers that exist only where it is.
    """
    met = defined.holds
    kept = [
        Hypothesis(
            h.name,
            np.where(met, h.left, np.nan),
            np.where(met, h.right, np.nan),
            np.asarray(h.holds & met),
        )
        if h.name in _OF_THE_FLOOR
        else h
        for h in rate.hypotheses
        if h.name != defined.name
    ]
    return replace(
        rate,
        value=np.where(met, rate.value, np.inf),
        floor=np.where(met, rate.floor, np.inf),
        vacuous=np.asarray(rate.vacuous | ~met),
        hypotheses=(defined, *kept),
    )


_OF_THE_FLOOR = ("2am ≤ 1 + β", "a ≤ 1")
_POST_LOCAL: tuple[Form, ...] = ("printed", "paper", "sharp")
_ALL = (
    Theorem("th:sur-cvx", "control", "Algorithm 1 with θ̄ = ϑ, convex", _optimised),
    Theorem(
        "th:direct-bellman",
        "control",
        "uniform weights, convex",
        _direct,
        variants=VARIANTS,
    ),
    Theorem(
        "th:pl-global",
        "control",
        "uniform weights, PL",
        _contracting,
        needs=("pl_constant",),
    ),
    Theorem(
        "th:ho-main",
        "control",
        "uniform weights, similar Hessians, best iterate",
        _similar,
        needs=("similarity", "hessian_lipschitz"),
        least=1,
    ),
    Theorem(
        "cor:realized-het-rate",
        "het",
        "Algorithm 2, convex",
        _corrected,
        variants=_POST_LOCAL,
        has_curvature=True,
    ),
    Theorem(
        "cor:realized-hom-rate",
        "hom",
        "Algorithm 3, convex",
        _plain,
        variants=_POST_LOCAL,
        has_curvature=True,
    ),
    Theorem(
        "cor:realized-hom-PL",
        "hom",
        "Algorithm 3, PL",
        _plain_contracting,
        needs=("pl_constant",),
        variants=_POST_LOCAL,
        has_curvature=True,
    ),
)
THEOREMS: dict[str, Theorem] = {theorem.label: theorem for theorem in _ALL}
"""The statements about many rounds, by label."""
