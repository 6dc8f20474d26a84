"""Local SGD with aggregation weights, around an existing training loop."""

import logging
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, SupportsFloat, SupportsIndex, final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hewfl.core.validation import invalid
from hewfl.torch.collectives import RankError, join_words, plain_group
from hewfl.torch.job import DEFAULT, Choice, Job, choose_method
from hewfl.torch.optimizer_hooks import StepCounter, check_sync_every, list_optimizers
from hewfl.torch.parameters import SharedParameters
from hewfl.torch.rank_variates import require_plain_sgd
from hewfl.torch.shared_model import is_finite
from hewfl.torch.state_dicts import job_state, load_job_state
from hewfl.torch.sync import apply_pending, sync
from hewfl.torch.sync_options import RootLoss, SyncOptions, SyncReport

_log = logging.getLogger("hewfl.torch")
_OUTSIDE = "a round was due, and nothing was averaged: are you inside `with`?"
"""(`HewLocalSGD.detach` allows steps outside.)"""


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
                local steps are those of the optimiser. The default gives equal weights
                to ranks that do not oppose the others:
                `Sieve(tolerance=0.2, by="equal", per_step=True, relative=True)`.
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
        self._steps, self._is_entered = StepCounter(self._optimizers, every), False
        # Until the block is entered, hooks look out for steps that nothing averages.
        outside, here = StepCounter(self._optimizers, every), weakref.ref(self)

        def refuse() -> None:
            if here() is not None:
                raise RankError(_OUTSIDE)

        self._hooks = outside.register_hooks(None, lambda: None, refuse)
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
            tokens: since the last call. Without any, rules by size fail in round 1.

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
        self._job.model.discard()
        self._steps.reset()

    def detach(self) -> None:
        """Remove the hooks from the optimiser, without a last round."""
        self._hooks.close()
        self._is_entered = False

    def __enter__(self) -> "HewLocalSGD":
        """Register hooks on the optimiser; twice would count steps twice."""
        if self._is_entered:
            raise invalid("with", "entered once at a time", "a second time")
        self.detach()
        self._is_entered = True
        self._hooks = self._steps.register_hooks(
            self._job, self._check_parameters, self.sync
        )
        ranks, group = dist.get_process_group_ranks, self._job.comm.group
        ddp = [
            m for m in self._model.modules() if isinstance(m, DistributedDataParallel)
        ]
        for module in ddp:  # those that average over just these ranks
            if set(ranks(module.process_group)) == set(ranks(group)):
                self._hooks.enter_context(_without_ddp_sync(module))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
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


@final
class QuorumLocalSGD:
    """`HewLocalSGD` among the ranks of torchft's present quorum.

    >>> local = QuorumLocalSGD(manager, pg, model, optimizer)  # doctest: +SKIP
    >>> while local.rounds < 1000:  # doctest: +SKIP
    ...     with local.round():
    ...         for batch in islice(batches, 8):
    ...             loss_of(model, batch).backward()
    ...             optimizer.step()

    Where a rank is lost within a round, the others discard their steps of that round. A
    rank that joins gets the common model, the server step's memory and average, and the
    number of rounds from a rank that has them; its control variate starts at the
    server's. An aggregator with a memory of each rank resets it with a new quorum.

    Attributes:
        local: the job of the present quorum, None before the first.
    """

    def __init__(
        self, manager: Any, process_group: Any, *arguments: Any, **keywords: Any
    ) -> None:
        """Register with a manager.

        Args:
            manager: of torchft, made with `use_async_quorum=False`.
            process_group: of torchft, the same that the manager has.
            arguments: model and optimiser of `HewLocalSGD`.
            keywords: its other arguments.
        """
        self._manager, self._group = manager, process_group
        self._arguments, self._keywords = arguments, keywords
        self._quorum: Any = None
        self._received: Mapping[str, Any] | None = None
        self.local: HewLocalSGD | None = None
        manager.register_state_dict_fn("hewfl", self._load_state, self._state)

    @property
    def rounds(self) -> int:
        """Rounds done, by all quorums together."""
        return 0 if self.local is None else self.local.rounds

    @contextmanager
    def round(self) -> Iterator[HewLocalSGD]:
        """Form a quorum, count the optimiser's steps inside the block, aggregate.

        Yields:
            The job of the quorum. Where a rank is lost, the model is the one before.
        """
        local = self._next_job()
        try:
            yield local
            local.sync()
        except RankError as error:
            _log.warning("the round is discarded: %s", error)
            self._manager.report_error(error)
        if not self._manager.should_commit():
            local.discard_local_steps()

    def _next_job(self) -> HewLocalSGD:
        """Form quorums until one has a job: a rank may be lost before it has."""
        while True:
            self._manager.start_quorum()
            try:
                if self._manager.errored() is None:
                    return self._job_of_quorum()
            except RankError as error:
                if error.__cause__ is None:  # ranks disagree, and would again
                    raise
                _log.warning("the quorum has lost a rank: %s", error)
                self._manager.report_error(error)
            self._manager.should_commit()  # it says no, and the next quorum is another

    def _job_of_quorum(self) -> HewLocalSGD:
        """The job of the present quorum, a new one after a change."""
        group = self._group.parent
        if self.local is not None and group is self._quorum:
            return self.local
        state = self._received
        if self.local is not None:
            state = self.local.state_dict() if state is None else state
            self.local.detach()
        keywords = {"sync_every": 2**62, "process_group": group} | self._keywords
        self.local = HewLocalSGD(*self._arguments, **keywords)
        if state is not None:
            self.local.load_state_dict(state)
        self.local.__enter__()
        self._quorum, self._received = group, None
        return self.local

    def _state(self) -> dict[str, Any]:
        return {} if self.local is None else self.local.state_dict()

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self._received = state or None
