"""The control variates of one rank: its own, and the server's that all share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from numpy.lib.mixins import NDArrayOperatorsMixin

from hewfl.core.checks import invalid
from hewfl.core.round import Round
from hewfl.torch.layout import Bucket, Layout, flat_view
from hewfl.torch.model import is_finite, largest, shard_of


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
        self,
        layout: Layout,
        device: torch.device,
        *,
        at_gradients: bool,
        is_plain: bool = True,
    ) -> None:
        n = layout.ranks
        self.own = [_zeros(bucket, n, device) for bucket in layout.buckets]
        self.server = [_zeros(bucket, n, device) for bucket in layout.buckets]
        summed = () if is_plain else layout.buckets
        self.totals, self.steps = [_zeros(b, n, device) for b in summed], 0
        self.started = not at_gradients
        self._buckets = layout.buckets

    @property
    def is_plain(self) -> bool:
        """Whether c_i is read off displacements."""
        return not self.totals

    def take_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        """c_i = the gradient at hand, in both places: the server's is yet to be summed.

        Erratum E-29: with c_i = 0 the first round picks the shortest endpoint.
        """
        for b, bucket in enumerate(self._buckets):
            for piece in bucket.pieces:
                g = _gradient(piece.parameter, parameters)
                values = g[piece.start : piece.start + piece.size]
                self.own[b][piece.at : piece.at + piece.size] = values
            self.server[b].copy_(self.own[b])

    def add(self, parameters: Sequence[torch.Tensor]) -> None:
        """Sum up the gradients at hand, before they are corrected."""
        for total, bucket in zip(self.totals, self._buckets, strict=True):
            for piece in bucket.pieces:
                g = _gradient(piece.parameter, parameters)
                here = slice(piece.at, piece.at + piece.size)
                total[here] += g[piece.start : piece.start + piece.size]
        self.steps += 1

    def take_mean(self, b: int) -> torch.Tensor:
        """c_i becomes the mean of the gradients since the last round; its change."""
        mean = self.totals[b] / self.steps
        change = mean - self.own[b]
        self.own[b].copy_(mean)
        return change

    def forget(self) -> None:
        """Start a new sum."""
        self.steps = 0
        for total in self.totals:
            total.zero_()

    def is_bounded(self) -> bool:
        """Whether c_i and c stay finite after `take_mean`, by their sizes."""
        sums = zip(self.totals, self.own, self.server, strict=True)
        sizes = [sum(map(largest, vectors)) for vectors in sums]
        widest = [torch.finfo(c.dtype).max for c in self.own]
        return all(size <= w / 4 for size, w in zip(sizes, widest, strict=True))

    def correct(self, parameters: Sequence[torch.Tensor]) -> None:
        """Gradients become g − c_i + c."""
        for own, server, bucket in zip(
            self.own, self.server, self._buckets, strict=True
        ):
            for piece in bucket.pieces:
                here = slice(piece.at, piece.at + piece.size)
                g = _gradient(piece.parameter, parameters)
                g[piece.start : piece.start + piece.size] += server[here] - own[here]

    def move(self, b: int, displacement: torch.Tensor, travelled: float) -> None:
        """c_i ← c_i − c − Δ_i/(η_iH_i), before the server's changes."""
        self.own[b].sub_(self.server[b]).add_(displacement, alpha=-1 / travelled)

    def stays_finite(
        self, b: int, displacement: torch.Tensor, travelled: float
    ) -> bool:
        """Whether c_i would be finite after `move`; nothing has changed afterwards."""
        before = self.own[b].clone()
        self.move(b, displacement, travelled)
        finite = is_finite(self.own[b])
        self.own[b].copy_(before)
        return finite


@final
class SpreadVector(NDArrayOperatorsMixin):
    """c on this rank's entries, as a vector that NumPy computes with.

    It is made when somebody looks at its numbers. Rules that only hand it on, as exact
    weights do, are served from products that the round has formed already.

    Args:
        variates: where c is kept.
        group: the ranks.
    """

    def __init__(self, variates: RankVariates, group: Any) -> None:
        self._variates = variates
        self._place = dist.get_world_size(group), dist.get_rank(group)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """This rank's entries in float64."""
        parts = [shard_of(c, *self._place) for c in self._variates.server]
        whole = torch.cat([part.double() for part in parts]).cpu().numpy()
        return np.array(whole, dtype=dtype, copy=copy)

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

    def after(self, round_: Round) -> "SpreadVariates":  # noqa: ARG002 - see Distributor
        """Itself: the values change while the new model is distributed."""
        return self


def _zeros(bucket: Bucket, ranks: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(bucket.shard * ranks, dtype=bucket.wide, device=device)


def _gradient(k: int, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """A flat view of a gradient, in the order of the parameter's memory.

    A parameter that the loss did not use has gradient zero, which is corrected too.

    Raises:
        InvalidInputError: it is sparse.
    """
    parameter = parameters[k]
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    elif parameter.grad.layout != torch.strided:
        got = f"{parameter.grad.layout} for parameter number {k}"
        raise invalid("gradients", "dense under a rule with control variates", got)
    elif parameter.grad.stride() != parameter.stride():
        parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
    return flat_view(parameter.grad)
