"""Steps of the user's optimisers, followed by hooks: counted, corrected, scaled."""

import operator
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, final

import torch

from hewfl.core.validation import invalid
from hewfl.torch.job import Replica
from hewfl.torch.parameters import (
    has_skipped,
    mean_rate,
    refuse_closure,
    refuse_scaled,
    require_one_rate,
)
from hewfl.torch.rendezvous import Work
from hewfl.torch.sync import start_variates


@final
class Steps:
    """This rank's local steps since the last round.

    Of several optimisers each moves a part of the model: a step is done when each has
    made one.

    Args:
        optimizers: whose steps.
        every: steps between rounds, or the time after which the step under way is the
            last.

    Attributes:
        work: done since the last round.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        every: int | timedelta,
    ) -> None:
        self._optimizers, self._every = optimizers, every
        self._done: dict[int, bool] = {}
        self._rates: dict[int, list[Any]] = {}
        self.forget()

    def forget(self, work: Work | None = None) -> None:
        """Start to count anew, or from work that was under way."""
        self.work, self._since = work or Work(), time.monotonic()

    def count(self, tokens: int) -> None:
        """Add tokens to the work."""
        self.work = replace(self.work, tokens=self.work.tokens + tokens)

    def followed(
        self, replica: Replica, check: Callable[[], None], sync: Callable[[], Any]
    ) -> ExitStack:
        """Hooks on all optimisers; they go when the stack is closed.

        Args:
            replica: of this rank.
            check: that the model still has the parameters it had.
            sync: holds a round.
        """

        def before(one: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if replica.options.server_step.line_search_samples is not None:
                self._scale(one, replica.scale)
            if replica.variates is not None:
                refuse_closure(one, args, kwargs)
                refuse_scaled(one)
                if not self._done:  # else corrected before the first of several
                    check()
                    self._correct(one, replica)

        def after(one: torch.optim.Optimizer, *_: Any) -> None:
            if self._counted(one) and self._is_due:
                sync()

        stack = ExitStack()
        for optimizer in self._optimizers:
            stack.callback(optimizer.register_step_pre_hook(before).remove)
            stack.callback(optimizer.register_step_post_hook(after).remove)
        self._since = time.monotonic()
        return stack

    def _correct(self, optimizer: torch.optim.Optimizer, replica: Replica) -> None:
        """Correct the gradients that the optimiser is about to use."""
        variates = replica.variates
        assert variates is not None
        if variates.is_plain:
            require_one_rate(self._groups)
        if not variates.started:
            start_variates(replica)
        if not variates.is_plain and not has_skipped(optimizer):
            variates.add()
        variates.correct()  # Alg. 2, l. 6

    def _counted(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a step is done now that every optimiser has made it."""
        self._done[id(optimizer)] = not has_skipped(optimizer)
        if len(self._done) < len(self._optimizers):
            return False
        rate = mean_rate(self._groups)
        for one in self._optimizers:
            self._restore(one)
        moved, self._done = any(self._done.values()), {}
        if moved:
            self.work = self.work.after_step(rate)
        return moved

    @property
    def _is_due(self) -> bool:
        if isinstance(self._every, int):
            return self.work.steps >= self._every
        return time.monotonic() - self._since >= self._every.total_seconds()

    def _scale(self, optimizer: torch.optim.Optimizer, scale: float) -> None:
        """Multiply learning rates for the time of a step: schedulers do not see it."""
        self._restore(optimizer)  # where the step before did not come to its end
        groups = optimizer.param_groups
        self._rates[id(optimizer)] = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * scale

    def _restore(self, optimizer: torch.optim.Optimizer) -> None:
        for group, rate in zip(
            optimizer.param_groups, self._rates.pop(id(optimizer), ()), strict=False
        ):
            group["lr"] = rate

    @property
    def _groups(self) -> list[Any]:
        """Parameter groups of all optimisers."""
        return [group for one in self._optimizers for group in one.param_groups]


def checked_every(sync_every: Any) -> int | timedelta:
    """A number of steps, of whatever kind of integer, or a time.

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
