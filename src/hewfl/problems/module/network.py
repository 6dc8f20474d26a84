"""A module as a function of one flat vector of parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from jaxtyping import Float, Int

from hewfl.problems.module.backend import torch
from hewfl.problems.module.dropout import DropoutKey, with_keyed_dropout
from hewfl.problems.module.parameters import Layout, layout_of, unflatten

Loss = Callable[[Any, Any], Any]
"""One number per sample, from outputs and labels."""


def cross_entropy(outputs: Any, labels: Any) -> Any:
    """−log softmax(outputs) at the label, one number per sample."""
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A module as a function of one flat vector of parameters.

    Attributes:
        layout: of the vector.
        learner: a copy in training mode, its dropout keyed.
        scorer: a copy in evaluation mode.
        key: what the learner's dropout layers share.
        loss: one number per sample, from outputs and labels.
        dtype: of all parameters and real buffers.
    """

    layout: Layout
    learner: Any
    scorer: Any
    key: DropoutKey
    loss: Loss
    dtype: Any

    def losses(
        self, x: Float[Any, " d"], inputs: Any, labels: Any, key: Int[Any, ""]
    ) -> Any:
        """The loss of each sample in training mode."""
        parameters = unflatten(self.layout, x)
        with self.key.set_to(key):
            outputs = torch.func.functional_call(self.learner, parameters, (inputs,))
        return self.loss(outputs, labels)

    def place(self, x: Float[Any, " d"]) -> list[Any]:
        """Let the learner's parameters be x, in the same memory.

        From then on `placed_losses` are those at x, whatever x becomes. It saves the
        exchange of parameters at every step, which `losses` pays.

        Returns:
            The parameters, to take derivatives in.
        """
        leaves = [p for p in self.learner.parameters() if p.requires_grad]
        for leaf, part in zip(leaves, unflatten(self.layout, x).values(), strict=True):
            leaf.data = part
        return leaves

    def placed_losses(self, inputs: Any, labels: Any, key: Int[Any, ""]) -> Any:
        """The loss of each sample in training mode at the vector placed last."""
        with self.key.set_to(key):
            outputs = self.learner(inputs)
        return self.loss(outputs, labels)

    def outputs(self, x: Float[Any, " d"], inputs: Any) -> Any:
        """What the module answers in evaluation mode."""
        parameters = unflatten(self.layout, x)
        return torch.func.functional_call(self.scorer, parameters, (inputs,))


def network_of(module: Any, loss: Loss, device: Any, dtype: Any) -> Network:
    """A module as a network: copies of it in training mode and in evaluation mode.

    Args:
        module: left as it is.
        loss: one number per sample, from outputs and labels.
        device: where the copies go.
        dtype: of all their parameters and real buffers.
    """
    learner, key = with_keyed_dropout(module)
    learner.to(device=device, dtype=dtype).train()
    scorer, _ = with_keyed_dropout(module)
    scorer.to(device=device, dtype=dtype).eval()
    return Network(layout_of(learner), learner, scorer, key, loss, dtype)
