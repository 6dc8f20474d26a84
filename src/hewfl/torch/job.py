"""Ranks that work and are given no weight, named once it is no accident."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from hewfl.core.algorithm import RoundModel
from hewfl.core.array_types import Float64, Int64
from hewfl.core.round import Decision
from hewfl.core.validation import Array, Ints, invalid
from hewfl.torch.buckets import Layout, digest, plan_layout
from hewfl.torch.collectives import Wire, check_group
from hewfl.torch.exchange import Exchange
from hewfl.torch.job_rule import Rule
from hewfl.torch.job_trace import JobTrace
from hewfl.torch.options import SyncOptions
from hewfl.torch.parameters import Members, form_of
from hewfl.torch.probe import Probe
from hewfl.torch.rank_errors import ranks_named
from hewfl.torch.rank_variates import RankVariates, SpreadVariates
from hewfl.torch.rendezvous import Meetings, Shared
from hewfl.torch.shared_model import SharedModel

PATIENCE = 8
"""Rounds in a row after which a rank without weight is named."""
_log = logging.getLogger("hewfl.torch")


@final
class Unheeded:
    """Counts the rounds in a row in which each rank was heard and weighed nothing.

    A rank that did no step or whose model was not finite is reported as such; its count
    stays as it is.

    Args:
        ranks: n.
        logs: whether this rank writes the log of the job.
    """

    def __init__(self, ranks: int, *, logs: bool) -> None:
        self._rounds = np.zeros(ranks, dtype=np.int64)
        self._logs = logs

    def noted(
        self, decision: Decision, heard: Int64[Ints, " s"], round_: int
    ) -> Decision:
        """The decision, whose status names ranks that now have waited long enough.

        Args:
            decision: the rule's.
            heard: the ranks that it is about.
            round_: rounds done, this one included.
        """
        weightless = heard[decision.weights == 0]
        counts = self._rounds[weightless] + 1
        self._rounds[heard] = 0
        self._rounds[weightless] = counts
        named = weightless[counts == PATIENCE].tolist()
        if not named:
            return decision
        text = f"weight zero for {PATIENCE} rounds in a row: {ranks_named(named)}"
        if self._logs:
            hint = "its work is lost: look at its data, or choose another rule"
            _log.warning("round %d: %s (%s)", round_, text, hint)
        return replace(decision, status=f"{decision.status}; {text}")


# ------------------ What one rank holds of a job: the common model, the rule, the

ROUNDING = 1e-12
"""Weights that are closer are those of one solution on two kinds of machines."""


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
        exchange: of displacements.
        variates: control variates, None for rules without.
        want: what the rule has asked for so far.
        solved: ranks, weights, model and sketches of the last round, whose weights are
            yet to be checked on the data.
        product: ⟨d, Δ⟩ of this rank in the last round, for that check.
        flying: decision and number of a round whose sum is under way.
        steady: weights of all ranks in the last three rounds, None if they changed: a
            guess of the next ones, by which a sum travels before they are known. Rules
            that drop bad ranks give the same weights for long.
        told: a number for the weights of the last round, which ranks compare.
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
        moving = list(members.shared.values())
        device = moving[0].device if moving else torch.device("cpu")
        check_group(group, device)
        rule.check_plan(group.size())
        layout = plan_layout(moving, options.bucket_bytes)
        self.members, self.rule, self.options = members, rule, options
        self.algorithm = rule.algorithm
        self.rounds, self.scale, self.is_over = 0, 1.0, False
        self.probe: Probe | None = None
        self.solved: tuple[Any, Any, RoundModel, Any] | None = None
        self.product = 0.0
        self.flying: tuple[Decision, int] | None = None
        self.steady: Float64[Array, " n"] | None = None
        self._weights: Float64[Array, " n"] = np.zeros(0)
        self.told = self._agreed = 0
        self.wire = wire = Wire(group, device, options.limit)
        self.model = SharedModel(
            moving, layout, options.server_step, on_host=options.anchor_on_host
        )
        self.exchange = Exchange(self.model, wire, options.send)
        self.variates: RankVariates | None = None
        demands = rule.demands
        if demands.variates:
            how = {"at_gradients": demands.gradients, "is_plain": is_plain}
            self.variates = RankVariates(self.model, wire, **how)
        by_entries = options.exact == "full" or demands.variates
        self.want = Want.ENTRIES if by_entries else Want.WEIGHTS
        if options.overlap:
            if by_entries:
                text = "False for rules with control variates, and with exact = full"
                raise invalid("overlap", text, options.overlap)
            self.want = Want.PRODUCTS  # who is not finite must be known in time
        self.state = self.initial_state()
        self.unheeded = Unheeded(wire.ranks, logs=wire.rank == 0)
        told = rule, options.server_step, options.exact, options.overlap, options.send
        shared = _shared(members, layout, (told, is_plain))
        self.meetings = Meetings(group, wire, shared)
        self._construct()
        self.trace = None
        if options.folder is not None and wire.rank == 0:
            sends = self.variates is not None and not is_plain
            of = self.algorithm, wire.ranks, layout.parameters, options.server_step
            self.trace = JobTrace(Path(options.folder), *of, sends_gradients=sends)

    def _construct(self) -> None:
        """Agree on everything, and take what rank 0 has."""
        with self.meetings.construction():
            self.model.take()
            for whole in self.model.anchor:
                at_hand = whole.to(self.wire.device)
                self.wire.copied(at_hand)
                whole.copy_(at_hand)
            for parameter in self.members.frozen:
                whole = parameter.detach().to(self.wire.device).contiguous()
                self.wire.copied(whole.view(-1).view(torch.uint8))  # any precision
                parameter.detach().copy_(whole)
        self.model.follow()

    def note(self, weights: Float64[Array, " n"], told: list[int]) -> None:
        """Remember the weights of a round, to guess the next ones.

        All ranks must guess alike, and machines of different kinds may solve for
        weights that differ in the last bit: a guess is what all ranks have told each
        other twice, and is left where weights have changed by more than rounding.

        Args:
            weights: of all ranks.
            told: numbers that ranks have for the weights of the round before.
        """
        agreed = told[0] if len(set(told)) == 1 else 0
        is_steady = agreed != 0 and agreed == self._agreed
        is_steady = is_steady and are_same(weights, self._weights)
        guesses = is_steady and self.wire.keeps_time and self.want < Want.ENTRIES
        guesses = guesses and not (self.options.overlap or self.exchange.narrow)
        self.steady = self._weights if guesses else None
        self._weights, self._agreed = weights, agreed
        self.told = digest(weights.tolist())

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let this rank's parameters hold the averaged model inside the block.

        Every rank holds the whole average, so that no other has to come along.

        Raises:
            InvalidInputError: the job keeps none.
        """
        if not self.model.average:
            rule = 'one that keeps an average, such as ServerStep(average="ema")'
            raise invalid("options.server_step", rule, repr(self.options.server_step))
        with self.model.set_aside():
            self.model.give(self.model.average)
            yield

    def initial_state(self) -> Any:
        """The rule's state before the first round."""
        kept = None
        if self.variates is not None:
            kept = SpreadVariates(self.variates, self.exchange)
        return self.rule.initial_state(self.wire.ranks, self.exchange.entries, kept)


def are_same(weights: Float64[Array, " n"], others: Float64[Array, " n"]) -> bool:
    """Whether weights differ by no more than rounding."""
    return bool(np.abs(weights - others).max() <= ROUNDING)


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
