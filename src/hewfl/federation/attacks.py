"""Attacks and faults of clients: data poisoning, wrong updates, hidden batch sizes.

A fault is a frozen record. Its effect depends on (seed, round, client) alone: all
methods have the same faulty clients, and so has a resumed run. Faults here are
oblivious: they do not depend on other clients' updates or on the aggregator. There
are three types: wrong labels (`LabelFault`: label flipping and random labels), wrong
updates (`UpdateFault`: sign flipping, scaling, noise, stale updates), and batches of
another size than the nominal one (`HiddenBatches`). `hewfl.federation.scenario` assigns
faults to clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Protocol, final, runtime_checkable

import numpy as np

from hewfl.core.array_types import Float, Int64
from hewfl.core.validation import (
    Array,
    BelowOne,
    Ints,
    Part,
    Positive,
    Validated,
    invalid,
    whole,
)
from hewfl.federation.local_steps import whole_list

Rng = np.random.Generator
Labels = Int64[Ints, " m"]
Rows = Float[Array, "entries d"]
"""One displacement for each method of a comparison."""


@runtime_checkable
class LabelFault(Protocol):
    """Wrong labels: data poisoning."""

    @property
    def share(self) -> float:
        """Share of the clients with this fault."""

    def relabel(self, labels: Labels, classes: int, rng: Rng) -> Labels:
        """The labels of a faulty client.

        Args:
            labels: its true labels.
            classes: number of classes.
            rng: random numbers of this client.

        Returns:
            As many labels.
        """


@runtime_checkable
class UpdateFault(Protocol):
    """Wrong updates of honest branches: model poisoning."""

    @property
    def share(self) -> float:
        """Share of the clients with this fault."""

    def corrupt(self, displacements: Rows, t: int, rng: Rng, common: Rng) -> Rows:
        """The vectors that a faulty client sends, one for each method.

        Args:
            displacements: of its honest branches.
            t: the round.
            rng: random numbers of this client in this round.
            common: random numbers of all clients with this fault, in all rounds.

        Returns:
            As many vectors.
        """


def _finite(name: str, value: float) -> None:
    if not np.isfinite(value):
        raise invalid(name, "a finite number", value)


# ------------------ labels


@final
@dataclass(frozen=True, slots=True)
class RandomLabels(Validated):
    """Random labels, uniform over the classes.

        y ← uniform on {0, …, c − 1}

    Attributes:
        share: of the clients with such labels.
        labels: share of their samples with such labels.
    """

    share: BelowOne
    labels: Part = 1.0

    def relabel(self, labels: Labels, classes: int, rng: Rng) -> Labels:
        """A share of the labels, drawn from all classes."""
        hit = rng.random(len(labels)) < self.labels
        return np.where(hit, rng.integers(classes, size=len(labels)), labels)


@final
@dataclass(frozen=True, slots=True)
class FlippedLabels(Validated):
    """Label flipping: class k of c becomes class c − 1 − k.

        y ← c − 1 − y

    Attributes:
        share: of the clients with such labels.
        labels: share of their samples with such labels.
    """

    share: BelowOne
    labels: Part = 1.0

    def relabel(self, labels: Labels, classes: int, rng: Rng) -> Labels:
        """A share of the labels, mirrored."""
        hit = rng.random(len(labels)) < self.labels
        return np.where(hit, classes - 1 - labels, labels)


# ------------------ updates


@final
@dataclass(frozen=True, slots=True)
class ScaledUpdates(Validated):
    """Displacements times a number: −1 is sign flipping, 10 makes them dominate.

        a Δ_i,     a = `factor`

    Attributes:
        share: of the clients that send them.
        factor: any finite number; −1 flips signs.
    """

    share: BelowOne
    factor: Annotated[float, _finite] = -1.0

    def corrupt(self, displacements: Rows, t: int, rng: Rng, common: Rng) -> Rows:
        """Each displacement times the factor."""
        return displacements * displacements.dtype.type(self.factor)


@final
@dataclass(frozen=True, slots=True)
class RandomUpdates(Validated):
    """Random directions, as long as the honest displacement times a number.

        ℓ ‖Δ_i‖ u_it,     u_it a random unit vector in every round, ℓ = `length`

    Attributes:
        share: of the clients that send them.
        length: over that of the honest displacement, above 0.
    """

    share: BelowOne
    length: Positive = 1.0

    def corrupt(self, displacements: Rows, t: int, rng: Rng, common: Rng) -> Rows:
        """One direction for all entries, of each entry's own length."""
        return _along(rng, self.length, displacements)


@final
@dataclass(frozen=True, slots=True)
class ConstantUpdates(Validated):
    """One direction for all faulty clients and all rounds: they collude.

        ℓ ‖Δ_i‖ u,     u one random unit vector, ℓ = `length`

    Attributes:
        share: of the clients that send it.
        length: over that of the honest displacement, above 0.
    """

    share: BelowOne
    length: Positive = 1.0

    def corrupt(self, displacements: Rows, t: int, rng: Rng, common: Rng) -> Rows:
        """The common direction, of each entry's own length."""
        return _along(common, self.length, displacements)


@final
@dataclass(frozen=True, slots=True)
class GrowingNoise(Validated):
    """Noise that grows with the rounds, as of a sensor that slowly fails.

        Δ + γ t ‖Δ‖ u,     u a random unit vector

    Attributes:
        share: of the clients that have it.
        growth: γ > 0; in round 1/γ the noise is as long as the displacement.
    """

    share: BelowOne
    growth: Positive = 0.05

    def corrupt(self, displacements: Rows, t: int, rng: Rng, common: Rng) -> Rows:
        """The displacement and its noise."""
        return displacements + _along(rng, self.growth * t, displacements)


@final
@dataclass(frozen=True, slots=True)
class StaleUpdates(Validated):
    """Stale updates: the same displacement again, with a new one from time to time.

        Δ_i of round k⌊t/k⌋ in round t,     k = `every`

    A faulty client computes a displacement in its first round and in rounds t divisible
    by `every` that it takes part in. In the rounds between it sends the last one again.

    Attributes:
        share: of the clients that send them.
        every: at least 2.
    """

    share: BelowOne
    every: Annotated[int, partial(whole, least=2)] = 10

    def corrupt(self, displacements: Rows, t: int, rng: Rng, common: Rng) -> Rows:
        """The displacement itself, in a round in which the client works."""
        return displacements


# ------------------ batches


@final
@dataclass(frozen=True, slots=True)
class HiddenBatches(Validated):
    """Batches of other sizes than the nominal one. No client counts as faulty.

        b_i ← uniform on `choices`

    Each client draws its size once, from the seed. The cohort has the federation's
    nominal `batch_size`.

    Attributes:
        choices: sizes to draw from, with equal probability.
    """

    choices: Annotated[Sequence[int], whole_list] = (1, 2, 8, 32)

    def draw(self, n: int, rng: Rng) -> Int64[Ints, " n"]:
        """The true batch sizes of n clients.

        Args:
            n: number of clients.
            rng: random numbers of the run.

        Returns:
            One batch size for each client.
        """
        return rng.choice(np.asarray(self.choices, dtype=np.int64), n)


Fault = LabelFault | UpdateFault | HiddenBatches


def _along(rng: Rng, length: float, like: Rows) -> Rows:
    """One random direction, of `length` times the length of each row."""
    u = rng.standard_normal(like.shape[1])
    # norms in float64: a square of a short float32 vector is below its smallest number
    norms = np.linalg.norm(like.astype(np.float64), axis=1)
    moved = (length * norms / np.linalg.norm(u))[:, None] * u
    return np.asarray(moved, dtype=like.dtype)
