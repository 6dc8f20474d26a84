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
from hewfl.core.array_types import Bool, Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, Ints, Mask, nonnegatives
from hewfl.theory.recursion import Recursion
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
    """A round of the rotation on plain numbers.

    Attributes:
        gap: (a, β, γ, δ).
        law: (A, B, C) of those who take part.
        move: (A, B, C) of the server's move D.
        present: which groups of clients take part; None in the worst absence, where the
            k-th number is about clients absent for k rounds.
    """

    gap: tuple[float, float, float, float]
    law: tuple[float, float, float]
    move: tuple[float, float, float]
    present: tuple[bool, ...] | None


@final
@dataclass(frozen=True, slots=True, eq=False)
class AbsentClients:
    """Algorithm 1 where not all clients take part, at θ̄ = ϑ (th:sur-system, E-19).

        u⁺ = min{f̄, u − a u² + β u + γ Q + δ},   Q = max_i Q_i,   Q_i⁺ as above

    a, β, γ, δ are those of th:sur-cvx for the clients of the round. A rotation names
    the clients of each round and starts again after the last. The worst absence is over
    all sequences of S clients, known before the draws, that leave no client out for
    more than K rounds in a row. Each round then counts S clients with the largest noise
    and the longest horizon of all.

    Attributes:
        phases: of a rotation, one for each round; one for the worst absence.
        start: u_0, and Q_i,0 of each group of clients.
        cap: f̄.
        ball: (√M + 2LR)² and (2LR)², the most that Q and D can be.
        hypotheses: the conditions under which all of them are bounds.
    """

    phases: tuple[_Phase, ...]
    start: tuple[float, tuple[float, ...]]
    cap: float
    ball: tuple[float, float]
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

    Args:
        case: of one configuration, with `rotation`, or else with `active` and, unless
            clients may stay away for ever, `absence`.
        amplitude: ϑ, the end of the box of amplitudes.
        variant: the set of constants.

    Returns:
        The recursion of gap and tracking errors.
    """
    system, (gap, tracking) = case.system, case.start
    if case.rotation is None:
        recursions = [_worst_recursion(case, amplitude, variant)]
        ages = 1 if case.absence is None else case.absence + 1
        phases = [_phase(recursions[0], amplitude, None)]
        groups = ages
    else:
        here = rotation_mask(case)
        patterns = np.unique(here, axis=1)
        recursions, phases, groups = [], [], patterns.shape[1]
        for row, present in zip(here, patterns, strict=True):
            clients = np.flatnonzero(row)
            if not len(clients):  # changes nothing (E-06)
                still = (0.0, 0.0, 0.0)
                phases.append(_Phase((0.0, *still), still, still, (False,) * groups))
                continue
            recursions.append(_recursion_of(system, clients, amplitude, variant))
            phases.append(_phase(recursions[-1], amplitude, tuple(map(bool, present))))
    M, L, R = system.noise.max(), float(system.L), float(system.R)
    return AbsentClients(
        tuple(phases),
        (float(gap), (float(tracking),) * groups),
        float(system.cap),
        (float(ball_tracking(M, L, R)), (2 * L * R) ** 2),
        tuple(h for recursion in recursions for h in recursion.hypotheses),
    )


def rotation_mask(case: Case) -> Bool[Mask, "rounds n"]:
    """Which clients take part, a row for each round of the rotation."""
    assert case.rotation is not None
    mask = np.zeros((len(case.rotation), case.system.n), dtype=np.bool_)
    for row, clients in zip(mask, case.rotation, strict=True):
        row[list(clients)] = True
    return mask


def _phase(
    recursion: Recursion, theta: float, present: tuple[bool, ...] | None
) -> _Phase:
    k, system = recursion, recursion.system
    assert not k.flows
    move = server_move(theta, system.noise, system.L, variant="sharp")
    return _Phase(
        (float(k.descent), float(k.growth), float(k.staleness), float(k.noise)),
        _numbers(k.tracking),
        _numbers(move),
        present,
    )


def _numbers(law: Tracking) -> tuple[float, float, float]:
    return float(law.noise), float(law.gap), float(law.tracking)


def _recursion_of(
    system: System, clients: Ints, theta: float, variant: Variant
) -> Recursion:
    """The recursion of the clients of a round."""
    fields = (system.horizon, system.batch_size, system.variance)
    H, b, v2 = (np.asarray(field)[clients] for field in fields)
    part = System(system.L, system.R, H, b, v2)
    return theorem("comparator", part, amplitude=theta, variant=variant)


def _worst_recursion(case: Case, theta: float, variant: Variant) -> Recursion:
    """The recursion of S clients, each with the largest M and the longest H of all."""
    system, H = case.system, np.asarray(case.system.horizon).max()
    v2 = system.noise.max() * H * (1 + 2.0**-50)  # rounding must not lower M
    part = System(system.L, system.R, [H], [1], [v2], [case.participants])
    return theorem("comparator", part, amplitude=theta, variant=variant)


def best_absent_clients(
    case: Case, target: float, *, variant: Variant
) -> tuple[float, float, float]:
    """The amplitude with the fewest rounds to a target, else the lowest bound.

    Amplitudes on a grid are tried; twice, the neighbours of the best are refined.

    Args:
        case: as for `absent_clients`.
        target: ε.
        variant: the set of constants.

    Returns:
        The amplitude; the largest one tried whose bound falls below f̄, zero where
        there is none; and the lowest bound of all.
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
