"""What is read from the user's optimiser, and what is asked of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hewfl.core.checks import invalid


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
