"""Local SGD with aggregation weights, around an existing training loop."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, SupportsFloat, SupportsIndex, final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hewfl.core.validation import invalid
from hewfl.torch.collectives import join_words, plain_group
from hewfl.torch.job import DEFAULT, Choice, Job, choose_method
from hewfl.torch.optimizer_hooks import StepCounter, check_sync_every, list_optimizers
from hewfl.torch.parameters import SharedParameters
from hewfl.torch.rank_variates import require_plain_sgd
from hewfl.torch.shared_model import is_finite
from hewfl.torch.state_dicts import job_state, load_job_state
from hewfl.torch.sync import apply_pending, sync
from hewfl.torch.sync_options import RootLoss, SyncOptions, SyncReport

_log = logging.getLogger("hewfl.torch")


@final
class HewLocalSGD:
    """Local steps on every rank; every few steps a round aggregates them.

        with HewLocalSGD(model, optimizer, sync_every=8) as local:
            for batch in loader:
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()  # a round follows every eighth step

    All ranks start from rank 0's parameters, frozen ones included. Ranks may differ in
    `sync_every`: they exchange their step counts. A rank whose loop ends before the
    others' adds its steps to their next round, and takes part in later rounds with
    weight zero until all have left the block. Buffers, such as running means, stay
    local. DistributedDataParallel modules over the same ranks neither average gradients
    nor copy buffers inside the block.

    Which parameters require gradients is fixed at construction; the optimiser must
    update all of them and nothing else. Each of several optimisers updates a part, and
    a step is complete when each has made one. Parameters may be sharded, by
    `fully_shard` over one dimension of a mesh: each replica counts as one rank, and all
    its ranks make the same steps.

    Control variates correct the gradients that `optimizer.step()` uses, of plain SGD
    with one learning rate: the first step of all ranks is a rendezvous, which a rank
    may miss only by leaving the block.

    A rank whose model is not finite gets weight zero, continues from the common model,
    and its optimiser's state is cleared. Buffers that are not finite stay so.

    Attributes:
        last: report of the last round, None before the first.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        sync_every: SupportsIndex | timedelta,
        aggregator: Choice = DEFAULT,
        process_group: Any = None,
        options: SyncOptions | None = None,
    ) -> None:
        """Construct on all ranks: a collective call.

        Args:
            model: plain or DistributedDataParallel.
            optimizer: of its parameters that require gradients, or several, each of a
                part. η is the learning rate, the mean over parameters where groups
                differ, and one where an optimiser has none.
            sync_every: this rank's steps between rounds, or the time after which the
                present step is its last.
            aggregator: a name of `hewfl.aggregators.NAMES`, an aggregator, or a method;
                local steps are those of the optimiser. The default,
                `Sieve(tolerance=0.2, by="equal", per_step=True)`, gives equal weights
                to ranks that agree with the others.
            process_group: the ranks; all by default. Where parameters are sharded, the
                ranks with the same shard: `mesh["replicate"].get_group()`.
            options: all other options.

        Raises:
            InvalidInputError: an argument is invalid.
            RankError: ranks are missing or disagree on model, aggregator or options.
        """
        every = check_sync_every(sync_every)
        algorithm, options = choose_method(aggregator, options)
        self._model, self._optimizers = model, list_optimizers(optimizer)
        parameters = SharedParameters(model.named_parameters())
        parameters.check_optimizers(self._optimizers)
        if algorithm.demands.variates:
            require_plain_sgd(self._optimizers)
        self._job = Job(parameters, plain_group(process_group), algorithm, options)
        if self._job.shards.count > 1 and isinstance(every, timedelta):
            rule = "a number of steps, where parameters are sharded"
            raise invalid("sync_every", rule, sync_every)
        self._steps = StepCounter(self._optimizers, every)
        self._hooks: ExitStack | None = None
        self.last: SyncReport | None = None

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return self._job.rounds

    @property
    def bytes_sent(self) -> int:
        """Sent by this rank so far, the first copy of the model included."""
        return self._job.comm.bytes_sent

    def add_tokens(self, tokens: int) -> None:
        """Add to the tokens, or samples, behind this rank's displacement.

        Args:
            tokens: processed since the last call.

        Raises:
            InvalidInputError: `tokens` is negative.
        """
        self._steps.add_tokens(tokens)

    def sync(self) -> SyncReport | None:
        """Aggregate now; all ranks must.

        Returns:
            The report of the round, None if no rank has done a step.

        Raises:
            InvalidInputError: other parameters require gradients than at construction.
            RankError: ranks are missing or disagree, no model would be finite, or
                parameters moved though no step of the optimisers was counted.
        """
        self._check_parameters()
        report = sync(self._job, self._steps.work)
        self._steps.reset()
        if report is not None:
            self.last = report
            if self._job.comm.rank in report.excluded:
                for optimizer in self._optimizers:
                    optimizer.state.clear()
                _warn_of_buffers(self._model)
            if self._job.options.on_round is not None:
                self._job.options.on_round(report)
        return report

    def set_root(self, loss: RootLoss) -> None:
        """Set the loss on samples that rank 0 trusts, for a root gradient.

            if dist.get_rank() == 0:
                local.set_root(lambda: loss_of(model, trusted_batch))

        For aggregators that need one, such as `ExactWeights("root")`. In each round
        rank 0 sends the gradient of this loss at the common model to all. It comes from
        one place because the others' data are what it judges. The function is not
        called on other ranks. Switch dropout and batch normalisation to evaluation mode
        inside.

        Args:
            loss: computes the loss at the present parameters, with gradients.

        Raises:
            InvalidInputError: it is not callable.
        """
        if not callable(loss):
            raise invalid("loss", "a function", loss)
        self._job.root = loss

    def log_metrics(self, **metrics: SupportsFloat) -> None:
        """Add numbers to the trace of the last round; see `SyncOptions.folder`.

        Those of the first rank count. `local.log_metrics(objective=0.31, accuracy=0.9)`
        logs an objective and a metric: `objective` and `pooled` have these meanings in
        reports, all others are metrics.

        Args:
            **metrics: numbers by name.
        """
        if self._job.trace is not None:
            self._job.trace.log_metrics(metrics)

    @contextmanager
    def averaged_model(self) -> Iterator[None]:
        """Set the parameters to the averaged model inside the block.

            with local.averaged_model():
                validate(model)
                torch.save(model.state_dict(), "averaged.pt")

        Needs `SyncOptions(server_step=ServerStep(average=…))`. Afterwards the
        parameters are restored, steps since the last round included; do not train
        inside.

        Raises:
            InvalidInputError: the job has no average.
        """
        model, server_step = self._job.model, self._job.options.server_step
        if not model.average:  # every rank has the whole average
            rule = 'one with an average, such as ServerStep(average="ema")'
            raise invalid("options.server_step", rule, repr(server_step))
        self._reshard()
        with model.borrow_parameters(model.average):
            try:
                yield
            finally:
                self._reshard()

    def _reshard(self) -> None:
        """Drop whole parameters that FSDP keeps after a forward: shards are changed."""
        if self._job.shards.count > 1:
            for module in self._model.modules():
                if hasattr(module, "reshard"):
                    module.reshard()

    def state_dict(self) -> dict[str, Any]:
        """What to save on each rank, besides its model's and optimiser's states.

        The parameters are in it: construction gives all ranks those of rank 0. With
        `overlap` a pending sum is applied first: call on all ranks at the same step; a
        resumed run equals one that saved there, and not one that did not.

        Returns:
            Plain numbers and tensors, as copies.
        """
        return job_state(self._job, self._steps.work)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called; load model and optimiser as well.

        Both may be loaded before or after construction. A state of another rank, of a
        job with more or fewer ranks, or with another aggregator gives what all ranks
        share: the common model, the server step's memory, the server's control variate.

        Args:
            state: of `state_dict`, of this rank or any other.

        Raises:
            DataError: the state is damaged, or of another format, model or server
                step; nothing has changed then.
        """
        self._reshard()
        self._steps.work = load_job_state(self._job, state)

    def discard_local_steps(self) -> None:
        """Return to the common model, without the steps since the last round."""
        self._reshard()
        self._job.model.set_parameters()
        self._steps.reset()

    def detach(self) -> None:
        """Remove the hooks from the optimiser, without a last round."""
        if self._hooks is not None:
            self._hooks.close()
            self._hooks = None

    def __enter__(self) -> "HewLocalSGD":
        """Register hooks on the optimiser; twice would count steps twice."""
        if self._hooks is not None:
            raise invalid("with", "entered once at a time", "a second time")
        self._hooks = self._steps.register_hooks(
            self._job, self._check_parameters, self.sync
        )
        for module in _ddp_modules(self._model, self._job.comm.group):
            self._hooks.enter_context(_without_ddp_sync(module))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Aggregate the remaining steps, unless an error leaves the block.

        Then take part in the rounds of ranks whose loops have not ended, as
        `torch.distributed.algorithms.Join` does.
        """
        self.detach()
        if error is not None:
            return
        while True:
            self._steps.work = replace(self._steps.work, leaving=True)
            self.sync()
            if self._job.is_over:
                break
        if self._job.options.overlap:
            apply_pending(self._job)

    def _check_parameters(self) -> None:
        self._reshard()
        self._job.parameters.check(self._model.named_parameters())


def _warn_of_buffers(model: torch.nn.Module) -> None:
    """Log the buffers that are not finite: nothing replaces them."""
    floating = [pair for pair in model.named_buffers() if pair[1].is_floating_point()]
    lost = [name for name, buffer in floating if not is_finite(buffer)]
    if lost:
        text = "buffers that are not finite stay so until they are reset: %s"
        _log.warning(text, join_words(lost))


def _ddp_modules(model: torch.nn.Module, group: Any) -> list[Any]:
    """DDP modules anywhere in the model that average over just the ranks of a group."""
    ranks = dist.get_process_group_ranks
    return [
        module
        for module in model.modules()
        if isinstance(module, DistributedDataParallel)
        and set(ranks(module.process_group)) == set(ranks(group))
    ]


@contextmanager
def _without_ddp_sync(module: Any) -> Iterator[None]:
    """No collective in forward and backward.

    `no_sync` leaves one broadcast of buffers to the first forward, which would wait for
    a rank that does no step: the flag that requests it is cleared as well, as torch
    itself does from the second forward on.
    """
    pending = module.require_forward_param_sync
    with module.no_sync():
        module.require_forward_param_sync = False
        try:
            yield
        finally:
            module.require_forward_param_sync = pending
