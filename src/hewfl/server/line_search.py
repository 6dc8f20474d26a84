"""A measured step: how far to go along s = Σ w_iΔ_i is asked of the clients.

    1. clients answer with their losses at x + a s for a = 0 and a short list of a, on
       fresh samples, the same for all a;
    2. the answers are weighed like the displacements, so that a client without weight
       has no vote: f(a) = Σ w_i ℓ_i(x + a s) / Σ w_i;
    3. the step is a* s: the vertex of the parabola through the least f(a) and the two
       points next to it, never beyond the longest a that was asked for;
    4. step sizes of the next round are multiplied by √a*, so that a* stays near one;
    5. the trace has the decrease f(0) − f(a*), with its interval over clients.

The interval is a certificate that is never vacuous: it is measured on samples that no
client trained on in this round. It is about x + a* s; momentum is added afterwards. A
loss that is not convex along s, as of deep networks, may have its least value between
the points asked for, or only on the samples drawn: see docs/server_step.md.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import scipy.special

from hewfl.core.algorithm import Traffic
from hewfl.core.array_types import Float64
from hewfl.core.round import Decision, LocalPlan
from hewfl.core.validation import Array
from hewfl.server.server_step import POINTS, ServerStep
from hewfl.server.state import ServerState

LEVEL = 0.95
"""Of the interval over clients (Student's t)."""
SLOWEST, FASTEST = 0.25, 4.0
"""a* is taken to lie between these where it scales the step sizes: one bad measurement
then costs no more than a factor of two."""
Ask = Callable[[tuple[float, ...], Any], Float64[Array, "s k"]]
"""Losses of the clients of a round at x + a s, from the list of a, and s."""


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """What a measurement along a step found.

    Attributes:
        length: a*; one where no client with weight gave a finite loss.
        decrease: f(0) − f(a*), None where nobody answered.
        low: end of the interval of the decrease over clients; −∞ for one client.
        high: the other end.
    """

    length: float
    decrease: float | None = None
    low: float = -math.inf
    high: float = math.inf

    @property
    def factor(self) -> float:
        """What step sizes of the next round are multiplied by: √a*."""
        return math.sqrt(min(max(self.length, SLOWEST), FASTEST))

    def note(self, scale: float) -> Mapping[str, float]:
        """What the trace says of it; an interval only where it has ends."""
        found = {"measured_step": self.length, "amplitude_scale": scale}
        if self.decrease is not None:
            found["measured_decrease"] = self.decrease
        if math.isfinite(self.low) and math.isfinite(self.high):
            found |= {"measured_low": self.low, "measured_high": self.high}
        return found


def asked_points(server_step: ServerStep) -> tuple[float, ...]:
    """All a that clients are asked for: zero, and the list."""
    return (
        0.0,
        *(POINTS if server_step.measure_at is None else server_step.measure_at),
    )


def scaled(plan: LocalPlan, state: ServerState) -> LocalPlan:
    """What the clients are told: the method's plan with measured step sizes."""
    if state.scale is None:
        return plan
    return replace(plan, step_sizes=state.scale * plan.step_sizes)


def measured_traffic(
    traffic: Traffic, server_step: ServerStep, *, everybody: bool
) -> Traffic:
    """What travels in a round with a measured step.

    Up: one loss for each a from each client. Down: a*, and s; where everybody takes
    part in every round s stands for the next model, x + a* s, which is then not sent.
    """
    if server_step.measure is None:
        return traffic
    return replace(
        traffic,
        down=traffic.down + (not everybody),
        up_scalars=traffic.up_scalars + len(asked_points(server_step)),
        common_scalars=traffic.common_scalars + 1,
        samples=traffic.samples + server_step.measure,
    )


def lengthened(decision: Decision, length: float) -> Decision:
    """The decision whose step is `length` times as long."""
    step = None if decision.step is None else length * decision.step
    return replace(decision, weights=length * decision.weights, step=step)


def fitted(
    server_step: ServerStep,
    weights: Float64[Array, " s"],
    losses: Float64[Array, "s k"],
) -> Measured:
    """The measured step from the answers of the clients.

    Args:
        server_step: says which a were asked for.
        weights: of the displacements; those that are not positive have no vote.
        losses: ℓ_i(x + a s), a client in each row and an a in each column.
    """
    voting = (weights > 0) & np.isfinite(losses[:, 0])
    if not voting.any():
        return Measured(1.0)
    w = weights[voting] / weights[voting].sum()
    points, own = np.array(asked_points(server_step)), losses[voting]
    own = np.where(np.isfinite(own), own, np.inf)
    length, shares = best_length(points, w @ own)
    used = shares != 0  # a loss may be infinite where it does not count
    fallen = own[:, 0] - own[:, used] @ shares[used]
    decrease = float(w @ fallen)
    half = _half_width(w, fallen - decrease)
    return Measured(length, decrease, decrease - half, decrease + half)


def _half_width(w: Float64[Array, " s"], away: Float64[Array, " s"]) -> float:
    """Half the interval of a weighted mean, from distances to it.

    With n' = 1/Σw_i², the number of clients that equal weights would stand for: for
    equal weights this is the interval of Student's t.
    """
    count = 1 / float(w @ w)
    if count < 1 + 1e-9:
        return math.inf
    error = math.sqrt(float((w * away) @ (w * away)) * count / (count - 1))
    return float(scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2)) * error


def best_length(
    points: Float64[Array, " k"], values: Float64[Array, " k"]
) -> tuple[float, Float64[Array, " k"]]:
    """a*, and the shares of the measured values that make f(a*).

    Args:
        points: a, increasing from zero, at least three.
        values: f(a); infinite where it left all bounds.
    """
    k, last = int(np.argmin(values)), len(points) - 1
    here = np.zeros(len(points))
    here[k] = 1.0
    first = min(max(k - 1, 0), last - 2)
    three = slice(first, first + 3)
    (x0, x1, x2), (f0, f1, f2) = points[three], values[three]
    with np.errstate(all="ignore"):
        slope, next_ = (f1 - f0) / (x1 - x0), (f2 - f1) / (x2 - x1)
        bend = (next_ - slope) / (x2 - x0)
        vertex = 0.5 * (x0 + x1) - slope / (2 * bend)
    if not (np.isfinite([vertex, bend]).all() and bend > 0):  # flat, or out of bounds
        return float(points[k]), here
    a = float(np.clip(vertex, points[max(k - 1, 0)], points[min(k + 1, last)]))
    shares = np.zeros(len(points))
    shares[three] = (  # Lagrange's form of the parabola
        (a - x1) * (a - x2) / ((x0 - x1) * (x0 - x2)),
        (a - x0) * (a - x2) / ((x1 - x0) * (x1 - x2)),
        (a - x0) * (a - x1) / ((x2 - x0) * (x2 - x1)),
    )
    return a, shares
