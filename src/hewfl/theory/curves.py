"""Each theorem about many rounds as a curve: everything is fixed but the rounds.

Where a formula is undefined (C ≥ 1, ρ ≤ 0) a curve is infinite instead of an error, so
that a search may pass through.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array, ArrayLike, Reals, as_float64, invalid
from hewfl.predictive.certificate import Variant, mean_penalty, variance_bound
from hewfl.theory.case import Case
from hewfl.theory.comparators import comparator_coefficients, comparator_rate
from hewfl.theory.corrected import corrected_coefficients, corrected_rate
from hewfl.theory.noise import best_comparator
from hewfl.theory.one_step_bound import situation
from hewfl.theory.pl import pl_rate
from hewfl.theory.plain import plain_coefficients, plain_pl_rate, plain_rate
from hewfl.theory.post_local import PostLocal
from hewfl.theory.recursion import Recursion, only_where
from hewfl.theory.similar_hessians import (
    best_iterate_rate,
    higher_order,
    last_iterate_rate,
)
from hewfl.theory.statement import Hypothesis, Rate
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
