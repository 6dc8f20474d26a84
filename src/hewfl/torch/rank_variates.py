"""Control variates of one rank: its own c_i and the server's c.

Gradients are corrected before each step of plain SGD. After a round is accepted, c_i is
the mean gradient of the rank's branch, which follows from its displacement, and c the
mean of all c_i. The plain twin is `hewfl.displacements.control_variates`, which holds
all c_i in one place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from hewfl.core.array_types import Int64
from hewfl.core.round import Round
from hewfl.core.validation import Ints, invalid
from hewfl.displacements.sharded import VectorShard
from hewfl.torch.collectives import Communicator, RankError
from hewfl.torch.exchange import Exchange
from hewfl.torch.parameters import Bucket
from hewfl.torch.shared_model import SharedModel, is_finite

Vector = list[torch.Tensor]
"""Bucket by bucket, in float32 at least."""


@final
class RankVariates:
    """`client` is c_i and `server` is c, the same bits on all ranks.

    With `at_gradients` c_i starts at the first gradient, and not at zero:
    `is_initialised` says whether it has.
    """

    def __init__(
        self, model: SharedModel, comm: Communicator, *, at_gradients: bool
    ) -> None:
        self._model, self._comm, self._buckets = model, comm, model.layout.buckets
        self.client, self.server = self._zeros(), self._zeros()
        self.is_initialised = not at_gradients

    def _zeros(self) -> Vector:
        device = self._model.device
        return [torch.zeros(b.size, dtype=b.wide, device=device) for b in self._buckets]

    def take_gradients(self) -> bool:
        """Set c_i to the present gradient; whether it is finite.

        Erratum E-29: with c_i = 0 the first round picks the shortest endpoint.
        """
        for client, bucket in zip(self.client, self._buckets, strict=True):
            torch._foreach_copy_(bucket.split(client), self._gradients(bucket))
        return all(map(is_finite, self.client))

    def initialise(self, participants: Int64[Ints, " s"]) -> None:
        """Set c to the mean of the first gradients; a collective call.

        A rank without a finite gradient, no participant, starts at that mean, as
        everywhere in hewfl (`hewfl.server.state`).
        """
        if len(participants) == 0:
            raise RankError("no rank has a finite first gradient")
        takes_part = self._comm.rank in participants
        summand = self.client if takes_part else self._zeros()
        self.server = self._mean(summand, len(participants))
        if not takes_part:
            self.reset_to_server()
        self.is_initialised = True

    def correct_gradients(self) -> None:
        """Replace gradients g by g − c_i + c."""
        pairs = zip(self.client, self.server, self._buckets, strict=True)
        for client, server, bucket in pairs:
            torch._foreach_add_(self._gradients(bucket), bucket.split(server - client))

    def _gradients(self, bucket: Bucket) -> list[torch.Tensor]:
        """The pieces of a bucket in the present gradients."""
        parameters = self._model.parameters
        indices = {piece.parameter for piece in bucket.pieces}
        return bucket.views({k: gradient_of(k, parameters[k]) for k in indices})

    def reset_to_server(self) -> None:
        """Set c_i = c, as for a rank that joins: its branch is not corrected."""
        for client, server in zip(self.client, self.server, strict=True):
            client.copy_(server)

    def next_values(self, total_step: float) -> tuple[Vector, Vector]:
        """c_i and c after a round; nothing is changed. A collective call.

            c_i ← c_i − c − Δ_i/(η_iH_i),    c ← (1/n) Σ c_i

        η_iH_i is zero for a rank that takes no part: its c_i stays. Where one c_i is
        not finite c is not, on all ranks alike.
        """
        client = self.client
        if total_step > 0:
            client = [self._after(b, total_step) for b in range(len(self._buckets))]
        return client, self._mean(client, self._comm.ranks)

    def _after(self, b: int, total_step: float) -> torch.Tensor:
        delta = torch.empty_like(self.client[b], dtype=self._buckets[b].dtype)
        self._model.displacement(b, delta)
        return (self.client[b] - self.server[b]).add_(delta, alpha=-1 / total_step)

    def _mean(self, summand: Vector, count: int) -> Vector:
        sums = [c.clone() for c in summand]
        self._comm.wait([self._comm.start_sum(c) for c in sums])
        return [c.div_(count) for c in sums]


@final
@dataclass(frozen=True, slots=True, eq=False)
class SpreadVariates:
    """The control variates of all ranks as an algorithm sees them; see `Variates`."""

    variates: RankVariates
    exchange: Exchange
    is_elsewhere: ClassVar[bool] = True
    """They are saved with the ranks, not with the algorithm's state."""

    @property
    def server(self) -> VectorShard:
        """This rank's entries of c."""
        return self.exchange.own_part(self.variates.server)

    def after(self, round_: Round) -> "SpreadVariates":  # noqa: ARG002 - see `variates`
        """Itself: the values change once the round is accepted."""
        return self


def gradient_of(k: int, parameter: Any) -> torch.Tensor:
    """A gradient in the memory format of its parameter; zero for one without."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    elif parameter.grad.layout != torch.strided:
        got = f"{parameter.grad.layout} for parameter number {k}"
        raise invalid("gradients", "dense with control variates", got)
    elif parameter.grad.stride() != parameter.stride():
        parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
    return parameter.grad


def require_plain_sgd(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Require steps −η g of the gradients as they are corrected.

    A momentum or an adaptive step hides the mean gradient from the displacement, and a
    fused step may unscale gradients that are already corrected.
    """
    for optimizer in optimizers:
        groups = optimizer.param_groups
        is_plain = isinstance(optimizer, torch.optim.SGD) and not any(
            group.get("momentum") or group.get("fused") for group in groups
        )
        if not is_plain:
            rule = "torch.optim.SGD without momentum, not fused, with control variates"
            raise invalid("optimizer", rule, type(optimizer).__name__)


def require_correctable(groups: Sequence[Any], arguments: Sequence[Any]) -> None:
    """Require one learning rate, and no closure among the arguments of a step.

    Control variates take Δ_i/(η_iH_i) as a gradient: one η_i for all its entries. A
    closure would compute gradients after they are corrected.
    """
    moving = [g for g in groups if any(p.requires_grad for p in g["params"])]
    rates = sorted({float(group["lr"]) for group in moving})
    if len(rates) > 1:
        raise invalid("lr", "the same in all groups with control variates", rates)
    for value in arguments:
        if callable(value):
            rule = "absent with control variates, which correct gradients"
            raise invalid("closure", rule + " before `optimizer.step()`", value)
