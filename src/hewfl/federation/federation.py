"""The environment of a run: who takes part in each round, with how much work.

Everything here is a function of (seed, round) alone, so that all methods meet the same
clients doing the same work, and a resumed run meets them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from hewfl.core.array_types import Int64
from hewfl.core.round import Cohort
from hewfl.core.validation import Ints, format_value, invalid
from hewfl.federation.local_steps import (
    ChoiceSteps,
    EpochSteps,
    FixedSteps,
    LocalSteps,
    PoissonSteps,
    TimedSteps,
    check_wholes,
)
from hewfl.federation.participation import (
    FullParticipation,
    History,
    Law,
    Participation,
    PastParticipation,
    RandomParticipation,
    RotatingParticipation,
    SampledParticipation,
    drawn,
    past_of,
)
from hewfl.federation.rng import generator
from hewfl.federation.scenario import Scenario

__all__ = [
    "ChoiceSteps", "EpochSteps", "Federation", "FixedSteps",
    "FullParticipation", "History", "LocalSteps", "Law", "Participation",
    "PastParticipation", "PoissonSteps", "RandomParticipation",
    "RotatingParticipation", "SampledParticipation", "TimedSteps", "Scenario",
    "generator",
]  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class Federation:
    """The environment of a run.

    Attributes:
        horizons: local steps.
        batch_size: b_i, one number or one per client.
        participation: who takes part.
        scenario: what is wrong with some of the clients, hidden from every rule.

    Raises:
        InvalidInputError: an attribute is not of its kind, or out of its range.
    """

    horizons: LocalSteps
    batch_size: int | Sequence[int] = 32
    participation: Law = field(default_factory=FullParticipation)
    scenario: Scenario = field(default_factory=Scenario)

    def __post_init__(self) -> None:
        """Check kinds and ranges."""
        if isinstance(self.horizons, type) or not isinstance(self.horizons, LocalSteps):
            rule = "a law of local steps, such as FixedSteps(4)"
            raise invalid("horizons", rule, format_value(self.horizons))
        who = self.participation
        if isinstance(who, type) or not isinstance(who, Law):
            rule = "a law of participation, such as SampledParticipation(2)"
            raise invalid("participation", rule, format_value(who))
        check_wholes("batch_size", self.batch_size)
        if not isinstance(self.scenario, Scenario):
            rule = "a Scenario, such as Scenario((RandomLabels(0.25),))"
            raise invalid("scenario", rule, format_value(self.scenario))

    def past(self, seed: int, t: int, n: int) -> History:
        """Who took part in the rounds before t, from the seed alone.

        Args:
            seed: of the run.
            t: the round.
            n: clients in all.

        Returns:
            The history; empty for a law that does not look at it.
        """
        return past_of(self.participation, seed, t, n)

    def batches(self, n: int) -> Int64[Ints, " n"]:
        """b_i of n clients, as the server believes.

        Args:
            n: clients in all.

        Returns:
            One batch size for each.

        Raises:
            InvalidInputError: there are neither one nor n numbers.
        """
        given = np.asarray(self.batch_size, dtype=np.int64)
        if given.ndim and given.shape != (n,):
            raise invalid("batch_size", f"one number or {n} of them", given.tolist())
        return np.broadcast_to(given, n).copy()

    def cohort(
        self,
        seed: int,
        t: int,
        sizes: Int64[Ints, " n"],
        history: History | None = None,
    ) -> Cohort:
        """Who takes part in round t, from (seed, t) alone.

        Args:
            seed: of the run.
            t: the round.
            sizes: m_i of all clients.
            history: of the rounds before, drawn again if it is not given.

        Returns:
            The participants with their steps, batch sizes and data sizes.

        Raises:
            InvalidInputError: a law gives other numbers than it should.
        """
        n = len(sizes)
        batches = self.batches(n)
        steps = np.asarray(self.horizons.draw(seed, t, sizes, batches))
        if steps.shape != (n,) or steps.dtype.kind not in "iu" or steps.min() < 1:
            raise invalid("horizons", f"{n} whole numbers of at least 1", steps)
        clients = drawn(self.participation, seed, t, n, history)
        H, b, m = steps[clients], batches[clients], sizes[clients].copy()
        return Cohort(clients, H, b, m, n, t)
