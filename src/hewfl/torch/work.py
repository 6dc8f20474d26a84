"""What each rank did since the last round: exchanged, never assumed."""

from dataclasses import dataclass, replace
from typing import final

import numpy as np
from jaxtyping import Float64, Int64

from hewfl.core.checks import Array, Ints
from hewfl.torch.faults import RankError, ranks_named


@final
@dataclass(frozen=True, slots=True)
class Work:
    """One rank's local work.

    Attributes:
        steps: H_i, steps of the local optimiser.
        tokens: samples or tokens seen, where the loop counts them.
        travelled: η_iH_i, the sum of the learning rates of those steps.
        leaving: whether the rank's loop has ended.
    """

    steps: int = 0
    tokens: int = 0
    travelled: float = 0.0
    leaving: bool = False

    def after_step(self, learning_rate: float) -> "Work":
        """The same with one step more."""
        far = self.travelled + learning_rate
        return replace(self, steps=self.steps + 1, travelled=far)


@final
@dataclass(frozen=True, slots=True)
class Arrivals:
    """The work of all ranks in the order of ranks."""

    steps: Int64[Ints, " n"]
    tokens: Int64[Ints, " n"]
    travelled: Float64[Array, " n"]

    @property
    def active(self) -> Int64[Ints, " s"]:
        """Ranks that did a step, at a learning rate that is not zero."""
        return np.flatnonzero((self.steps > 0) & (self.travelled > 0))


def to_row(round_: int, work: Work, same: tuple[int, ...]) -> Float64[Array, " k"]:
    """Numbers for the wire; `same` must agree on all ranks."""
    row = (round_, work.leaving, work.steps, work.tokens, work.travelled, *same)
    return np.array(row, dtype=np.float64)


def from_table(table: Float64[Array, "n k"], same: tuple[str, ...]) -> Arrivals:
    """The work of all ranks, once they agree on everything else.

    Raises:
        RankError: on every rank alike, if they do not.
    """
    _require_one(table[:, 0], "all ranks must be in the same round", "in round {:.0f}")
    leaving = np.flatnonzero(table[:, 1] != 0)
    if 0 < len(leaving) < len(table):
        text = (
            f"{ranks_named(list(leaving))} left the loop after {table[0, 0]:.0f} "
            "rounds while others go on: all ranks must do the same number of rounds"
        )
        raise RankError(text)
    for k, what in enumerate(same):
        _require_one(table[:, 5 + k], f"all ranks must have the same {what}", "{:.0f}")
    steps, tokens = table[:, 2:4].T.astype(np.int64)
    return Arrivals(steps, tokens, table[:, 4].copy())


def _require_one(column: Float64[Array, " n"], rule: str, form: str) -> None:
    if (column != column[0]).any():
        values = np.unique(column)
        sets = [np.flatnonzero(column == value) for value in values]
        pairs = zip(sets, values, strict=True)
        got = "; ".join(f"{ranks_named(list(s))}: {form.format(v)}" for s, v in pairs)
        raise RankError(f"{rule}; got {got}")
