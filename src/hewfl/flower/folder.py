"""A Flower run on disk: kept after every round, gone on with, read by `hewfl report`.

    folder/spec.toml        the run as an experiment of one method and one seed
    folder/seed-<seed>/     trace.jsonl, checkpoint and, at the end, constants.json
    folder/times.json       at the end

`docs/experiments.md` says what of these a report needs. The checkpoint holds the model,
the method's state, the round, and the `repr` of the method: the same app started again
goes on, another method does not.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, final

import numpy as np
from flwr.app import Array, ArrayRecord

from hewfl.core.atomic import write_json
from hewfl.core.conversion import to_table
from hewfl.errors import DataError
from hewfl.server.checkpoint import Saved, flatten, load_checkpoint, unflatten
from hewfl.server.folder import RunLog, describe
from hewfl.server.state import Lane, ServerState
from hewfl.server.trace import RoundRecord
from hewfl.version import __version__

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
            return _model(saved)
    raise DataError(f"{folder} holds no run")


def _model(saved: Saved) -> ArrayRecord:
    names = saved.run["arrays"]
    return ArrayRecord({k: Array(np.array(saved.arrays[_MODEL + k])) for k in names})


def _told(value: Any) -> str:
    """How a method or a law shows itself, without its place in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


@final
class RunFolder:
    """Where one run is kept.

    Args:
        path: of the folder, made if it is new.
        lane: the method under its outer step.
        seed: of the run.
        arrays: a model like those of the run.
        facts: what else must be the same to go on.
    """

    def __init__(
        self,
        path: Path,
        lane: Lane,
        seed: int,
        arrays: ArrayRecord,
        facts: Mapping[str, Any],
    ) -> None:
        self._path, self._lane, self._seed = path, lane, seed
        self._place = path / f"seed-{seed}"
        self._run = {"algorithm": _told(lane.algorithm), "outer": repr(lane.outer)}
        self._run |= {key: _told(value) for key, value in facts.items()}
        self._run |= {"arrays": {k: [a.dtype, *a.shape] for k, a in arrays.items()}}
        self._log = RunLog(self._place)

    def describe(self, rounds: int, clients: Mapping[str, Any]) -> None:
        """Write the spec that `hewfl report` reads."""
        algorithm = self._lane.algorithm
        own = to_table(algorithm) if is_dataclass(algorithm) else {}
        own |= own.pop("bounds", {})  # of Algorithm 1; specs have them side by side
        own.pop("smoothness", None)  # in specs the data give it
        outer = to_table(self._lane.outer)
        outer = {"outer_step": outer.pop("step"), **outer}  # as specs call it
        method = {"method": type(algorithm).__name__, "label": algorithm.name}
        describe(
            self._path,
            self._path.name,
            {**method, **own, **outer},
            seed=self._seed,
            rounds=rounds,
            clients=clients,
        )

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

    def close(self, samples: Sequence[int], n: int, d: int, seconds: float) -> None:
        """Write constants and times of a finished run."""
        smoothness = getattr(self._lane.algorithm, "smoothness", None)
        known = {"smoothness": smoothness, "objective": None, "pooled": None}
        known |= {"n": n, "d": d, "samples": list(samples)}
        write_json(self._place / "constants.json", known)
        versions = {"hewfl": __version__, "flwr": metadata.version("flwr")}
        times = {"seconds": round(seconds, 1), **versions}
        write_json(self._path / "times.json", times)
