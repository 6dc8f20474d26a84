"""The server step: what the server does with the aggregated step s = Σ w_iΔ_i.

plain      x ← x + γ s
heavy ball m ← β m + s,             x ← x + γ m
Nesterov   m ← β m + s,             x ← x + γ (s + β m)
adaptive   m ← β m + (1 − β) s,     x ← x + γ m / (√v + τ)          [Reddi2021, Alg. 2]
           FedAdagrad   v ← v + s²
           FedAdam      v ← β₂ v + (1 − β₂) s²
           FedYogi      v ← v − (1 − β₂) s² sign(v − s²)

The server may also keep an average a of its iterates [Polyak1992]. The average changes
no iterate. After the t-th round with a step, t = 1, 2, …,

average    a ← a + p_t (x_t − a)
           EMA    p_t = 1 − min(β, (t − 1)/(t + 4))     exponential, with warm-up
           tail   p_t = 1/max(1, t − r + 1)             the mean of x_r, x_{r+1}, …, x_t

The warm-up makes the first averages short: β alone would keep the start x_0 in the
average for 1/(1 − β) rounds. In both forms x_0 itself does not count, and before its
first round r the tail average is the iterate. A round without a step does not count.

The length of the step may come from a line search (`hewfl.server.line_search`).
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, final

from hewfl.core.array_types import Float64
from hewfl.core.validation import (
    Array,
    BelowOne,
    Count,
    Positive,
    check_fields,
    invalid,
    positive,
)

BETA2, TAU = 0.99, 1e-3
"""Defaults of the adaptive steps: those of the experiments in [Reddi2021]."""
POINTS = (0.5, 1.0, 2.0)
"""Default step lengths of a line search, besides 0."""
DECAY = 0.9
"""Default of β for `average="ema"`: an average over about ten rounds."""
WARM_UP = 5
"""Rounds: the average of the first t rounds is over about t/5 + 1 of them."""


@dataclass(frozen=True, slots=True)
class ServerStep:
    """What the server does with the step s = Σ w_iΔ_i, and which average it keeps.

    Args:
        step: γ > 0; one in the paper.
        momentum: β from 0 to below 1; zero in the paper. With `adapt` it is β₁.
        nesterov: look ahead, as DiLoCo does.
        adapt: "adam", "yogi" or "adagrad": divide by √v + τ, entry by entry
            [Reddi2021]; None does not. γ = 1 is then far too long for most models.
        beta2: β₂ from 0 to below 1 of "adam" and "yogi".
        tau: τ > 0 of `adapt`; v starts at τ².
        average: "ema" or "tail": keep an average of the iterates beside them; None
            keeps none.
        average_decay: β from 0 to below 1 of "ema".
        average_from: the first round whose iterate counts in "tail", at least 1.
        line_search_samples: fresh samples on which each client measures its loss along
            s; the losses determine the length of the step. None: no line search.
        line_search_points: the lengths a > 0 at which clients measure the loss at
            x + a s, increasing, at least two.

    Raises:
        InvalidInputError: a field is out of its range, or would be ignored.

    Examples:
        >>> ServerStep(momentum=0.9, average="ema").words
        ', momentum 0.9, averaged'
    """

    step: Positive = 1.0
    momentum: BelowOne = 0.0
    nesterov: bool = False
    adapt: Literal["adam", "yogi", "adagrad"] | None = None
    beta2: BelowOne = BETA2
    tau: Positive = TAU
    average: Literal["ema", "tail"] | None = None
    average_decay: BelowOne = DECAY
    average_from: Count = 1
    line_search_samples: Count | None = None
    line_search_points: tuple[float, ...] = POINTS

    def __post_init__(self) -> None:
        """Check ranges, and that every field has an effect."""
        check_fields(self)
        if self.nesterov and self.adapt is not None:
            rule = "left out with `adapt`: Nesterov's step has no division"
            raise invalid("nesterov", rule, self.nesterov)
        ignored = (
            ("beta2", BETA2, 'adapt="adam" or "yogi"', self.adapt in ("adam", "yogi")),
            ("tau", TAU, "`adapt`", self.adapt is not None),
            ("average_decay", DECAY, 'average="ema"', self.average == "ema"),
            ("average_from", 1, 'average="tail"', self.average == "tail"),
            ("line_search_points", POINTS, "`line_search_samples`", self.has_search),
        )
        for name, default, condition, has_effect in ignored:
            value = getattr(self, name)
            if value != default and not has_effect:
                raise invalid(name, f"left out without {condition}", value)
        self._check_line_search()

    def _check_line_search(self) -> None:
        """Check the points, and that nothing else determines the length."""
        at = self.line_search_points
        ends = [0.0, *(positive("line_search_points", a) for a in at)]
        if len(at) < 2 or any(a >= b for a, b in pairwise(ends)):
            raise invalid("line_search_points", "at least two increasing numbers", at)
        if not self.has_search:
            return
        why = "with `line_search_samples`, which determines the length"
        if self.adapt is not None:
            raise invalid("adapt", f"left out {why}", repr(self.adapt))
        if self.step != 1:
            raise invalid("step", f"1 {why}", self.step)

    @property
    def has_search(self) -> bool:
        """Whether a line search determines the length of the step."""
        return self.line_search_samples is not None

    @property
    def is_plain(self) -> bool:
        """Whether the server's step is s itself."""
        changes = (self.momentum != 0, self.adapt is not None, self.has_search)
        return self.step == 1 and not any(changes)

    @property
    def memory(self) -> tuple[float, ...]:
        """The initial values of the vectors that it keeps: of m, then of v."""
        if self.adapt is not None:
            return (0.0, self.tau**2)
        return (0.0,) if self.momentum else ()

    @property
    def words(self) -> str:
        """The suffix of a method's name, with a comma before."""
        parts = [f"momentum {self.momentum:g}"] if self.momentum else []
        parts += [self.adapt] if self.adapt else []
        parts += ["line search"] if self.has_search else []
        parts += ["averaged"] if self.average else []
        return "".join(f", {part}" for part in parts)

    def apply(self, step: Any, memory: Any) -> tuple[Any, Any]:
        """The move x_{t+1} − x_t and the new memory, entry by entry.

        Vectors are of NumPy or torch, whole or in part. A subclass with a step of its
        own overrides `apply`, `memory` and `is_plain` (docs/architecture.md).

        Args:
            step: s, or some entries of it.
            memory: one row for each value of `memory`, on the same entries; m alone
                with momentum, m and v with `adapt`.

        Returns:
            The move, and the memory of the next round.
        """
        if self.adapt is not None:
            return _adaptive_step(self, step, memory)
        if self.momentum == 0:
            return self.step * step, memory
        memory = self.momentum * memory + step
        ahead = step + self.momentum * memory if self.nesterov else memory
        return self.step * ahead, memory

    def without_average(self) -> "ServerStep":
        """The same step without an average of the iterates."""
        return replace(self, average=None, average_decay=DECAY, average_from=1)


def _adaptive_step(server_step: ServerStep, step: Any, memory: Any) -> tuple[Any, Any]:
    beta, beta2, square = server_step.momentum, server_step.beta2, step * step
    m, v = memory[0], memory[1]
    m = beta * m + (1 - beta) * step
    if server_step.adapt == "adagrad":
        v = v + square
    elif server_step.adapt == "adam":
        v = beta2 * v + (1 - beta2) * square
    else:  # (s² > v) − (s² < v) is minus the sign, in NumPy and torch alike
        v = v + (1 - beta2) * ((square > v) * square - (square < v) * square)
    both = memory + 0.0  # a copy
    both[0], both[1] = m, v
    return server_step.step * (m / (v**0.5 + server_step.tau)), both


@final
@dataclass(frozen=True, slots=True, eq=False)
class Average:
    """The average of the iterates of a run so far.

    Attributes:
        model: a, the averaged model; the start before the first round.
        rounds: t, the number of iterates in it.
    """

    model: Float64[Array, " d"]
    rounds: int = 0


def average_weight(server_step: ServerStep, rounds: int) -> float:
    """p_t, the weight of the newest iterate in the average.

    Args:
        server_step: says which average; it must have one.
        rounds: t − 1, the number of iterates before this one.
    """
    if server_step.average == "tail":
        return 1 / max(1, rounds + 2 - server_step.average_from)
    return 1 - min(server_step.average_decay, rounds / (rounds + WARM_UP))


def add_iterate(weight: float, average: Any, iterate: Any) -> Any:
    """The next average a + p_t (x_t − a), in new memory, entry by entry.

    Vectors are of NumPy or torch, whole or in part.

    Args:
        weight: p_t of `average_weight`.
        average: a before the round.
        iterate: x_t.
    """
    if weight == 1:  # a + (x − a) is not x after rounding
        return iterate + 0.0
    return average + weight * (iterate - average)


def next_average(
    server_step: ServerStep, before: Average, iterate: Float64[Array, " d"]
) -> Average:
    """The average after one more iterate."""
    weight = average_weight(server_step, before.rounds)
    return Average(add_iterate(weight, before.model, iterate), before.rounds + 1)
