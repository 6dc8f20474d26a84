"""The federation of a run: the clients of each round and their local steps.

Everything here is a function of (seed, round) alone. So all methods of a comparison
have the same clients with the same work, and so has a resumed run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from hewfl.core.array_types import Int64
from hewfl.core.round import Cohort
from hewfl.core.validation import Ints, format_value, invalid
from hewfl.federation.local_steps import (
    LocalSteps,
    check_wholes,
)
from hewfl.federation.participation import (
    AnyParticipation,
    FullParticipation,
    History,
    draw_clients,
    draw_history,
)
from hewfl.federation.scenario import Scenario


@final
@dataclass(frozen=True, slots=True)
class Federation:
    """The clients of a run: local steps, batch sizes, participation, faults.

    Args:
        local_steps: sampler of the local steps H_i.
        batch_size: b_i, one number or one per client.
        participation: sampler of the clients of a round.
        scenario: faults of some of the clients, hidden from every algorithm.

    Raises:
        InvalidInputError: an argument is of a wrong type, or out of its range.
    """

    local_steps: LocalSteps
    batch_size: int | Sequence[int] = 32
    participation: AnyParticipation = field(default_factory=FullParticipation)
    scenario: Scenario = field(default_factory=Scenario)

    def __post_init__(self) -> None:
        """Check types and ranges."""
        if isinstance(self.local_steps, type) or not isinstance(
            self.local_steps, LocalSteps
        ):
            rule = "a local-step sampler, such as FixedSteps(4)"
            raise invalid("local_steps", rule, format_value(self.local_steps))
        who = self.participation
        if isinstance(who, type) or not isinstance(who, AnyParticipation):
            rule = "a client sampler, such as SampledParticipation(2)"
            raise invalid("participation", rule, format_value(who))
        check_wholes("batch_size", self.batch_size)
        if not isinstance(self.scenario, Scenario):
            rule = "a Scenario, such as Scenario((RandomLabels(0.25),))"
            raise invalid("scenario", rule, format_value(self.scenario))

    def past(self, seed: int, t: int, n: int) -> History:
        """The participants of the rounds before t, from the seed alone.

        Args:
            seed: of the run.
            t: the round.
            n: number of clients.

        Returns:
            The history; empty for a sampler that does not depend on it.
        """
        return draw_history(self.participation, seed, t, n)

    def batches(self, n: int) -> Int64[Ints, " n"]:
        """The nominal b_i of n clients.

        Args:
            n: number of clients.

        Returns:
            One batch size for each.

        Raises:
            InvalidInputError: neither one nor n numbers are given.
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
        """The clients of round t, from (seed, t) alone.

        Args:
            seed: of the run.
            t: the round.
            sizes: m_i of all clients.
            history: of the rounds before, drawn again by default.

        Returns:
            The participants with their steps, batch sizes and data sizes.

        Raises:
            InvalidInputError: a sampler returns invalid numbers.
        """
        n = len(sizes)
        batches = self.batches(n)
        steps = np.asarray(self.local_steps.draw(seed, t, sizes, batches))
        if steps.shape != (n,) or steps.dtype.kind not in "iu" or steps.min() < 1:
            raise invalid("local_steps", f"{n} whole numbers of at least 1", steps)
        clients = draw_clients(self.participation, seed, t, n, history)
        H, b, m = steps[clients], batches[clients], sizes[clients].copy()
        return Cohort(clients, H, b, m, n, t)
