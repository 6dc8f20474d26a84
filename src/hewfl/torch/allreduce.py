"""Rounds at the cost of a plain average: sketch, solve, send.

    1. each rank sketches its displacement, k numbers in one pass; all get all sketches;
    2. the rule decides on every rank from the same sketches, or from the roster alone;
    3. one plain all-reduce of w_iΔ_i.

The sum of an all-reduce has the same bits on all ranks. Each rank applies its own
weight only, so that machines whose solves differ in a last bit agree on the model.
"""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float64, Int64

from hewfl.aggregate.sketch import CountSketch
from hewfl.core.algorithm import RoundModel
from hewfl.core.checks import Array, Ints
from hewfl.core.displacements import OwnSum
from hewfl.core.native import PASSES, library
from hewfl.torch.meetings import ROOM
from hewfl.torch.model import SharedModel
from hewfl.torch.narrow import Narrow, Send
from hewfl.torch.options import Checked
from hewfl.torch.wire import Wire


@final
class AllReduce:
    """The exchange of sums.

    Its memory is kept between rounds: making as much anew in every round costs more
    than the arithmetic.

    Args:
        model: whose displacements.
        wire: the way to the other ranks.
        send: how, see `Narrow`.

    Attributes:
        narrow: where sums are not sent as they are.
    """

    def __init__(self, model: SharedModel, wire: Wire, send: Send = "full") -> None:
        self._model, self._wire = model, wire
        self._rooms: list[torch.Tensor] = []
        self._works: list[Any] = []
        self.narrow = None if send == "full" else Narrow(model, wire, send)

    def sketched(self, rounds: int) -> Float64[Array, " m"]:
        """The sketch of this rank's displacement: `ROOM` bytes, as a row of a table.

        As many digits as the displacement has. Other signs in every round: what a
        sketch gets wrong does not add up.
        """
        kind, buckets = self._kind, self._model.layout.buckets
        sketch = CountSketch(ROOM // kind.itemsize, seed=rounds)
        total: Any = sketch.empty(self._model.parameters[0])
        lends = total.device.type == "cpu" and library(PASSES) is not None
        for b, bucket in enumerate(buckets):
            pieces, start = self._model.pieces(b), self._model.start(b)
            sums = total
            if lends and bucket.dtype == torch.float32:  # faster than tensors are lent
                sums, start = total.numpy(), start.numpy()
                pieces = [piece.numpy() for piece in pieces]
            sketch.add(sums, pieces, bucket.begin, start)
        mine = total.cpu().numpy().astype(kind)
        packed: Array = mine.view(np.float64)
        return packed

    def unpacked(self, table: Float64[Array, "n m"]) -> Float64[Array, "n k"]:
        """Sketches of all ranks from their rows."""
        rows = np.ascontiguousarray(table).view(self._kind)
        return rows.astype(np.float64)

    @property
    def _kind(self) -> np.dtype[Any]:
        wide = max(bucket.dtype.itemsize for bucket in self._model.layout.buckets)
        return np.dtype(np.float32 if wide <= 4 else np.float64)

    def start(self, weight: float) -> None:
        """Let Σ w_iΔ_i travel, bucket by bucket: one is made ready while one travels.

        Args:
            weight: of this rank; zero leaves its displacement out, even a NaN.
        """
        self._rooms = self._rooms or [
            torch.empty(bucket.size, dtype=bucket.dtype, device=self._wire.device)
            for bucket in self._model.layout.buckets
        ]
        self._works = []
        for b, room in enumerate(self._rooms):
            if weight == 0:  # whatever Δ is, NaN included
                room.zero_()
            else:
                self._model.displacement(b, room, weight)
            if self.narrow is None:
                self._works.append(self._wire.adding(room))
            else:
                self.narrow.start(b, room)

    def finish(self) -> list[torch.Tensor]:
        """The sum, once it is there."""
        if self.narrow is not None:
            return self.narrow.finish()
        self._wire.wait(self._works)
        return self._rooms

    @property
    def is_direct(self) -> bool:
        """Whether `moved` will do."""
        return self.narrow is None and self._model.is_direct

    def moved(self, *, multiplies: bool) -> float | None:
        """Wait for the sum and move the model by it, each bucket while others travel.

        Nothing is changed before all of it is there and known to be finite: the sums
        become the next x in their own memory.

        Args:
            multiplies: whether ⟨s, Δ⟩ of this rank is wanted.

        Returns:
            ⟨s, Δ⟩, zero if it is not wanted; None if the model would not be finite.
        """
        product, far = 0.0, [0.0]
        for b, (work, room) in enumerate(zip(self._works, self._rooms, strict=True)):
            self._wire.wait([work])
            part, reach = self._model.advance(b, room, multiplies=multiplies)
            product += part
            far.append(reach)
        if not np.isfinite(far).all():
            return None
        self._rooms = self._model.accept(self._rooms, max(far))
        return product

    def settle(self) -> None:
        """Keep what was rounded off, once the sum is accepted."""
        if self.narrow is not None:
            self.narrow.settle()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """Weights from sketches, and what they minimised; to be checked on the data.

    Attributes:
        round: rounds done with this one.
        heard: ranks that count.
        weights: w_i of these.
        model: what they minimise.
        rows: sketches of those heard.
    """

    round: int
    heard: Int64[Ints, " s"]
    weights: Float64[Array, " s"]
    model: RoundModel
    rows: Float64[Array, "s k"]


def checked(solved: Solved, products: Float64[Array, " n"]) -> Checked:
    """Value and gap of weights from sketches, and the sketches' error, on the data.

    With t_i = ⟨d, Δ_i⟩ from the ranks, n numbers, and u the reference g = Σ u_jΔ_j,

        Ψ(w) = ⟨g, d⟩ + (Λ/2)‖d‖² = Σ u_jt_j + (Λ/2) Σ w_it_i

    is exact. The gap max_i Σ_j w_j p_j − p_i, p_i = ⟨g + Λd, Δ_i⟩, needs ⟨g, Δ_i⟩ as
    well, which nobody holds: that part is the sketches'.

    Args:
        solved: the weights.
        products: t of all ranks.
    """
    w, rows, model = solved.weights, solved.rows, solved.model
    t, curvature = products[solved.heard], model.curvature
    u = model.reference.weights if isinstance(model.reference, OwnSum) else 0 * w
    along = rows @ (w @ rows)  # t as the sketches have it
    square = max(float(w @ t), 0.0)
    lengths = np.sqrt(square * (rows * rows).sum(axis=1))
    off = np.abs(along - t)
    error = np.divide(off, lengths, out=np.zeros_like(off), where=lengths > 0)
    value = float(u @ t) + 0.5 * curvature * square
    slopes = rows @ (u @ rows) + curvature * t
    least = slopes.min() if w.sum() > 1 - 1e-9 else min(slopes.min(), 0.0)
    gap = max(float(w @ slopes - least), 0.0)
    return Checked(solved.round, value, gap, float(error.max()))
