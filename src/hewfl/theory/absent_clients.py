"""Tracking bounds under partial participation (erratum E-19).

The paper's one-step bounds allow any set S of participants known before the draws, but
its recursion of Q renews every client. An absent client keeps its control variate while
the anchor moves:

    E‖e_i⁺‖² ≤ (1 + s) Q_i + (1 + 1/s) D,     D ≥ L²E‖x⁺ − x‖²,     any s > 0.

Algorithm 1 carries these bounds from round to round, and stops them at what the ball
allows: `hewfl.control.tracking.propagated_bounds`. `AbsentClients` iterates them beside
the gap, for a rotation or for the worst absence, with the controls of th:sur-cvx: those
of Algorithm 1 do no worse.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import final

import numpy as np

from hewfl.control.certificate import Variant
from hewfl.control.tracking import (
    Tracking,
    ball_tracking,
    predictable_tracking,
    server_move,
    tracking_after,
)
from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, nonnegatives
from hewfl.theory.statement import Hypothesis, all_hold
from hewfl.theory.systems import Case, System, client_mask
from hewfl.theory.theorem_table import theorem

LABEL = "th:sur-system"
"""The statement whose recursion of χ is replaced."""
_MOST = 100_000
"""Rounds iterated; a bound not reached by then counts as never."""
_SEARCHED = 5_000
"""Rounds iterated for each amplitude of a search."""
_REST = 256
"""Periods after which a bound that has not moved counts as at rest."""
_Law = tuple[float, float, float]
"""(A, B, C) of a bound A + B u + C Q."""


@broadcasting
def propagated_tracking(
    system: System,
    amplitude: ArrayLike,
    active: ArrayLike,
    gap: ArrayLike,
    tracking: ArrayLike,
    *,
    variant: Variant = "sharp",
) -> Float64[Array, "... n"]:
    """Tracking bounds of all clients after a round, for weights fixed before it.

        i ∈ S:  A + B U + C Q      with the noise and horizons of S (prop:sur-track)
        i ∉ S:  (√Q_i + √D)²,      D = θ²(8LU + 16Q + 2 max_S M_j)
        S = ∅:  Q_i                nothing moves (E-06)

    with Q = max Q_i over all clients: the server's control variate averages all of
    them, absent or not. For weights chosen after the draws D is too small (E-01). The
    paper has no statement here, so the default constants are the sharp ones.

    Args:
        system: the constants.
        amplitude: θ ≥ 0, the largest among the participants, shape (*c).
        active: whether i ∈ S, clients last.
        gap: U ≥ 0, shape (*c).
        tracking: Q_i ≥ 0, clients last.
        variant: the set of constants.

    Returns:
        Q_i after the round, clients last.
    """
    S = client_mask(system, active)
    Q_i = np.atleast_1d(nonnegatives("tracking", tracking))
    theta = np.where(S.any(-1), nonnegatives("amplitude", amplitude), 0.0)
    U, L = nonnegatives("gap", gap), system.L
    M, H = np.where(S, system.noise, 0.0), np.where(S, system.horizon, 1.0)
    track = predictable_tracking(theta, M, H, L, variant=variant)
    move = server_move(theta, M, L, variant=variant)
    Q_i, S = np.broadcast_arrays(Q_i, S)
    return tracking_after(Q_i, S, track, move, U)


@final
@dataclass(frozen=True, slots=True)
class _Phase:
    """A round of the rotation on plain numbers."""

    gap: tuple[float, float, float, float]  # (a, β, γ, δ)
    law: _Law  # of those who take part
    move: _Law  # of the server's move D
    present: tuple[bool, ...] | None  # groups that take part; None: the worst absence


@final
@dataclass(frozen=True, slots=True, eq=False)
class AbsentClients:
    """Algorithm 1 where not all clients take part, at θ̄ = ϑ (th:sur-system, E-19).

        u⁺ = min{f̄, u − a u² + β u + γ Q + δ},   Q = max_i Q_i,   Q_i⁺ as above

    a, β, γ, δ are those of th:sur-cvx for the clients of the round. A rotation names
    the clients of each round and starts again after the last. The worst absence is over
    all sequences of S clients, known before the draws, that leave no client out for
    more than K rounds in a row: each round counts S clients with the largest noise and
    the longest horizon of all, and the k-th Q_i is that of clients absent for k rounds.
    """

    phases: tuple[_Phase, ...]
    start: tuple[float, tuple[float, ...]]  # u_0, and Q_i,0 of each group of clients
    cap: float  # f̄
    ball: tuple[float, float]  # (√M + 2LR)² and (2LR)², the most that Q and D can be
    hypotheses: tuple[Hypothesis, ...]

    def gaps(self) -> Iterator[float]:
        """The bounds on the expected gap of all rounds."""
        u, Q_i = self.start
        yield u
        while True:
            for phase in self.phases:
                u, Q_i = self._after(phase, u, Q_i)
                yield u

    def after(self, rounds: int) -> float:
        """The bound after T rounds."""
        return next(islice(self.gaps(), rounds, None))

    def lowest(self, target: float, most: int = _MOST) -> tuple[float, float]:
        """The first round with a bound at the target, and the lowest bound till then.

        Infinite for never.
        """
        lowest, last, every = math.inf, math.inf, _REST * len(self.phases)
        for t, u in enumerate(islice(self.gaps(), most + 1)):
            lowest = min(lowest, u)
            if u <= target:
                return float(t), lowest
            if t % every == 0:
                if u >= last:
                    break
                last = u
        return math.inf, lowest

    def _after(
        self, phase: _Phase, u: float, Q_i: tuple[float, ...]
    ) -> tuple[float, tuple[float, ...]]:
        a, beta, gamma, delta = phase.gap
        u, Q = min(u, self.cap), max(Q_i)
        (A, B, C), (k, m, c) = phase.law, phase.move
        renewed = min(A + B * u + C * Q, self.ball[0])
        move = math.sqrt(min(k + m * u + c * Q, self.ball[1]))
        following = u + (beta * u - a * u * u) + gamma * Q + delta
        stale = [min((math.sqrt(q) + move) ** 2, self.ball[0]) for q in Q_i]
        if phase.present is not None:
            pairs = zip(phase.present, stale, strict=True)
            tracking = [renewed if is_here else q for is_here, q in pairs]
        elif len(Q_i) == 1:
            tracking = [max(renewed, *stale)]  # absent for ever
        else:
            tracking = [renewed, *stale[:-1]]
        return min(self.cap, following), tuple(tracking)


def absent_clients(
    case: Case, amplitude: float, *, variant: Variant = "sharp"
) -> AbsentClients:
    """The bounds of Algorithm 1 for the participation of a case.

    The case is of one configuration, with `rotation`, or else with `active` and, unless
    clients may stay away for ever, `absence`. The box of amplitudes ends at ϑ.
    """
    system, (gap, tracking) = case.system, case.start
    H, b, v2 = (
        np.asarray(x) for x in (system.horizon, system.batch_size, system.variance)
    )
    phases: list[_Phase] = []
    hypotheses: list[Hypothesis] = []

    def add_phase(part: System, present: tuple[bool, ...] | None) -> None:
        k = theorem("comparator", part, amplitude=amplitude, variant=variant)
        assert not k.flows
        move = server_move(amplitude, part.noise, part.L, variant="sharp")
        a, beta, gamma, delta = (float(x) for x in k.coefficients[:4])
        law = (a, beta, gamma, delta)
        phases.append(_Phase(law, _numbers(k.tracking), _numbers(move), present))
        hypotheses.extend(k.hypotheses)

    if case.rotation is None:
        groups = 1 if case.absence is None else case.absence + 1
        worst = system.noise.max() * H.max() * (1 + 2.0**-50)  # rounding must not lower
        counts = [case.participants]
        add_phase(System(system.L, system.R, [H.max()], [1], [worst], counts), None)
    else:
        here = np.array([np.isin(np.arange(system.n), r) for r in case.rotation])
        patterns = np.unique(here, axis=1)  # of clients that come and go together
        groups = patterns.shape[1]
        for row, pattern in zip(here, patterns, strict=True):
            if row.any():
                part = System(system.L, system.R, H[row], b[row], v2[row])
                add_phase(part, tuple(map(bool, pattern)))
            else:  # a round without clients changes nothing (E-06)
                still = (0.0, 0.0, 0.0)
                phases.append(_Phase((0.0, *still), still, still, (False,) * groups))
    M, L, R = system.noise.max(), float(system.L), float(system.R)
    return AbsentClients(
        tuple(phases),
        (float(gap), (float(tracking),) * groups),
        float(system.cap),
        (float(ball_tracking(M, L, R)), (2 * L * R) ** 2),
        tuple(hypotheses),
    )


def _numbers(law: Tracking) -> _Law:
    return float(law.noise), float(law.gap), float(law.tracking)


def best_absent_clients(
    case: Case, target: float, *, variant: Variant
) -> tuple[float, float, float]:
    """The amplitude with the fewest rounds to a target, else the lowest bound.

    Amplitudes on a grid are tried; twice, the neighbours of the best are refined. With
    it come the largest one tried whose bound falls below f̄, zero where there is none,
    and the lowest bound of all.
    """
    results: dict[float, tuple[float, float]] = {}
    points, largest = [10.0**k for k in np.arange(-4, 0, 0.25)], 0.0
    for _ in range(3):
        for theta in set(points) - set(results):
            bound = absent_clients(case, theta, variant=variant)
            if not all_hold(bound.hypotheses):
                continue
            results[theta] = bound.lowest(target, most=_SEARCHED)
            if min(islice(bound.gaps(), 1, _SEARCHED // 10)) < bound.cap:
                largest = max(largest, theta)
        known = sorted(results)
        place = known.index(min(known, key=results.__getitem__))
        low, high = known[max(place - 1, 0)], known[min(place + 1, len(known) - 1)]
        points = [float(f"{x:.3g}") for x in np.geomspace(low, high, 6)]
    best = min(results, key=results.__getitem__)
    return best, largest, min(lowest for _, lowest in results.values())
