"""The mean of every coordinate without its extreme values."""

from dataclasses import dataclass
from typing import ClassVar, final

from hewfl.aggregators.coordinates import middle_means
from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Minority


@final
@dataclass(frozen=True, slots=True)
class TrimmedMean(Memoryless):
    """In every coordinate the mean of the values between the extremes [Yin2018].

        step_k = mean of Δ_ik over all i but the b largest and the b smallest,
        b = ⌊β n⌋

    β must be no less than the share of bad clients. With few clients b may be zero: the
    rule is then the plain mean, and the status tells b. The step is no combination of
    displacements, so it is given as such; `weights` is the share of a client in the
    values that were kept, over the coordinates in which clients differ.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        trim: 0 ≤ β < ½; 0.2 is the default of Flower's FedTrimmedAvg.
    """

    trim: Minority = 0.2

    name: ClassVar[str] = "Trimmed mean"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """The trimmed mean as a step, and whose values it kept how often."""
        D = round_.displacements
        b = min(int(self.trim * D.n + 1e-9), (D.n - 1) // 2)  # 0.29 · 100 is below 29
        step, weights = middle_means(D, b)
        status = f"mean of every coordinate but {b} values at either end"
        return Decision(weights, status, step=step), state
