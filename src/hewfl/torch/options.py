"""What may be asked of the exchange, and what it reports."""

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import final

from hewfl.core.checks import invalid
from hewfl.server.measure import Measured
from hewfl.server.outer import Outer


@final
@dataclass(frozen=True, slots=True)
class SyncOptions:
    """Choices that all ranks must share.

    Attributes:
        smoothness: L for the rules "hom" and "het"; None does without
            (`hewfl.torch.rules.Rule`).
        curvature_ratio: Λ/L for the same rules.
        outer: step size and momentum on the aggregated step; DiLoCo uses
            Outer(0.7, 0.9, nesterov=True). Its memory is spread over ranks.
        bucket_bytes: what is exchanged at once; 16 MiB was fastest of 0.25 to 64 MiB.
        timeout: how long to wait for the other ranks.
        folder: where the first rank keeps a trace of the job for `hewfl report`; None
            keeps none.
    """

    smoothness: float | None = None
    curvature_ratio: float = 1.25
    outer: Outer = field(default_factory=Outer)
    bucket_bytes: int = 2**24
    timeout: timedelta = timedelta(minutes=10)
    folder: Path | str | None = None

    def __post_init__(self) -> None:
        """Check that sizes and times are positive."""
        if self.bucket_bytes < 1:
            raise invalid("bucket_bytes", "at least 1", self.bucket_bytes)
        if self.timeout <= timedelta(0):
            raise invalid("timeout", "positive", self.timeout)


@final
@dataclass(frozen=True, slots=True)
class SyncReport:
    """One round as this rank saw it.

    Attributes:
        round: rounds done, this one included.
        weights: w_i of every rank.
        steps: H_i of every rank.
        tokens: counted by every rank.
        idle: ranks that had done no step, or at learning rate zero; weight zero.
        excluded: ranks whose displacement was not finite, weight zero.
        status: of the weight problem, one sentence.
        gap: certificate of the weights.
        bytes_sent: by this rank.
        ring_bytes: what a ring all-reduce of the model would have sent.
        seconds: from arrival to the new model.
        waited: of these, until the last rank had arrived.
        measured: what ranks measured along the step, None where they do not.
    """

    round: int
    weights: tuple[float, ...]
    steps: tuple[int, ...]
    tokens: tuple[int, ...]
    idle: tuple[int, ...]
    excluded: tuple[int, ...]
    status: str
    gap: float
    bytes_sent: int
    ring_bytes: int
    seconds: float
    waited: float
    measured: Measured | None = None
