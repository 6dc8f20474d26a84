"""DistributedDataParallel modules inside a block of local steps."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, SupportsFloat, SupportsIndex, final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hewfl.core.algorithm import Algorithm
from hewfl.core.validation import invalid
from hewfl.server.state import Entry
from hewfl.torch.aggregate_step import finish
from hewfl.torch.collectives import group_of
from hewfl.torch.hooks import Steps, checked_every
from hewfl.torch.job import Replica
from hewfl.torch.job_rule import DEFAULT, rule_of
from hewfl.torch.options import SyncOptions, SyncReport
from hewfl.torch.parameters import Members, is_plain_sgd, several
from hewfl.torch.probe import Probe
from hewfl.torch.rank_errors import named
from hewfl.torch.shared_model import is_finite
from hewfl.torch.state_dicts import load_replica_state, replica_state
from hewfl.torch.sync import sync


def spanning(model: torch.nn.Module, group: Any) -> list[Any]:
    """DDP modules anywhere in the model that average over just the ranks of a group."""
    ranks = dist.get_process_group_ranks
    return [
        module
        for module in model.modules()
        if isinstance(module, DistributedDataParallel)
        and set(ranks(module.process_group)) == set(ranks(group))
    ]


@contextmanager
def on_its_own(module: Any) -> Iterator[None]:
    """No collective in forward and backward.

    `no_sync` leaves one broadcast of buffers to the first forward, which would wait
    for a rank that does no step: the flag that orders it is cleared as well, as torch
    itself does from the second forward on.
    """
    pending = module.require_forward_param_sync
    with module.no_sync():
        module.require_forward_param_sync = False
        try:
            yield
        finally:
            module.require_forward_param_sync = pending


# ------------------ Exact-weight local SGD around a training loop that stays as it

_log = logging.getLogger("hewfl.torch")


@final
class HewLocalSGD:
    """Local steps on every rank, aggregated with exact weights.

        with HewLocalSGD(model, optimizer, sync_every=8) as local:
            for batch in loader:
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()  # every eighth is followed by a round

    All ranks start from rank 0's parameters, frozen ones included. Ranks may differ in
    `sync_every`; what each has done is exchanged, not assumed. A rank whose loop ends
    before the others' adds what it has done to their next round, and waits at their
    meetings, with weight zero, until all have left the block. Buffers, such as running
    means, stay local. DistributedDataParallel modules that span the same ranks, the
    model or parts of it, neither average gradients nor copy buffers inside the block.

    Which parameters require gradients is fixed at construction; the optimiser must move
    all of them and nothing else. Of several optimisers each moves a part, and a step is
    done when each has made one.

    Rules with control variates correct the gradients that `optimizer.step()` finds:
    the first step of all ranks is a meeting, which none may miss but by leaving. With
    plain SGD the control variates follow from displacements and need one learning rate
    for all groups; with any other optimiser, or momentum, they are means of the
    gradients, which every rank sends besides. Closures, sparse and scaled gradients are
    refused.

    A rank whose model is not finite is given weight zero and named in the report; it
    goes on from the common model with its optimiser's state dropped. Buffers that are
    not finite stay so; its log names them.

    Attributes:
        last: report of the last round, None before the first.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        sync_every: SupportsIndex | timedelta,
        rule: str | Algorithm[Any] | Entry = DEFAULT,
        process_group: Any = None,
        options: SyncOptions | None = None,
    ) -> None:
        """Prepare; a collective call.

        Args:
            model: plain or DistributedDataParallel.
            optimizer: of its parameters that require gradients, or several that share
                them out; η is its learning rate, the mean over parameters where
                groups differ, and one where an optimiser has none.
            sync_every: this rank's steps between rounds, or the time after which the
                step under way is its last.
            rule: "sieve" (equal weights among ranks that go along with the others),
                "hom" (Algorithm 3), "het" (Algorithm 2: gradients are corrected by
                control variates), "equal", "steps", "tokens", "fednova", "agreement",
                "disagreement", "median", "trust", an algorithm of hewfl or your own,
                or one with an server step, such as `FedAvgM(…)`.
            process_group: the ranks; all by default.
            options: the rest.

        Raises:
            InvalidInputError: an argument breaks a rule.
            RankError: ranks are missing or disagree on model, rule or options.
        """
        every = checked_every(sync_every)
        chosen, options = rule_of(rule, options)
        group = group_of(process_group)
        self._model, self._optimizers = model, several(optimizer)
        members = Members(model.named_parameters())
        members.check_optimizers(self._optimizers)
        is_plain = not chosen.demands.variates or all(
            map(is_plain_sgd, self._optimizers)
        )
        self._replica = Replica(members, group, chosen, options, is_plain=is_plain)
        self._steps = Steps(self._optimizers, every)
        self._open: ExitStack | None = None
        self.last: SyncReport | None = None

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return self._replica.rounds

    @property
    def bytes_sent(self) -> int:
        """Sent by this rank so far, the first copy of the model included."""
        return self._replica.wire.bytes_sent

    def count(self, tokens: int) -> None:
        """Add to the tokens, or samples, behind this rank's displacement.

        Args:
            tokens: worked on since the last call.

        Raises:
            InvalidInputError: `tokens` is negative.
        """
        if tokens < 0:
            raise invalid("tokens", "at least 0", tokens)
        self._steps.count(tokens)

    def sync(self) -> SyncReport | None:
        """Aggregate now; all ranks must. None if nobody has done a step.

        Returns:
            The report of the round, None where there was none.

        Raises:
            InvalidInputError: other parameters require gradients than at construction.
            RankError: ranks are missing or disagree, or no model would be finite.
        """
        self._check()
        report = sync(self._replica, self._steps.work)
        self._steps.forget()
        if report is not None:
            self.last = report
            if self._replica.wire.rank in report.excluded:
                for optimizer in self._optimizers:
                    optimizer.state.clear()
                warn_of_buffers(self._model)
            if self._replica.options.on_round is not None:
                self._replica.options.on_round(report)
        return report

    def probe_with(self, probe: Probe) -> None:
        """Tell how this rank measures its loss, for `ServerStep(line_search_samples=…)`.

            def probe(samples):
                batch = next(fresh)  # of that many samples, not those of the last steps
                return lambda: loss_of(model, batch)

            local.probe_with(probe)

        In each round the function is called once, and what it returns once for each
        point along the step, with the parameters there and without gradients. Losses
        must be those of one batch throughout; put dropout and batch normalisation into
        evaluation mode inside.

        Args:
            probe: draws samples, and gives the function that tells the loss on them.

        Raises:
            InvalidInputError: it cannot be called.
        """
        if not callable(probe):
            raise invalid("probe", "a function", probe)
        self._replica.probe = probe

    @property
    def scale(self) -> float:
        """What learning rates are multiplied by in each step: one, unless measured."""
        return self._replica.scale

    def measure(self, **measured: SupportsFloat) -> None:
        """Put numbers into the trace of the last round; see `SyncOptions.folder`.

        Those of the first rank count; `objective` and `pooled` are what reports call
        so, everything else is a metric.

        Args:
            **measured: numbers by name.

        Examples:
            >>> local.measure(objective=0.31, test_accuracy=0.9)  # doctest: +SKIP
        """
        if self._replica.trace is not None:
            self._replica.trace.measure(measured)

    def averaged(self) -> AbstractContextManager[None]:
        """Let the parameters hold the averaged model inside the block.

            with local.averaged():
                validate(model)
                torch.save(model.state_dict(), "averaged.pt")

        Needs `SyncOptions(server_step=ServerStep(average=…))`. Afterwards the parameters are what
        they were, steps since the last round included; do not train inside.

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
        return replica_state(self._replica, self._steps.work)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called; load model and optimiser as well.

        In any order: both may be loaded before construction or after it. A state of
        another rank, or of a job with more or fewer ranks, gives what all ranks share:
        the common model, the server step's memory, the server's control variate.

        Args:
            state: of `state_dict`, of this rank or any other.

        Raises:
            DataError: the state is damaged, or of another format, model or rule;
                nothing has changed then.
        """
        self._steps.work = load_replica_state(self._replica, state)

    def drop(self) -> None:
        """Forget the steps since the last round: back to the common model."""
        self._replica.model.give()
        self._steps.forget()

    def abandon(self) -> None:
        """Leave the optimiser alone, without a last round: others have gone already."""
        if self._open is not None:
            self._open.close()

    def __enter__(self) -> "HewLocalSGD":
        """Follow the optimiser's steps."""
        self._open = self._steps.followed(self._replica, self._check, self.sync)
        for module in spanning(self._model, self._replica.wire.group):
            self._open.enter_context(on_its_own(module))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Aggregate what is pending, unless an error is on its way out.

        Then come along to the rounds of those whose loops have not ended yet, as
        `torch.distributed.algorithms.Join` does.
        """
        self.abandon()
        if error is not None:
            return
        while True:
            self._steps.work = replace(self._steps.work, leaving=True)
            self.sync()
            if self._replica.is_over:
                break
        if self._replica.options.overlap:
            finish(self._replica)
            self._replica.model.give()  # x to the bit, not x + (y − y)

    def _check(self) -> None:
        self._replica.members.check(self._model.named_parameters())


def warn_of_buffers(model: torch.nn.Module) -> None:
    """Name the buffers that are not finite: nothing replaces them."""
    lost = [
        name
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point() and not is_finite(buffer)
    ]
    if lost:
        text = "buffers that are not finite stay so until they are reset: %s"
        _log.warning(text, named(lost))
