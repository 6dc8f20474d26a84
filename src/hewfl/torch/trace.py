"""The trace of a job, kept by its first rank; `hewfl report` reads the folder."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsFloat, final

from hewfl.core.algorithm import Algorithm
from hewfl.core.round import Decision, Roster
from hewfl.server.folder import RunLog, describe
from hewfl.server.ledger import charge
from hewfl.server.trace import RoundRecord, round_note


@final
class JobTrace:
    """One record per round, in the form of every run of hewfl.

    What is measured after a round goes into its record, so a record is written when the
    next round begins or the job ends.

    Args:
        folder: where; a trace found there is continued by a job that loads its state,
            and replaced by one that does not.
        algorithm: the rule.
        ranks: n.
        d: number of parameters.
    """

    def __init__(
        self, folder: Path, algorithm: Algorithm[Any], ranks: int, d: int
    ) -> None:
        self._log = RunLog(folder / "seed-0")
        self._traffic, self._d = algorithm.demands.traffic, d
        self._scalars = self._paper_scalars = 0
        self._held: RoundRecord | None = RoundRecord(round=0, lane=0)
        self._begun = False
        method = {"method": type(algorithm).__name__, "label": algorithm.name}
        describe(folder, folder.name, method, clients={"n": ranks})

    def resume(self, rounds: int) -> None:
        """Go on after a number of rounds: later records are dropped."""
        found = self._log.records() if self._log.size else []
        records = [record for record in found if record.round <= rounds]
        self._log.restart(records)
        self._begun = True
        self._held = None
        if records:
            self._scalars = records[-1].scalars
            self._paper_scalars = records[-1].paper_scalars

    def measure(self, measured: Mapping[str, SupportsFloat]) -> None:
        """Add numbers to the record of the last round."""
        if self._held is None:
            return
        numbers = {name: float(value) for name, value in measured.items()}
        objective = numbers.pop("objective", self._held.objective)
        pooled = numbers.pop("pooled", self._held.pooled)
        metrics = {**self._held.metrics, **numbers}
        self._held = replace(
            self._held, objective=objective, pooled=pooled, metrics=metrics
        )

    def add(
        self,
        round_: int,
        roster: Roster,
        decision: Decision,
        lost: tuple[int, ...],
        observed: Mapping[str, float],
    ) -> None:
        """Begin the record of a round; the one before is written.

        Args:
            round_: rounds done, this one included.
            roster: ranks heard, and their work.
            decision: the rule's.
            lost: ranks whose model was not finite.
            observed: bytes and seconds.
        """
        self.flush()
        bill = charge(self._traffic, len(roster.clients) + len(lost), self._d)
        self._scalars += bill.scalars
        self._paper_scalars += bill.paper_scalars
        self._held = RoundRecord(
            round=round_,
            lane=0,
            scalars=self._scalars,
            paper_scalars=self._paper_scalars,
            excluded=lost,
            observed=dict(observed),
            **round_note(roster, decision, decision.status),
        )

    def flush(self) -> None:
        """Write what is held."""
        if not self._begun:
            self._log.restart(())
            self._begun = True
        if self._held is not None:
            self._log.append([self._held])
            self._held = None
