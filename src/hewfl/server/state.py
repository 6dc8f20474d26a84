"""A method under the server: the entry of a comparison, its contract, its state.

An algorithm that cannot decide a round raises a `HewError`, and its entry stops. Any
other mistake in an algorithm raises one `RuleError` with entry, round and rule: weights
of a wrong length, NaN, negative step sizes, an exception of another kind. The checks of
plans and decisions below are the only ones.

Methods that start their control variates at gradients (erratum E-29) need one gradient
of every client. **A client without a finite one starts at the mean of the others.** Its
first branch is then not corrected (c_i = c), and c is the mean of the finite gradients.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from hewfl.core.algorithm import Algorithm, Informed, Truth
from hewfl.core.array_types import Bool, Float, Float64, Int64
from hewfl.core.plugins import describe_error
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import (
    Array,
    Ints,
    Mask,
    format_value,
    invalid,
    real_vector,
)
from hewfl.errors import DataError, HewError, InvalidInputError, RuleError
from hewfl.server.communication import RoundCommunication
from hewfl.server.server_step import Average, ServerStep

_CONTRACT = ("name", "demands", "init", "plan", "decide")
SAFE_SQUARED_LENGTH = 1e30
"""Displacements shorter than this do not overflow in a rule's arithmetic."""
OWN_STEP = ServerStep()
"""Stands for the server step of the method itself; recognised by identity."""


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """One method of a comparison: an algorithm and a server step.

    Args:
        algorithm: the method.
        server_step: what the server does with its step; by default that of the method,
            or plain addition if it has none.
        label: its name in tables; by default the names of both.

    Raises:
        InvalidInputError: an argument is not of its kind.

    Examples:
        >>> from hewfl import HewHom
        >>> Entry(HewHom(1.0, 0.5), ServerStep(momentum=0.9)).name
        'HEW (plain), momentum 0.9'
    """

    algorithm: Algorithm[Any]
    server_step: ServerStep = OWN_STEP
    label: str | None = None

    def __post_init__(self) -> None:
        """Check that an algorithm and a server step were given."""
        check_algorithm("algorithm", self.algorithm)
        if self.server_step is OWN_STEP:
            own = getattr(self.algorithm, "server_step", None)
            step = own if isinstance(own, ServerStep) else ServerStep()
            object.__setattr__(self, "server_step", step)
        if not isinstance(self.server_step, ServerStep):
            raise invalid("server_step", "a ServerStep", format_value(self.server_step))

    @property
    def name(self) -> str:
        """Its name in tables."""
        if self.label is not None:
            return self.label
        if getattr(self.algorithm, "server_step", None) == self.server_step:
            return self.algorithm.name  # a `Method` names its own server step
        return self.algorithm.name + self.server_step.words


def as_entry(value: Any, name: str = "algorithm") -> Entry:
    """An entry as it is; a method or an algorithm with its own server step, if any."""
    if isinstance(value, Entry):
        return value
    check_algorithm(name, value, ", or an Entry")
    return Entry(value)


def check_algorithm(name: str, value: object, also: str = "") -> None:
    """Require an object with the five parts of an algorithm; not a class."""
    missing = [part for part in _CONTRACT if not hasattr(value, part)]
    if missing or isinstance(value, type):
        got = format_value(value)
        if missing and not isinstance(value, type):
            got += f", which has no {', '.join(f'`{part}`' for part in missing)}"
        if hasattr(value, "needs") and not isinstance(value, type):
            got += ", an aggregator: give it local work, Method(LocalSGD(0.1), …)"
        raise invalid(name, f"a method, such as FedAvg(0.1){also}", got)


@final
@dataclass(frozen=True, slots=True)
class ServerState:
    """All that a method carries from round to round.

    Attributes:
        anchor: x_t.
        memory: of the server step: its momentum m; with `adapt` two rows, m and v.
        algorithm: the algorithm's own state.
        scalars: numbers sent since the start.
        paper_scalars: numbers sent in the paper's count.
        diverged: stopped, because a step or the objective is out of range.
        refused: stopped, because its algorithm could not decide a round.
        average: of the iterates, None without one.
        scale: of the plan's step sizes, by line searches; None without them.
        last_sent: the last vectors of stale clients in a simulated scenario, one row
            each, and below them, where mean gradients are sent too, those with the
            opposite sign. No algorithm sees it.
        worker_momentum: m_i of all clients of a simulation, where they keep one.
        attack_memory: of each attack of a simulated scenario, None where it has none.
            No algorithm sees it.
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
    last_sent: Float64[Array, "k d"] | None = None
    worker_momentum: Float64[Array, "n d"] | None = None
    attack_memory: tuple[Any, ...] = ()

    @property
    def stopped(self) -> bool:
        """Whether it takes part in no more rounds."""
        return self.diverged or self.refused

    @property
    def output_model(self) -> Float64[Array, " d"]:
        """The model that a run returns: the average where there is one, else x_t."""
        return self.anchor if self.average is None else self.average.model

    def add_communication(
        self, sent: RoundCommunication, paper: RoundCommunication | None = None
    ) -> "ServerState":
        """The state after a round's communication; `paper` if its count differs."""
        return replace(
            self,
            scalars=self.scalars + sent.scalars,
            paper_scalars=self.paper_scalars + (paper or sent).paper_scalars,
        )


def initial_state(
    algorithm: Algorithm[Any],
    anchor: Float64[Array, " d"],
    population: int,
    gradients: Float64[Array, "n d"] | None = None,
    samples: Int64[Ints, " n"] | None = None,
    server_step: ServerStep | None = None,
) -> ServerState:
    """The state of a method before its first round.

    Args:
        algorithm: the method.
        anchor: x_0.
        population: n.
        gradients: of all clients at x_0, for methods that demand them; rows of clients
            without a gradient are NaN.
        samples: the number of samples of each gradient; one by default.
        server_step: of the run; it determines the memory.

    Raises:
        DataError: gradients are demanded and no client has a finite one.
    """
    given, sent = None, 0
    if algorithm.demands.gradients:
        assert gradients is not None, "the method demands gradients"
        finite = finite_rows(gradients)
        given, sent = fill_missing(gradients, finite), len(anchor) * int(finite.sum())
    first = algorithm.init(population, len(anchor), given)
    if given is not None and isinstance(algorithm, Informed):
        counts = np.ones(population, dtype=np.int64) if samples is None else samples
        truth = Truth(samples=np.where(finite, counts, 0))
        first = algorithm.with_truth(first, truth)
    server_step = ServerStep() if server_step is None else server_step
    values = server_step.memory or (0.0,)
    memory = np.repeat(np.array(values)[:, None], len(anchor), axis=1)
    memory = memory[0] if len(values) == 1 else memory
    average = None if server_step.average is None else Average(anchor)
    scale = 1.0 if server_step.has_search else None
    return ServerState(anchor, memory, first, sent, sent, average=average, scale=scale)


def finite_rows(rows: Float[Array, "n d"]) -> Bool[Mask, " n"]:
    """Which vectors have no NaN and no infinite entry."""
    with np.errstate(all="ignore"):  # a finite sum of squares shows it fastest
        finite = np.isfinite(np.einsum("ij,ij->i", rows, rows))
    if not finite.all():
        finite[~finite] = np.isfinite(rows[~finite]).all(axis=1)
    return np.asarray(finite)


def fill_missing(
    gradients: Float64[Array, "n d"], finite: Bool[Mask, " n"]
) -> Float64[Array, "n d"]:
    """First gradients of all clients: rows that are not finite become the mean."""
    if finite.all():
        return gradients
    if not finite.any():
        raise DataError("no client has a finite gradient to start from")
    whole = gradients.copy()
    whole[~finite] = gradients[finite].mean(axis=0)
    return whole


@contextmanager
def rule_errors(entry: Entry, when: str) -> Iterator[None]:
    """Turn exceptions of an algorithm into one `RuleError`; a `HewError` passes.

    A call of `sys.exit` and a shortage of memory are such exceptions.

    Raises:
        RuleError: naming entry, round and rule, and where in the rule it happened.
    """
    try:
        yield
    except HewError:
        raise
    except MemoryError as error:
        what = describe_error(error)
        raise rule_error(entry, when, what, "ran out of memory") from error
    except (Exception, SystemExit) as error:
        raise rule_error(entry, when, describe_error(error)) from error


def rule_error(
    entry: Entry, when: str, what: str, verdict: str = "is wrong"
) -> RuleError:
    """The one form of the error: entry, round, rule, and what is wrong."""
    # of a `Method` the aggregator is the part that a user writes
    kind = type(getattr(entry.algorithm, "aggregator", entry.algorithm))
    rule = f"{kind.__module__}.{kind.__qualname__}"
    return RuleError(f"entry {entry.name!r}, {when}: the rule {rule} {verdict}: {what}")


def checked_plan(entry: Entry, cohort: Cohort, state: Any) -> LocalPlan:
    """The algorithm's plan, with one valid step size for each client.

    Raises:
        RuleError: it is not a plan for the clients of the cohort.
        HewError: the algorithm's own.
    """
    when, s = f"round {cohort.round + 1}, plan", len(cohort.clients)
    with rule_errors(entry, when):
        plan: Any = entry.algorithm.plan(cohort, state)
    if not isinstance(plan, LocalPlan):
        raise rule_error(
            entry, when, f"it must return a LocalPlan; got {format_value(plan)}"
        )
    try:
        steps = real_vector("step_sizes", plan.step_sizes, s)
    except InvalidInputError as error:
        raise rule_error(entry, when, str(error)) from error
    if not (steps >= 0).all():  # NaN is not
        rule = "step_sizes must not be negative and not NaN"
        worst = float(steps[~(steps >= 0)][0])
        raise rule_error(entry, when, f"{rule}; got {worst}")
    return plan if steps is plan.step_sizes else replace(plan, step_sizes=steps)


def checked_decision(
    algorithm: Algorithm[Any], round_: Round, state: Any
) -> tuple[Decision, Any]:
    """The algorithm's decision and its next state, of the right types and shapes.

    Raises:
        RuleError: it is not a decision about the clients of the round.
        HewError: the algorithm's own.
    """
    answer: Any = algorithm.decide(round_, state)
    name, pair = f"the decision of {algorithm.name}", "a Decision and the next state"
    is_pair = isinstance(answer, tuple) and len(answer) == 2
    if not is_pair or not isinstance(answer[0], Decision):
        raise RuleError(f"`{name}` must be {pair}; got {format_value(answer)}")
    decision, following = answer
    try:
        s = len(round_.cohort.clients)
        weights = real_vector(f"{name}, its weights,", decision.weights, s)
    except InvalidInputError as error:
        raise RuleError(str(error)) from error
    if weights is not decision.weights:
        decision = replace(decision, weights=weights)
    if weights.sum() < 0 and decision.step is None:
        rule = "numbers whose sum is not negative: the step would go backwards"
        got = format_value(weights.tolist())
        raise RuleError(f"`{name}, its weights,` must be {rule}; got {got}")
    return _with_checked_step(decision, name, np.shape(round_.anchor)), following


def _with_checked_step(
    decision: Decision, name: str, shape: tuple[int, ...]
) -> Decision:
    """The decision with a step of the right shape; a list becomes a vector."""
    step = decision.step
    if step is None or shape == (0,):
        return decision
    if isinstance(step, list | tuple):
        try:
            step = real_vector(f"{name}, its step,", step, shape[0])
        except InvalidInputError as error:
            raise RuleError(str(error)) from error
        return replace(decision, step=step)
    dtype = getattr(step, "dtype", None)
    is_wrong = isinstance(step, np.ndarray) and step.dtype.kind not in "iuf"
    if is_wrong or np.shape(step) != shape:
        got = f"dtype {dtype}, shape {np.shape(step)}"
        raise RuleError(
            f"`{name}, its step,` must be a real vector of shape {shape}; got {got}"
        )
    return decision


def check_finite_weights(round_: Round, decision: Decision) -> None:
    """Require finite weights where displacements and losses are of a safe size.

    Displacements of a diverging entry may overflow in any rule: that is no mistake.
    """
    if np.isfinite(decision.weights).all():
        return
    lengths, losses = np.diagonal(round_.displacements.gram()), round_.losses
    is_safe = (lengths < SAFE_SQUARED_LENGTH).all()
    if is_safe and (losses is None or np.isfinite(losses).all()):
        got = format_value(decision.weights.tolist())
        raise RuleError(f"weights must be finite; got {got}")
