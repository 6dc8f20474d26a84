"""Exact weights behind the interface of torch's model averagers."""

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, final

import torch
from torch.distributed.algorithms.model_averaging.averagers import ModelAverager

from hewfl.core.algorithm import Algorithm
from hewfl.core.validation import invalid
from hewfl.torch.collectives import group_of
from hewfl.torch.job import Replica
from hewfl.torch.job_rule import DEFAULT, rule_of
from hewfl.torch.options import SyncOptions, SyncReport
from hewfl.torch.parameters import Members, mean_rate
from hewfl.torch.rendezvous import Work
from hewfl.torch.state_dicts import load_replica_state, replica_state
from hewfl.torch.sync import sync

_log = logging.getLogger("hewfl.torch")


@final
class HewAverager(ModelAverager):  # type: ignore[misc]  # torch is untyped to mypy here
    """Averages parameters periodically, with weights solved for.

    Takes the place of `PeriodicModelAverager`, alone or in `PostLocalSGDOptimizer`: the
    same period and warm-up. It needs the parameters from the start, because weights
    depend on how far each rank has moved; ranks take them from rank 0, frozen ones too.

        averager = HewAverager(model.parameters(), period=4, warmup_steps=100)
        optimizer = PostLocalSGDOptimizer(local_optimizer, averager)

    Rules with control variates need the gradients as well: `HewLocalSGD`.

    A rank whose model is not finite is given weight zero and goes on from the common
    model. Its optimiser is not known here: where momentum is not finite either, clear
    the optimiser's state, or the rank is lost again in every round. It is warned.

    Attributes:
        step: calls so far, as torch counts them.
        last: report of the last round, None before the first.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        period: int,
        warmup_steps: int = 0,
        process_group: Any = None,
        rule: str | Algorithm[Any] = DEFAULT,
        options: SyncOptions | None = None,
    ) -> None:
        """Prepare; a collective call.

        Args:
            params: of the model.
            period: calls between rounds.
            warmup_steps: calls before the first round, in which something else, such
                as DistributedDataParallel, keeps ranks equal.
            process_group: the ranks; all by default.
            rule: as in `HewLocalSGD`, without control variates.
            options: the rest.

        Raises:
            InvalidInputError: an argument breaks a rule.
            RankError: ranks are missing or disagree on model, rule or options.
        """
        if period < 1:
            raise invalid("period", "at least 1", period)
        if warmup_steps < 0:
            raise invalid("warmup_steps", "at least 0", warmup_steps)
        chosen, options = rule_of(rule, options)
        if options.overlap:
            text = "False: nothing tells an averager that the job ends"
            raise invalid("options.overlap", text, options.overlap)
        if options.server_step.line_search_samples is not None:
            text = "left out: no loop tells how to measure a loss (use HewLocalSGD)"
            raise invalid(
                "options.server_step.line_search_samples",
                text,
                options.server_step.line_search_samples,
            )
        if chosen.demands.variates:
            text = "one without control variates (use HewLocalSGD)"
            raise invalid("rule", text, rule)
        # Not ModelAverager.__init__, which would keep the process group alive.
        group = group_of(process_group)
        self.step, self.period, self.warmup_steps = 0, period, warmup_steps
        self._named = [(f"number {k}", p) for k, p in enumerate(params)]
        self._replica = Replica(Members(self._named), group, chosen, options)
        self._work = Work()
        self.last: SyncReport | None = None

    @property
    def process_group(self) -> Any:
        """The ranks."""
        return self._replica.wire.group

    def average_parameters(
        self,
        params: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
    ) -> None:
        """Count a step; average where a period ends, as `PeriodicModelAverager` does.

        Args:
            params: the model's parameters, or an optimiser's groups. Their learning
                rate is η, the mean over parameters where groups differ; without one
                all ranks' are taken to be equal.

        Raises:
            InvalidInputError: other parameters than at construction, or others of them
                require gradients.
            RankError: ranks are missing or disagree.
        """
        given = list(params)
        self._check(given)
        rate = mean_rate(given) if isinstance(given[0], dict) else 1.0
        if self.step < self.warmup_steps:
            if self.step == self.warmup_steps - 1:
                self._replica.model.take()
        else:
            self._work = self._work.after_step(rate)
            if (self.step - self.warmup_steps) % self.period == 0:
                report = sync(self._replica, self._work)
                self._work = Work()
                if report is not None:
                    self.last = report
                    self._warn_if_lost(report)
                    if self._replica.options.on_round is not None:
                        self._replica.options.on_round(report)
        self.step += 1

    def averaged(self) -> AbstractContextManager[None]:
        """Let the parameters hold the averaged model inside the block.

        As in `HewLocalSGD.averaged`; needs `SyncOptions(server_step=ServerStep(average=…))`.

        Returns:
            A context manager.

        Raises:
            InvalidInputError: the job keeps no average.
        """
        return self._replica.averaged()

    def state_dict(self) -> dict[str, Any]:
        """What to save on each rank, beside its model's and optimiser's states.

        The parameters are in it: construction gives all ranks those of rank 0.

        Returns:
            Plain numbers and tensors, copies of what the job goes on with.
        """
        return replica_state(self._replica, self._work) | {"step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called; load model and optimiser as well.

        In `PostLocalSGDOptimizer` load the local optimiser before it is wrapped: the
        wrapper keeps the parameter groups it was made with, and hands their learning
        rates on. If it is loaded later, follow it with
        `optimizer.param_groups = optimizer.optim.param_groups`.

        Args:
            state: of `state_dict`, of this rank or any other.

        Raises:
            DataError: the state belongs to another rank, model, rule or job size.
        """
        self._work = load_replica_state(self._replica, state)
        self.step = int(state["step"])

    def _warn_if_lost(self, report: SyncReport) -> None:
        rank = self._replica.wire.rank
        if rank in report.excluded:
            text = (
                "round %d: the model of rank %d was not finite and is replaced by the "
                "common one; HewAverager cannot drop the optimiser's state: clear it "
                "(optimizer.state.clear()) if it has momentum"
            )
            _log.warning(text, report.round, rank)

    def _check(self, given: list[Any]) -> None:
        self._replica.members.check(self._named)
        tensors = [
            tensor
            for item in given
            for tensor in (item["params"] if isinstance(item, dict) else [item])
        ]
        held = {id(tensor) for tensor in self._replica.model.parameters}
        if {id(tensor) for tensor in tensors if tensor.requires_grad} != held:
            rule = "the parameters given at construction"
            raise invalid("params", rule, f"{len(tensors)} tensors, others among them")
