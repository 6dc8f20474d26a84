"""What one rank holds of a job: the common model, the rule, the way to the others."""

from enum import IntEnum
from pathlib import Path
from typing import Any, final

import torch

from hewfl.core.checks import invalid
from hewfl.core.round import Decision
from hewfl.torch.allreduce import AllReduce, Solved
from hewfl.torch.layout import Layout, digest, plan_layout
from hewfl.torch.meetings import Meetings, Shared
from hewfl.torch.members import Members, form_of
from hewfl.torch.model import SharedModel
from hewfl.torch.options import SyncOptions
from hewfl.torch.probing import Probe
from hewfl.torch.rules import Rule
from hewfl.torch.spread import Spread
from hewfl.torch.trace import JobTrace
from hewfl.torch.unheeded import Unheeded
from hewfl.torch.variates import RankVariates, SpreadVector
from hewfl.torch.wire import Wire, check_group


@final
class Want(IntEnum):
    """What a rule has asked for so far; more and more of it travels."""

    WEIGHTS = 0
    PRODUCTS = 1
    ENTRIES = 2


@final
class Replica:
    """The common model, and the way to the other ranks.

    Construction gives all ranks the parameters of rank 0, frozen ones too.

    Attributes:
        members: which parameters are shared.
        rule: how ranks are weighted.
        algorithm: what decides by it.
        options: what all ranks share.
        wire: the way to the others.
        model: x and y.
        variates: control variates, None for rules without.
        server: c as rules see it, None for rules without.
        sums: the exchange of sums.
        spread: the exchange of entries.
        want: what the rule has asked for so far.
        solved: weights from sketches that are yet to be checked on the data.
        product: ⟨d, Δ⟩ of this rank in the last round, for that check.
        flying: decision and number of a round whose sum is under way.
        meetings: where ranks agree.
        unheeded: counts rounds without weight.
        state: the rule's own; vectors in it are this rank's entries.
        trace: on the first rank of a job that keeps one.
        rounds: rounds done.
        is_over: whether the loops of all ranks have ended.
        probe: how this rank measures its loss, for measured steps; None until told.
        scale: that measured steps have put on the learning rates.
    """

    def __init__(
        self,
        members: Members,
        group: Any,
        rule: Rule,
        options: SyncOptions,
        *,
        is_plain: bool = True,
    ) -> None:
        moving, frozen = list(members.shared.values()), members.frozen
        device = moving[0].device if moving else torch.device("cpu")
        check_group(group, device)
        rule.check_plan(group.size())
        layout = plan_layout(moving, options.bucket_bytes)
        self.members, self.rule, self.options = members, rule, options
        self.algorithm = rule.algorithm
        self.rounds, self.is_over = 0, False
        self.probe: Probe | None = None
        self.scale = 1.0
        self.solved: Solved | None = None
        self.product = 0.0
        self.wire = Wire(group, device, options.limit)
        self.model = SharedModel(
            moving, layout, options.outer, on_host=options.anchor_on_host
        )
        self.variates, self.server, besides = None, None, None
        self.want = Want.ENTRIES if options.exact == "full" else Want.WEIGHTS
        if rule.demands.variates:
            at_gradients = rule.demands.gradients
            self.variates = RankVariates(
                self.model, at_gradients=at_gradients, is_plain=is_plain
            )
            self.want, besides = Want.ENTRIES, self.variates.server
        self.spread = Spread(self.model, self.wire, besides)
        self.sums = AllReduce(self.model, self.wire, options.send)
        self.flying: tuple[Decision, int] | None = None
        if options.overlap:
            if self.want is Want.ENTRIES:
                text = "False for rules with control variates, and with exact = full"
                raise invalid("overlap", text, options.overlap)
            self.want = Want.PRODUCTS  # who is not finite must be known in time
        if self.variates is not None:
            self.server = SpreadVector(self.variates, self.spread)
        self.state = self.first_state()
        self.unheeded = Unheeded(self.wire.ranks, logs=self.wire.rank == 0)
        told: Any = rule, options.outer, options.exact, options.overlap, options.send
        self.meetings = Meetings(
            group, self.wire, _shared(members, layout, (told, is_plain))
        )
        self._construct(frozen)
        self.trace = None
        if options.folder is not None and self.wire.rank == 0:
            sends = self.variates is not None and not is_plain
            of = self.algorithm, self.wire.ranks, layout.parameters, options.outer
            self.trace = JobTrace(Path(options.folder), *of, sends_gradients=sends)

    def _construct(self, frozen: list[torch.Tensor]) -> None:
        """Agree on everything, and take what rank 0 has."""
        with self.meetings.construction():
            self.model.take()
            for whole in self.model.anchor:
                at_hand = whole.to(self.wire.device)
                self.wire.copied(at_hand)
                whole.copy_(at_hand)
            for parameter in frozen:
                whole = parameter.detach().to(self.wire.device).contiguous()
                self.wire.copied(whole.view(-1).view(torch.uint8))  # any precision
                parameter.detach().copy_(whole)
        self.model.follow()

    def first_state(self) -> Any:
        """The rule's state before the first round."""
        entries = self.spread.entries
        return self.rule.first_state(self.wire.ranks, entries, self.server)


def _shared(members: Members, layout: Layout, chosen: Any) -> tuple[Shared, ...]:
    """What all ranks must have alike: the model, and what is done with it."""
    shapes = [f"{k} {form_of(p)[:2]}" for k, p in members.shared.items()]
    forms = [form_of(p)[:2] for p in members.frozen]
    d, signature = layout.parameters, digest(layout.signature, forms)
    return (
        Shared("number of parameters", d, str(d)),
        Shared("parameters", signature, ", ".join(shapes)),
        Shared("rule and options", digest(chosen), repr(chosen)),
    )
