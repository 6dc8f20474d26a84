"""The trace of a job, written by its first rank; `hewfl report` reads the folder."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsFloat, final

from hewfl.core.algorithm import Algorithm
from hewfl.core.round import Cohort, Decision
from hewfl.server.communication import round_communication
from hewfl.server.run_log import RunLog, describe
from hewfl.server.trace import RoundRecord, decision_fields
from hewfl.torch.sync_options import SyncReport


@final
class JobTrace:
    """One record per round, in the form of every run of hewfl.

    A job that loads its state continues the trace in the folder; one that does not
    replaces it.
    """

    def __init__(
        self, folder: Path, algorithm: Algorithm[Any], ranks: int, d: int
    ) -> None:
        self._log, self._d = RunLog(folder / "seed-0"), d
        self._traffic = algorithm.demands.traffic
        self._last, self._is_written = RoundRecord(round=0, entry=0), False
        method = {"method": type(algorithm).__name__, "label": algorithm.name}
        describe(folder, folder.name, method, clients={"n": ranks})

    def resume(self, rounds: int) -> None:
        """Continue after a number of rounds; drop later records."""
        records = [record for record in self._log.records() if record.round <= rounds]
        self._log.restart(records[:-1])
        self._is_written = True
        self._last = records[-1] if records else self._last
        self._log.append([self._last])

    def log_metrics(self, metrics: Mapping[str, SupportsFloat]) -> None:
        """Add numbers to the record of the last round."""
        numbers = {name: float(value) for name, value in metrics.items()}
        objective = numbers.pop("objective", self._last.objective)
        pooled = numbers.pop("pooled", self._last.pooled)
        merged = {**self._last.metrics, **numbers}
        self._replace_last(objective=objective, pooled=pooled, metrics=merged)

    def charge(self, numbers: int) -> None:
        """Count numbers that were sent outside of rounds, as first gradients are."""
        self._replace_last(
            scalars=self._last.scalars + numbers,
            paper_scalars=self._last.paper_scalars + numbers,
        )

    def add(self, report: SyncReport, cohort: Cohort, decision: Decision) -> None:
        """Write the record of a round."""
        self._replace_last()  # so that the start is written
        observed = {"bytes_sent": float(report.bytes_sent), "seconds": report.seconds}
        observed["wait_seconds"] = report.wait_seconds
        observed |= report.measured
        if report.sketch_check is not None:
            observed["last_sketch_error"] = report.sketch_check.error
        senders = len(cohort.clients) + len(report.excluded)
        cost = round_communication(self._traffic, senders, self._d)
        self._last = RoundRecord(
            round=report.round,
            entry=0,
            scalars=self._last.scalars + cost.scalars,
            paper_scalars=self._last.paper_scalars + cost.paper_scalars,
            excluded=report.excluded,
            observed=observed,
            **decision_fields(cohort, decision, decision.status),
        )
        self._log.append([self._last])

    def _replace_last(self, **changes: Any) -> None:
        """Change the last record, on the disk as well."""
        self._last = replace(self._last, **changes)
        if self._is_written:
            self._log.replace_last([self._last])
            return
        self._log.restart(())
        self._log.append([self._last])
        self._is_written = True
