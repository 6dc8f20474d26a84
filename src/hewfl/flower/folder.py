"""The model of a Flower run on disk (`hewfl.server.folder.KeptRun`).

folder/spec.toml        what the run is called
folder/seed-<seed>/     trace.jsonl and checkpoint, with the model as Flower sends it
"""

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from hewfl.errors import DataError
from hewfl.server.checkpoint import load_checkpoint

_MODEL = "model:"
"""Before the names of the arrays of the model."""


def load_model(folder: Path | str) -> ArrayRecord:
    """The model of a run kept in a folder, after its last round.

    With `Outer(average=…)` it is the averaged model.

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
