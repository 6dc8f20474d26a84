"""Control variates of one rank: its own c_i and the server's c.

Gradients are corrected before each step. After a round is accepted, c_i is the mean
gradient of the rank's branch, and c the mean of all c_i.
"""

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
    """c_i and c, bucket by bucket.

    The plain twin is `hewfl.displacements.control_variates`, which holds all c_i in one
    place. With plain SGD c_i follows from displacements. With another optimiser
    displacements do not show gradients, so these are summed as they come (`totals`).

    Args:
        model: whose gradients.
        comm: collectives of the ranks.
        at_gradients: whether c_i starts at the first gradient, and not at zero.
        is_plain_sgd: whether local steps are those of plain SGD.

    Attributes:
        client: c_i.
        server: c, the same bits on all ranks.
        totals: sums of the gradients since the last round; empty with plain SGD.
        steps: how many gradients are in them.
        is_initialised: whether c_i and c have their first values, on all ranks.
    """

    def __init__(
        self,
        model: SharedModel,
        comm: Communicator,
        *,
        at_gradients: bool,
        is_plain_sgd: bool,
    ) -> None:
        self._model, self._comm, self.is_plain_sgd = model, comm, is_plain_sgd
        self.client, self.server = self._zeros(), self._zeros()
        self.totals = [] if is_plain_sgd else self._zeros()
        self.steps, self.is_initialised = 0, not at_gradients

    def _zeros(self) -> Vector:
        buckets, device = self._model.layout.buckets, self._model.device
        return [torch.zeros(b.size, dtype=b.wide, device=device) for b in buckets]

    # ---------------------------------------------------------------- in the branches

    def take_gradients(self) -> bool:
        """Set c_i to the present gradient; c is not summed yet.

        Erratum E-29: with c_i = 0 the first round picks the shortest endpoint.

        Returns:
            Whether it is finite.
        """
        for client, bucket in zip(self.client, self._model.layout.buckets, strict=True):
            torch._foreach_copy_(bucket.split(client), self._gradients(bucket))
        return all(map(is_finite, self.client))

    def initialise(self, participants: Int64[Ints, " s"]) -> None:
        """Set c to the mean of the first gradients; a collective call.

        A rank without a finite gradient starts at that mean, as everywhere in hewfl
        (`hewfl.server.state`).

        Args:
            participants: ranks with a finite gradient.

        Raises:
            RankError: there is none.
        """
        if len(participants) == 0:
            raise RankError("no rank has a finite first gradient")
        takes_part = self._comm.rank in participants
        summand = self.client if takes_part else self._zeros()
        self.server = self._mean(summand, len(participants))
        if not takes_part:
            self.reset_to_server()
        self.is_initialised = True

    def add_gradients(self) -> None:
        """Add the present gradients to the totals, before they are corrected."""
        for total, bucket in zip(self.totals, self._model.layout.buckets, strict=True):
            torch._foreach_add_(bucket.split(total), self._gradients(bucket))
        self.steps += 1

    def correct_gradients(self) -> None:
        """Replace gradients g by g − c_i + c."""
        pairs = zip(self.client, self.server, strict=True)
        for (client, server), bucket in zip(
            pairs, self._model.layout.buckets, strict=True
        ):
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
        self._reset_totals()

    # ------------------------------------------------------------------ after a round

    def next_values(self, total_step: float) -> tuple[Vector, Vector]:
        """c_i and c after a round; nothing is changed. A collective call.

            c_i ← c_i − c − Δ_i/(η_iH_i), or the mean of the summed gradients
            c ← (1/n) Σ c_i

        Args:
            total_step: η_iH_i of this rank, zero if it takes no part: c_i stays.

        Returns:
            Both; where one c_i is not finite c is not, on all ranks alike.
        """
        client = self.client
        if total_step > 0 and self.is_plain_sgd:
            buckets = range(len(client))
            client = [self._from_displacement(b, total_step) for b in buckets]
        elif total_step > 0 and self.steps > 0:
            client = [total / self.steps for total in self.totals]
        return client, self._mean(client, self._comm.ranks)

    def commit(self, client: Vector, server: Vector) -> None:
        """Replace c_i and c by the result of `next_values`."""
        self.client, self.server = client, server
        self._reset_totals()

    def _from_displacement(self, b: int, total_step: float) -> torch.Tensor:
        dtype = self._model.layout.buckets[b].dtype
        delta = torch.empty_like(self.client[b], dtype=dtype)
        self._model.displacement(b, delta)
        return (self.client[b] - self.server[b]).add_(delta, alpha=-1 / total_step)

    def _mean(self, summand: Vector, count: int) -> Vector:
        sums = [c.clone() for c in summand]
        self._comm.wait([self._comm.start_sum(c) for c in sums])
        return [c.div_(count) for c in sums]

    def _reset_totals(self) -> None:
        for total in self.totals:
            total.zero_()
        self.steps = 0


@final
@dataclass(frozen=True, slots=True, eq=False)
class SpreadVariates:
    """The control variates of all ranks as an algorithm sees them; see `Variates`.

    Attributes:
        variates: of this rank.
        exchange: which entries are this rank's.
    """

    variates: RankVariates
    exchange: Exchange
    is_elsewhere: ClassVar[bool] = True
    """They are saved with the ranks, not with the algorithm's state."""

    @property
    def server(self) -> VectorShard:
        """The server's, c."""
        return self.exchange.own_part(self.variates.server)

    def after(self, round_: Round) -> "SpreadVariates":  # noqa: ARG002 - see `variates`
        """Itself: the values change once the round is accepted."""
        return self


def gradient_of(k: int, parameter: Any) -> torch.Tensor:
    """A gradient in the memory format of its parameter.

    A parameter that the loss did not use has gradient zero, which is corrected too.

    Raises:
        InvalidInputError: it is sparse.
    """
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    elif parameter.grad.layout != torch.strided:
        got = f"{parameter.grad.layout} for parameter number {k}"
        raise invalid("gradients", "dense with control variates", got)
    elif parameter.grad.stride() != parameter.stride():
        parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
    return parameter.grad
