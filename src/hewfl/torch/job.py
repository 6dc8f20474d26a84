"""One rank's part of a job: common model, algorithm, and link to the other ranks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist

from hewfl.aggregators import Aggregator, Sieve
from hewfl.core.algorithm import Algorithm, Certified, Demands
from hewfl.core.round import Decision
from hewfl.core.validation import invalid
from hewfl.displacements.control_variates import ControlVariates, map_records
from hewfl.methods import registry
from hewfl.server.checkpoint import flatten
from hewfl.server.server_step import ServerStep
from hewfl.server.state import Entry, as_entry
from hewfl.torch.collectives import Communicator, Shards, check_group
from hewfl.torch.exchange import Exchange
from hewfl.torch.job_trace import JobTrace
from hewfl.torch.parameters import (
    BucketLayout,
    SharedParameters,
    digest,
    local_part,
    plan_layout,
    shard_group,
)
from hewfl.torch.rank_variates import RankVariates, SpreadVariates
from hewfl.torch.rendezvous import SKETCH_BYTES, AgreedValue, Rendezvous
from hewfl.torch.shared_model import SharedModel
from hewfl.torch.sync_options import RootLoss, SyncOptions

DEFAULT = Sieve(tolerance=0.2, by="equal", per_step=True, relative=True)
"""The default aggregator: equal weights among ranks that do not oppose the others more
than most do. docs/results/torch.md lists where it was worse than equal weights."""
OVERLAP_RULE = (
    "False with control variates, aggregators that need entries of displacements, and "
    'gram="full"'
)
Choice = str | Aggregator | Algorithm[Any] | Entry
"""The `aggregator` argument: a name of `hewfl.aggregators.NAMES`, an aggregator, or a
whole method."""


@final
class Job:
    """One rank's part of a job.

    Construction gives all ranks the parameters of rank 0, frozen ones too.

    Attributes:
        comm, shards: collectives of the ranks, and within this rank's replica.
        model: x and y.
        by_entries: whether the algorithm sees entries of displacements, not sketches.
        unchecked, product: ranks, weights, model and sketches of the last round, and
            this rank's ⟨d, Δ⟩ in it, to check its weights on the data.
        weights_digest: of the last round's weights, where displacements are whole.
        pending: decision and number of a round whose sum is on its way.
        zero_weight: counts of consecutive rounds with weight zero, by rank.
        state: of the algorithm; vectors in it are this rank's entries.
        trace: on the first rank of a job with one.
        is_over: whether the loops of all ranks have ended.
        root: on rank 0, the loss on samples that it trusts; None until it is set.
    """

    def __init__(
        self,
        parameters: SharedParameters,
        group: Any,
        algorithm: Algorithm[Any],
        options: SyncOptions,
    ) -> None:
        trainable = list(parameters.trainable.values())
        device = trainable[0].device if trainable else torch.device("cpu")
        check_group(group, device)
        layout = plan_layout(trainable, options.bucket_bytes)
        self.parameters, self.options, self.algorithm = parameters, options, algorithm
        self.rounds, self.is_over = 0, False
        self.product, self.weights_digest = 0.0, 0
        self.root: RootLoss | None = None
        self.unchecked: tuple[Any, ...] | None = None
        self.pending: tuple[Decision, int] | None = None
        self.comm = comm = Communicator(group, device, options.limit)
        demands, held = algorithm.demands, shard_group(parameters.trainable)
        if held is not None:
            _check_sharded(group, held, demands)
        self.shards = Shards(held, layout.parameters, device, options.limit)
        self.model = SharedModel(
            [local_part(p) for p in trainable],
            layout,
            options.server_step,
            on_host=options.anchor_on_host,
        )
        is_half = options.compression is not None
        self.exchange = Exchange(self.model, comm, self.shards, is_half=is_half)
        self.variates: RankVariates | None = None
        if demands.variates:
            at_gradients = demands.gradients
            self.variates = RankVariates(self.model, comm, at_gradients=at_gradients)
        self.needs_root = "root" in demands.needs
        self.by_entries = options.gram == "full" or demands.variates
        self.by_entries |= not demands.needs.isdisjoint({"entries", "root"})
        if options.overlap and self.by_entries:
            raise invalid("overlap", OVERLAP_RULE, options.overlap)
        self.state = self.initial_state()
        self.zero_weight = np.zeros(comm.ranks, dtype=np.int64)
        chosen = algorithm, options.server_step, options.gram, options.overlap
        agreed = _agreed_values(parameters, layout, (*chosen, options.compression))
        self.rendezvous = Rendezvous(group, comm, agreed)
        self._construct()
        self.trace = None
        if options.folder is not None and self.is_first:
            folder, d = Path(options.folder), self.shards.total
            self.trace = JobTrace(folder, algorithm, comm.ranks, d)

    @property
    def is_first(self) -> bool:
        """Whether this rank logs, and writes the trace."""
        return self.comm.rank == 0 and self.shards.index == 0

    def _construct(self) -> None:
        """Agree on everything, and copy the parameters of rank 0."""
        exchange, by_entries = self.exchange, self.by_entries
        whole = 0 if by_entries or self.options.overlap else exchange.whole_bytes
        other = 0 if by_entries else SKETCH_BYTES
        with self.rendezvous.construction(whole, other) as exchange.is_whole:
            self.model.set_anchor()
            self.share(self.model.anchor)
            for parameter in self.parameters.frozen:
                whole = parameter.detach().to(self.comm.device).contiguous()
                self.comm.broadcast(whole.view(-1).view(torch.uint8))  # any precision
                parameter.detach().copy_(whole)
        self.model.restart_from_anchor()

    def share(self, vectors: Sequence[torch.Tensor]) -> None:
        """Replace vectors by those of rank 0."""
        for whole in vectors:
            on_device = whole.to(self.comm.device)
            self.comm.broadcast(on_device)
            whole.copy_(on_device)

    def initial_state(self) -> Any:
        """The algorithm's state before the first round.

        Control variates in it are replaced by those of the ranks. Other vectors have
        this rank's entries.
        """
        n, demands = self.comm.ranks, self.algorithm.demands

        def make(d: int) -> Any:
            gradients = np.zeros((n, d)) if demands.gradients else None
            return map_records(self.algorithm.init(n, d, gradients), of_ranks)

        def of_ranks(record: Any) -> Any:
            if not isinstance(record, ControlVariates):
                return record
            assert self.variates is not None
            return SpreadVariates(self.variates, self.exchange)

        if demands.variates and not flatten(state := make(0)):
            return state  # no vector besides the control variates
        return make(self.exchange.entries)


def choose_method(
    aggregator: Choice, options: SyncOptions | None
) -> tuple[Algorithm[Any], SyncOptions]:
    """The algorithm of a job, and its options with the method's server step."""
    options = SyncOptions() if options is None else options
    if not isinstance(aggregator, Entry):
        aggregator = as_entry(registry.as_algorithm(aggregator), "aggregator")
    algorithm, server_step = aggregator.algorithm, aggregator.server_step
    registry.require_available(algorithm)
    registry.require_client_training(algorithm)
    if isinstance(algorithm, Certified):
        rule = "one that leaves local steps to the optimiser"
        raise invalid("aggregator", rule, algorithm.name)
    if server_step != ServerStep():
        if options.server_step not in (ServerStep(), server_step):
            text = "left out, or that of `aggregator`, a method with a server step"
            raise invalid("options.server_step", text, options.server_step)
        options = replace(options, server_step=server_step)
    samples = options.server_step.line_search_samples
    if samples is not None:
        rule = "left out in a torch job, which measures no losses"
        raise invalid("server_step.line_search_samples", rule, samples)
    return algorithm, options


def _check_sharded(group: Any, held: Any, demands: Demands) -> None:
    """Check what sharded parameters ask of a job."""
    ranks = dist.get_process_group_ranks
    both = sorted(set(ranks(group)) & set(ranks(held)))
    if len(both) > 1:
        rule = "the ranks that hold the same shard in other replicas "
        rule += '(`mesh["replicate"].get_group()`)'
        raise invalid("process_group", rule, f"one with ranks {both} of one replica")
    if demands.variates or "root" in demands.needs:
        what = "control variates" if demands.variates else "a root gradient"
        rule = f"one without {what}, where parameters are sharded"
        raise invalid("aggregator", rule, "one that needs it")


def _agreed_values(
    parameters: SharedParameters, layout: BucketLayout, chosen: Any
) -> tuple[AgreedValue, ...]:
    """What all ranks must have in common: the model, the aggregator, the options."""

    def describe(parameter: torch.Tensor) -> tuple[str, tuple[int, ...]]:
        return str(parameter.dtype), tuple(parameter.shape)

    shapes = [f"{k} {describe(p)}" for k, p in parameters.trainable.items()]
    forms = list(map(describe, parameters.frozen))
    d, signature = layout.parameters, digest(layout.signature, forms)
    return (
        ("number of parameters", d, str(d)),
        ("parameters", signature, ", ".join(shapes)),
        ("aggregator and options", digest(chosen), repr(chosen)),
    )
