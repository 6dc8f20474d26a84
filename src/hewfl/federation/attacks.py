"""Laws of what can be wrong with clients, hidden from every rule.

A law is a frozen record; what it does depends on (seed, round, client) alone, so that
all methods meet the same bad clients and a resumed run meets them again. There are
three kinds, told apart by what they offer: wrong labels (`LabelFault`), wrong updates
(`UpdateFault`), and batches that are not of the size the server was told
(`HiddenBatches`). `hewfl.federation.scenario` says whom a law falls on.
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
Lanes = Float[Array, "entries d"]
"""One displacement for each method of a comparison."""


@runtime_checkable
class LabelFault(Protocol):
    """A law of wrong labels."""

    @property
    def share(self) -> float:
        """Of the clients that it falls on."""

    def relabelled(self, labels: Labels, classes: int, rng: Rng) -> Labels:
        """The labels that a bad client has in place of its own.

        Args:
            labels: its own.
            classes: how many there are.
            rng: random numbers of this client.

        Returns:
            As many labels.
        """


@runtime_checkable
class UpdateFault(Protocol):
    """A law of wrong updates: branches are honest, what is sent of them is not."""

    @property
    def share(self) -> float:
        """Of the clients that it falls on."""

    def sent(self, displacements: Lanes, t: int, own: Rng, common: Rng) -> Lanes:
        """What a bad client sends in place of its displacement, entry by entry.

        Args:
            displacements: its honest ones.
            t: the round.
            own: random numbers of this client in this round.
            common: random numbers that all its kind have in all rounds.

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
    """Labels drawn anew, all classes alike.

    Attributes:
        share: of the clients that have such labels.
        labels: share of their samples that it falls on.
    """

    share: BelowOne
    labels: Part = 1.0

    def relabelled(self, labels: Labels, classes: int, rng: Rng) -> Labels:
        """A share of the labels, drawn from all classes."""
        hit = rng.random(len(labels)) < self.labels
        return np.where(hit, rng.integers(classes, size=len(labels)), labels)


@final
@dataclass(frozen=True, slots=True)
class FlippedLabels(Validated):
    """Labels counted from the other end: class k of c becomes class c − 1 − k.

    Attributes:
        share: of the clients that have such labels.
        labels: share of their samples that it falls on.
    """

    share: BelowOne
    labels: Part = 1.0

    def relabelled(self, labels: Labels, classes: int, rng: Rng) -> Labels:
        """A share of the labels, mirrored."""
        hit = rng.random(len(labels)) < self.labels
        return np.where(hit, classes - 1 - labels, labels)


# ------------------ updates


@final
@dataclass(frozen=True, slots=True)
class ScaledUpdates(Validated):
    """Displacements times a number: −1 flips their sign, 10 makes them loud.

    Attributes:
        share: of the clients that send them.
        factor: any finite number; −1 flips signs.
    """

    share: BelowOne
    factor: Annotated[float, _finite] = -1.0

    def sent(self, displacements: Lanes, t: int, own: Rng, common: Rng) -> Lanes:
        """Each displacement times the factor."""
        return displacements * displacements.dtype.type(self.factor)


@final
@dataclass(frozen=True, slots=True)
class RandomUpdates(Validated):
    """Random directions, as long as the honest displacement times a number.

    Attributes:
        share: of the clients that send them.
        length: over that of the honest displacement, above 0.
    """

    share: BelowOne
    length: Positive = 1.0

    def sent(self, displacements: Lanes, t: int, own: Rng, common: Rng) -> Lanes:
        """One direction for all entries, of each entry's own length."""
        return _along(own, self.length, displacements)


@final
@dataclass(frozen=True, slots=True)
class ConstantUpdates(Validated):
    """One direction for all bad clients and all rounds: together they push one way.

    Attributes:
        share: of the clients that send it.
        length: over that of the honest displacement, above 0.
    """

    share: BelowOne
    length: Positive = 1.0

    def sent(self, displacements: Lanes, t: int, own: Rng, common: Rng) -> Lanes:
        """The common direction, of each entry's own length."""
        return _along(common, self.length, displacements)


@final
@dataclass(frozen=True, slots=True)
class GrowingNoise(Validated):
    """Noise that grows by the round, as of a sensor that slowly fails.

        Δ + γ t ‖Δ‖ u,     u a random unit vector

    Attributes:
        share: of the clients that have it.
        growth: γ > 0; in round 1/γ the noise is as long as the displacement.
    """

    share: BelowOne
    growth: Positive = 0.05

    def sent(self, displacements: Lanes, t: int, own: Rng, common: Rng) -> Lanes:
        """The displacement and its noise."""
        return displacements + _along(own, self.growth * t, displacements)


@final
@dataclass(frozen=True, slots=True)
class StaleUpdates(Validated):
    """The same displacement again and again, computed anew only now and then.

    A bad client works in its first round and in rounds t divisible by `every` that it
    takes part in; in the rounds between it sends what it sent last.

    Attributes:
        share: of the clients that send them.
        every: at least 2.
    """

    share: BelowOne
    every: Annotated[int, partial(whole, least=2)] = 10

    def sent(self, displacements: Lanes, t: int, own: Rng, common: Rng) -> Lanes:
        """The displacement itself, in a round in which the client works."""
        return displacements


# ------------------ batches


@final
@dataclass(frozen=True, slots=True)
class HiddenBatches(Validated):
    """Batches of other sizes than the server is told; nobody is bad for it.

    Each client draws its size once, from the seed. The cohort goes on to tell the
    federation's own `batch_size` to every rule.

    Attributes:
        choices: sizes to draw from, all alike.
    """

    choices: Annotated[Sequence[int], whole_list] = (1, 2, 8, 32)

    def drawn(self, n: int, rng: Rng) -> Int64[Ints, " n"]:
        """The true batch sizes of n clients.

        Args:
            n: how many.
            rng: random numbers of the run.

        Returns:
            One batch size for each client.
        """
        return rng.choice(np.asarray(self.choices, dtype=np.int64), n)


Fault = LabelFault | UpdateFault | HiddenBatches


def _along(rng: Rng, length: float, like: Lanes) -> Lanes:
    """One random direction, of `length` times the length of each row."""
    u = rng.standard_normal(like.shape[1])
    # norms in float64: a square of a short float32 vector is below its smallest number
    norms = np.linalg.norm(like.astype(np.float64), axis=1)
    moved = (length * norms / np.linalg.norm(u))[:, None] * u
    return np.asarray(moved, dtype=like.dtype)
