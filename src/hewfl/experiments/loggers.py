"""Runs sent to TensorBoard, Weights & Biases or MLflow while they are computed.

    tensorboard:FOLDER        files of events, by tensorboardX
    wandb:PROJECT             by wandb; WANDB_MODE=offline keeps all on this machine
    mlflow:FOLDER or URI      by mlflow, or mlflow-skinny

The main process reads what the seeds append to their traces: workers and results know
nothing of it. Every method of every seed is a run there, every number of a round a
value at that step. `logged.json` in the run's folder says what was sent, so that a run
that is resumed continues there, and one that is finished can be sent afterwards.
"""

import hashlib
import importlib.util
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

from hewfl.core.atomic import read_json, write_json
from hewfl.core.toml_records import one_of
from hewfl.core.validation import invalid
from hewfl.errors import HewError, MissingExtraError
from hewfl.experiments.executor import Progress, Task
from hewfl.experiments.run_folder import Folder
from hewfl.server.trace import NUMBERS, RoundRecord, from_lines

LOGGED = "logged.json"
"""By target and run there: how many lines were sent, and what the run is called."""
PAUSE = 1.0
"""Seconds between two looks at the traces."""
BATCH = 500
"""Values that MLflow is sent at once; its limit is 1,000."""


class Logger(Protocol):
    """One run at one target."""

    key: str
    """By which the target knows the run when it is resumed."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a round."""

    def flush(self) -> None:
        """Send what was taken."""

    def close(self, *, is_done: bool) -> None:
        """End the run there, for now or for good."""


@final
@dataclass(frozen=True, slots=True)
class LoggedRun:
    """What a target is told of a run: one method, one seed."""

    folder: Folder
    label: str
    seed: int
    parameters: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Of the run at the target, within its group."""
        return f"{self.label}, seed {self.seed}"

    @property
    def group(self) -> str:
        """Of all runs of one spec."""
        return self.folder.path.name


@final
class _TensorBoard:
    """Files of events in FOLDER/run/method/seed."""

    key = ""

    def __init__(self, place: str, run: LoggedRun, _: str) -> None:
        parts = (run.group, run.label, f"seed-{run.seed}")
        safe = ["".join("_" if c in '/\\:*?"<>|' else c for c in p) for p in parts]
        library: Any = importlib.import_module("tensorboardX")
        self._writer: Any = library.SummaryWriter(str(Path(place, *safe)))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self, *, is_done: bool) -> None:  # noqa: ARG002 - files have no state
        self._writer.close()


@final
class _WandB:
    """A run of a project, in a group for the spec."""

    def __init__(self, place: str, run: LoggedRun, key: str) -> None:
        wandb: Any = importlib.import_module("wandb")
        text = f"{run.group} {run.name}"
        self.key = key or hashlib.sha256(text.encode()).hexdigest()[:16]
        self._run: Any = wandb.init(
            project=place,
            group=run.group,
            name=run.name,
            id=self.key,
            resume="allow",
            config=dict(run.parameters),
            reinit="create_new",  # methods and seeds are open side by side
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        pass  # a process of its own sends

    def close(self, *, is_done: bool) -> None:
        self._run.finish(exit_code=0 if is_done else 1)


@final
class _MLflow:
    """A run of the experiment named like the spec."""

    def __init__(self, place: str, run: LoggedRun, key: str) -> None:
        mlflow: Any = importlib.import_module("mlflow")
        self._metric: Any = mlflow.entities.Metric
        uri = place
        if "://" not in place:
            uri = Path(place).resolve().as_uri()
            # Folders are read and written, but no longer developed.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        self._values: list[Any] = []
        self.key = key
        if key:
            self._client.update_run(key, status="RUNNING")
            return
        name = run.folder.spec.name
        known = self._client.get_experiment_by_name(name)
        where = known.experiment_id if known else self._client.create_experiment(name)
        tags = {"mlflow.runName": run.name, "group": run.group}
        self.key = self._client.create_run(where, tags=tags).info.run_id
        for parameter, value in run.parameters.items():
            self._client.log_param(self.key, parameter, value)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self._values += [self._metric(k, v, now, step) for k, v in values.items()]

    def flush(self) -> None:
        for start in range(0, len(self._values), BATCH):
            batch = self._values[start : start + BATCH]
            self._client.log_batch(self.key, metrics=batch)
        self._values = []

    def close(self, *, is_done: bool) -> None:
        self._client.set_terminated(self.key, "FINISHED" if is_done else "KILLED")


MakeLogger = Callable[[str, LoggedRun, str], Logger]
TARGETS: dict[str, MakeLogger] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "mlflow": _MLflow,
}
LIBRARIES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}
"""Of the targets; each has an extra of its name."""
FORMS = ("tensorboard:FOLDER", "wandb:PROJECT", "mlflow:FOLDER", "mlflow:URI")
"""Ways to name a target."""


def check_targets(targets: Sequence[str]) -> None:
    """Require known targets, each with a place, and their libraries.

    Raises:
        InvalidInputError: one of them is not known, or has no place.
        MissingExtraError: its library is not installed.
    """
    for target in targets:
        kind, _, place = target.partition(":")
        if kind not in TARGETS or not place:
            raise invalid("--log", one_of(FORMS, target), repr(target))
        if importlib.util.find_spec(LIBRARIES[kind]) is None:
            text = f"needs {LIBRARIES[kind]}: install hewfl's extra {kind}"
            raise MissingExtraError(f"--log {target} {text}")


@contextmanager
def logged(
    folders: Sequence[Folder], targets: Sequence[str], progress: Progress
) -> Iterator[Progress]:
    """The progress of runs, whose traces are sent to targets as they grow.

    A target that fails, as a server that is gone, is warned about and left alone: the
    run goes on, and when it is resumed the rest is sent.

    Args:
        folders: runs, new, begun or done.
        targets: of `FORMS`.
        progress: of the caller; it is called as before.

    Yields:
        The progress to call.

    Raises:
        InvalidInputError: a target is not known.
        MissingExtraError: its library is not installed.
    """
    check_targets(targets)
    if not targets:
        yield progress
        return
    traces = [_Trace(f, s, t) for f in folders for s in f.spec.seeds for t in targets]
    try:
        yield _LoggedProgress(progress, traces)
    finally:
        _send(traces, close=True)


@final
class _LoggedProgress(Progress):
    """Looks at the traces now and then."""

    def __init__(self, progress: Progress, traces: Sequence["_Trace"]) -> None:
        self._progress, self._traces = progress, traces
        self._looked = -math.inf

    def begin(self, tasks: Sequence[Task]) -> None:
        self._progress.begin(tasks)

    def step(self, task: int, done: int) -> None:
        self._progress.step(task, done)
        if time.monotonic() - self._looked > PAUSE:
            _send(self._traces)
            self._looked = time.monotonic()

    def note(self, text: str) -> None:
        self._progress.note(text)


def _send(traces: Sequence["_Trace"], *, close: bool = False) -> None:
    """Send what is new; a trace whose target fails is not sent any more."""
    for trace in traces:
        if trace.failed:
            continue
        try:
            trace.send()
            if close:
                trace.close()
        except HewError:
            raise
        except Exception as error:  # of a library, which may raise anything
            trace.failed = True
            text = " ".join(str(error).split())
            why = f"{trace.target} failed ({text}); resume with --log to send the rest"
            warnings.warn(why, stacklevel=2)


@final
class _Trace:
    """The trace of one seed on its way to one target."""

    def __init__(self, folder: Folder, seed: int, target: str) -> None:
        self._folder, self._seed, self.target = folder, seed, target
        self.failed = False
        known = self._table().get(target, {}).get(str(seed), {})
        self._sent, self._keys = known.get("lines", 0), known.get("keys", ())
        self._loggers: list[Logger] = []
        self._read = self._offset = 0

    def send(self) -> None:
        """Send the lines that no process has sent yet.

        A resumed run writes its last rounds again, to the same bytes.
        """
        lines = self._new_lines()
        new = lines[max(self._sent - self._read, 0) :]
        self._read += len(lines)
        if not new:
            return
        if not self._loggers:
            self._open()
        for record in from_lines(new):
            self._loggers[record.entry].log(record.round, _numbers(record))
        for logger in self._loggers:
            logger.flush()
        self._sent = self._read
        table = self._table()
        keys = [logger.key for logger in self._loggers]
        note = {"lines": self._sent, "keys": keys}
        table.setdefault(self.target, {})[str(self._seed)] = note
        write_json(self._folder.path / LOGGED, table)

    def close(self) -> None:
        """End the runs at the target."""
        spec = self._folder.spec
        total = len(spec.methods) * (spec.rounds + 1)
        for logger in self._loggers:
            logger.close(is_done=self._sent >= total)
        self._loggers = []

    def _new_lines(self) -> list[str]:
        """The whole lines of the trace that were not read yet."""
        file = self._folder.of_seed(self._seed) / "trace.jsonl"
        if not file.exists():
            return []
        with file.open("rb") as stream:
            stream.seek(self._offset)
            whole, end, _ = stream.read().rpartition(b"\n")
        self._offset += len(whole + end)
        return whole.decode("utf-8").splitlines()

    def _open(self) -> None:
        kind, _, place = self.target.partition(":")
        spec = self._folder.tuned or self._folder.spec
        keys = self._keys or [""] * len(spec.methods)
        for method, key in zip(spec.methods, keys, strict=True):
            given = {"method": method.method, **method.parameters, "seed": self._seed}
            run = LoggedRun(self._folder, method.label, self._seed, given)
            self._loggers.append(TARGETS[kind](place, run, key))

    def _table(self) -> dict[str, Any]:
        return dict(read_json(self._folder.path / LOGGED, missing=True) or {})


def _numbers(record: RoundRecord) -> dict[str, float]:
    """The finite numbers of a round, by the names that results have."""
    values = {k: getattr(record, k) for k in NUMBERS if k != "round"}
    values |= {**record.metrics, **record.observed}
    return {
        name: float(value)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    }
