"""Federated modules from arrays and a partition of their rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hewfl.aggregate.memory import to_host
from hewfl.core.checks import ArrayLike, invalid, shown
from hewfl.problems.arrays import check_pair, shards_of
from hewfl.problems.module.backend import torch
from hewfl.problems.module.network import Loss, cross_entropy
from hewfl.problems.module.requirements import check_device, check_norms, check_tensors
from hewfl.problems.module.torch_module import TorchModule
from hewfl.problems.module.training import Training


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

    Returns:
        The problem.

    Raises:
        InvalidInputError: rows, shapes, the module or the device break a rule.

    >>> X = np.arange(8, dtype=np.float32).reshape(4, 2)
    >>> layer = torch.nn.Linear(2, 3)
    >>> problem = torch_from_arrays(layer, X, [0, 1, 2, 1], [[0, 1], [2, 3]])
    >>> problem.n, problem.d
    (2, 9)
    """
    check_norms(module)
    check_device(device)
    features, labels = _tensors("", X, y, "cpu")
    check_tensors("", features, labels, normalise)
    shards = shards_of(partition, len(features))
    order = torch.tensor(np.concatenate(shards))
    sizes = np.array([len(rows) for rows in shards])
    return TorchModule(
        module,
        features[order].to(device),
        labels[order].to(device),
        offsets=np.cumsum(sizes) - sizes,
        data_sizes=sizes,
        loss=loss,
        parts={} if parts is None else _parts(parts, device),
        normalise=normalise,
        training=Training() if training is None else training,
    )


def _tensors(kind: str, X: Any, y: Any, device: Any) -> tuple[Any, Any]:
    """Tensors of their own, there; whole numbers among the labels as int64."""
    features = _tensor(f"{kind}features", X, device)
    labels = _tensor(f"{kind}labels", y, device)
    return features, labels if labels.is_floating_point() else labels.long()


def _tensor(name: str, array: Any, device: Any) -> Any:
    try:
        return torch.tensor(to_host(array), device=device)
    except (TypeError, ValueError, AttributeError) as error:  # texts; ragged; no array
        raise invalid(name, "an array of numbers", shown(array)) from error


def _parts(given: object, device: Any) -> dict[str, tuple[Any, Any]]:
    if not isinstance(given, Mapping):
        rule = "features and labels by name"
        raise invalid("parts", rule, type(given).__name__)
    found = {}
    for name, part in given.items():
        check_pair(f"parts[{name!r}]", part)
        found[name] = _tensors(f"{name} ", part[0], part[1], device)
    return found
