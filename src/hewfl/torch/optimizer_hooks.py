"""Hooks on optimisers: count steps, correct gradients, scale learning rates."""

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, final

import torch

from hewfl.core.validation import invalid
from hewfl.torch.job import Job
from hewfl.torch.rendezvous import RankWork
from hewfl.torch.sync import start_variates

_REFUSED = {
    "consolidate_state_dict": "one that updates all parameters of this rank "
    "(ZeroRedundancyOptimizer exchanges them in each step)",
    "eval": "one whose model is in the parameters alone (schedule-free optimisers keep "
    "a part in their state, which ranks do not share)",
}
"""Attributes of optimisers that cannot be served, and why."""


@final
class StepCounter:
    """This rank's local steps since the last round.

    Each of several optimisers updates a part of the model: a step is complete when each
    of them has made one.

    Args:
        optimizers: whose steps.
        every: steps between rounds, or the time after which the present step is the
            last.

    Attributes:
        work: done since the last round.
    """

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], every: int | timedelta
    ) -> None:
        self._optimizers, self._every = optimizers, every
        self._has_stepped: dict[int, bool] = {}
        self.reset()

    def reset(self) -> None:
        """Count from zero."""
        self.work, self._since = RankWork(), time.monotonic()

    def add_tokens(self, tokens: int) -> None:
        """Add tokens to the work."""
        self.work = replace(self.work, tokens=self.work.tokens + tokens)

    def register_hooks(
        self, job: Job, check: Callable[[], None], sync: Callable[[], Any]
    ) -> ExitStack:
        """Register hooks on all optimisers; closing the stack removes them.

        Args:
            job: of this rank.
            check: that the model still has the parameters of construction.
            sync: does a round.
        """

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if job.variates is not None:
                refuse_closure(optimizer, args, kwargs)
                refuse_scaled(optimizer)
                if not self._has_stepped:  # the first of several corrects for all
                    check()
                    self._correct_gradients(optimizer, job)

        def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            if self._count(optimizer) and self._is_due:
                sync()

        stack = ExitStack()
        # `torch.compile` of a training step runs them as they are.
        eager_before, eager_after = map(torch.compiler.disable, (before, after))
        for optimizer in self._optimizers:
            stack.callback(optimizer.register_step_pre_hook(eager_before).remove)
            stack.callback(optimizer.register_step_post_hook(eager_after).remove)
        self._since = time.monotonic()
        return stack

    def _correct_gradients(self, optimizer: torch.optim.Optimizer, job: Job) -> None:
        """Correct the gradients that the optimiser is about to use."""
        variates = job.variates
        assert variates is not None
        if variates.is_plain_sgd:
            require_one_rate(self._groups)
        if not variates.is_initialised:
            start_variates(job)
        if not variates.is_plain_sgd and not has_skipped(optimizer):
            variates.add_gradients()
        variates.correct_gradients()  # Alg. 2, l. 6

    def _count(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this completes a step of all optimisers."""
        self._has_stepped[id(optimizer)] = not has_skipped(optimizer)
        if len(self._has_stepped) < len(self._optimizers):
            return False
        rate = mean_rate(self._groups)
        has_moved, self._has_stepped = any(self._has_stepped.values()), {}
        if has_moved:
            self.work = self.work.after_step(rate)
        return has_moved

    @property
    def _is_due(self) -> bool:
        if isinstance(self._every, int):
            return self.work.steps >= self._every
        return time.monotonic() - self._since >= self._every.total_seconds()

    @property
    def _groups(self) -> list[Any]:
        """Parameter groups of all optimisers."""
        return [group for one in self._optimizers for group in one.param_groups]


def check_sync_every(sync_every: Any) -> int | timedelta:
    """A number of steps, of any integer type, or a time.

    Raises:
        InvalidInputError: it is neither, or not positive.
    """
    if isinstance(sync_every, timedelta):
        if sync_every <= timedelta(0):
            raise invalid("sync_every", "a positive time", sync_every)
        return sync_every
    try:
        steps = operator.index(sync_every)
    except TypeError:
        rule = "a number of steps or a timedelta"
        raise invalid("sync_every", rule, sync_every) from None
    if steps < 1:
        raise invalid("sync_every", "at least 1", sync_every)
    return steps


def list_optimizers(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
) -> list[torch.optim.Optimizer]:
    """One or several optimisers, as a list.

    Raises:
        InvalidInputError: something else is given, one of them twice, or one that
            `_REFUSED` names.
    """
    optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    for one in optimizers:
        if not hasattr(one, "register_step_post_hook"):
            raise invalid("optimizer", "a torch optimiser, or several", type(one))
        for sign, rule in _REFUSED.items():
            if hasattr(one, sign):
                raise invalid("optimizer", rule, type(one).__name__)
    if len({id(one) for one in optimizers}) < len(optimizers) or not optimizers:
        rule = "different optimisers, at least one"
        raise invalid("optimizer", rule, len(optimizers))
    return optimizers


def mean_rate(groups: Sequence[Mapping[str, Any]]) -> float:
    """The learning rate of a step: the mean over parameters, where groups differ.

    It is zero only if all rates are. Frozen parameters do not count.
    """
    pairs = _rates_and_sizes(groups)
    if len({rate for rate, _ in pairs}) < 2:  # no rounding
        return pairs[0][0] if pairs else 0.0
    return sum(rate * size for rate, size in pairs) / sum(size for _, size in pairs)


def require_one_rate(groups: Sequence[Mapping[str, Any]]) -> None:
    """Require one learning rate for all groups.

    Control variates take Δ_i/(η_iH_i) as a gradient: one η_i for all its entries.

    Raises:
        InvalidInputError: there are several.
    """
    rates = sorted({rate for rate, _ in _rates_and_sizes(groups)})
    if len(rates) > 1:
        raise invalid("lr", "the same in all groups with control variates", rates)


def _rates_and_sizes(groups: Sequence[Mapping[str, Any]]) -> list[tuple[float, int]]:
    """Learning rate and number of trainable parameters of each group that has any.

    Optimisers that choose their own step size may have no learning rate: then it is
    one, on all ranks alike.
    """
    sizes = [
        sum(p.numel() for p in group["params"] if p.requires_grad) for group in groups
    ]
    pairs = zip(groups, sizes, strict=True)
    return [(float(group.get("lr", 1.0)), size) for group, size in pairs if size]


def is_plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its steps are −η g: torch's SGD without momentum."""
    momenta = [group.get("momentum", 0) for group in optimizer.param_groups]
    return isinstance(optimizer, torch.optim.SGD) and not any(momenta)


def has_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a fused step had gradients that were not finite, and did nothing."""
    found_inf = getattr(optimizer, "found_inf", None)  # set by torch.amp.GradScaler
    return found_inf is not None and float(found_inf) > 0


def refuse_scaled(optimizer: torch.optim.Optimizer) -> None:
    """Refuse gradients that a fused optimiser unscales within the step.

    Raises:
        InvalidInputError: `torch.amp.GradScaler` has set a scale on the optimiser.
    """
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        rule = "unscaled before a step with control variates"
        rule += " (`scaler.unscale_(optimizer)`, or an optimiser that is not fused)"
        raise invalid("gradients", rule, f"a scale of {float(scale):g}")


def refuse_closure(
    optimizer: torch.optim.Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Refuse a closure: it would compute gradients after they are corrected.

    Args:
        optimizer: whose step.
        args: of its `step`, the optimiser itself included.
        kwargs: the rest of them.

    Raises:
        InvalidInputError: a closure is among them.
    """
    values = [value for value in args if value is not optimizer]
    for value in (*values, kwargs.get("closure")):
        if callable(value):
            rule = "absent with control variates, which correct gradients"
            raise invalid("closure", rule + " before `optimizer.step()`", value)
