"""Rules that break the contract of an algorithm: one error with entry, round and rule.

A rule that cannot decide a round says so by a `HewError`, and its entry stops. Anything
else that goes wrong in a rule is a mistake in its code: weights of a wrong length, NaN,
negative step sizes, an exception of any other kind.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hewfl.core.algorithm import Algorithm
from hewfl.core.plugins import told
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import shown
from hewfl.errors import HewError, RuleError
from hewfl.server.state import Entry

SANE = 1e30
"""Squared length below which displacements cannot have spoilt a rule's arithmetic."""


@contextmanager
def naming(entry: Entry, when: str) -> Iterator[None]:
    """Turn what a rule raises into one `RuleError`; its own `HewError` passes.

    Raises:
        RuleError: naming entry, round and rule, and where in the rule it happened.
    """
    try:
        yield
    except HewError:
        raise
    except MemoryError:  # the machine's fault
        raise
    except Exception as error:
        raise fault(entry, when, told(error)) from error


def fault(entry: Entry, when: str, what: str) -> RuleError:
    """The one form of the error: entry, round, rule, and what is wrong."""
    kind = type(entry.algorithm)
    rule = f"{kind.__module__}.{kind.__qualname__}"
    return RuleError(f"entry {entry.name!r}, {when}: the rule {rule} is wrong: {what}")


def check_plan(entry: Entry, cohort: Cohort, plan: Any) -> None:
    """Require a plan with one step size for each client."""
    when, s = f"round {cohort.round + 1}, plan", len(cohort.clients)
    if not isinstance(plan, LocalPlan):
        raise fault(entry, when, f"it must return a LocalPlan; got {shown(plan)}")
    steps: Any = plan.step_sizes
    is_vector = isinstance(steps, np.ndarray) and steps.dtype.kind == "f"
    if not is_vector or steps.shape != (s,):
        got = f"{type(steps).__name__} of shape {_shape(steps)}"
        rule = f"step_sizes must be a float array of shape ({s},)"
        raise fault(entry, when, f"{rule}; got {got}")
    if (steps < 0).any():
        rule = "step_sizes must not be negative"
        raise fault(entry, when, f"{rule}; got {float(steps.min())}")
    if np.isnan(steps).any():
        raise fault(entry, when, "step_sizes must be numbers; got nan")


def check_weights(round_: Round, decision: Decision) -> None:
    """Require finite weights where what the rule was shown is of a sane size.

    Displacements of a diverging entry may overflow in any rule: that is no mistake.
    """
    if np.isfinite(decision.weights).all():
        return
    lengths, losses = np.diagonal(round_.displacements.gram()), round_.losses
    if (lengths < SANE).all() and (losses is None or np.isfinite(losses).all()):
        got = shown(decision.weights.tolist())
        raise RuleError(f"weights must be finite; got {got}")


def check_form(algorithm: Algorithm[Any], answer: Any, round_: Round) -> None:
    """Require a decision about the clients of the round, and a next state."""
    name, pair = f"what {algorithm.name} decides", "a Decision and the next state"
    is_pair = isinstance(answer, tuple) and len(answer) == 2
    if not is_pair or not isinstance(answer[0], Decision):
        raise RuleError(f"`{name}` must be {pair}; got {shown(answer)}")
    weights: Any = answer[0].weights
    s = len(round_.cohort.clients)
    is_vector = isinstance(weights, np.ndarray) and weights.dtype == np.float64
    if not is_vector or weights.shape != (s,):
        rule = f"a float64 array of shape ({s},)"
        got = f"{type(weights).__name__} of shape {_shape(weights)}"
        raise RuleError(f"`{name}, its weights,` must be {rule}; got {got}")
    step, entries = answer[0].step, np.shape(round_.anchor)
    if step is not None and entries != (0,) and np.shape(step) != entries:
        rule = f"a vector of shape {entries}"
        got = f"shape {np.shape(step)}"
        raise RuleError(f"`{name}, its step,` must be {rule}; got {got}")


def _shape(value: Any) -> Any:
    try:
        return np.shape(value)
    except ValueError:  # lists of unequal length
        return "unknown"
