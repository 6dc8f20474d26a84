"""Client sampling: which clients take part in a round.

A sampler depends on the seed, the round and earlier participation alone, not on
models, losses or minibatches. So the seed determines the sets S_0, S_1, ... of a run.
All methods have the same clients, and so has a resumed run. A certificate given these
sets holds for every sampler (erratum E-19).
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
    """The participants of earlier rounds.

    Attributes:
        population: n.
        rounds: S_0, ..., S_{t−1}, increasing indices each.
    """

    population: int
    rounds: tuple[Int64[Ints, " _"], ...] = ()

    def after(self, clients: Int64[Ints, " s"]) -> "History":
        """The history with one more round.

        Args:
            clients: its participants.

        Returns:
            A new history.
        """
        return History(self.population, (*self.rounds, clients))

    @property
    def counts(self) -> Int64[Ints, " n"]:
        """The number of rounds of each client."""
        every = np.concatenate([np.zeros(0, dtype=np.int64), *self.rounds])
        return np.bincount(every, minlength=self.population).astype(np.int64)

    @property
    def last(self) -> Int64[Ints, " n"]:
        """The last round of each client, −1 without one."""
        last = np.full(self.population, -1, dtype=np.int64)
        for t, clients in enumerate(self.rounds):
            last[clients] = t
        return last


@runtime_checkable
class Participation(Protocol):
    """A sampler that depends on the seed and the round alone."""

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
    """A sampler that also depends on earlier participation."""

    def draw_after(self, seed: int, history: History) -> Int64[Ints, " s"]:
        """S_t for t = number of rounds in the history; may be empty.

        Args:
            seed: of the run.
            history: participants of earlier rounds.

        Returns:
            The participants.
        """


AnyParticipation = Participation | PastParticipation


def draw_clients(
    sampler: AnyParticipation, seed: int, t: int, n: int, history: History | None = None
) -> Int64[Ints, " s"]:
    """S_t of a sampler of either kind.

    Args:
        sampler: of clients.
        seed: of the run.
        t: the round.
        n: clients in all.
        history: of the rounds before t; by default drawn again from the seed, as for a
            resumed run.

    Raises:
        InvalidInputError: the indices are not distinct, or not from 0 to n − 1.
    """
    if isinstance(sampler, PastParticipation):
        past = draw_history(sampler, seed, t, n) if history is None else history
        clients = np.asarray(sampler.draw_after(seed, past))
    else:
        clients = np.asarray(sampler.draw(seed, t, n))
    if len(clients) == 0:
        return clients.astype(np.int64)
    if clients.dtype.kind not in "iu" or len(np.unique(clients)) < len(clients):
        raise invalid("participation", "distinct indices of clients", clients)
    if clients.min() < 0 or clients.max() >= n:
        raise invalid("participation", f"indices from 0 to {n - 1}", clients)
    return clients


def draw_history(sampler: AnyParticipation, seed: int, t: int, n: int) -> History:
    """The rounds 0 to t − 1 of a run, drawn again from its seed.

    The history is empty for a sampler that does not depend on it.
    """
    history = History(n)
    if isinstance(sampler, PastParticipation):
        for s in range(t):
            history = history.after(draw_clients(sampler, seed, s, n, history))
    return history


@final
@dataclass(frozen=True, slots=True)
class FullParticipation:
    """All clients in every round."""

    def draw(self, seed: int, t: int, n: int) -> Int64[Ints, " s"]:
        """All n clients."""
        return np.arange(n)


@final
@dataclass(frozen=True, slots=True)
class SampledParticipation(Validated):
    """A uniform sample without replacement.

    Attributes:
        count: number of clients in a round, at least 1.
    """

    count: Count

    def draw(self, seed: int, t: int, n: int) -> Int64[Ints, " s"]:
        """`count` of n clients."""
        if self.count > n:
            raise invalid("count", f"at most {n}, the number of clients", self.count)
        chosen = generator(seed, COHORT, t).choice(n, self.count, replace=False)
        return np.sort(chosen)


@final
@dataclass(frozen=True, slots=True)
class RandomParticipation:
    """Each client independently with a probability; a round may be empty.

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
            given = format_value(self.probability)
            raise invalid("probability", "above 0 for some client", given)

    def draw(self, seed: int, t: int, n: int) -> Int64[Ints, " s"]:
        """The clients of this round."""
        p = np.asarray(self.probability)
        if p.ndim and p.shape != (n,):
            raise invalid("probability", f"one number or {n} of them", p.tolist())
        return np.flatnonzero(generator(seed, COHORT, t).random(n) < p)


@final
@dataclass(frozen=True, slots=True)
class RotatingParticipation(Validated):
    """The clients with the longest absence; ties are broken at random.

    Attributes:
        count: number of clients in a round, at least 1.
    """

    count: Count

    def draw_after(self, seed: int, history: History) -> Int64[Ints, " s"]:
        """The `count` clients with the earliest last round."""
        n = history.population
        if self.count > n:
            raise invalid("count", f"at most {n}, the number of clients", self.count)
        ties = generator(seed, COHORT, len(history.rounds)).permutation(n)
        order = np.lexsort((ties, history.last))
        return np.sort(order[: self.count])
