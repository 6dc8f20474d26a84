"""The trace of a job, kept by its first rank; `hewfl report` reads the folder."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsFloat, final

from hewfl.core.algorithm import Algorithm
from hewfl.core.round import Cohort, Decision
from hewfl.server.communication import add_mean_gradients, round_communication
from hewfl.server.line_search import add_line_search_traffic
from hewfl.server.run_log import RunLog, describe
from hewfl.server.server_step import ServerStep
from hewfl.server.trace import RoundRecord, decision_fields
from hewfl.torch.options import SyncReport


@final
class JobTrace:
    """One record per round, in the form of every run of hewfl.

    Args:
        folder: where; a trace found there is continued by a job that loads its state,
            and replaced by one that does not.
        algorithm: the rule.
        ranks: n.
        d: number of parameters.
        server_step: of the job.
        sends_gradients: whether ranks send mean gradients beside displacements.
    """

    def __init__(
        self,
        folder: Path,
        algorithm: Algorithm[Any],
        ranks: int,
        d: int,
        server_step: ServerStep,
        *,
        sends_gradients: bool = False,
    ) -> None:
        self._log = RunLog(folder / "seed-0")
        sent = algorithm.demands.traffic
        sent = add_mean_gradients(sent) if sends_gradients else sent
        self._traffic = add_line_search_traffic(sent, server_step, everybody=False)
        self._d = d
        self._last = RoundRecord(round=0, entry=0)
        self._is_written = False
        method = {"method": type(algorithm).__name__, "label": algorithm.name}
        describe(folder, folder.name, method, clients={"n": ranks})

    def resume(self, rounds: int) -> None:
        """Go on after a number of rounds: later records are dropped."""
        found = [record for record in self._log.records() if record.round <= rounds]
        self._log.restart(found[:-1])
        self._is_written = True
        self._last = found[-1] if found else self._last
        self._log.append([self._last])

    def measure(self, measured: Mapping[str, SupportsFloat]) -> None:
        """Add numbers to the record of the last round."""
        numbers = {name: float(value) for name, value in measured.items()}
        objective = numbers.pop("objective", self._last.objective)
        pooled = numbers.pop("pooled", self._last.pooled)
        metrics = {**self._last.metrics, **numbers}
        self._change(objective=objective, pooled=pooled, metrics=metrics)

    def charge(self, numbers: int) -> None:
        """Count numbers that were sent beside the rounds, as first gradients are."""
        self._change(
            scalars=self._last.scalars + numbers,
            paper_scalars=self._last.paper_scalars + numbers,
        )

    def add(
        self, report: SyncReport, cohort: Cohort, decision: Decision, scale: float
    ) -> None:
        """Write the record of a round.

        Args:
            report: of the round.
            cohort: ranks heard, and their work.
            decision: the rule's.
            scale: that measured steps had put on the learning rates.
        """
        self._change()  # the start is written by now
        seen = {"bytes_sent": float(report.bytes_sent), "seconds": report.seconds}
        seen["waited"] = report.waited
        if report.checked is not None:
            seen["last_sketch_error"] = report.checked.error
        if report.measured is not None:
            seen |= report.measured.observations(scale)
        sent = len(cohort.clients) + len(report.excluded)
        bill = round_communication(self._traffic, sent, self._d)
        self._last = RoundRecord(
            round=report.round,
            entry=0,
            scalars=self._last.scalars + bill.scalars,
            paper_scalars=self._last.paper_scalars + bill.paper_scalars,
            excluded=report.excluded,
            observed=seen,
            **decision_fields(cohort, decision, decision.status),
        )
        self._log.append([self._last])

    def _change(self, **changes: Any) -> None:
        """The last record with other numbers, on the disk as well."""
        self._last = replace(self._last, **changes)
        if self._is_written:
            self._log.replace_last([self._last])
            return
        self._log.restart(())
        self._log.append([self._last])
        self._is_written = True
