"""A Flower run on disk: kept after every round, gone on with, read by `hewfl report`.

    folder/spec.toml        what the run is called
    folder/seed-<seed>/     trace.jsonl and checkpoint

The checkpoint holds the model, the method's state, the round, and how method and laws
show themselves: the same app started again goes on, another method does not.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
from flwr.app import Array, ArrayRecord

from hewfl.errors import DataError
from hewfl.server.checkpoint import Saved, flatten, load_checkpoint, unflatten
from hewfl.server.folder import RunLog, describe
from hewfl.server.state import ServerState
from hewfl.server.trace import RoundRecord

_MODEL = "model:"
"""Before the names of the arrays of the model, as Flower sends them."""


def load_model(folder: Path | str) -> ArrayRecord:
    """The model of a run kept in a folder, after its last round.

    With `Outer(average=…)` it is the averaged model.

    Raises:
        DataError: there is no run, or it is damaged.
    """
    for place in sorted(Path(folder).glob("seed-*")):
        saved = load_checkpoint(place)
        if saved is not None:
            held, names = saved.arrays, saved.run["arrays"]
            return ArrayRecord({k: Array(np.array(held[_MODEL + k])) for k in names})
    raise DataError(f"{folder} holds no run")


@final
class RunFolder:
    """Where one run is kept.

    Args:
        path: of the folder, made if it is new.
        seed: of the run.
        rounds: planned.
        arrays: a model like those of the run.
        facts: method, outer step and whatever else must be the same to go on.
    """

    def __init__(
        self,
        path: Path,
        seed: int,
        rounds: int,
        arrays: ArrayRecord,
        facts: Mapping[str, Any],
    ) -> None:
        self._log = RunLog(path / f"seed-{seed}")
        # a method of a user's own may show its place in memory, which is another
        self._run: dict[str, Any] = {
            k: re.sub(r" at 0x[0-9a-f]+", "", repr(v)) for k, v in facts.items()
        }
        self._run["arrays"] = {k: [a.dtype, *a.shape] for k, a in arrays.items()}
        rule = facts["algorithm"]
        method = {"method": type(rule).__name__, "label": rule.name}
        describe(path, path.name, method, seed=seed, rounds=rounds)

    def load(self, like: ServerState) -> tuple[int, ServerState] | None:
        """Rounds done and state found here; None if there is no run.

        Args:
            like: a state of the same shape.

        Raises:
            DataError: it is damaged, or another run.
        """
        saved = self._log.load(self._run)
        return None if saved is None else (saved.round, unflatten(like, saved.arrays))

    def commit(
        self, record: RoundRecord, state: ServerState, arrays: ArrayRecord
    ) -> None:
        """Add a round to the trace, then make its state the current one."""
        self._log.append([record])
        held = {f"{_MODEL}{k}": np.asarray(a.numpy()) for k, a in arrays.items()}
        held = {k: np.ascontiguousarray(a).reshape(a.shape) for k, a in held.items()}
        size = self._log.size
        self._log.save(Saved(record.round, self._run, {**flatten(state), **held}, size))
