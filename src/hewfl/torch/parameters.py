"""Which parameters ranks share: fixed at construction, and checked."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import torch

from hewfl.core.validation import invalid
from hewfl.torch.buckets import is_spread


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


# ------------------ What is read from the user's optimiser, and what is asked of it


def several(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
) -> list[torch.optim.Optimizer]:
    """One or several optimisers, as a list.

    Raises:
        InvalidInputError: something else is given, or one of them twice.
    """
    given = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    for one in given:
        if not hasattr(one, "register_step_post_hook"):
            raise invalid("optimizer", "a torch optimiser, or several", type(one))
    if len({id(one) for one in given}) < len(given) or not given:
        raise invalid("optimizer", "different optimisers, at least one", len(given))
    return given


def mean_rate(groups: Sequence[Mapping[str, Any]]) -> float:
    """The learning rate of a step: the mean over parameters, where groups differ.

    Zero only if nothing moves. Frozen parameters do not count.
    """
    pairs = _rates(groups)
    if len({rate for rate, _ in pairs}) < 2:  # no rounding
        return pairs[0][0] if pairs else 0.0
    return sum(rate * size for rate, size in pairs) / sum(size for _, size in pairs)


def require_one_rate(groups: Sequence[Mapping[str, Any]]) -> None:
    """That all groups have one learning rate.

    Control variates take Δ_i/(η_iH_i) for a gradient: one η_i for all its entries.

    Raises:
        InvalidInputError: they have several.
    """
    rates = sorted({rate for rate, _ in _rates(groups)})
    if len(rates) > 1:
        rule = "the same in all groups under a rule with control variates"
        raise invalid("lr", rule, rates)


def is_plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its steps are −η g: torch's SGD without momentum."""
    momenta = [group.get("momentum", 0) for group in optimizer.param_groups]
    return isinstance(optimizer, torch.optim.SGD) and not any(momenta)


def has_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a fused step found gradients that are not finite, and did nothing."""
    found = getattr(optimizer, "found_inf", None)  # set by torch.amp.GradScaler
    return found is not None and float(found) > 0


def refuse_scaled(optimizer: torch.optim.Optimizer) -> None:
    """That the gradients at hand are not multiples that the step itself divides.

    Raises:
        InvalidInputError: `torch.amp.GradScaler` left that to a fused optimiser.
    """
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        rule = "unscaled before a step under a rule with control variates"
        rule += " (`scaler.unscale_(optimizer)`, or an optimiser that is not fused)"
        raise invalid("gradients", rule, f"a scale of {float(scale):g}")


def refuse_closure(
    optimizer: torch.optim.Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """That a step uses the gradients at hand: a closure would form them anew.

    Args:
        optimizer: whose step.
        args: of its `step`, the optimiser itself included.
        kwargs: the rest of them.

    Raises:
        InvalidInputError: a closure is among them.
    """
    given = [value for value in args if value is not optimizer]
    for value in (*given, kwargs.get("closure")):
        if callable(value):
            rule = "absent under a rule with control variates, which correct gradients"
            raise invalid("closure", rule + " before `optimizer.step()`", value)


def _rates(groups: Sequence[Mapping[str, Any]]) -> list[tuple[float, int]]:
    """Learning rate and number of trainable parameters of the groups that have any.

    Optimisers that find their own step size may have none: then it is one, on all
    ranks alike.
    """
    sizes = [
        sum(p.numel() for p in group["params"] if p.requires_grad) for group in groups
    ]
    pairs = zip(groups, sizes, strict=True)
    return [(float(group.get("lr", 1.0)), size) for group, size in pairs if size]
