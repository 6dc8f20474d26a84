"""Laws of what can be wrong with clients, hidden from every rule.

A law is a frozen record; what it does depends on (seed, round, client) alone, so that
all methods meet the same bad clients and a resumed run meets them again. There are
three kinds, told apart by what they offer: wrong labels (`LabelFault`), wrong updates
(`UpdateFault`), and batches that are not of the size the server was told
(`HiddenBatches`). `hewfl.server.worlds` says whom a law falls on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import numpy as np
from jaxtyping import Float, Int64

from hewfl.core.checks import Array, Ints, invalid, nonnegative, positive, shown, whole
from hewfl.server.horizons import check_wholes


@runtime_checkable
class LabelFault(Protocol):
    """A law of wrong labels."""

    @property
    def share(self) -> float:
        """Of the clients that it falls on."""

    def relabelled(
        self, labels: Int64[Ints, " m"], classes: int, rng: np.random.Generator
    ) -> Int64[Ints, " m"]:
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

    def sent(
        self,
        displacements: Float[Array, "lanes d"],
        t: int,
        own: np.random.Generator,
        common: np.random.Generator,
    ) -> Float[Array, "lanes d"]:
        """What a bad client sends in place of its displacement, lane by lane.

        Args:
            displacements: its honest ones.
            t: the round.
            own: random numbers of this client in this round.
            common: random numbers that all its kind have in all rounds.

        Returns:
            As many vectors.
        """


# ------------------------------------------------------------------ labels


@final
@dataclass(frozen=True, slots=True)
class RandomLabels:
    """Labels drawn anew, all classes alike.

    Attributes:
        share: of the clients that have such labels.
        labels: share of their samples that it falls on.

    Raises:
        InvalidInputError: a share or number is out of its range.
    """

    share: float
    labels: float = 1.0

    def __post_init__(self) -> None:
        """Check that shares are in range."""
        check_share("share", self.share)
        _check_part("labels", self.labels)

    def relabelled(
        self, labels: Int64[Ints, " m"], classes: int, rng: np.random.Generator
    ) -> Int64[Ints, " m"]:
        """A share of the labels, drawn from all classes."""
        hit = rng.random(len(labels)) < self.labels
        return np.where(hit, rng.integers(classes, size=len(labels)), labels)


@final
@dataclass(frozen=True, slots=True)
class FlippedLabels:
    """Labels counted from the other end: class k of c becomes class c − 1 − k.

    Attributes:
        share: of the clients that have such labels.
        labels: share of their samples that it falls on.

    Raises:
        InvalidInputError: a share or number is out of its range.
    """

    share: float
    labels: float = 1.0

    def __post_init__(self) -> None:
        """Check that shares are in range."""
        check_share("share", self.share)
        _check_part("labels", self.labels)

    def relabelled(
        self, labels: Int64[Ints, " m"], classes: int, rng: np.random.Generator
    ) -> Int64[Ints, " m"]:
        """A share of the labels, mirrored."""
        hit = rng.random(len(labels)) < self.labels
        return np.where(hit, classes - 1 - labels, labels)


# ------------------------------------------------------------------ updates


@final
@dataclass(frozen=True, slots=True)
class ScaledUpdates:
    """Displacements times a number: −1 flips their sign, 10 makes them loud.

    Attributes:
        share: of the clients that send them.
        factor: any finite number; −1 flips signs.

    Raises:
        InvalidInputError: a share or number is out of its range.
    """

    share: float
    factor: float = -1.0

    def __post_init__(self) -> None:
        """Check that the share is in range and the factor finite."""
        check_share("share", self.share)
        if not np.isfinite(self.factor):
            raise invalid("factor", "a finite number", self.factor)

    def sent(
        self,
        displacements: Float[Array, "lanes d"],
        t: int,  # noqa: ARG002 - the same in all rounds
        own: np.random.Generator,  # noqa: ARG002 - nothing is random
        common: np.random.Generator,  # noqa: ARG002 - nor here
    ) -> Float[Array, "lanes d"]:
        """Each displacement times the factor."""
        return displacements * displacements.dtype.type(self.factor)


@final
@dataclass(frozen=True, slots=True)
class RandomUpdates:
    """Random directions, as long as the honest displacement times a number.

    Attributes:
        share: of the clients that send them.
        length: over that of the honest displacement, above 0.

    Raises:
        InvalidInputError: a share or number is out of its range.
    """

    share: float
    length: float = 1.0

    def __post_init__(self) -> None:
        """Check that share and length are in range."""
        check_share("share", self.share)
        positive("length", self.length)

    def sent(
        self,
        displacements: Float[Array, "lanes d"],
        t: int,  # noqa: ARG002 - `own` knows the round
        own: np.random.Generator,
        common: np.random.Generator,  # noqa: ARG002 - each is random by itself
    ) -> Float[Array, "lanes d"]:
        """One direction for all lanes, of each lane's own length."""
        return _along(own, self.length, displacements)


@final
@dataclass(frozen=True, slots=True)
class ConstantUpdates:
    """One direction for all bad clients and all rounds: together they push one way.

    Attributes:
        share: of the clients that send it.
        length: over that of the honest displacement, above 0.

    Raises:
        InvalidInputError: a share or number is out of its range.
    """

    share: float
    length: float = 1.0

    def __post_init__(self) -> None:
        """Check that share and length are in range."""
        check_share("share", self.share)
        positive("length", self.length)

    def sent(
        self,
        displacements: Float[Array, "lanes d"],
        t: int,  # noqa: ARG002 - the same in all rounds
        own: np.random.Generator,  # noqa: ARG002 - and for all clients
        common: np.random.Generator,
    ) -> Float[Array, "lanes d"]:
        """The common direction, of each lane's own length."""
        return _along(common, self.length, displacements)


@final
@dataclass(frozen=True, slots=True)
class GrowingNoise:
    """Noise that grows by the round, as of a sensor that slowly fails.

        Δ + γ t ‖Δ‖ u,     u a random unit vector

    Attributes:
        share: of the clients that have it.
        growth: γ > 0; in round 1/γ the noise is as long as the displacement.

    Raises:
        InvalidInputError: a share or number is out of its range.
    """

    share: float
    growth: float = 0.05

    def __post_init__(self) -> None:
        """Check that share and growth are in range."""
        check_share("share", self.share)
        positive("growth", self.growth)

    def sent(
        self,
        displacements: Float[Array, "lanes d"],
        t: int,
        own: np.random.Generator,
        common: np.random.Generator,  # noqa: ARG002 - each is random by itself
    ) -> Float[Array, "lanes d"]:
        """The displacement and its noise."""
        return displacements + _along(own, self.growth * t, displacements)


@final
@dataclass(frozen=True, slots=True)
class StaleUpdates:
    """The same displacement again and again, computed anew only now and then.

    A bad client works in its first round and in rounds t divisible by `every` that it
    takes part in; in the rounds between it sends what it sent last.

    Attributes:
        share: of the clients that send them.
        every: at least 2.

    Raises:
        InvalidInputError: a share or number is out of its range.
    """

    share: float
    every: int = 10

    def __post_init__(self) -> None:
        """Check that the share is in range and there are rounds between."""
        check_share("share", self.share)
        whole("every", self.every, least=2)

    def sent(
        self,
        displacements: Float[Array, "lanes d"],
        t: int,  # noqa: ARG002 - what is sent again is kept by the engine
        own: np.random.Generator,  # noqa: ARG002 - nothing is random
        common: np.random.Generator,  # noqa: ARG002 - nor here
    ) -> Float[Array, "lanes d"]:
        """The displacement itself, in a round in which the client works."""
        return displacements


# ------------------------------------------------------------------ batches


@final
@dataclass(frozen=True, slots=True)
class HiddenBatches:
    """Batches of other sizes than the server is told; nobody is bad for it.

    Each client draws its size once, from the seed. The roster goes on to tell the
    federation's own `batch_size` to every rule.

    Attributes:
        choices: sizes to draw from, all alike.

    Raises:
        InvalidInputError: a share or number is out of its range.
    """

    choices: Sequence[int] = (1, 2, 8, 32)

    def __post_init__(self) -> None:
        """Check that there are sizes, of at least 1."""
        rule = "a list of whole numbers of at least 1"
        if np.ndim(check_wholes("choices", self.choices, rule)) != 1:
            raise invalid("choices", rule, shown(self.choices))

    def drawn(self, n: int, rng: np.random.Generator) -> Int64[Ints, " n"]:
        """The true batch sizes of n clients.

        Args:
            n: how many.
            rng: random numbers of the run.

        Returns:
            One batch size for each client.
        """
        return rng.choice(np.asarray(self.choices, dtype=np.int64), n)


Fault = LabelFault | UpdateFault | HiddenBatches


def check_share(name: str, share: float) -> float:
    """Require a share of clients that leaves somebody honest."""
    if nonnegative(name, share) >= 1:
        raise invalid(name, "from 0 to below 1", share)
    return share


def _check_part(name: str, part: float) -> None:
    if nonnegative(name, part) > 1:
        raise invalid(name, "from 0 to 1", part)


def _along(
    rng: np.random.Generator, length: float, like: Float[Array, "lanes d"]
) -> Float[Array, "lanes d"]:
    """One random direction, of `length` times the length of each row."""
    u = rng.standard_normal(like.shape[1])
    # norms in float64: a square of a short float32 vector is below its smallest number
    norms = np.linalg.norm(like.astype(np.float64), axis=1)
    moved = (length * norms / np.linalg.norm(u))[:, None] * u
    return np.asarray(moved, dtype=like.dtype)
