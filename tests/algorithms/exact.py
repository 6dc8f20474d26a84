"""Algorithm 1 on random quadratics, with exact expectations: nothing is sampled.

Clients have diagonal Hessians and additive noise ±ξ, so that anchor and control
variates are affine functions of the noise. Carried along as such, they give E f_t,
E‖e_i,t‖² and the largest distance that any path reaches, to rounding. The controller
itself sees no displacement, only the cohorts: its schedule is the one of every path.

    python -m tests.algorithms.exact 10000

counts systems in which a certificate was broken.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hewfl import HewControl, ProblemBounds
from hewfl.control.certificate import VARIANTS
from hewfl.core.algorithm import Truth
from hewfl.core.round import Cohort
from hewfl.displacements.dense import matrix_round
from hewfl.federation.participation import (
    FullParticipation,
    History,
    RandomParticipation,
    RotatingParticipation,
    SampledParticipation,
    draw_clients,
)

Array = NDArray[Any]
ROUNDING = 1e-9
ROUNDS = 10


@final
@dataclass(frozen=True)
class Clients:
    """F_i(x) = ½ Σ_k a_ik (x_k − m_ik)², with noise ±s_i/√d in each coordinate."""

    curvatures: Array
    centers: Array
    deviations: Array
    horizons: NDArray[np.int64]
    batches: NDArray[np.int64]
    start: Array
    from_zero: bool

    @property
    def minimiser(self) -> Array:
        a, m = self.curvatures, self.centers
        return np.asarray((a * m).sum(0) / a.sum(0))


@final
@dataclass(frozen=True)
class Affine:
    """x (row 0) and c_i (the others) of each coordinate as functions of the noise.

    Attributes:
        rows: shape (d, n + 1, 1 + K): constant, then coefficients of the noise.
        largest: of each noise term.
        variance: of each noise term.
    """

    rows: Array
    largest: Array
    variance: Array

    def square(self, part: Array) -> float:
        """E‖part‖² of a vector with shape (d, 1 + K)."""
        return float((part[:, 0] ** 2 + part[:, 1:] ** 2 @ self.variance).sum())

    def reach(self, part: Array, largest: Array) -> float:
        """The largest ‖part‖ over all noise, or more."""
        far = np.abs(part[:, 0]) + np.abs(part[:, 1:]) @ largest
        return float(np.sqrt((far**2).sum()))


@final
@dataclass(frozen=True)
class Seen:
    """One round: what was true before it, and what was claimed.

    Attributes:
        gap: E f_t.
        tracking: E‖e_i,t‖² of each client.
        known_gap: U_t.
        known_tracking: Q_i,t.
        bound: what was certified for round t − 1, f̄ in the first.
        cap: f̄.
    """

    gap: float
    tracking: Array
    known_gap: float
    known_tracking: Array
    bound: float
    cap: float

    @property
    def is_broken(self) -> bool:
        least = ROUNDING**2 * self.cap  # of an error that is zero but for rounding
        above = self.tracking > self.known_tracking * (1 + ROUNDING) + least
        worst = min(self.known_gap, self.bound) * (1 + ROUNDING)
        return bool(above.any() or self.gap > worst)


def begin(clients: Clients) -> Affine:
    n, d = clients.curvatures.shape
    s = clients.deviations / np.sqrt(d)
    rows = np.zeros((d, n + 1, 1 + n))
    rows[:, 0, 0] = clients.start
    if not clients.from_zero:
        slopes = clients.curvatures * (clients.start - clients.centers)
        rows[:, 1:, 0] = slopes.T
        rows[:, 1 + np.arange(n), 1 + np.arange(n)] = 1.0
    return Affine(rows, s, s**2 / clients.batches)


def moved(
    clients: Clients, at: Affine, cohort: Cohort, eta: Array, w: Array
) -> tuple[Affine, float]:
    """The exact state after a round, and the largest distance met in it."""
    d, steps = len(clients.start), int(cohort.horizons.sum())
    s = clients.deviations / np.sqrt(d)
    who = np.repeat(cohort.clients, cohort.horizons)
    largest = np.concatenate([at.largest, s[who]])
    b = np.repeat(cohort.batch_sizes, cohort.horizons)
    variance = np.concatenate([at.variance, s[who] ** 2 / b])
    old = np.pad(at.rows, ((0, 0), (0, 0), (0, steps)))
    x, c, best = old[:, 0], old[:, 1:].mean(1), clients.minimiser
    new, column, far = old.copy(), at.rows.shape[2], 0.0
    for k, i in enumerate(cohort.clients):
        y, a, m = x.copy(), clients.curvatures[i][:, None], clients.centers[i]
        for _ in range(cohort.horizons[k]):
            g = a * y
            g[:, 0] -= a[:, 0] * m
            g[:, column] += 1.0
            column += 1
            y = y - eta[k] * (g - old[:, 1 + i] + c)
            away = y.copy()
            away[:, 0] -= best
            far = max(far, at.reach(away, largest))
        ground = eta[k] * cohort.horizons[k]
        new[:, 1 + i] = old[:, 1 + i] - c + (x - y) / ground
        new[:, 0] += w[k] * (y - x)
    return Affine(new, largest, variance), far


def play(
    clients: Clients, law: Any, control: HewControl, seed: int, rounds: int
) -> tuple[list[Seen], float]:
    """A run under a law: what was claimed and what was true, and how far it got."""
    n, d = clients.curvatures.shape
    at, history = begin(clients), History(n)
    dummy = np.zeros((n, d))
    state = control.init(n, d, None if clients.from_zero else dummy)
    if not clients.from_zero:
        state = control.with_truth(state, Truth(samples=clients.batches))
    cap = bound = control.bounds.smoothness * control.bounds.radius**2 / 2
    seen = []
    away = at.rows[:, 0].copy()
    away[:, 0] -= clients.minimiser
    far = at.reach(away, at.largest)
    for t in range(rounds + 1):
        seen.append(_seen(clients, at, state, bound, cap))
        chosen = draw_clients(law, seed, t, n, history)
        history = history.after(chosen)
        if len(chosen) == 0 or t == rounds:
            continue
        H, b = clients.horizons[t % len(clients.horizons)], clients.batches
        cohort = Cohort(chosen, H[chosen], b[chosen], b[chosen], n, t)
        plan = control.plan(cohort, state)
        round_ = matrix_round(np.zeros(d), dummy[chosen], cohort, plan)
        decision, after = control.decide(round_, state)
        bound = control.certified(round_, state, decision.weights)[1]
        state = after
        at, reached = moved(clients, at, cohort, plan.step_sizes, decision.weights)
        far = max(far, reached)
    return seen, far


def _seen(clients: Clients, at: Affine, state: Any, bound: float, cap: float) -> Seen:
    a, x = clients.curvatures, at.rows[:, 0]
    away = x.copy()
    away[:, 0] -= clients.minimiser
    gap = at.square(away * np.sqrt(a.mean(0) / 2)[:, None])
    errors = []
    for i in range(len(a)):
        e = at.rows[:, 1 + i] - a[i][:, None] * x
        e[:, 0] += a[i] * clients.centers[i]
        errors.append(at.square(e))
    known = state.upper
    return Seen(gap, np.array(errors), known.gap, known.tracking, bound, cap)


# ------------------------------------------------------------------ random systems


@final
@dataclass(frozen=True)
class Always:
    """The same clients for ever: a law of the old form."""

    who: tuple[int, ...]

    def draw(self, seed: int, t: int, n: int) -> Any:  # noqa: ARG002 - nothing is random
        return np.array(self.who)


@final
@dataclass(frozen=True)
class Spells:
    """A few clients for some rounds, then the others."""

    length: int

    def draw(self, seed: int, t: int, n: int) -> Any:  # noqa: ARG002 - nothing is random
        half = max(1, n // 2)
        late = (t // self.length) % 2
        return np.arange(half, n) if late and half < n else np.arange(half)


@final
@dataclass(frozen=True)
class Fewest:
    """Those with the fewest rounds so far."""

    def draw_after(self, seed: int, history: History) -> Any:  # noqa: ARG002 - nor here
        return np.flatnonzero(history.counts == history.counts.min())[:2]


def random_law(rng: np.random.Generator, n: int) -> Any:
    k = int(rng.integers(1, n + 1))
    some = tuple(sorted(rng.choice(n, k, replace=False).tolist()))
    laws: list[Callable[[], Any]] = [
        FullParticipation,
        lambda: SampledParticipation(k),
        lambda: RandomParticipation(rng.uniform(0, 1, n).tolist()),
        lambda: RotatingParticipation(k),
        lambda: Always(some),
        lambda: Spells(int(rng.integers(1, 5))),
        Fewest,
    ]
    return laws[rng.integers(len(laws))]()


def random_clients(rng: np.random.Generator) -> Clients:
    n, d = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    L = 10 ** rng.uniform(-1, 1)
    a = rng.uniform(0, 1, (n, d)) * (rng.uniform(0, 1, (n, d)) < 0.8)
    a[rng.integers(n)] += 0.1  # some curvature everywhere
    noise = rng.choice([0.0, 1e-3, 0.1, 1.0]) * rng.uniform(0, 1, n)
    apart = rng.choice([0.0, 0.1, 1.0])
    H = rng.integers(1, rng.integers(2, 6), (int(rng.integers(1, 4)), n))
    return Clients(
        L * a / a.max(),
        apart * rng.standard_normal((n, d)),
        L * noise,
        H,
        rng.choice([1, 2, 8], n),
        rng.standard_normal(d) * 10 ** rng.uniform(-1, 0.5),
        bool(rng.random() < 0.25),
    )


def random_control(rng: np.random.Generator, clients: Clients) -> HewControl:
    high = 10 ** rng.uniform(-3, 0)
    low = high * 10 ** rng.uniform(-3, 0)
    L, v2 = float(clients.curvatures.max()), clients.deviations**2
    proxies = tuple(float(v) for v in v2 * rng.choice([1.0, 1.0, 1.5]))
    first = begin(clients)
    start = _seen(clients, first, _Unknown, np.inf, np.inf).tracking.max()
    known = float(start) if rng.random() < 0.4 else None
    control = HewControl(
        ProblemBounds(L, 1.0, low, high),
        proxies,
        VARIANTS[rng.integers(3)],
        "surrogate",
        known,
        "zero" if clients.from_zero else "gradient",
    )
    if rng.random() < 0.1:
        control = replace(control, source="caps", tracking=None)
    if rng.random() < 0.2:
        control = replace(control, variance=Fading(proxies))
    return control


@final
@dataclass(frozen=True)
class Fading:
    """Proxies that change from round to round, never below the truth."""

    least: tuple[float, ...]

    def __call__(self, t: int) -> list[float]:
        return [v * (1 + 2 / (1 + t)) for v in self.least]


class _Unknown:
    """No state yet."""

    class upper:  # noqa: N801 - a field
        gap, tracking = 0.0, np.zeros(1)


def audit(seed: int, rounds: int = ROUNDS) -> tuple[list[Seen], HewControl, Any]:
    """A random system under a random law, with an R that all paths keep to."""
    rng = np.random.default_rng([seed, 2025])
    clients = random_clients(rng)
    control, law = random_control(rng, clients), random_law(rng, len(clients.batches))
    best = clients.minimiser
    R = 1.01 * float(np.linalg.norm(clients.start - best)) + 1e-6
    for _ in range(40):
        control = replace(control, bounds=replace(control.bounds, radius=R))
        seen, far = play(clients, law, control, seed, rounds)
        if far <= R:
            return seen, control, law
        R = 1.02 * far
    raise AssertionError(f"system {seed} stays in no ball")


def audits(count: int, first: int = 0) -> Iterator[list[Seen]]:
    for seed in range(first, first + count):
        yield audit(seed)[0]


def summary(count: int, first: int = 0) -> dict[str, float]:
    """Broken systems, and how tight the others are."""
    broken = rounds = useful = falling = 0
    gap_room = tracking_room = np.inf
    for seen in audits(count, first):
        broken += any(s.is_broken for s in seen)
        for before, s in pairwise(seen):
            rounds += 1
            useful += s.bound < s.cap
            falling += s.bound < before.known_gap
            gap_room = min(gap_room, 1 - s.gap / s.bound)
            finite = np.isfinite(s.known_tracking) & (s.known_tracking > 0)
            ratio = s.tracking[finite] / s.known_tracking[finite]
            tracking_room = min(tracking_room, 1 - float(ratio.max(initial=0.0)))
    return {
        "systems": count,
        "rounds": rounds,
        "broken_systems": broken,
        "rounds_certified_below_cap": useful,
        "rounds_certified_to_fall": falling,
        "least_room_of_gap": gap_room,
        "least_room_of_tracking": tracking_room,
    }


if __name__ == "__main__":
    print(summary(*(int(a) for a in sys.argv[1:])))  # noqa: T201 - a script
