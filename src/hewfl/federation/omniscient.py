"""Attacks of the literature by clients that see all updates and work together.

    ALIE            μ + z σ                                             [Baruch2019]
    IPM             −ε μ                                                [Xie2019]
    Mimic           the update of one honest client                    [Karimireddy2022]
    MinMax, MinSum  μ + γ p, γ as large as distances allow              [Shejwalkar2021]
    Gaussian        noise without signal                                [Blanchard2017]
    Drift           one direction for all rounds, of honest length
    Sleeper         honest for some rounds, then another attack
    Alternating     another attack, on and off

μ and σ are mean and standard deviation of the honest updates. Updates are displacements
Δ_i, which point against gradients; the papers write gradients. ALIE, IPM and Drift may
search for the strength that hurts the rule under attack most.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Annotated, Any, Literal, final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.validation import (
    Array,
    BelowOne,
    Positive,
    Validated,
    check_fields,
    format_value,
    invalid,
    whole,
)
from hewfl.federation.adversary import Attack, AttackView, Probe, Remembering

Goal = Literal["distance", "inner"]
"""What a search maximises: the distance of the step from the mean of the honest
updates, or minus the inner product with it."""
GRID = tuple(2.0**k for k in range(-3, 5))
"""Strengths that a search tries first, in units of the given one."""
PEAKS, REFINEMENTS = 2, 4
"""How many peaks of the grid a search refines, and by how many strengths each."""
_GOLDEN = 0.5 * (3 - 5**0.5)
Sent = Float64[Array, "b d"]


def _finite(name: str, value: float) -> None:
    if not np.isfinite(value):
        raise invalid(name, "a finite number", value)


def _repeat(view: AttackView, vector: Float64[Array, " d"]) -> Sent:
    """The same update for every attacker."""
    return np.tile(vector, (view.b, 1))


# ------------------ strength


def search_strength(
    view: AttackView,
    origin: Float64[Array, " d"],
    direction: Float64[Array, " d"],
    strengths: Iterable[float],
    goal: Goal,
) -> float:
    """The strength λ of an update origin + λ · direction that hurts the rule most.

    A grid first; then golden-section search around its two best peaks: the harm is not
    concave, and the signs of a direction differ. Every strength costs one call of the
    rule on products. The attackers of the round all send the same update.

    Args:
        view: of the round.
        origin: update of strength zero.
        direction: of the attack.
        strengths: the grid, increasing.
        goal: what is maximised.

    Returns:
        The best strength; the smallest in size of those that are equally good.
    """
    probe, grid = view.probe(origin, direction), sorted(strengths)
    scores = {x: _score(probe, x, goal) for x in grid}
    values = [scores[x] for x in grid]
    padded = [-np.inf, *values, -np.inf]
    peaks = [k for k, v in enumerate(values) if v >= max(padded[k], padded[k + 2])]
    for k in sorted(peaks, key=lambda k: (-values[k], abs(grid[k])))[:PEAKS]:
        ends = grid[max(k - 1, 0)], grid[min(k + 1, len(grid) - 1)]
        _refine(probe, goal, scores, grid[k], ends)
    return max(scores, key=lambda x: (scores[x], -abs(x)))


def _refine(
    probe: Probe,
    goal: Goal,
    scores: dict[float, float],
    best: float,
    ends: tuple[float, float],
) -> None:
    """Golden-section search around a peak of the grid; adds to the scores."""
    low, high = ends
    for _ in range(REFINEMENTS):
        is_right = high - best > best - low
        x = best + _GOLDEN * ((high if is_right else low) - best)
        scores[x] = _score(probe, x, goal)
        if scores[x] > scores[best]:
            low, high = (best, high) if is_right else (low, best)
            best = x
        elif is_right:
            high = x
        else:
            low = x


def _score(probe: Probe, strength: float, goal: Goal) -> float:
    """How much an update of this strength hurts; −∞ where the rule refuses it."""
    coefficients = np.zeros((probe.view.b, probe.basis.n))
    coefficients[:, -2:] = 1.0, strength
    response = probe.respond(coefficients)
    if response is None:
        return -np.inf
    score = response.sq_distance if goal == "distance" else -response.inner
    return score if np.isfinite(score) else -np.inf


def _mirrored(values: Iterable[float]) -> list[float]:
    """Values and their opposites, increasing."""
    return sorted({sign * x for x in values for sign in (-1.0, 1.0)})


# ------------------ attacks of a round


@final
@dataclass(frozen=True, slots=True)
class ALIE(Validated):
    """A little is enough [Baruch2019]: μ + zσ, inside the spread of honest updates.

        μ + zσ,     μ and σ the mean and deviation of honest updates, entry by entry

    By the paper's formula, with f attackers among n clients,

        s = ⌊n/2 + 1⌋ − f,     z = Φ⁻¹((n − f − s)/(n − f))

    so that s honest clients are farther from μ than the attackers: with them these are
    a majority. Here s is at least 1, and z at least 0. ByzFL's `ALittleIsEnough` has
    the same μ + zσ, with z = 1.5 for any n and f.

    Attributes:
        share: of the clients that attack.
        z: in place of the formula; of any sign.
        search: look for z against the rule under attack: the grid is z · 2^k of both
            signs, or 2^k where the formula gives 0.
    """

    share: BelowOne
    z: Annotated[float, _finite] | None = None
    search: Goal | None = None

    def strength(self, n: int, f: int) -> float:
        """The paper's z.

        Args:
            n: clients of the round.
            f: attackers among them.

        Returns:
            A number, 0 or more.
        """
        if f >= n:
            return 0.0
        s = max(n // 2 + 1 - f, 1)
        share = (n - f - s) / (n - f)
        return max(NormalDist().inv_cdf(share), 0.0) if share > 0 else 0.0

    def attack(self, view: AttackView) -> Sent:
        """The same update from all attackers."""
        z = self.strength(view.n, view.b) if self.z is None else self.z
        if self.search is not None:
            grid = _mirrored((abs(z) or 1.0) * x for x in GRID)
            z = search_strength(view, view.mean, view.std, grid, self.search)
        return _repeat(view, view.mean + z * view.std)


@final
@dataclass(frozen=True, slots=True)
class IPM(Validated):
    """Inner product manipulation [Xie2019], fall of empires: −εμ.

        −εμ,     μ the mean of the honest updates

    With a small ε the update is shorter than honest ones, and rules that compare
    distances may take it for one of them. `epsilon` 1 is sign flipping of the mean, as
    in ByzFL's `SignFlipping`; ByzFL's `InnerProductManipulation` has ε = 2.

    Attributes:
        share: of the clients that attack.
        epsilon: ε > 0; 0.1 as in [Karimireddy2022].
        search: look for ε against the rule under attack, from ε/8 to 16 ε.
    """

    share: BelowOne
    epsilon: Positive = 0.1
    search: Goal | None = None

    def attack(self, view: AttackView) -> Sent:
        """The same update from all attackers."""
        epsilon, zero = self.epsilon, np.zeros(view.d)
        if self.search is not None:
            grid = [epsilon * x for x in GRID]
            epsilon = search_strength(view, zero, -view.mean, grid, self.search)
        return _repeat(view, -epsilon * view.mean)


@final
@dataclass(frozen=True, slots=True)
class MinMax(Validated):
    """Min-max [Shejwalkar2021]: no farther from any honest update than they are.

        μ + γp,   γ the largest with max_i ‖μ + γp − Δ_i‖ ≤ max_ij ‖Δ_i − Δ_j‖

    over honest clients. The paper finds γ by halving steps; here it is the smallest
    positive root of quadratics.

    Attributes:
        share: of the clients that attack.
        perturbation: p: "std" for −σ, "unit" for −μ/‖μ‖, "sign" for −sign(μ).
    """

    share: BelowOne
    perturbation: Literal["std", "unit", "sign"] = "std"

    def attack(self, view: AttackView) -> Sent:
        """The same update from all attackers."""
        p = _perturbation(view, self.perturbation)
        C = view.honest_rows - view.mean
        sq, along = np.einsum("ij,ij->i", C, C), C @ p
        radius = _sq_distances(C, sq).max()
        gamma = _largest_root(float(p @ p), along, sq - radius).min()
        return _repeat(view, view.mean + gamma * p)


@final
@dataclass(frozen=True, slots=True)
class MinSum(Validated):
    """Min-sum [Shejwalkar2021]: its distances to honest updates sum to no more.

        μ + γp,   γ the largest with Σ_i ‖μ + γp − Δ_i‖² ≤ max_i Σ_j ‖Δ_i − Δ_j‖²

    over honest clients. The paper finds γ by halving steps; here it is the root of a
    quadratic.

    Attributes:
        share: of the clients that attack.
        perturbation: p: "std" for −σ, "unit" for −μ/‖μ‖, "sign" for −sign(μ).
    """

    share: BelowOne
    perturbation: Literal["std", "unit", "sign"] = "std"

    def attack(self, view: AttackView) -> Sent:
        """The same update from all attackers."""
        p = _perturbation(view, self.perturbation)
        C = view.honest_rows - view.mean
        sq = np.einsum("ij,ij->i", C, C)
        radius = _sq_distances(C, sq).sum(axis=1).max()
        h, zero = len(C), np.zeros(1)  # Σ_i ⟨p, Δ_i − μ⟩ = 0
        rest = np.array([sq.sum() - radius])
        gamma = _largest_root(h * float(p @ p), zero, rest)[0]
        return _repeat(view, view.mean + gamma * p)


def _perturbation(view: AttackView, kind: str) -> Float64[Array, " d"]:
    """The direction p of min-max and min-sum."""
    if kind == "std":
        return -view.std
    if kind == "sign":
        return -np.sign(view.mean)
    norm = np.linalg.norm(view.mean)
    return -view.mean / norm if norm > 0 else np.zeros(view.d)


def _sq_distances(
    C: Float64[Array, "h d"], sq: Float64[Array, " h"]
) -> Float64[Array, "h h"]:
    """‖C_i − C_j‖², of vectors around their mean."""
    return np.maximum(sq[:, None] + sq - 2 * (C @ C.T), 0.0)


def _largest_root(
    a: float, b: Float64[Array, " k"], c: Float64[Array, " k"]
) -> Float64[Array, " k"]:
    """The larger root of a γ² − 2bγ + c for c ≤ 0; zero where the direction is."""
    if a == 0:
        return np.zeros(len(b))
    return np.asarray((b + np.sqrt(np.maximum(b**2 - a * c, 0.0))) / a)


@final
@dataclass(frozen=True, slots=True)
class Gaussian(Validated):
    """Gaussian noise without signal [Blanchard2017]: entries N(mean, std²).

        m + s z,     z ~ N(0, I), m = `mean`, s = `std`

    `RandomUpdates` has noise of the length of an honest update.

    Attributes:
        share: of the clients that attack.
        mean: of every entry.
        std: standard deviation of every entry, above 0.
    """

    share: BelowOne
    mean: Annotated[float, _finite] = 0.0
    std: Positive = 1.0

    def attack(self, view: AttackView) -> Sent:
        """Other numbers for every attacker and round."""
        return view.round_rng().normal(self.mean, self.std, (view.b, view.d))


# ------------------ attacks over rounds


@final
@dataclass(frozen=True, slots=True)
class Drift(Validated):
    """One random direction for all rounds, as long as an honest update.

        λℓu   or   μ + λℓu,     ℓ the median length of honest updates, ‖u‖ = 1

    Small steps in one direction add up where noise averages out. `ConstantUpdates` is
    the same fault without knowledge of the others: each client's own length.

    Attributes:
        share: of the clients that attack.
        strength: λ > 0.
        around: "zero", or the "mean" μ of honest updates, which hides the direction.
        search: look for λ against the rule under attack, from λ/8 to 16 λ of both
            signs.
    """

    share: BelowOne
    strength: Positive = 1.0
    around: Literal["zero", "mean"] = "zero"
    search: Goal | None = None

    def attack(self, view: AttackView) -> Sent:
        """The same update from all attackers."""
        u = view.run_rng().standard_normal(view.d)
        direction = (view.length / np.linalg.norm(u)) * u
        origin = view.mean if self.around == "mean" else np.zeros(view.d)
        strength = self.strength
        if self.search is not None:
            grid = _mirrored(strength * x for x in GRID)
            strength = search_strength(view, origin, direction, grid, self.search)
        return _repeat(view, origin + strength * direction)


@final
@dataclass(frozen=True, slots=True)
class MimicMemory:
    """What `Mimic` has learned.

    Attributes:
        mean: of honest updates in the rounds of the warm-up.
        direction: z, in which honest updates differ most; zero before the first round.
        scores: Σ_t ⟨z_t, Δ_i⟩ of each client.
        rounds: of the warm-up done so far.
    """

    mean: Float64[Array, " d"]
    direction: Float64[Array, " d"]
    scores: Float64[Array, " n"]
    rounds: int = 0


@final
@dataclass(frozen=True, slots=True)
class Mimic(Validated):
    """Mimic [Karimireddy2022]: all attackers copy one honest client.

    A copied update looks honest, but it counts several times, and clients with other
    data are underrepresented. During a warm-up the direction of largest variance among
    honest updates is learned by Oja's rule,

        μ ← (tμ + mean_i Δ_i)/(t + 1),   g = Σ_i ⟨Δ_i − μ, z⟩(Δ_i − μ)
        z ← (t z + g/‖g‖)/(t + 1), of length 1

    from a random z. The client with the largest |Σ_t ⟨z, Δ_i⟩| among those of the round
    is copied. The paper does not scale g; scaled, the rule is the same for updates of
    any length. ByzFL's `Mimic` copies a client that the user names.

    Attributes:
        share: of the clients that attack.
        warmup: rounds of learning; afterwards the scores stay. At least 1.
        client: copy this client in all rounds that it takes part in, without learning.
    """

    share: BelowOne
    warmup: Annotated[int, partial(whole, least=1)] = 10
    client: Annotated[int, partial(whole, least=0)] | None = None

    def init(self, n: int, d: int) -> MimicMemory:
        """Nothing is known."""
        return MimicMemory(np.zeros(d), np.zeros(d), np.zeros(n))

    def remember(self, view: AttackView) -> MimicMemory:
        """One step of Oja's rule, in the warm-up."""
        memory: MimicMemory = view.memory
        t = memory.rounds
        if t >= self.warmup or self.client is not None:
            return memory
        X, z = view.honest_rows, memory.direction
        if t == 0:
            z = _normalised(view.run_rng().standard_normal(view.d))
        mean = (t * memory.mean + view.mean) / (t + 1)
        C = X - mean
        z = _normalised(t * z + _normalised((C @ z) @ C)) if (C @ z).any() else z
        scores = memory.scores.copy()
        scores[view.clients[view.honest]] += X @ z
        return MimicMemory(mean, z, scores, t + 1)

    def attack(self, view: AttackView) -> Sent:
        """The update of the copied client; the attackers' own where it is absent."""
        clients = view.clients[view.honest]
        if self.client is not None:
            chosen = np.flatnonzero(clients == self.client)
            if len(chosen) == 0:
                return view.own_rows
            return _repeat(view, view.honest_rows[chosen[0]])
        scores = np.abs(self.remember(view).scores[clients])
        return _repeat(view, view.honest_rows[int(scores.argmax())])


def _normalised(vector: Float64[Array, " d"]) -> Float64[Array, " d"]:
    norm = np.linalg.norm(vector)
    return vector / norm if norm > 0 else vector


class _Composed(Validated):
    """An attack made of another one: it has its share and its memory."""

    __slots__ = ()
    base: Attack

    def __post_init__(self) -> None:
        """Check the attack, and ranges."""
        if isinstance(self.base, type) or not isinstance(self.base, Attack):
            raise invalid(
                "base", "an attack, such as IPM(0.2)", format_value(self.base)
            )
        check_fields(self)

    @property
    def share(self) -> float:
        """Share of the clients that attack."""
        return self.base.share

    def init(self, n: int, d: int) -> Any:
        """The memory of the attack."""
        return self.base.init(n, d) if isinstance(self.base, Remembering) else None

    def remember(self, view: AttackView) -> Any:
        """The memory of the attack, which sees all rounds."""
        if not isinstance(self.base, Remembering):
            return None
        return self.base.remember(view)


@final
@dataclass(frozen=True, slots=True)
class Sleeper(_Composed):
    """Honest for some rounds, to be trusted by rules that remember; then an attack.

        own update, or μ, in rounds t < k;     the attack `base` in rounds t ≥ k

    Attributes:
        base: the attack.
        rounds: k, at least 1: it starts in round k, counted from 0.
        sends: before: the attackers' "own" updates, or the "mean" of the honest ones,
            which is closer to all than any honest update is.
    """

    base: Attack
    rounds: Annotated[int, partial(whole, least=1)] = 10
    sends: Literal["own", "mean"] = "own"

    def attack(self, view: AttackView) -> Sent:
        """Honest updates, or those of the attack."""
        if view.t >= self.rounds:
            return self.base.attack(view)
        return view.own_rows if self.sends == "own" else _repeat(view, view.mean)


@final
@dataclass(frozen=True, slots=True)
class Alternating(_Composed):
    """An attack for some rounds, honest updates for some rounds, and so on.

        the attack `base` where t mod (on + off) < on;     own updates elsewhere

    Attributes:
        base: the attack.
        on: rounds of attack, at least 1; the first rounds are among them.
        off: honest rounds after them, at least 1.
    """

    base: Attack
    on: Annotated[int, partial(whole, least=1)] = 1
    off: Annotated[int, partial(whole, least=1)] = 1

    def attack(self, view: AttackView) -> Sent:
        """Updates of the attack, or honest ones."""
        if view.t % (self.on + self.off) < self.on:
            return self.base.attack(view)
        return view.own_rows
