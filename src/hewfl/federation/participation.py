"""Laws of participation: who takes part in a round.

A law may look at the seed, at the round and at who took part before, and at nothing
else: not at models, losses or minibatches. So the sets S_0, S_1, ... of a run are fixed
by its seed. All methods meet the same clients, a resumed run meets them again, and what
is certified given these sets holds for every law (erratum E-19).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import numpy as np

from hewfl.core.array_types import Int64
from hewfl.core.validation import (
    Count,
    Ints,
    Validated,
    as_float64,
    format_value,
    invalid,
)
from hewfl.federation.rng import COHORT, generator


@final
@dataclass(frozen=True, slots=True)
class History:
    """Who took part in the rounds before: all of the past that a law may look at.

    Attributes:
        population: n.
        rounds: S_0, ..., S_{t−1}, increasing indices each.
    """

    population: int
    rounds: tuple[Int64[Ints, " _"], ...] = ()

    def after(self, clients: Int64[Ints, " s"]) -> "History":
        """The history with one round more.

        Args:
            clients: who took part in it.

        Returns:
            Another history; this one is as it was.
        """
        return History(self.population, (*self.rounds, clients))

    @property
    def counts(self) -> Int64[Ints, " n"]:
        """In how many rounds each client took part."""
        every = np.concatenate([np.zeros(0, dtype=np.int64), *self.rounds])
        return np.bincount(every, minlength=self.population).astype(np.int64)

    @property
    def last(self) -> Int64[Ints, " n"]:
        """The last round of each client, −1 for one that never took part."""
        found = np.full(self.population, -1, dtype=np.int64)
        for t, clients in enumerate(self.rounds):
            found[clients] = t
        return found


@runtime_checkable
class Participation(Protocol):
    """A law that looks at the seed and the round alone."""

    def draw(self, seed: int, t: int, n: int) -> Int64[Ints, " s"]:
        """S_t, increasing indices; may be empty.

        Args:
            seed: of the run.
            t: the round.
            n: clients in all.

        Returns:
            The participants.
        """


@runtime_checkable
class PastParticipation(Protocol):
    """A law that looks at who took part before, too."""

    def draw_after(self, seed: int, history: History) -> Int64[Ints, " s"]:
        """S_t for t = number of rounds in the history; may be empty.

        Args:
            seed: of the run.
            history: who took part before.

        Returns:
            The participants.
        """


Law = Participation | PastParticipation


def drawn(
    law: Law, seed: int, t: int, n: int, history: History | None = None
) -> Int64[Ints, " s"]:
    """S_t under a law of either kind.

    Args:
        law: of participation.
        seed: of the run.
        t: the round.
        n: clients in all.
        history: of the rounds before t; by default they are drawn again from the seed,
            as a run that goes on needs them.

    Raises:
        InvalidInputError: the law gives no distinct indices from 0 to n − 1.
    """
    if isinstance(law, PastParticipation):
        past = past_of(law, seed, t, n) if history is None else history
        clients = np.asarray(law.draw_after(seed, past))
    else:
        clients = np.asarray(law.draw(seed, t, n))
    if len(clients) == 0:
        return clients.astype(np.int64)
    if clients.dtype.kind not in "iu" or len(np.unique(clients)) < len(clients):
        raise invalid("participation", "distinct indices of clients", clients)
    if clients.min() < 0 or clients.max() >= n:
        raise invalid("participation", f"indices from 0 to {n - 1}", clients)
    return clients


def past_of(law: Law, seed: int, t: int, n: int) -> History:
    """The rounds 0 to t − 1 of a run, drawn again from its seed.

    For a law that does not look at the past the history is left empty.
    """
    history = History(n)
    if isinstance(law, PastParticipation):
        for s in range(t):
            history = history.after(drawn(law, seed, s, n, history))
    return history


@final
@dataclass(frozen=True, slots=True)
class FullParticipation:
    """Everybody, every round."""

    def draw(self, seed: int, t: int, n: int) -> Int64[Ints, " s"]:
        """All n clients."""
        return np.arange(n)


@final
@dataclass(frozen=True, slots=True)
class SampledParticipation(Validated):
    """A uniform sample without replacement.

    Attributes:
        count: how many take part, at least 1.
    """

    count: Count

    def draw(self, seed: int, t: int, n: int) -> Int64[Ints, " s"]:
        """`count` of n clients."""
        if self.count > n:
            raise invalid("count", f"at most the {n} clients there are", self.count)
        chosen = generator(seed, COHORT, t).choice(n, self.count, replace=False)
        return np.sort(chosen)


@final
@dataclass(frozen=True, slots=True)
class RandomParticipation:
    """Each client on its own with a probability; a round may be empty.

    Attributes:
        probability: from 0 to 1, one number or one for each client.

    Raises:
        InvalidInputError: a probability is out of that range.
    """

    probability: float | Sequence[float]

    def __post_init__(self) -> None:
        """Check that probabilities are from 0 to 1."""
        p = as_float64("probability", self.probability)
        if not ((p >= 0) & (p <= 1)).all():
            raise invalid("probability", "from 0 to 1", format_value(self.probability))
        if not p.any():
            found = format_value(self.probability)
            raise invalid("probability", "above 0 for somebody", found)

    def draw(self, seed: int, t: int, n: int) -> Int64[Ints, " s"]:
        """Those whose coin fell right."""
        p = np.asarray(self.probability)
        if p.ndim and p.shape != (n,):
            raise invalid("probability", f"one number or {n} of them", p.tolist())
        return np.flatnonzero(generator(seed, COHORT, t).random(n) < p)


@final
@dataclass(frozen=True, slots=True)
class RotatingParticipation(Validated):
    """Those who have been away longest; of equals the ones drawn at random.

    Attributes:
        count: how many take part, at least 1.
    """

    count: Count

    def draw_after(self, seed: int, history: History) -> Int64[Ints, " s"]:
        """`count` clients whose last round is longest ago."""
        n = history.population
        if self.count > n:
            raise invalid("count", f"at most the {n} clients there are", self.count)
        ties = generator(seed, COHORT, len(history.rounds)).permutation(n)
        order = np.lexsort((ties, history.last))
        return np.sort(order[: self.count])
