"""Methods over several panels: mean ranks, certain wins and losses, Friedman's test."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import scipy.special

from hewfl.experiments.standing import Standing
from hewfl.experiments.tune import LARGER_IS_BETTER


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One method over the panels it is in.

    Attributes:
        label: what tables call it.
        rank: the mean over panels; 1 is best, equal means share theirs.
        panels: how many it is in.
        best: in how many it has the best mean.
        wins: certain wins over other methods, all panels together.
        losses: certain losses.
    """

    label: str
    rank: float
    panels: int
    best: int
    wins: int
    losses: int


def rank(standings: Sequence[Standing]) -> list[Row]:
    """Rank methods over panels, best mean rank first; those in one panel left out."""
    ranks: dict[str, list[float]] = {}
    for standing in standings:
        for label, place in _places(standing).items():
            ranks.setdefault(label, []).append(place)
    rows = []
    for label, own in ranks.items():
        mine = [s for s in standings if label in s.finals]
        told = [s.split(label) for s in mine]
        rows.append(
            Row(
                label,
                float(np.mean(own)),
                len(own),
                sum(label in s.best for s in mine),
                sum(len(t["better"]) for t in told),
                sum(len(t["worse"]) for t in told),
            )
        )
    several = [row for row in rows if row.panels > 1]
    return sorted(several, key=lambda row: row.rank)


def friedman(standings: Sequence[Standing]) -> float | None:
    """Friedman's p: how likely ranks differ so much between methods by chance alone.

        χ² = 12 N / (k (k + 1)) Σ_j (R_j − (k + 1)/2)²    on k − 1 degrees of freedom

    for N panels and the k methods that are in all of them, R_j the mean rank among
    these; None with fewer than two panels or three methods.
    """
    first, *rest = (s.labels for s in standings)
    shared = [label for label in first if all(label in own for own in rest)]
    N, k = len(standings), len(shared)
    if N < 2 or k < 3:
        return None
    table = np.array([[_places(s)[label] for label in shared] for s in standings])
    among = np.array([[(row < v).sum() + _half(row, v) for v in row] for row in table])
    R = among.mean(axis=0)
    chi2 = 12 * N / (k * (k + 1)) * float(((R - (k + 1) / 2) ** 2).sum())
    return float(scipy.special.chdtrc(k - 1, chi2))


def _half(row: "np.typing.NDArray[np.float64]", value: float) -> float:
    """Place among equals, the mean of those they share."""
    return float(((row == value).sum() + 1) / 2)


def _places(standing: Standing) -> dict[str, float]:
    """Rank of each method in one panel; a method that diverged is behind all others."""
    sign = -1 if standing.quantity in LARGER_IS_BETTER else 1
    means = {label: sign * standing.mean(label) for label in standing.labels}
    worth = {k: v if np.isfinite(v) else np.inf for k, v in means.items()}
    row = np.array(list(worth.values()))
    return {k: float((row < v).sum()) + _half(row, v) for k, v in worth.items()}
