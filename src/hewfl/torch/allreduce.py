"""Rounds at the cost of a plain average: sketch, solve, send.

    1. each rank sketches its displacement, k numbers in one pass; all get all sketches;
    2. the rule decides on every rank from the same sketches, or from the roster alone;
    3. one plain all-reduce of w_iΔ_i.

The sum of an all-reduce has the same bits on all ranks. Each rank applies its own
weight only, so that machines whose solves differ in a last bit agree on the model.
"""

from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float64

from hewfl.aggregate.sketch import CountSketch
from hewfl.core.algorithm import RoundModel
from hewfl.core.checks import Array
from hewfl.core.displacements import OwnSum
from hewfl.core.round import Decision
from hewfl.torch.model import SharedModel
from hewfl.torch.wire import Wire


@final
class AllReduce:
    """The exchange of sums.

    Its memory is kept between rounds: making as much anew in every round costs more
    than the arithmetic.

    Args:
        model: whose displacements.
        wire: the way to the other ranks.
    """

    def __init__(self, model: SharedModel, wire: Wire) -> None:
        self._model, self._wire = model, wire
        self._rooms: list[torch.Tensor] = []

    def sketches(self, rounds: int) -> Float64[Array, "n k"]:
        """Sketches of all ranks' displacements, the same numbers on all of them.

        Other signs in every round: what a sketch gets wrong does not add up.
        """
        mine = self._model.sketch(CountSketch(seed=rounds))
        wide = max(bucket.dtype.itemsize for bucket in self._model.layout.buckets)
        if wide <= 4:  # as many digits as the displacement has
            mine = mine.float()
        rows = self._wire.gathered(mine)
        found: Array = rows.double().cpu().numpy()
        return found

    def step(self, weight: float) -> list[torch.Tensor]:
        """Σ w_iΔ_i, bucket by bucket: a bucket is made ready while one travels.

        Args:
            weight: of this rank; zero leaves its displacement out, even a NaN.
        """
        buckets = self._model.layout.buckets
        if not self._rooms:
            self._rooms = [
                torch.empty(bucket.size, dtype=bucket.dtype, device=self._wire.device)
                for bucket in buckets
            ]
        works: list[Any] = []
        for b, room in enumerate(self._rooms):
            self._model.displacement(b, room, weight)
            works.append(self._wire.adding(room))
        self._wire.wait(works)
        return self._rooms


def certified(
    decision: Decision,
    model: RoundModel,
    rows: Float64[Array, "s k"],
    products: Float64[Array, " s"],
) -> tuple[float | None, float, float]:
    """Value and gap of weights from sketches, and the sketches' error, on the data.

    With t_i = ⟨d, Δ_i⟩ from the ranks, n numbers, and u the reference g = Σ u_jΔ_j,

        Ψ(w) = ⟨g, d⟩ + (Λ/2)‖d‖² = Σ u_jt_j + (Λ/2) Σ w_it_i

    is exact. The gap max_i Σ_j w_j p_j − p_i, p_i = ⟨g + Λd, Δ_i⟩, needs ⟨g, Δ_i⟩ as
    well, which nobody holds: that part is the sketches'.

    Args:
        decision: with the weights.
        model: what they minimise.
        rows: sketches of those heard.
        products: t.

    Returns:
        The value, the gap, and the largest error of a sketched t_i over ‖d‖‖Δ_i‖. The
        first two are the decision's own where that minimised something else (no value).
    """
    w, curvature = decision.weights, model.curvature
    u = model.reference.weights if isinstance(model.reference, OwnSum) else 0 * w
    along = rows @ (w @ rows)  # t as the sketches have it
    square = max(float(w @ products), 0.0)
    lengths = np.sqrt(square * (rows * rows).sum(axis=1))
    off = np.abs(along - products)
    error = np.divide(off, lengths, out=np.zeros_like(off), where=lengths > 0)
    if decision.value is None:  # as with cross-fitted slopes
        return None, decision.gap, float(error.max())
    value = float(u @ products) + 0.5 * curvature * square
    slopes = rows @ (u @ rows) + curvature * products
    least = slopes.min() if w.sum() > 1 - 1e-9 else min(slopes.min(), 0.0)
    return value, max(float(w @ slopes - least), 0.0), float(error.max())
