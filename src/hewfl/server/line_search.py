"""Line search: the clients' losses determine the length of the step s = Σ w_iΔ_i.

    1. each client measures its loss at x + a s for a = 0 and a short list of a, on
       fresh samples, the same for all a;
    2. the losses are weighted like the displacements, so a client without weight has no
       influence: f(a) = Σ w_i ℓ_i(x + a s) / Σ w_i;
    3. the step is a* s: the vertex of the parabola through the least f(a) and the two
       points next to it, never beyond the largest a of the list;
    4. step sizes of the next round are multiplied by √a*, so that a* stays near one;
    5. the trace has the decrease f(0) − f(a*), with its interval over clients.

The interval is a certificate that is never vacuous: it is measured on samples that no
client used for training in this round. It is about x + a* s; momentum is added
afterwards. A loss that is not convex along s, as of deep networks, may have its least
value between the points, or only on the samples drawn: see docs/server_step.md.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from hewfl.core.algorithm import Traffic
from hewfl.core.array_types import Float64
from hewfl.core.round import Decision
from hewfl.core.validation import Array
from hewfl.server.server_step import ServerStep

LEVEL = 0.95
"""Of the interval over clients (Student's t)."""
SHORTEST, LONGEST = 0.25, 4.0
"""Bounds of a* where it scales the step sizes: one bad measurement then costs no more
than a factor of two."""
LossesAlongStep = Callable[[tuple[float, ...], Any], Float64[Array, "s k"]]
"""Losses of the clients of a round at x + a s, from the list of a, and s."""


@final
@dataclass(frozen=True, slots=True)
class LineSearchResult:
    """The length of a step and the decrease of the loss that was measured.

    Attributes:
        length: a*; one where no client with weight has a finite loss.
        decrease: f(0) − f(a*), None where no client has a finite loss.
        low: lower end of the interval of the decrease over clients; −∞ for one client.
        high: upper end.
    """

    length: float
    decrease: float | None = None
    low: float = -math.inf
    high: float = math.inf

    @property
    def step_size_factor(self) -> float:
        """The factor on the step sizes of the next round: √a*."""
        return math.sqrt(min(max(self.length, SHORTEST), LONGEST))

    def observations(self, scale: float) -> Mapping[str, float]:
        """Values for the trace; the interval only where it is finite."""
        values = {"measured_step": self.length, "amplitude_scale": scale}
        if self.decrease is not None:
            values["measured_decrease"] = self.decrease
        if math.isfinite(self.low) and math.isfinite(self.high):
            values |= {"measured_low": self.low, "measured_high": self.high}
        return values


def trial_lengths(server_step: ServerStep) -> tuple[float, ...]:
    """All a at which clients measure their loss: zero, and the list."""
    return (0.0, *server_step.line_search_points)


def scale_decision(decision: Decision, length: float) -> Decision:
    """The decision whose step is `length` times as long."""
    step = None if decision.step is None else length * decision.step
    return replace(decision, weights=length * decision.weights, step=step)


def add_line_search_traffic(
    traffic: Traffic, server_step: ServerStep, *, full_participation: bool
) -> Traffic:
    """The traffic of a round, line search included.

    Up: one loss for each a from each client. Down: a*, and s. Where all clients take
    part in every round, s replaces the next model x + a* s, which is then not sent.
    """
    if server_step.line_search_samples is None:
        return traffic
    return replace(
        traffic,
        down=traffic.down + (not full_participation),
        up_scalars=traffic.up_scalars + len(trial_lengths(server_step)),
        common_scalars=traffic.common_scalars + 1,
        samples=traffic.samples + server_step.line_search_samples,
    )


def fit_line_search(
    server_step: ServerStep,
    weights: Float64[Array, " s"],
    losses: Float64[Array, "s k"],
) -> LineSearchResult:
    """The length a* from the losses of the clients.

    Args:
        server_step: gives the lengths a.
        weights: of the displacements; clients without a positive weight do not count.
        losses: ℓ_i(x + a s), a client in each row and an a in each column.
    """
    counted = (weights > 0) & np.isfinite(losses[:, 0])
    if not counted.any():
        return LineSearchResult(1.0)
    w = weights[counted] / weights[counted].sum()
    points, table = np.array(trial_lengths(server_step)), losses[counted]
    table = np.where(np.isfinite(table), table, np.inf)
    length, shares = best_length(points, w @ table)
    used = shares != 0  # a loss may be infinite where it does not count
    decreases = table[:, 0] - table[:, used] @ shares[used]
    decrease = float(w @ decreases)
    half = _half_width(w, decreases - decrease)
    return LineSearchResult(length, decrease, decrease - half, decrease + half)


def _half_width(w: Float64[Array, " s"], away: Float64[Array, " s"]) -> float:
    """Half the interval of a weighted mean, from distances to it.

    With n' = 1/Σw_i², the effective number of clients: for equal weights this is the
    interval of Student's t.
    """
    from scipy.special import stdtrit  # noqa: PLC0415 - scipy loads late

    count = 1 / float(w @ w)
    if count < 1 + 1e-9:
        return math.inf
    error = math.sqrt(float((w * away) @ (w * away)) * count / (count - 1))
    return float(stdtrit(count - 1, (1 + LEVEL) / 2)) * error


def best_length(
    points: Float64[Array, " k"], values: Float64[Array, " k"]
) -> tuple[float, Float64[Array, " k"]]:
    """a*, and the shares of the measured values in f(a*).

    Args:
        points: a, increasing from zero, at least three.
        values: f(a); infinite where it is out of range.
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
    if not (np.isfinite([vertex, bend]).all() and bend > 0):  # flat, or out of range
        return float(points[k]), here
    a = float(np.clip(vertex, points[max(k - 1, 0)], points[min(k + 1, last)]))
    shares = np.zeros(len(points))
    shares[three] = (  # Lagrange's form of the parabola
        (a - x1) * (a - x2) / ((x0 - x1) * (x0 - x2)),
        (a - x0) * (a - x2) / ((x1 - x0) * (x1 - x2)),
        (a - x0) * (a - x1) / ((x2 - x0) * (x2 - x1)),
    )
    return a, shares
