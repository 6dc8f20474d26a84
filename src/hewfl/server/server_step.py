"""The server's own optimiser: what is done with the aggregated step s = Σ w_iΔ_i.

plain      x ← x + γ s
heavy ball m ← β m + s,             x ← x + γ m
Nesterov   m ← β m + s,             x ← x + γ (s + β m)
adaptive   m ← β m + (1 − β) s,     x ← x + γ m / (√v + τ)          [Reddi2021, Alg. 2]
           FedAdagrad   v ← v + s²
           FedAdam      v ← β₂ v + (1 − β₂) s²
           FedYogi      v ← v − (1 − β₂) s² sign(v − s²)

Besides, the server may keep an average of its iterates (`hewfl.server.server_step`), and
ask the clients how far to go along s (`hewfl.server.line_search`).
"""

from dataclasses import dataclass, fields
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
"""Default of the a at which clients are asked for their loss, besides a = 0."""
DECAY = 0.9
"""Default of β for `average="ema"`: an average over about ten rounds."""


@final
@dataclass(frozen=True, slots=True, repr=False)
class ServerStep:
    """What the server does with the step s = Σ w_iΔ_i, and which average it keeps.

    Attributes:
        step: γ > 0; one in the paper.
        momentum: β from 0 to below 1; zero in the paper. With `adapt` it is β₁.
        nesterov: look ahead, as DiLoCo does.
        adapt: "adam", "yogi" or "adagrad": divide by √v + τ, entry by entry
            [Reddi2021]; None does not. γ = 1 is then far too long for most models.
        beta2: β₂ from 0 to below 1 of "adam" and "yogi"; 0.99 if not given.
        tau: τ > 0 of `adapt`, 0.001 if not given; v starts at τ².
        average: "ema" or "tail": keep an average of the iterates beside them; None
            keeps none. It changes no iterate.
        average_decay: β from 0 to below 1 of "ema"; 0.9 if not given.
        average_from: the first round whose iterate counts in "tail", at least 1; all
            count if not given.
        measure: fresh samples of each client on which it measures its loss along s, to
            tell how far to go; None measures nothing.
        measure_at: a > 0 at which the loss at x + a s is asked for, increasing and at
            least two; 0.5, 1 and 2 if not given.

    Raises:
        InvalidInputError: an attribute is out of its range, or two do not go together.
    """

    step: Positive = 1.0
    momentum: BelowOne = 0.0
    nesterov: bool = False
    adapt: Literal["adam", "yogi", "adagrad"] | None = None
    beta2: BelowOne | None = None
    tau: Positive | None = None
    average: Literal["ema", "tail"] | None = None
    average_decay: BelowOne | None = None
    average_from: Count | None = None
    measure: Count | None = None
    measure_at: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Check ranges, and that every field that is set has an effect."""
        check_fields(self)
        if self.nesterov and self.adapt is not None:
            rule = "left out with `adapt`: Nesterov's step is one without division"
            raise invalid("nesterov", rule, self.nesterov)
        if self.beta2 is not None:
            _only("beta2", 'adapt = "adam" or "yogi"', self.adapt in ("adam", "yogi"))
        if self.tau is not None:
            _only("tau", "`adapt`", self.adapt is not None)
        if self.average_decay is not None:
            _only("average_decay", 'average = "ema"', self.average == "ema")
        if self.average_from is not None:
            _only("average_from", 'average = "tail"', self.average == "tail")
        self._check_measured()

    def _check_measured(self) -> None:
        """Check that a measured step is the only one that says how far to go."""
        if self.measure_at is not None:
            _only("measure_at", "`measure`", self.measure is not None)
            at = self.measure_at
            ends = [0.0, *(positive("measure_at", a) for a in at)]
            if len(at) < 2 or any(a >= b for a, b in pairwise(ends)):
                raise invalid("measure_at", "at least two increasing numbers", at)
        if self.measure is None:
            return
        why = "with `measure`, which says how far to go"
        if self.adapt is not None:
            raise invalid("adapt", f"left out {why}", repr(self.adapt))
        if self.step != 1:
            raise invalid("step", f"1 {why}", self.step)

    def __repr__(self) -> str:
        """As Python writes it, without what is not set: old checkpoints name it so."""
        pairs = [(f.name, getattr(self, f.name)) for f in fields(self)]
        told = [f"{name}={value!r}" for name, value in pairs if value is not None]
        return f"ServerStep({', '.join(told)})"

    @property
    def is_plain(self) -> bool:
        """Whether the server's step is s itself."""
        changes = (self.momentum != 0, self.adapt is not None, self.measure is not None)
        return self.step == 1 and not any(changes)

    @property
    def memory(self) -> tuple[float, ...]:
        """What the vectors that it keeps start at: of m, and of v after it."""
        if self.adapt is not None:
            return (0.0, (TAU if self.tau is None else self.tau) ** 2)
        return (0.0,) if self.momentum else ()

    @property
    def words(self) -> str:
        """What is added to the name of a method, with a comma before."""
        parts = [f"momentum {self.momentum:g}"] if self.momentum else []
        parts += [self.adapt] if self.adapt else []
        parts += ["measured"] if self.measure else []
        parts += ["averaged"] if self.average else []
        return "".join(f", {part}" for part in parts)


def _only(name: str, condition: str, holds: bool) -> None:
    if not holds:
        raise invalid(name, f"left out without {condition}", "a value")


def apply_server_step(
    server_step: ServerStep, step: Any, memory: Any
) -> tuple[Any, Any]:
    """The move really made, and the memory to keep.

    Vectors are of NumPy or torch, whole or in part: every entry goes by itself.

    Args:
        server_step: what to do.
        step: s, or some entries of it.
        memory: m on the same entries, not looked at without momentum; with `adapt` two
            rows, m and v.
    """
    if server_step.adapt is not None:
        return _adaptive_step(server_step, step, memory)
    if server_step.momentum == 0:
        return server_step.step * step, memory
    memory = server_step.momentum * memory + step
    ahead = step + server_step.momentum * memory if server_step.nesterov else memory
    return server_step.step * ahead, memory


def _adaptive_step(server_step: ServerStep, step: Any, memory: Any) -> tuple[Any, Any]:
    beta, beta2 = (
        server_step.momentum,
        BETA2 if server_step.beta2 is None else server_step.beta2,
    )
    tau, square = TAU if server_step.tau is None else server_step.tau, step * step
    m, v = memory[0], memory[1]
    m = beta * m + (1 - beta) * step
    if server_step.adapt == "adagrad":
        v = v + square
    elif server_step.adapt == "adam":
        v = beta2 * v + (1 - beta2) * square
    else:  # (s² > v) − (s² < v) is minus the sign, in NumPy and torch alike
        v = v + (1 - beta2) * ((square > v) * square - (square < v) * square)
    kept = memory + 0.0  # a copy
    kept[0], kept[1] = m, v
    return server_step.step * (m / (v**0.5 + tau)), kept


# ------------------ An average of the server's iterates, kept beside them for every

# a ← a + p_t (x_t − a)        after the t-th concluded round, t = 1, 2, …
#
# EMA      p_t = 1 − min(β, (t − 1)/(t + 4))     exponential, with warm-up
# tail     p_t = 1/max(1, t − r + 1)             the mean of x_r, x_{r+1}, …, x_t
#
# The warm-up makes the first averages short: β alone would drag the start x_0 along for
# 1/(1 − β) rounds. In both forms x_0 itself never counts, and before its first round r
# the tail average is the iterate. A round without a step (nobody took part, or the rule
# could not decide) gives no new iterate and is not counted. Averages of iterates go back
# to [Polyak1992].

WARM_UP = 5
"""Rounds: the average of the first t rounds is over about t/5 + 1 of them."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Average:
    """The average of a run so far.

    Attributes:
        model: a, the averaged model; the start before the first round.
        rounds: t, how many iterates it has seen.
    """

    model: Float64[Array, " d"]
    rounds: int = 0


def average_weight(server_step: ServerStep, rounds: int) -> float:
    """p_t, the weight of the newest iterate in the average.

    Args:
        server_step: says which average; it must have one.
        rounds: t − 1, iterates seen before this one.
    """
    if server_step.average == "tail":
        first = 1 if server_step.average_from is None else server_step.average_from
        return 1 / max(1, rounds + 2 - first)
    decay = DECAY if server_step.average_decay is None else server_step.average_decay
    return 1 - min(decay, rounds / (rounds + WARM_UP))


def averaged(weight: float, average: Any, iterate: Any) -> Any:
    """The next average on some entries, as a vector of its own.

    Vectors are of NumPy or torch, whole or in part: every entry goes by itself.

    Args:
        weight: p_t of `average_weight`.
        average: a before the round.
        iterate: x_t.
    """
    if weight == 1:  # a + (x − a) is not x after rounding
        return iterate + 0.0
    return average + weight * (iterate - average)


def continued(
    server_step: ServerStep, before: Average, iterate: Float64[Array, " d"]
) -> Average:
    """The average after one more iterate."""
    share = average_weight(server_step, before.rounds)
    return Average(averaged(share, before.model, iterate), before.rounds + 1)
