"""Each theorem about many rounds as a curve: everything is fixed but the rounds.

Where a formula is undefined (C ≥ 1, ρ ≤ 0) a curve is infinite instead of an error, so
that a search may pass through.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from hewfl.core.checks import Array, ArrayLike, as_float64
from hewfl.predictive.certificate import Variant, mean_penalty, variance_bound
from hewfl.theory.case import Case
from hewfl.theory.comparators import (
    comparator_coefficients,
    comparator_rate,
    comparator_recursion,
)
from hewfl.theory.corrected import (
    corrected_coefficients,
    corrected_rate,
    corrected_recursion,
)
from hewfl.theory.noise import best_comparator
from hewfl.theory.one_step_bound import situation
from hewfl.theory.pl import pl_rate
from hewfl.theory.plain import (
    plain_coefficients,
    plain_pl_rate,
    plain_rate,
    plain_recursion,
)
from hewfl.theory.post_local import PostLocal
from hewfl.theory.recursion import Recursion, convex_rate
from hewfl.theory.similar_hessians import (
    best_iterate_rate,
    higher_order,
    higher_order_trajectory,
)
from hewfl.theory.statement import Hypothesis, Rate, below
from hewfl.theory.uniform_controller import uniform_coefficients, uniform_trajectory

_OF_THE_FLOOR = ("2am ≤ 1 + β", "a ≤ 1")
"""Hypotheses that compare numbers of the floor, which exist only where it does."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A bound on the expected gap as a function of the rounds alone.

    Attributes:
        rate: the closed bound after so many rounds; infinite where it is undefined.
        recursion: the recursion behind it, iterated; None where the closed bound is all
            there is.
    """

    rate: Callable[[ArrayLike], Rate]
    recursion: Callable[[int], Array] | None = None


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
    w = best_comparator(linear, quadratic)
    k = comparator_coefficients(system, w, theta, variant=variant, printed=printed)
    contracts, k = _steady(k)
    k = _descending(k)
    return Curve(
        lambda T: _where(contracts, comparator_rate(k, case.start, T, printed=printed)),
        lambda T: comparator_recursion(k, case.start, T).gap[-1],
    )


def direct(case: Case, controls: PostLocal, variant: Variant, printed: bool) -> Curve:
    """th:direct-bellman with q at its cap, closed by lem:scalar."""
    assert not printed  # there is no printed form
    found = uniform_coefficients(case.system, controls.amplitude, variant=variant)
    contracts, k = _steady(found.recursion)
    k = _descending(k)
    found = replace(found, recursion=k)
    g, q = case.start
    law = k.at_cap(q)

    def rate(T: ArrayLike) -> Rate:
        closed = convex_rate(law, k.cap, g, T, printed=False)
        met = (*k.hypotheses, *closed.hypotheses)
        labelled = replace(closed, label="th:direct-bellman", hypotheses=met)
        return _where(contracts, labelled)

    return Curve(rate, lambda T: uniform_trajectory(found, case.start, T).gap[-1])


def contracting(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Curve:
    """th:pl-global, infinite where ρ ≤ 0."""
    k = uniform_coefficients(case.system, controls.amplitude, variant=variant)
    mu = case.known("pl_constant")
    return Curve(lambda T: pl_rate(k, mu, case.start, T, printed=printed))


def similar(case: Case, controls: PostLocal, variant: Variant, printed: bool) -> Curve:
    """th:ho-main; the closed bound is that of the best iterate."""
    k = uniform_coefficients(case.system, controls.amplitude, variant=variant)
    contracts, law = _steady(k.recursion)
    S, M = case.known("similarity"), case.known("hessian_lipschitz")
    bound = higher_order(replace(k, recursion=law), S, M, printed=printed)
    return Curve(
        lambda T: _where(
            contracts, best_iterate_rate(bound, case.start, T, printed=printed)
        ),
        lambda T: higher_order_trajectory(bound, case.start, T).gap[-1],
    )


def corrected(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Curve:
    """cor:realized-het-rate against the weights of least noise."""
    k = corrected_coefficients(case.system, controls, variant=variant, printed=printed)
    contracts, k = _steady(k)
    return Curve(
        lambda T: _where(contracts, corrected_rate(k, case.start, T, printed=printed)),
        lambda T: corrected_recursion(k, case.start, T).gap[-1],
    )


def plain(case: Case, controls: PostLocal, variant: Variant, printed: bool) -> Curve:
    """cor:realized-hom-rate."""
    k = plain_coefficients(case.system, controls, variant=variant)
    return Curve(
        lambda T: plain_rate(k, case.start[0], T, printed=printed),
        lambda T: plain_recursion(k, case.start[0], T)[-1],
    )


def plain_contracting(
    case: Case, controls: PostLocal, variant: Variant, printed: bool
) -> Curve:
    """cor:realized-hom-PL, infinite where ρ ≤ 0."""
    k = plain_coefficients(case.system, controls, variant=variant)
    mu = case.known("pl_constant")
    rho = k.contraction(mu)
    contracts = below("0 < ρ", 0.0, rho)
    k = replace(k, growth=np.where(rho > 0, k.growth, 0.0))
    return Curve(
        lambda T: _where(
            contracts, plain_pl_rate(k, mu, case.start[0], T, printed=printed)
        )
    )


def _steady(recursion: Recursion) -> tuple[Hypothesis, Recursion]:
    """Whether C < 1, and a recursion that can be evaluated where it is not."""
    track = recursion.tracking
    C = track.tracking
    # C = 0 stands in for C ≥ 1, where the cap would raise and end a whole search; the
    # rate is made infinite there by `_where`, and an iterated recursion is to be read
    # only where the rate holds
    track = replace(track, tracking=np.where(C < 1, C, 0.0))
    return below("C < 1", C, 1.0), replace(recursion, tracking=track)


def _descending(recursion: Recursion) -> Recursion:
    """A quadratic recursion with a > 0: "absorbed" has none for some ϑ with C ≥ 1."""
    a = np.where(recursion.descent > 0, recursion.descent, 1.0)
    return replace(recursion, descent=a, capped_descent=a)


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
