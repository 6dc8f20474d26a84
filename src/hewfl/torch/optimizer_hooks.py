"""Hooks on optimisers: they count steps, and correct gradients by control variates."""

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
from hewfl.torch.rank_variates import require_correctable
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

    def register_hooks(
        self, job: Job | None, check: Callable[[], None], sync: Callable[[], Any]
    ) -> ExitStack:
        """Register hooks on all optimisers; closing the stack removes them.

        `check` requires the parameters of construction, `sync` does a round. Gradients
        are corrected by the control variates of the job, if there are any.
        """
        variates = None if job is None else job.variates

        def correct(optimizer: Any, args: Any, kwargs: Any) -> None:
            if self._has_stepped:  # the first of several corrects for all
                return
            assert job is not None
            assert variates is not None
            values = [value for value in args if value is not optimizer]
            require_correctable(self._groups, [*values, kwargs.get("closure")])
            check()
            if not variates.is_initialised:
                start_variates(job)
            variates.correct_gradients()  # Alg. 2, l. 6

        def count(optimizer: Any, *_: Any) -> None:
            if self._count(optimizer) and self._is_due:
                sync()

        stack, disable = ExitStack(), torch.compiler.disable
        # `torch.compile` of a training step runs them as they are.
        for optimizer in self._optimizers:
            if variates is not None:
                handle = optimizer.register_step_pre_hook(disable(correct))
                stack.callback(handle.remove)
            handle = optimizer.register_step_post_hook(disable(count))
            stack.callback(handle.remove)
        self._since = time.monotonic()
        return stack

    def _count(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this completes a step of all optimisers."""
        # A fused step with a gradient that is not finite does nothing; the flag is set
        # by torch.amp.GradScaler.
        found_inf = getattr(optimizer, "found_inf", None)
        has_skipped = found_inf is not None and float(found_inf) > 0
        self._has_stepped[id(optimizer)] = not has_skipped
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
        return [group for one in self._optimizers for group in one.param_groups]

    def add_tokens(self, tokens: int) -> None:
        """Add tokens to the work."""
        if tokens < 0:
            raise invalid("tokens", "at least 0", tokens)
        self.work = replace(self.work, tokens=self.work.tokens + int(tokens))


def check_sync_every(sync_every: Any) -> int | timedelta:
    """A positive number of steps, of any integer type, or a positive time."""
    every: int | timedelta = sync_every
    try:
        every = every if isinstance(every, timedelta) else operator.index(every)
    except TypeError:
        rule = "a number of steps or a timedelta"
        raise invalid("sync_every", rule, sync_every) from None
    if (every <= timedelta(0)) if isinstance(every, timedelta) else (every <= 0):
        raise invalid("sync_every", "positive", sync_every)
    return every


def list_optimizers(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
) -> list[torch.optim.Optimizer]:
    """Different optimisers, one or several, none of which `_REFUSED` names."""
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

    It is zero only if all rates are. Frozen parameters do not count. Optimisers that
    choose their own step size may have no learning rate: then it is one, on all ranks
    alike.
    """
    rates = [float(group.get("lr", 1.0)) for group in groups]
    sizes = [sum(p.numel() for p in g["params"] if p.requires_grad) for g in groups]
    pairs = [pair for pair in zip(rates, sizes, strict=True) if pair[1]]
    if len({rate for rate, _ in pairs}) < 2:  # no rounding
        return pairs[0][0] if pairs else 0.0
    mean: float = sum(rate * n for rate, n in pairs) / sum(n for _, n in pairs)
    return mean
