"""A Flower run on disk: trace, checkpoints and description in one folder."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from hewfl.server.checkpoint import Checkpoint, flatten, unflatten
from hewfl.server.run_log import RunLog, describe
from hewfl.server.state import ServerState
from hewfl.server.trace import RoundRecord


@final
class ResumableRun:
    """A Flower run in a folder: saved after every round, resumed, read by `hewfl report`.

    The checkpoint has the state, the round, and the `repr` of method and samplers: the
    same job resumes, another one raises an error.

    Args:
        path: of the folder, made if it is new; the run is in seed-<seed>.
        seed: of the run.
        rounds: planned.
        facts: method, server step and everything else that must be the same to resume.
        arrays: of the model by name, of any kind with a dtype and a shape, which must
            be the same as well.
    """

    def __init__(
        self,
        path: Path,
        seed: int,
        rounds: int,
        facts: Mapping[str, Any],
        arrays: Mapping[str, Any],
    ) -> None:
        self._log = RunLog(path / f"seed-{seed}")
        # the `repr` of a user's method may have its address in memory
        self._run: dict[str, Any] = {
            k: re.sub(r" at 0x[0-9a-f]+", "", repr(v)) for k, v in facts.items()
        }
        self._run["arrays"] = {k: [str(a.dtype), *a.shape] for k, a in arrays.items()}
        rule = facts["algorithm"]
        method = {"method": type(rule).__name__, "label": rule.name}
        describe(path, path.name, method, seed=seed, rounds=rounds)

    def load(self, like: ServerState) -> tuple[int, ServerState] | None:
        """Rounds done and the state; None if there is no run.

        Args:
            like: a state of the same shape.

        Raises:
            DataError: it is damaged, or of another run.
        """
        saved = self._log.load(self._run)
        return None if saved is None else (saved.round, unflatten(like, saved.arrays))

    def commit(
        self, record: RoundRecord, state: ServerState, more: Mapping[str, Any]
    ) -> None:
        """Add a round to the trace, then make its state the current one."""
        self._log.append([record])
        arrays = {**flatten(state), **more}
        self._log.save(Checkpoint(record.round, self._run, arrays, self._log.size))
