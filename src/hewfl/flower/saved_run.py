"""A Flower run on disk: trace, checkpoint, and the model as Flower sends it.

folder/spec.toml        what the run is called
folder/seed-<seed>/     trace.jsonl and checkpoint (`hewfl.server.run_log`)
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
from flwr.app import Array, ArrayRecord

from hewfl.errors import DataError
from hewfl.flower.client_registry import ClientNumbers
from hewfl.server.array_layout import ArrayLayout
from hewfl.server.checkpoint import Checkpoint, flatten, load_checkpoint, unflatten
from hewfl.server.run_log import RunLog, describe
from hewfl.server.state import ServerState
from hewfl.server.trace import RoundRecord

_MODEL = "model:"
"""Before the names of the arrays of the model."""


def load_model(folder: Path | str) -> ArrayRecord:
    """The model of a run kept in a folder, after its last round.

    With `ServerStep(average=…)` it is the averaged model.

    Args:
        folder: that a strategy was given.

    Returns:
        The model after the last finished round.

    Examples:
        >>> arrays = load_model("run").to_numpy_ndarrays()  # doctest: +SKIP

    Raises:
        DataError: there is no run, or it is damaged.
    """
    for place in sorted(Path(folder).glob("seed-*")):
        saved = load_checkpoint(place)
        if saved is not None:
            held, names = saved.arrays, saved.run["arrays"]
            return ArrayRecord({k: Array(np.array(held[_MODEL + k])) for k in names})
    raise DataError(f"{folder} holds no run")


def model_arrays(arrays: ArrayRecord) -> dict[str, Any]:
    """The arrays of a model under the names that `load_model` looks for."""
    held = {f"{_MODEL}{k}": np.asarray(a.numpy()) for k, a in arrays.items()}
    return {k: np.ascontiguousarray(a).reshape(a.shape) for k, a in held.items()}


@final
class SavedRun:
    """One run of a job, saved after every round, resumable, read by `hewfl report`.

    The checkpoint holds the state, the round and the `repr` of method and laws. The
    same job started again resumes; another method is refused.

    Args:
        path: of the folder, made if it is new; the run is in seed-<seed>.
        seed: of the run.
        rounds: planned.
        facts: method, server step and whatever else must be the same to resume.
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
        self._saved: Checkpoint | None = None
        # a method of a user's own may show its place in memory, which is another
        self._run: dict[str, Any] = {
            k: re.sub(r" at 0x[0-9a-f]+", "", repr(v)) for k, v in facts.items()
        }
        self._run["arrays"] = {k: [str(a.dtype), *a.shape] for k, a in arrays.items()}
        rule = facts["algorithm"]
        method = {"method": type(rule).__name__, "label": rule.name}
        describe(path, path.name, method, seed=seed, rounds=rounds)

    def load(
        self, like: Callable[[int], ServerState]
    ) -> tuple[int, ServerState] | None:
        """The number of rounds and the state in the folder; None if there is no run.

        Args:
            like: a state of the same shape, for a number of clients.

        Raises:
            DataError: it is damaged, or another run.
        """
        self._saved = saved = self._log.load(self._run)
        if saved is None:
            return None
        numbers = ClientNumbers()
        self.restore_clients(numbers)
        return saved.round, unflatten(like(max(1, numbers.count)), saved.arrays)

    def restore_clients(self, numbers: ClientNumbers) -> None:
        """Take over the numbers that clients had in the last round."""
        if self._saved is not None:
            numbers.restore(self._saved.arrays)

    def with_buffers(self, arrays: ArrayRecord, layout: ArrayLayout) -> ArrayRecord:
        """A model whose arrays outside the layout are those of the last round.

        Args:
            arrays: the initial model.
            layout: of the arrays that the state holds.
        """
        held = {} if self._saved is None else self._saved.arrays
        kept = {k: held[_MODEL + k] for k in arrays if k not in layout.names}
        return ArrayRecord(
            {**arrays, **{k: Array(np.array(a)) for k, a in kept.items()}}
        )

    def commit(
        self, record: RoundRecord, state: ServerState, more: Mapping[str, Any]
    ) -> None:
        """Add a round to the trace, then make its state the current one."""
        self._log.append([record])
        held = {**flatten(state), **more}
        self._log.save(Checkpoint(record.round, self._run, held, self._log.size))
