"""Losses, hits and exact gradients of a module over whole sets of samples."""

from dataclasses import dataclass
from typing import Any, final

from hewfl.core.array_types import Bool, Float, Float64
from hewfl.core.validation import Array, Mask
from hewfl.problems.module.network import Network, torch
from hewfl.problems.module.training import Task, as_inputs

BLOCK, DEVICE_BLOCK = 2**22, 2**28
"""Numbers that a block of samples keeps in a forward pass: in cache, and on a GPU."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What models make of samples.

    Attributes:
        losses: of each lane and sample, without penalty.
        hits: whether the largest output is the label; None where labels are no classes.
    """

    losses: Float64[Array, "lanes m"]
    hits: Bool[Mask, "lanes m"] | None


def scores(
    task: Task, anchors: Float[Any, "lanes d"], features: Any, labels: Any
) -> Scores:
    """Losses and hits of all samples under all models, in evaluation mode.

    Args:
        task: the network, and how features are normalised.
        anchors: models, one per lane.
        features: of the samples; taken in blocks, so that memory is bounded.
        labels: of the samples.
    """
    losses, hits = [], []
    is_classified = labels.ndim == 1 and not labels.is_floating_point()
    with torch.no_grad():
        for at in _blocks(task, len(anchors), features.shape[0]):
            inputs = as_inputs(features[at], task.normalise, anchors.dtype)
            outputs = _outputs(task.network, anchors, inputs)
            found = [task.network.loss(each, labels[at]) for each in outputs]
            losses.append(torch.stack(found).double().cpu())
            if is_classified and outputs.ndim == 3:
                hits.append((outputs.argmax(dim=2) == labels[at]).cpu())
    every = torch.cat(hits, dim=1).numpy() if hits else None
    return Scores(torch.cat(losses, dim=1).numpy(), every)


def _outputs(network: Network, anchors: Float[Any, "lanes d"], inputs: Any) -> Any:
    """(lanes, b, …): one product for all lanes on a GPU, lane by lane elsewhere."""
    if anchors.device.type == "cpu" or len(anchors) == 1:
        return torch.stack([network.outputs(x, inputs) for x in anchors])
    return torch.func.vmap(lambda x: network.outputs(x, inputs))(anchors)


def mean_gradient(task: Task, x: Float[Any, " d"], rows: slice) -> Float[Any, " d"]:
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


def _blocks(task: Task, lanes: int, m: int) -> list[slice]:
    limit = BLOCK if task.features.device.type == "cpu" else DEVICE_BLOCK
    rows = max(1, limit // (lanes * task.footprint))
    return [slice(lo, min(lo + rows, m)) for lo in range(0, m, rows)]
