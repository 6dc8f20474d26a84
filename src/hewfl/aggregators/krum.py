"""Krum and multi-Krum: the clients with the nearest neighbours."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.distances import sq_distances
from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.displacements import Displacements
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Minority, PerClient, Share

TIED = 1e-10
"""Scores that differ by less than this share are equal but for rounding."""
ROUNDING = 1e-14
"""Error of a squared distance, over the squared lengths that it is made of."""


@final
@dataclass(frozen=True, slots=True)
class Krum(Memoryless):
    """The one displacement whose nearest neighbours are nearest [Blanchard2017].

        score_i = Σ ‖Δ_i − Δ_j‖² over the n − f − 2 clients j nearest to i
        step = Δ_k,   k = argmin score

    f = ⌊φ n⌋ is how many bad clients are reckoned with. The paper proves its bound for
    n ≥ 2f + 3; where fewer clients are present, f is the largest that satisfies it, and
    the status tells. Clients that tie for the lowest score share the weight (the paper
    takes the one of least index): two or three clients always tie in part.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        bad: 0 ≤ φ < ½, the share of bad clients; the paper takes f as known, 0.25 is
            our choice.
    """

    bad: Minority = 0.25

    name: ClassVar[str] = "Krum"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """All weight to the lowest score."""
        weights, f = krum_weights(round_.displacements, self.bad, 1)
        return Decision(weights, f"lowest score, {f} bad reckoned with"), state


@final
@dataclass(frozen=True, slots=True)
class MultiKrum(Memoryless):
    """The mean of the m displacements with Krum's lowest scores [Blanchard2017].

        step = (1/m) Σ Δ_i over the m clients of lowest score,   m = max(1, ⌊μ n⌋)

    Scores are those of `Krum`. The paper picks m once, from one set of scores; so do
    we (others score anew after every choice). Clients that tie for the last place share
    it.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        bad: 0 ≤ φ < ½, the share of bad clients, f = ⌊φ n⌋; 0.25 is our choice.
        kept: 0 < μ ≤ 1, the share of clients that is averaged; the better half is our
            choice, 1 is the plain mean.
    """

    bad: Minority = 0.25
    kept: Share = 0.5

    name: ClassVar[str] = "Multi-Krum"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """Equal weights on the m lowest scores."""
        m = max(1, _part(self.kept, round_.displacements.n))
        weights, f = krum_weights(round_.displacements, self.bad, m)
        return Decision(weights, f"{m} lowest scores, {f} bad reckoned with"), state


def krum_weights(
    displacements: Displacements, bad: float, kept: int
) -> tuple[PerClient, int]:
    """Equal weights on the clients of lowest score; ties share the last places.

    Args:
        displacements: Δ_i.
        bad: φ, the share of clients that are taken for bad.
        kept: m, how many clients are averaged.

    Returns:
        Weights, and f, how many bad clients are reckoned with.
    """
    n = displacements.n
    f = max(0, min(_part(bad, n), (n - 3) // 2))
    gram = displacements.products().gram
    nearest = np.sort(sq_distances(gram), axis=1)[:, 1:]  # without itself
    scores = nearest[:, : max(1, n - f - 2)].sum(axis=1)
    last = float(np.sort(scores)[kept - 1])
    # twins must weigh alike, and their scores may differ in the last digits
    slack = TIED * last + ROUNDING * n * float(np.median(np.diagonal(gram)))
    below, tied = scores < last - slack, np.abs(scores - last) <= slack
    weights = below + tied * (kept - below.sum()) / tied.sum()
    return np.asarray(weights / weights.sum()), f


def _part(share: float, n: int) -> int:
    """⌊share · n⌋, where 0.29 · 100 is 29 in spite of rounding."""
    return int(share * n + 1e-9)
