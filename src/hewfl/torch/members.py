"""Which parameters ranks share: fixed at construction, and checked."""

from collections.abc import Iterable, Sequence
from typing import Any, final

import torch

from hewfl.core.checks import invalid
from hewfl.torch.layout import is_spread


@final
class Members:
    """The parameters of a model by name, as they were at construction.

    Attributes:
        shared: those that require gradients, in order.
        frozen: the others, but for those that torch has spread over ranks.
    """

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        given = dict(named)
        self.shared = {name: p for name, p in given.items() if p.requires_grad}
        self.frozen = [
            p
            for p in given.values()
            if not (p.requires_grad or is_spread(p)) and p.numel()
        ]
        self._forms = [form_of(p) for p in self.shared.values()]

    def check(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """That the same ones require gradients, in the same form.

        Raises:
            InvalidInputError: they do not; the first is named.
        """
        now = {name: p for name, p in named if p.requires_grad}
        rule = "those that required gradients at construction (make a new one else)"
        for name in [*self.shared, *now]:
            if now.get(name) is not self.shared.get(name):
                raise invalid("parameters", rule, f"{name}, {self._change(name, now)}")
        for (name, p), form in zip(self.shared.items(), self._forms, strict=True):
            if form_of(p) != form:
                got = f"{form_of(p)} for {name}, not {form}"
                raise invalid("parameters", "of the form they had at construction", got)

    def check_optimizers(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """That they move what is shared, all of it and nothing else.

        Raises:
            InvalidInputError: they do not; the first difference is named.
        """
        moved = {
            id(p): f"parameter {k} of its group {g}"
            for optimizer in optimizers
            for g, group in enumerate(optimizer.param_groups)
            for k, p in enumerate(group["params"])
            if p.requires_grad
        }
        for name, p in self.shared.items():
            if moved.pop(id(p), None) is None:
                rule = "one of all parameters that require gradients (freeze the others"
                rule += " with `requires_grad_(False)`)"
                raise invalid("optimizer", rule, f"one without {name}")
        for place in moved.values():
            raise invalid("optimizer", "one of the model's parameters", place)

    def _change(self, name: str, now: dict[str, torch.Tensor]) -> str:
        if name not in now:
            return "which does not any more"
        if name not in self.shared:
            return "which did not"
        return "which is another tensor now"


def form_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Precision, shape and order in memory."""
    return str(tensor.dtype), tuple(tensor.shape), tensor.stride()
