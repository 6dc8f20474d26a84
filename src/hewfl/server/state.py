"""What a run carries from round to round, and the method that it runs."""

from dataclasses import dataclass, field, replace
from typing import Any, final

from hewfl.core.algorithm import Algorithm
from hewfl.core.array_types import Float64
from hewfl.core.validation import Array, invalid, shown
from hewfl.server.communication import Charge
from hewfl.server.server_step import Average, ServerStep

_CONTRACT = ("name", "demands", "init", "plan", "decide")


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """One method of a comparison: an algorithm under an server optimiser.

    Attributes:
        algorithm: the method.
        server_step: what the server does with its step; plain addition by default.
        label: what tables call it; by default the names of both.

    Raises:
        InvalidInputError: an attribute is not of its kind.
    """

    algorithm: Algorithm[Any]
    server_step: ServerStep = field(default_factory=ServerStep)
    label: str | None = None

    def __post_init__(self) -> None:
        """Check that an algorithm and an server step were given."""
        check_algorithm("algorithm", self.algorithm)
        if not isinstance(self.server_step, ServerStep):
            raise invalid("server_step", "an ServerStep", shown(self.server_step))

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.label is not None:
            return self.label
        return self.algorithm.name + self.server_step.words


def as_entry(value: Any, label: str | None = None) -> Entry:
    """A method as an entry of a comparison; a `Method` brings its own server step.

    Args:
        value: a method, or an entry, which is returned unchanged.
        label: what tables call it.

    Returns:
        The entry.
    """
    if isinstance(value, Entry):
        return value
    own = getattr(value, "server_step", None)
    step = own if isinstance(own, ServerStep) else ServerStep()
    return Entry(value, step, value.name if label is None and own else label)


def delivered(state: "ServerState") -> Float64[Array, " d"]:
    """The model that a run hands out: the average where one is kept, else x_t."""
    return state.anchor if state.average is None else state.average.model


def check_algorithm(name: str, value: object, also: str = "") -> None:
    """Require an object with the five parts of an algorithm; a class is none."""
    missing = [part for part in _CONTRACT if not hasattr(value, part)]
    if missing or isinstance(value, type):
        got = shown(value)
        if "decide" not in missing and not isinstance(value, type):
            got += f", which has no {', '.join(f'`{part}`' for part in missing)}"
        rule = f"a method, such as FedAvg(0.1){also}"
        if hasattr(value, "needs") and not isinstance(value, type):
            got += ", an aggregator: give it local work, Method(LocalSGD(0.1), …)"
        raise invalid(name, rule, got)


@final
@dataclass(frozen=True, slots=True)
class ServerState:
    """All that a method carries from round to round.

    Attributes:
        anchor: x_t.
        memory: of the server optimiser: its momentum m; two rows, m and v, of one that
            divides.
        algorithm: the algorithm's own state.
        scalars: numbers sent since the start.
        paper_scalars: numbers sent in the paper's count.
        diverged: stopped, because a step or the objective left all bounds.
        refused: stopped, because its rule could not decide a round.
        average: of the iterates, None where none is kept.
        scale: that measured steps have put on the plan's step sizes; None without them.
        kept: what stale clients of a simulated scenario sent last, one row each, and
            below them, where mean gradients are sent too, those with the sign turned;
            rules are not shown it.
    """

    anchor: Float64[Array, " d"]
    memory: Float64[Array, "*rows d"]
    algorithm: Any
    scalars: int
    paper_scalars: int
    diverged: bool = False
    refused: bool = False
    average: Average | None = None
    scale: float | None = None
    kept: Float64[Array, "k d"] | None = None

    @property
    def stopped(self) -> bool:
        """Whether it takes part in no more rounds."""
        return self.diverged or self.refused

    def charged(self, bill: Charge, paper: Charge | None = None) -> "ServerState":
        """The state with a round's bill on its account; the paper's may be another."""
        return replace(
            self,
            scalars=self.scalars + bill.scalars,
            paper_scalars=self.paper_scalars + (paper or bill).paper_scalars,
        )
