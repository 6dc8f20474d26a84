"""A run on disk: its trace, its checkpoints, and its description.

folder/trace.jsonl                  one line per entry and round, append-only
folder/state-<round>.safetensors    the state, see `hewfl.server.checkpoint`
folder/manifest.json                names the state and the length of the trace
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from hewfl.core.atomic import write_text
from hewfl.core.toml_records import write_toml
from hewfl.errors import DataError
from hewfl.server.checkpoint import (
    Checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from hewfl.server.trace import RoundRecord, from_lines, to_line


@final
class RunLog:
    """The trace of a run and its checkpoints in one folder, made if it is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "trace.jsonl"
        self._last = 0
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def size(self) -> int:
        """Bytes of the trace; zero if there is none."""
        return self._path.stat().st_size if self._path.exists() else 0

    def restart(self, records: Sequence[RoundRecord]) -> None:
        """Replace the trace by some records."""
        write_text(self._path, "".join(to_line(record) for record in records))

    def append(self, records: Sequence[RoundRecord]) -> None:
        """Add records to the trace."""
        self._last = self.size
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(to_line(record) for record in records)

    def replace_last(self, records: Sequence[RoundRecord]) -> None:
        """Put records in place of those that were appended last."""
        with self._path.open("r+b") as file:
            file.truncate(self._last)
        self.append(records)

    def records(self) -> list[RoundRecord]:
        """All records of the trace, without an incomplete last line."""
        if self.size == 0:
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        return from_lines(line for line in lines if line.endswith("\n"))

    def save(self, saved: Checkpoint) -> None:
        """Make a state the current one, after its trace is written."""
        save_checkpoint(self._folder, saved)

    def load(self, run: Mapping[str, Any]) -> Checkpoint | None:
        """The last checkpoint, None if there is none; the trace is cut to fit it.

        A trace without a checkpoint is deleted: its run stopped before the first one.

        Args:
            run: what must be the same to resume.

        Raises:
            DataError: it is damaged, or of another run.
        """
        saved = load_checkpoint(self._folder)
        if saved is None:
            self.restart(())
            return None
        for key, value in run.items():
            if _plain(saved.run.get(key)) != _plain(value):
                text = (
                    f"the checkpoint belongs to another run: its {key} is "
                    f"{saved.run.get(key)!r}, asked for is {value!r}"
                )
                raise DataError(text)
        if self.size < saved.trace_bytes:
            text = f"the trace {self._path} is shorter than its checkpoint says"
            raise DataError(text)
        with self._path.open("r+b") as file:
            file.truncate(saved.trace_bytes)
        return saved


def _plain(value: Any) -> Any:
    """A value as JSON returns it: tuples are lists."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def describe(
    folder: Path,
    name: str,
    method: Mapping[str, Any],
    *,
    seed: int = 0,
    rounds: int | None = None,
    clients: Mapping[str, Any] | None = None,
) -> None:
    """Write the spec.toml by which `hewfl report` reads the run of a job.

    Args:
        folder: of the job; its trace is in seed-<seed>.
        name: of the run.
        method: `method`, `label` and hyper-parameters.
        seed: of the run.
        rounds: how many are planned; counted in the trace if not given.
        clients: what is known of the clients.
    """
    table: dict[str, Any] = {"name": name}
    if rounds is not None:
        table["rounds"] = max(rounds, 1)
    table["seeds"] = [seed]
    table["methods"] = [{key: v for key, v in method.items() if v is not None}]
    table["clients"] = {"partition": "nodes", **(clients or {})}
    write_text(folder / "spec.toml", write_toml(table))
