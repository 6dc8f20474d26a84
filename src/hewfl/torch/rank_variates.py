"""Control variates of one rank, for the rules that have them: its own and the server's.

Everything that such a rule adds to a round is here: gradients are corrected before each
step, and once a round is accepted c_i is the mean gradient of the rank's branch, and c
the mean of all c_i.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from hewfl.core.array_types import Int64
from hewfl.core.round import Round
from hewfl.core.validation import Ints, invalid
from hewfl.displacements.sharded import VectorShard
from hewfl.torch.buckets import Bucket
from hewfl.torch.collectives import Wire
from hewfl.torch.exchange import Exchange
from hewfl.torch.rank_errors import RankError
from hewfl.torch.shared_model import SharedModel, is_finite

Vector = list[torch.Tensor]
"""Bucket by bucket, in float32 at least."""


@final
class RankVariates:
    """c_i and c, bucket by bucket.

    The plain twin is `hewfl.displacements.control_variates`, which holds all c_i in one place. With
    plain SGD c_i follows from displacements; with any other optimiser these do not show
    gradients, which are then summed up as they come (`totals`).

    Args:
        model: whose gradients.
        wire: the way to the other ranks.
        at_gradients: whether c_i starts at the first gradient, and not at zero.
        is_plain: whether local steps are those of plain SGD.

    Attributes:
        own: c_i.
        server: c, the same bits on all ranks.
        totals: sums of the gradients since the last round; empty with plain SGD.
        steps: how many gradients are in them.
        started: whether they have been given their first values, on all ranks.
    """

    def __init__(
        self, model: SharedModel, wire: Wire, *, at_gradients: bool, is_plain: bool
    ) -> None:
        self._model, self._wire, self.is_plain = model, wire, is_plain
        self.own, self.server = self._zeros(), self._zeros()
        self.totals = [] if is_plain else self._zeros()
        self.steps, self.started = 0, not at_gradients

    def _zeros(self) -> Vector:
        buckets, device = self._model.layout.buckets, self._model.device
        return [torch.zeros(b.size, dtype=b.wide, device=device) for b in buckets]

    # ---------------------------------------------------------------- in the branches

    def take_gradients(self) -> bool:
        """c_i = the gradient at hand; c is yet to be summed.

        Erratum E-29: with c_i = 0 the first round picks the shortest endpoint.

        Returns:
            Whether it is finite.
        """
        for own, bucket in zip(self.own, self._model.layout.buckets, strict=True):
            torch._foreach_copy_(bucket.split(own), self._gradients(bucket))
        return all(map(is_finite, self.own))

    def start(self, heard: Int64[Ints, " s"]) -> None:
        """Let c be the mean of the gradients taken; a collective call.

        A rank without a finite one starts at that mean, as everywhere in hewfl
        (`hewfl.server.state`).

        Args:
            heard: ranks with a finite gradient.

        Raises:
            RankError: none has one.
        """
        if len(heard) == 0:
            raise RankError("no rank has a finite first gradient")
        is_heard = self._wire.rank in heard
        given = self.own if is_heard else self._zeros()
        self.server = self._mean(given, len(heard))
        if not is_heard:
            self.join()
        self.started = True

    def add(self) -> None:
        """Sum up the gradients at hand, before they are corrected."""
        for total, bucket in zip(self.totals, self._model.layout.buckets, strict=True):
            torch._foreach_add_(bucket.split(total), self._gradients(bucket))
        self.steps += 1

    def correct(self) -> None:
        """Gradients become g − c_i + c."""
        pairs = zip(self.own, self.server, strict=True)
        for (own, server), bucket in zip(
            pairs, self._model.layout.buckets, strict=True
        ):
            torch._foreach_add_(self._gradients(bucket), bucket.split(server - own))

    def _gradients(self, bucket: Bucket) -> list[torch.Tensor]:
        """The pieces of a bucket in the gradients at hand."""
        held, wanted = self._model.parameters, {p.parameter for p in bucket.pieces}
        return bucket.of({k: gradient_of(k, held[k]) for k in wanted})

    def join(self) -> None:
        """Start at the server's, as a rank that joins: its branch is not corrected."""
        for own, server in zip(self.own, self.server, strict=True):
            own.copy_(server)
        self._forget()

    # ------------------------------------------------------------------ after a round

    def following(self, travelled: float) -> tuple[Vector, Vector]:
        """c_i and c after a round; nothing is changed. A collective call.

            c_i ← c_i − c − Δ_i/(η_iH_i), or the mean of the gradients summed up
            c ← (1/n) Σ c_i

        Args:
            travelled: η_iH_i of this rank, zero if it was not heard: it keeps its c_i.

        Returns:
            Both; where one c_i is not finite c is not, on all ranks alike.
        """
        own = self.own
        if travelled > 0 and self.is_plain:
            own = [self._from_displacement(b, travelled) for b in range(len(own))]
        elif travelled > 0 and self.steps > 0:
            own = [total / self.steps for total in self.totals]
        return own, self._mean(own, self._wire.ranks)

    def accept(self, own: Vector, server: Vector) -> None:
        """Let c_i and c be what `following` has found."""
        self.own, self.server = own, server
        self._forget()

    def _from_displacement(self, b: int, travelled: float) -> torch.Tensor:
        away = torch.empty_like(self.own[b], dtype=self._model.layout.buckets[b].dtype)
        self._model.displacement(b, away)
        return (self.own[b] - self.server[b]).add_(away, alpha=-1 / travelled)

    def _mean(self, own: Vector, count: int) -> Vector:
        sums = [c.clone() for c in own]
        self._wire.wait([self._wire.adding(c) for c in sums])
        return [c.div_(count) for c in sums]

    def _forget(self) -> None:
        for total in self.totals:
            total.zero_()
        self.steps = 0


@final
@dataclass(frozen=True, slots=True, eq=False)
class SpreadVariates:
    """The control variates of all ranks as a rule sees them; see `Variates`.

    Attributes:
        held: where they are kept.
        exchange: which entries are this rank's.
    """

    held: RankVariates
    exchange: Exchange
    is_elsewhere: ClassVar[bool] = True
    """They are saved where they are kept, not with the rule's state."""

    @property
    def server(self) -> VectorShard:
        """The server's, c."""
        return self.exchange.own_part(self.held.server)

    def after(self, round_: Round) -> "SpreadVariates":  # noqa: ARG002 - see `held`
        """Itself: the values change once the round is accepted."""
        return self


def gradient_of(k: int, parameter: Any) -> torch.Tensor:
    """A gradient that lies in memory as its parameter does.

    A parameter that the loss did not use has gradient zero, which is corrected too.

    Raises:
        InvalidInputError: it is sparse.
    """
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    elif parameter.grad.layout != torch.strided:
        got = f"{parameter.grad.layout} for parameter number {k}"
        raise invalid("gradients", "dense under a rule with control variates", got)
    elif parameter.grad.stride() != parameter.stride():
        parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
    return parameter.grad
