"""Control variates of one rank, for the rules that have them: its own and the server's.

Everything that such a rule adds to a round is here: gradients are corrected before each
step, c is one more vector that sums and products know, and both kinds are moved once a
round is accepted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy.lib.mixins import NDArrayOperatorsMixin

from hewfl.aggregate.variates import variate_weights
from hewfl.core.checks import Array, Ints, invalid
from hewfl.core.round import Round
from hewfl.torch.faults import RankError
from hewfl.torch.layout import Bucket
from hewfl.torch.model import SharedModel, is_finite, largest
from hewfl.torch.spread import Spread
from hewfl.torch.wire import Wire


@final
class RankVariates:
    """c_i and c, bucket by bucket, in float32 at least.

    The plain twin is `hewfl.aggregate.variates`, which holds all c_i in one place. With
    plain SGD c_i follows from displacements; with any other optimiser these do not show
    gradients, which are then summed up as they come (`totals`).

    Attributes:
        own: c_i.
        server: c, the same bits on all ranks.
        totals: sums of the gradients since the last round; empty with plain SGD.
        steps: how many gradients are in them.
        started: whether they have been given their first values, on all ranks.
    """

    def __init__(
        self, model: SharedModel, *, at_gradients: bool, is_plain: bool = True
    ) -> None:
        self._model, self._buckets = model, model.layout.buckets
        self.own, self.server = self._zeros(), self._zeros()
        self.totals, self.steps = [] if is_plain else self._zeros(), 0
        self.started = not at_gradients

    def _zeros(self) -> list[torch.Tensor]:
        device = self._model.device
        return [torch.zeros(b.size, dtype=b.wide, device=device) for b in self._buckets]

    @property
    def is_plain(self) -> bool:
        """Whether c_i is read off displacements."""
        return not self.totals

    # ---------------------------------------------------------------- in the branches

    def take_gradients(self) -> bool:
        """c_i = the gradient at hand, in both places: the server's is yet to be summed.

        Erratum E-29: with c_i = 0 the first round picks the shortest endpoint.

        Returns:
            Whether it is finite.
        """
        for b, bucket in enumerate(self._buckets):
            torch._foreach_copy_(bucket.split(self.own[b]), self._gradients(bucket))
            self.server[b].copy_(self.own[b])
        return all(is_finite(own) for own in self.own)

    def start(self, wire: Wire, heard: Int64[Ints, " s"]) -> None:
        """Let c be the mean of the gradients taken; a collective call.

        A rank without a finite one starts at that mean, as everywhere in hewfl
        (`hewfl.server.first`).

        Args:
            wire: the way to the other ranks.
            heard: those with a finite gradient.

        Raises:
            RankError: none has one.
        """
        if len(heard) == 0:
            raise RankError("no rank has a finite first gradient")
        is_heard = wire.rank in heard
        for own, server in zip(self.own, self.server, strict=True):
            if not is_heard:
                server.zero_()
            wire.wait([wire.adding(server)])
            server.div_(len(heard))
            if not is_heard:
                own.copy_(server)
        self.started = True

    def add(self) -> None:
        """Sum up the gradients at hand, before they are corrected."""
        for total, bucket in zip(self.totals, self._buckets, strict=True):
            torch._foreach_add_(bucket.split(total), self._gradients(bucket))
        self.steps += 1

    def correct(self) -> None:
        """Gradients become g − c_i + c."""
        for own, server, bucket in zip(
            self.own, self.server, self._buckets, strict=True
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
        for total in self.totals:
            total.zero_()
        self.steps = 0

    # ------------------------------------------------------------------ after a round

    def weights(
        self,
        heard: Int64[Ints, " s"],
        weights: Float64[Array, " s"],
        travelled: Float64[Array, " n"],
    ) -> Float64[Array, "r m"]:
        """Sums of all Δ_i and c: the step, and with plain SGD the next c."""
        n = len(travelled)
        kept, u = variate_weights(travelled[heard], n)
        both = np.zeros((2, n + 1))
        both[0, heard], both[1, heard], both[1, n] = weights, u, kept
        return both if self.is_plain else both[:1]

    def stay_finite(self, sums: Sequence[Any], travelled: float) -> bool:
        """Whether c and c_i would be finite after `move`; nothing is changed."""
        if not self.is_plain:
            return travelled == 0 or self._is_bounded()
        fine = all(is_finite(c) for c in sums[0])
        if travelled > 0:
            parts = (self._moved(b, travelled) for b in range(len(self.own)))
            fine = fine and all(is_finite(part) for part in parts)
        return fine

    def move(self, wire: Wire, sums: Sequence[Any], travelled: float) -> None:
        """c_i ← c_i − c − Δ_i/(η_iH_i), then c; or c_i ← mean gradient, and c with it.

        Args:
            wire: the way to the other ranks, needed for mean gradients.
            sums: the next c, with plain SGD.
            travelled: η_iH_i of this rank, zero if it was not heard.
        """
        if not self.is_plain:
            self._take_means(wire, is_heard=travelled > 0)
            return
        for b, (own, server) in enumerate(zip(self.own, self.server, strict=True)):
            if travelled > 0:
                own.copy_(self._moved(b, travelled))
            server.copy_(sums[0][b])

    def _take_means(self, wire: Wire, *, is_heard: bool) -> None:
        """c_i ← mean gradient of this rank, c ← c + (1/n) Σ (c_i⁺ − c_i)."""
        for own, server, total in zip(self.own, self.server, self.totals, strict=True):
            change = torch.zeros_like(server)
            if is_heard and self.steps > 0:
                mean = total / self.steps
                change = mean - own
                own.copy_(mean)
            wire.wait([wire.adding(change)])
            server.add_(change, alpha=1 / wire.ranks)
            total.zero_()
        self.steps = 0

    def _is_bounded(self) -> bool:
        """Whether c_i and c stay finite with mean gradients, by their sizes."""
        sums = zip(self.totals, self.own, self.server, strict=True)
        sizes = [sum(map(largest, vectors)) for vectors in sums]
        widest = [torch.finfo(c.dtype).max for c in self.own]
        return all(size <= w / 4 for size, w in zip(sizes, widest, strict=True))

    def _moved(self, b: int, travelled: float) -> torch.Tensor:
        displacement = torch.empty_like(self.own[b], dtype=self._buckets[b].dtype)
        self._model.displacement(b, displacement)
        moved = self.own[b] - self.server[b]
        return moved.add_(displacement, alpha=-1 / travelled)


@final
class SpreadVector(NDArrayOperatorsMixin):
    """c on this rank's entries, as a vector that NumPy computes with.

    It is made when somebody looks at its numbers. Rules that only hand it on, as exact
    weights do, are served from products that the round has formed already.

    Args:
        variates: where c is kept.
        spread: which entries are this rank's.
    """

    def __init__(self, variates: RankVariates, spread: Spread) -> None:
        self._variates, self._spread = variates, spread

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """This rank's entries in float64."""
        return np.array(
            self._spread.own_part(self._variates.server), dtype=dtype, copy=copy
        )

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **given: Any
    ) -> Any:
        """NumPy's functions, on the numbers."""
        plain = [np.asarray(x) if isinstance(x, SpreadVector) else x for x in inputs]
        return getattr(ufunc, method)(*plain, **given)


@final
@dataclass(frozen=True, slots=True)
class SpreadVariates:
    """The control variates of all ranks as a rule sees them; see `Variates`.

    Attributes:
        server: c.
    """

    server: SpreadVector

    def after(self, round_: Round) -> "SpreadVariates":  # noqa: ARG002 - see Replica
        """Itself: the values change once the round is accepted."""
        return self


def gradient_of(k: int, parameter: torch.Tensor) -> torch.Tensor:
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
