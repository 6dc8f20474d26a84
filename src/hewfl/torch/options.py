"""What may be asked of the exchange, and what it reports."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from numbers import Real
from pathlib import Path
from typing import Any, Literal, final

from hewfl.core.validation import invalid
from hewfl.displacements.sketched_displacements import SketchCheck
from hewfl.server.line_search import LineSearchResult
from hewfl.server.server_step import ServerStep


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
        left: ranks whose loops have ended; the round is the last if it is all of them.
        status: of the weight problem, one sentence.
        gap: certificate of the weights.
        checked: of the round before, where weights were from sketches: what the data
            says of them, n numbers that travel with the next meeting.
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
    left: tuple[int, ...]
    status: str
    gap: float
    checked: SketchCheck | None
    bytes_sent: int
    ring_bytes: int
    seconds: float
    waited: float
    measured: LineSearchResult | None = None


@final
@dataclass(frozen=True, slots=True)
class SyncOptions:
    """Choices that all ranks must share, but for the last three.

    Attributes:
        smoothness: L for the rules "hom" and "het"; None does without
            (`hewfl.torch.job_rule.Rule`).
        curvature_ratio: Λ/L for the same rules.
        server_step: step size and momentum on the aggregated step; DiLoCo uses
            ServerStep(0.7, 0.9, nesterov=True).
        exact: "sketch" solves for weights from sketches of the displacements, exact
            for models of up to 16,384 parameters, at the cost of an all-reduce. "full"
            exchanges all entries and forms all products. Rules with control variates
            and rules that ask for entries have them in either case.
        overlap: let a round's sum travel while local steps go on; it is applied at the
            next round, and steps made since are kept.
        send: "bfloat16" sends sums of float32 models in half the bytes, "int8" in a
            quarter; what is rounded off is added to what is sent next
            (`hewfl.torch.compression`). "full" sends them as they are.
        bucket_bytes: what is exchanged at once, at most.
        anchor_on_host: keep the common model, and what the server step remembers, in
            main memory while parameters are on a GPU.
        timeout: how long to wait for the other ranks, a time or a number of seconds.
        folder: where the first rank keeps a trace of the job for `hewfl report`; None
            keeps none.
        on_round: called on this rank after each round, with its report; a state that
            is saved there is that of the new model, with no step under way.

    Raises:
        InvalidInputError: an attribute is out of its range.

    Examples:
        >>> from hewfl import ServerStep
        >>> options = SyncOptions(server_step=ServerStep(0.7, 0.9, nesterov=True), timeout=60)
        >>> options.limit.total_seconds()
        60.0
    """

    smoothness: float | None = None
    curvature_ratio: float = 1.25
    server_step: ServerStep = field(default_factory=ServerStep)
    exact: Literal["sketch", "full"] = "sketch"
    overlap: bool = False
    send: Literal["full", "bfloat16", "int8"] = "full"
    bucket_bytes: int = 2**24
    anchor_on_host: bool = False
    timeout: timedelta | float | int = timedelta(minutes=10)
    folder: Path | str | None = None
    on_round: Callable[[SyncReport], Any] | None = None

    def __post_init__(self) -> None:
        """Check that sizes and times are positive."""
        if self.exact not in ("sketch", "full"):
            raise invalid("exact", '"sketch" or "full"', repr(self.exact))
        if self.send not in ("full", "bfloat16", "int8"):
            raise invalid("send", '"full", "bfloat16" or "int8"', repr(self.send))
        if self.bucket_bytes < 1:
            raise invalid("bucket_bytes", "at least 1", self.bucket_bytes)
        given: Any = self.timeout
        if isinstance(given, Real):
            object.__setattr__(self, "timeout", timedelta(seconds=float(given)))
        elif not isinstance(given, timedelta):
            raise invalid("timeout", "a timedelta or a number of seconds", given)
        if self.limit <= timedelta(0):
            raise invalid("timeout", "positive", given)

    @property
    def limit(self) -> timedelta:
        """The timeout as a time."""
        assert isinstance(self.timeout, timedelta), "turned into one when it was made"
        return self.timeout
