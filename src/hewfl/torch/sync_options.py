"""Options of a torch job, and the report of a round."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from numbers import Real
from pathlib import Path
from typing import Any, Literal, final

import torch

from hewfl.core.validation import invalid
from hewfl.displacements.sketched_displacements import SketchCheck
from hewfl.server.server_step import ServerStep

RootLoss = Callable[[], torch.Tensor]
"""The loss of the model at its present parameters, on samples that are trusted."""


@final
@dataclass(frozen=True, slots=True)
class SyncReport:
    """One round, as this rank saw it.

    Attributes:
        round: rounds done, this one included.
        weights: w_i of every rank.
        steps: H_i of every rank.
        tokens: counted by every rank.
        idle: ranks without a step, at learning rate zero, or, where displacements are
            compared, that did not move; weight zero.
        excluded: ranks whose displacement was not finite; weight zero.
        finished: ranks whose loops have ended; if it is all of them, the round is the
            last.
        status: of the weight problem, one sentence.
        gap: certificate of the weights.
        sketch_check: of the round before, where weights came from sketches: their exact
            value and error on the data.
        bytes_sent: by this rank.
        seconds: from arrival to the new model.
        wait_seconds: of these, until the last rank arrived.
        measured: numbers that the aggregator measured, such as `kappa`, by name.
        accepted: whether the step was taken. In a round that the aggregator rejects
            every rank starts again from the common model.
    """

    round: int
    weights: tuple[float, ...]
    steps: tuple[int, ...]
    tokens: tuple[int, ...]
    idle: tuple[int, ...]
    excluded: tuple[int, ...]
    finished: tuple[int, ...]
    status: str
    gap: float
    sketch_check: SketchCheck | None
    bytes_sent: int
    seconds: float
    wait_seconds: float
    measured: Mapping[str, float] = field(default_factory=dict)
    accepted: bool = True


@final
@dataclass(frozen=True, slots=True)
class SyncOptions:
    """Options of a job. All ranks must agree on them, except for the last three.

    Attributes:
        server_step: applied to the aggregated step; DiLoCo uses
            `ServerStep(0.7, 0.9, nesterov=True)`.
        gram: "sketch" computes inner products from sketches of the displacements, exact
            for models of up to 16,384 parameters, or from displacements of small models
            whole. "full" exchanges entries shard by shard, as aggregators that need
            them and control variates do in either case.
        overlap: send a round's sum while local steps continue. It is applied at the
            next round, and the steps made since then stay.
        compression: "bfloat16" sends sums of float32 models in half the bytes, rounded
            to 8 bits. None sends sums as they are.
        bucket_bytes: exchanged at once, at most.
        anchor_on_host: keep the common model, and the server step's memory, in main
            memory while parameters are on a GPU.
        timeout: of the wait for other ranks, a timedelta or a number of seconds.
        folder: where the first rank writes a trace of the job for `hewfl report`; None
            writes none.
        on_round: called on this rank after each round, with its report. A state saved
            there is that of the new model, with no local step since.

    Raises:
        InvalidInputError: an attribute is out of its range.

    Examples:
        >>> from hewfl import ServerStep
        >>> server_step = ServerStep(0.7, 0.9, nesterov=True)
        >>> options = SyncOptions(server_step=server_step, timeout=60)
        >>> options.limit.total_seconds()
        60.0
    """

    server_step: ServerStep = field(default_factory=ServerStep)
    gram: Literal["sketch", "full"] = "sketch"
    overlap: bool = False
    compression: Literal["bfloat16"] | None = None
    bucket_bytes: int = 2**24
    anchor_on_host: bool = False
    timeout: timedelta | float | int = timedelta(minutes=10)
    folder: Path | str | None = None
    on_round: Callable[[SyncReport], Any] | None = None

    def __post_init__(self) -> None:
        """Check that sizes and times are positive."""
        if self.gram not in ("sketch", "full"):
            raise invalid("gram", '"sketch" or "full"', repr(self.gram))
        if self.compression not in (None, "bfloat16"):
            raise invalid("compression", '"bfloat16" or None', repr(self.compression))
        if self.bucket_bytes < 1:
            raise invalid("bucket_bytes", "at least 1", self.bucket_bytes)
        timeout: Any = self.timeout
        if isinstance(timeout, Real):
            object.__setattr__(self, "timeout", timedelta(seconds=float(timeout)))
        elif not isinstance(timeout, timedelta):
            raise invalid("timeout", "a timedelta or a number of seconds", timeout)
        if self.limit <= timedelta(0):
            raise invalid("timeout", "positive", timeout)

    @property
    def limit(self) -> timedelta:
        """The timeout as a time."""
        assert isinstance(self.timeout, timedelta), "converted in __post_init__"
        return self.timeout
