"""Federated modules from arrays and a partition of their rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hewfl.core.checks import ArrayLike, invalid
from hewfl.core.displacements import to_host
from hewfl.problems.torch_backend import torch
from hewfl.problems.torch_checks import check_tensors
from hewfl.problems.torch_module import TorchModule
from hewfl.problems.torch_training import Loss, Training, cross_entropy


def torch_from_arrays(  # noqa: PLR0913 - the public door: all but four are optional
    module: Any,
    X: Any,
    y: Any,
    partition: Sequence[ArrayLike],
    *,
    parts: Mapping[str, tuple[Any, Any]] | None = None,
    loss: Loss = cross_entropy,
    normalise: tuple[float, float] | None = None,
    training: Training | None = None,
    device: Any = "cpu",
) -> TorchModule:
    """The module trained by clients that hold given rows of X.

    Rows are copied client by client; a row in no shard is left out, a row in two is
    copied twice. Features keep their type, so that bytes and halves stay small.

    Args:
        module: see `TorchModule`.
        X: samples, shape (m, …); NumPy or torch.
        y: labels, shape (m, …).
        partition: rows of each client, nonempty.
        parts: features and labels to evaluate on, by name.
        loss: one number per sample, from outputs and labels.
        normalise: mean and deviation taken off features on the fly.
        training: settings of local training.
        device: where everything is to run, such as "cuda".

    Raises:
        InvalidInputError: rows, shapes, or the module break a rule.

    >>> X = np.arange(8, dtype=np.float32).reshape(4, 2)
    >>> layer = torch.nn.Linear(2, 3)
    >>> problem = torch_from_arrays(layer, X, [0, 1, 2, 1], [[0, 1], [2, 3]])
    >>> problem.n, problem.d
    (2, 9)
    """
    features, labels = _tensors(X, y, "cpu")
    check_tensors("", features, labels, normalise)
    shards = [_rows(i, rows, len(features)) for i, rows in enumerate(partition)]
    if not shards:
        raise invalid("partition", "one list of rows per client", "an empty one")
    order, sizes = torch.cat(shards), np.array([len(rows) for rows in shards])
    return TorchModule(
        module,
        features[order].to(device),
        labels[order].to(device),
        offsets=np.cumsum(sizes) - sizes,
        data_sizes=sizes,
        loss=loss,
        parts={k: _tensors(*part, device) for k, part in (parts or {}).items()},
        normalise=normalise,
        training=Training() if training is None else training,
    )


def _tensors(X: Any, y: Any, device: Any) -> tuple[Any, Any]:
    """Tensors of their own, there; whole numbers among the labels as int64."""
    features, labels = (torch.tensor(to_host(array), device=device) for array in (X, y))
    return features, labels if labels.is_floating_point() else labels.long()


def _rows(client: int, rows: ArrayLike, m: int) -> Any:
    name, found = f"partition[{client}]", np.asarray(rows)
    if found.ndim != 1 or len(found) == 0 or found.dtype.kind not in "iu":
        raise invalid(name, "a nonempty vector of rows", repr(rows)[:80])
    if found.min() < 0 or found.max() >= m:
        bad = found[(found < 0) | (found >= m)][0]
        raise invalid(name, f"rows from 0 to {m - 1}", bad)
    return torch.tensor(found.astype(np.int64))
