"""The objective of a torch model, for clients whose branch a server orders."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hewfl.core.local_branch import ClientObjective, StepContext
from hewfl.core.validation import invalid
from hewfl.errors import MissingExtraError

try:
    import torch
except ImportError as error:
    text = "a torch client needs PyTorch: install hewfl's extra torch"
    raise MissingExtraError(text) from error


def torch_objective(
    model: torch.nn.Module,
    loss: Callable[[torch.nn.Module, StepContext], torch.Tensor],
    *,
    examples: int,
    batch_size: int = 1,
) -> ClientObjective:
    """A client that trains a torch model, on the device the model is on.

    The vector is the model's state dict, its tensors of real numbers in order. Those
    that are not trained, such as running means, move as the forward passes move them.

    Args:
        model: as sent: the server starts from `ArrayRecord(model.state_dict())`.
        loss: of a minibatch of the client's data, a scalar tensor; the moment says
            which, if draws are to be repeatable.
        examples: samples held.
        batch_size: samples of a minibatch.
    """
    state = model.state_dict(keep_vars=True)
    tensors = [tensor for tensor in state.values() if tensor.is_floating_point()]
    trained = [p for p in dict.fromkeys(tensors) if p.requires_grad]

    sizes = [tensor.numel() for tensor in tensors]

    def load(vector: torch.Tensor, moment: StepContext) -> None:
        if vector.numel() != sum(sizes):
            rule = f"a model of {vector.numel()} numbers, as received"
            raise invalid("model", rule, sum(sizes))
        with torch.no_grad():
            for tensor, part in zip(tensors, vector.split(sizes), strict=True):
                if tensor.requires_grad or moment.step == 0:  # a branch begins
                    tensor.copy_(part.view(tensor.shape))

    def gradient(vector: torch.Tensor, moment: StepContext) -> torch.Tensor:
        load(vector, moment)
        value = loss(model, moment)
        gradients = torch.autograd.grad(value, trained, allow_unused=True)
        by_tensor = dict(zip(map(id, trained), gradients, strict=True))
        parts = []
        for tensor in tensors:
            g = by_tensor.get(id(tensor))
            parts.append(torch.zeros_like(tensor) if g is None else g)
        return torch.cat([g.detach().reshape(-1).to(vector.dtype) for g in parts])

    def finish(vector: torch.Tensor) -> torch.Tensor:
        parts = [
            part if tensor.requires_grad else tensor.reshape(-1).to(vector.dtype)
            for tensor, part in zip(tensors, vector.split(sizes), strict=True)
        ]
        return torch.cat(parts)

    def lift(vector: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.array(vector)).to(tensors[0].device)

    def lower(vector: torch.Tensor) -> NDArray[Any]:
        return np.asarray(vector.detach().cpu())

    return ClientObjective(gradient, examples, batch_size, lift, lower, finish)
