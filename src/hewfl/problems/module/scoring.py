"""Losses, hits and exact gradients of a module over whole sets of samples."""

from dataclasses import dataclass
from typing import Any, final

from hewfl.core.array_types import Bool, Float, Float64
from hewfl.core.validation import Array, Mask
from hewfl.problems.module.network import Network, torch
from hewfl.problems.module.training import LocalTask, as_inputs

BLOCK, DEVICE_BLOCK = 2**22, 2**28
"""Numbers that a block of samples stores in a forward pass: in cache, and on a GPU."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Losses and hits of models on samples.

    Attributes:
        losses: of each model and sample, without penalty.
        hits: whether the largest output is the label; None where labels are no classes.
    """

    losses: Float64[Array, "models m"]
    hits: Bool[Mask, "models m"] | None


def scores(
    task: LocalTask, anchors: Float[Any, "models d"], features: Any, labels: Any
) -> Scores:
    """Losses and hits of all samples under all models, in evaluation mode.

    Args:
        task: the network and the normalisation.
        anchors: models, one per row.
        features: of the samples; taken in blocks to bound memory.
        labels: of the samples.
    """
    losses, hits = [], []
    is_classified = labels.ndim == 1 and not labels.is_floating_point()
    with torch.no_grad():
        for at in _blocks(task, len(anchors), features.shape[0]):
            inputs = as_inputs(features[at], task.normalise, anchors.dtype)
            outputs = _outputs(task.network, anchors, inputs)
            each = [task.network.loss(output, labels[at]) for output in outputs]
            losses.append(torch.stack(each).double().cpu())
            if is_classified and outputs.ndim == 3:
                hits.append((outputs.argmax(dim=2) == labels[at]).cpu())
    all_hits = torch.cat(hits, dim=1).numpy() if hits else None
    return Scores(torch.cat(losses, dim=1).numpy(), all_hits)


def _outputs(network: Network, anchors: Float[Any, "models d"], inputs: Any) -> Any:
    """(models, b, …): one product for all models on a GPU, model by model elsewhere."""
    if anchors.device.type == "cpu" or len(anchors) == 1:
        return torch.stack([network.outputs(x, inputs) for x in anchors])
    return torch.func.vmap(lambda x: network.outputs(x, inputs))(anchors)


def mean_gradient(
    task: LocalTask, x: Float[Any, " d"], rows: slice
) -> Float[Any, " d"]:
    """∇ of the mean loss over a range of samples, in evaluation mode, not clipped."""
    total, count = torch.zeros_like(x), rows.stop - rows.start
    for at in _blocks(task, 1, count):
        here = slice(rows.start + at.start, rows.start + at.stop)
        point = x.detach().requires_grad_()
        inputs = as_inputs(task.features[here], task.normalise, x.dtype)
        outputs = task.network.outputs(point, inputs)
        loss = task.network.loss(outputs, task.labels[here]).sum()
        total += torch.autograd.grad(loss, point, materialize_grads=True)[0]
    return total / count


def _blocks(task: LocalTask, models: int, m: int) -> list[slice]:
    limit = BLOCK if task.features.device.type == "cpu" else DEVICE_BLOCK
    rows = max(1, limit // (models * task.footprint))
    return [slice(lo, min(lo + rows, m)) for lo in range(0, m, rows)]
