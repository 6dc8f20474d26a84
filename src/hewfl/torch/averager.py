"""Aggregation weights behind the interface of torch's model averagers."""

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, final

import torch
from torch.distributed.algorithms.model_averaging.averagers import ModelAverager

from hewfl.core.validation import invalid
from hewfl.torch.collectives import plain_group
from hewfl.torch.job import DEFAULT, Choice, Job, choose_method
from hewfl.torch.optimizer_hooks import mean_rate
from hewfl.torch.parameters import SharedParameters
from hewfl.torch.rendezvous import RankWork
from hewfl.torch.state_dicts import job_state, load_job_state
from hewfl.torch.sync import sync
from hewfl.torch.sync_options import SyncOptions, SyncReport

_log = logging.getLogger("hewfl.torch")
_EXCLUDED = (
    "round %d: the model of rank %d was not finite and is replaced by the common one; "
    "HewAverager cannot clear the optimiser's state: clear it (optimizer.state.clear())"
    " if it has momentum"
)


@final
class HewAverager(ModelAverager):  # type: ignore[misc]  # torch is untyped to mypy here
    """Averages parameters periodically, with computed weights.

    Replaces `PeriodicModelAverager`, alone or in `PostLocalSGDOptimizer`: the same
    period and warm-up. It needs the parameters from the start, because weights depend
    on how far each rank has moved; ranks take them from rank 0, frozen ones too.

        averager = HewAverager(model.parameters(), period=4, warmup_steps=100)
        optimizer = PostLocalSGDOptimizer(local_optimizer, averager)

    Control variates need the gradients as well: use `HewLocalSGD`.

    A rank whose model is not finite gets weight zero and continues from the common
    model. The averager does not have its optimiser: where momentum is not finite
    either, clear the optimiser's state, or the rank is lost again in every round. The
    log warns of it.

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
        aggregator: Choice = DEFAULT,
        options: SyncOptions | None = None,
    ) -> None:
        """Construct on all ranks: a collective call.

        Args:
            params: of the model.
            period: calls between rounds.
            warmup_steps: calls before the first round, in which something else, such as
                DistributedDataParallel, keeps ranks equal.
            process_group: the ranks; all by default.
            aggregator: as in `HewLocalSGD`, one that needs no sizes and has no control
                variates.
            options: all other options.

        Raises:
            InvalidInputError: an argument is invalid.
            RankError: ranks are missing or disagree on model, aggregator or options.
        """
        if period < 1:
            raise invalid("period", "at least 1", period)
        if warmup_steps < 0:
            raise invalid("warmup_steps", "at least 0", warmup_steps)
        algorithm, options = choose_method(aggregator, options)
        if options.overlap:
            text = "False: an averager does not see the end of the job"
            raise invalid("options.overlap", text, options.overlap)
        if algorithm.demands.variates or "sizes" in algorithm.demands.needs:
            text = "one without control variates that needs no sizes (use HewLocalSGD)"
            raise invalid("aggregator", text, algorithm.name)
        # Not ModelAverager.__init__, which would keep the process group alive.
        group = plain_group(process_group)
        self.step, self.period, self.warmup_steps = 0, period, warmup_steps
        self._named = [(f"number {k}", p) for k, p in enumerate(params)]
        self._job = Job(SharedParameters(self._named), group, algorithm, options)
        self._work = RankWork()
        self.last: SyncReport | None = None

    @property
    def process_group(self) -> Any:
        """The ranks."""
        return self._job.comm.group

    def average_parameters(
        self,
        params: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
    ) -> None:
        """Count a step; average where a period ends, as `PeriodicModelAverager` does.

        Call it before a scheduler's step: at a learning rate of zero a rank is idle.

        Args:
            params: the model's parameters, or an optimiser's groups. Their learning
                rate is η, the mean over parameters where groups differ; without one all
                ranks' rates are taken to be equal.

        Raises:
            InvalidInputError: other parameters than at construction, or others of them
                require gradients.
            RankError: ranks are missing or disagree.
        """
        items = list(params)
        self._check(items)
        rate = mean_rate(items) if isinstance(items[0], dict) else 1.0
        if self.step < self.warmup_steps:
            if self.step == self.warmup_steps - 1:
                self._job.model.set_anchor()
        else:
            self._work = self._work.after_step(rate)
            if (self.step - self.warmup_steps) % self.period == 0:
                report = sync(self._job, self._work)
                self._work = RankWork()
                if report is not None:
                    self.last = report
                    if self._job.comm.rank in report.excluded:
                        _log.warning(_EXCLUDED, report.round, self._job.comm.rank)
                    if self._job.options.on_round is not None:
                        self._job.options.on_round(report)
        self.step += 1

    def averaged_model(self) -> AbstractContextManager[None]:
        """Set the parameters to the averaged model: see `HewLocalSGD.averaged_model`.

        Returns:
            A context manager.

        Raises:
            InvalidInputError: the job has no average.
        """
        return self._job.averaged_model()

    def state_dict(self) -> dict[str, Any]:
        """What to save on each rank, besides its model's and optimiser's states.

        The parameters are in it: construction gives all ranks those of rank 0.

        Returns:
            Plain numbers and tensors, as copies.
        """
        return job_state(self._job, self._work) | {"step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called; load model and optimiser as well.

        In `PostLocalSGDOptimizer` load the local optimiser before it is wrapped: the
        wrapper keeps the parameter groups of its construction, and passes their
        learning rates on. If the optimiser is loaded later, set
        `optimizer.param_groups = optimizer.optim.param_groups` afterwards.

        Args:
            state: of `state_dict`, of this rank or any other.

        Raises:
            DataError: the state is damaged, or of another format, model or server
                step.
        """
        self._work = load_job_state(self._job, state)
        self.step = int(state["step"])

    def _check(self, items: list[Any]) -> None:
        self._job.parameters.check(self._named)
        if len(items) == len(self._named) and all(
            item is p for item, (_, p) in zip(items, self._named, strict=True)
        ):
            return
        tensors: list[Any] = []
        for item in items:
            tensors += item["params"] if isinstance(item, dict) else [item]
        expected = {id(tensor) for tensor in self._job.parameters.trainable.values()}
        if {id(tensor) for tensor in tensors if tensor.requires_grad} != expected:
            rule = "the parameters given at construction"
            raise invalid("params", rule, f"{len(tensors)} tensors, others among them")
