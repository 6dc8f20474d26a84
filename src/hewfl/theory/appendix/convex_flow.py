"""The flow of any convex generator, by quadrature."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from hewfl.core.array_types import Bool, Float64
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Converted,
    Mask,
    Nonnegatives,
    Reals,
    invalid,
    nonnegatives,
    positives,
)
from hewfl.theory.appendix.generator import log_ratio, time_and_state

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_PANEL_TOLERANCE = 1e-13
"""Accepted difference of one panel from its halves; the halves are far closer."""
_SHORTEST = 2.0**-40
"""Panels are not halved below this: what is left of a kink is under rounding."""
_MOST_PANELS = 20_000
"""A smooth φ takes tens, a kink a hundred; more means noise well above rounding."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class ConvexGenerator(Converted):
    """Any φ that meets ass:generator, given as a function.

    With ξ = s e^{−y} the flow is R_a(s) = s e^{−Y}, where

        ∫ ξ/φ(ξ) dy over [0, Y] = a.

    The integrand never falls, so an error δ of the integral moves R by at most δY,
    relatively. Gauss panels halve until they agree with their halves; the last one is
    solved by Newton. Relative error at most 1e-12 where φ is accurate to rounding and
    neither overflows nor underflows between R_a(s) and s.

    Attributes:
        phi: φ, elementwise on arrays of any shape (parameters of its own must
            broadcast against the trailing axes).
        derivative_at_zero: φ'(0+) ≥ 0.
    """

    phi: Callable[..., Any]
    derivative_at_zero: Nonnegatives

    noiseless: ClassVar[str] = "thm:noiseless"
    noisy: ClassVar[str] = "thm:noisy"

    @property
    def origin_slope(self) -> Reals:
        """φ'(0+), as given."""
        return np.asarray(self.derivative_at_zero)

    def value(self, state: ArrayLike) -> Reals:
        """φ(s)."""
        return np.asarray(self.phi(nonnegatives("state", state)), dtype=np.float64)

    def flow(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """R_a(s) = s e^{−Y}."""
        s = nonnegatives("state", state)
        return np.asarray(s * np.exp(-self.log_shrink(time, s)))

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """Y = log(s/R_a(s)); its limit aφ'(0+) at s = 0."""
        a, s = time_and_state(time, state)
        limit = a * self.origin_slope
        a, s, limit = np.broadcast_arrays(a, s, limit)
        resting = s == 0
        depth, _ = self._integrate(np.where(resting, 1.0, s), np.where(resting, 0.0, a))
        return np.where(resting, limit, depth.reshape(s.shape))

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Reals:
        """L_a(m) = φ(R_a(m))/φ(m); e^{−aφ'(0+)} at m = 0."""
        m = nonnegatives("floor", floor)
        shrink = self.log_shrink(time, m)
        whole = np.where(m > 0, m, 1.0)
        ratio = np.log(self.value(whole * np.exp(-shrink)) / self.value(whole))
        return np.where(m > 0, ratio, -shrink)

    def coordinate(self, state: ArrayLike, reference: ArrayLike) -> Reals:
        """χ(s), by the same panels."""
        s, top = positives("state", state), positives("reference", reference)
        s, top, _ = np.broadcast_arrays(s, top, self.origin_slope)
        high = np.asarray(np.maximum(s, top))
        _, integral = self._integrate(high, None, log_ratio(s, top))
        return np.asarray(np.sign(top - s) * integral.reshape(s.shape))

    def _integrate(
        self,
        start: Float64[Array, "*c"],
        time: Float64[Array, "*c"] | None,
        depth: Float64[Array, "*c"] | None = None,
    ) -> tuple[Float64[Array, "*e"], Float64[Array, "*e"]]:
        """(Y, integral over [0, Y]) where the integral reaches a, or Y the depth.

        Scalars come back as vectors of one.
        """
        start = np.atleast_1d(start)
        a = np.full(start.shape, np.inf) if time is None else np.atleast_1d(time)
        end = np.full(start.shape, np.inf) if depth is None else np.atleast_1d(depth)
        y, total, h = np.zeros_like(start), np.zeros_like(start), np.ones_like(start)
        done = (a == 0) | (end == 0)
        crossed = np.zeros_like(done)
        for _ in range(_MOST_PANELS):
            if done.all():
                return self._solve_last_panel(start, (y, total, h), a, crossed), total
            last = h >= end - y
            h = np.where(last, end - y, h)
            whole = self._panel(start, y, h)
            halves = self._panel(start, y, h / 2) + self._panel(start, y + h / 2, h / 2)
            with np.errstate(invalid="ignore"):
                even = np.abs(whole - halves) <= _PANEL_TOLERANCE * (total + halves)
            short = h < _SHORTEST
            self._require_finite(start * np.exp(-y), ~done & short, halves)
            step = ~done & (even | short)
            crossing = step & (total + halves >= a)
            crossed, done = crossed | crossing, done | crossing
            step = step & ~crossing
            y = np.where(step, np.where(last, end, y + h), y)
            total = np.where(step, total + halves, total)
            h = np.where(done, h, np.where(step, 2 * h, h / 2))
            done = done | (step & last)
        at = (start * np.exp(-y))[~done].flat[0]
        raise invalid("phi", "smooth up to rounding", f"noise near {at:.3g}")

    def _solve_last_panel(
        self,
        start: Float64[Array, "*c"],
        panel: tuple[Float64[Array, "*c"], ...],
        time: Float64[Array, "*c"],
        crossed: Bool[Mask, "*c"],
    ) -> Float64[Array, "*c"]:
        """Newton in the last panel, from its far end: the integral is convex in Y."""
        y, total, h = panel
        wanted = np.where(crossed, time - total, 0.0)
        h = np.where(crossed, h, 0.0)
        for _ in range(100):
            excess = np.where(crossed, self._panel(start, y, h) - wanted, 0.0)
            xi = start * np.exp(-(y + h))
            following = np.maximum(h - excess * np.asarray(self.phi(xi)) / xi, 0.0)
            moved = np.abs(following - h) > np.finfo(np.float64).eps * (y + h)
            h = following
            if not moved.any():
                break
        return np.asarray(y + h)

    def _panel(
        self,
        start: Float64[Array, "*c"],
        y: Float64[Array, "*c"],
        h: Float64[Array, "*c"],
    ) -> Float64[Array, "*c"]:
        """∫ ξ/φ(ξ) over [y, y + h]; not finite where φ leaves the range of floats."""
        column = (-1,) + (1,) * start.ndim
        nodes = ((_NODES + 1) / 2).reshape(column)
        with np.errstate(all="ignore"):  # the caller looks at the result
            xi = start * np.exp(-(y + h * nodes))
            phi = np.asarray(self.phi(xi), dtype=np.float64)
            ratio = np.where(phi >= np.finfo(np.float64).tiny, xi / phi, np.inf)
            return np.asarray((ratio * _WEIGHTS.reshape(column)).sum(axis=0) * h / 2)

    @staticmethod
    def _require_finite(
        state: Float64[Array, "*c"],
        stuck: Bool[Mask, "*c"],
        integral: Float64[Array, "*c"],
    ) -> None:
        bad = stuck & ~(np.isfinite(integral) & (integral > 0))
        if bad.any():
            rule = "positive and finite between R_a(s) and s"
            raise invalid("phi", rule, f"neither near {state[bad].flat[0]:.3g}")
