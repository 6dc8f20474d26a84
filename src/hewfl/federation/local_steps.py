"""Laws of local work: how many steps each client does in a round.

A law is a function of (seed, round) alone, so that all methods meet the same clients
doing the same work, and a resumed run meets them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, final, runtime_checkable

import numpy as np

from hewfl.core.array_types import Float64, Int64, Num
from hewfl.core.validation import (
    Array,
    Ints,
    Nonnegative,
    Positive,
    Reals,
    Validated,
    as_float64,
    format_value,
    invalid,
    positive,
    whole,
)
from hewfl.federation.rng import LOCAL_STEPS, SETUP, generator

Wholes = Int64[Ints, " n"]
"""One whole number for each client."""


@runtime_checkable
class LocalSteps(Protocol):
    """Local steps of every client in a round."""

    def draw(self, seed: int, t: int, sizes: Wholes, batches: Wholes) -> Wholes:
        """H_i ≥ 1 for all clients, from (seed, t) alone.

        Args:
            seed: of the run.
            t: the round.
            sizes: m_i, samples of each client.
            batches: b_i, samples in each step.

        Returns:
            One number for each client.
        """


def check_wholes(
    name: str, given: int | Sequence[int], rule: str = "whole numbers of at least 1"
) -> Num[Ints, "..."]:
    """Require whole numbers of at least 1."""
    try:
        values = np.asarray(given)
    except ValueError as error:  # ragged
        raise invalid(name, rule, format_value(given)) from error
    real = values.dtype.kind in "iuf" and values.size > 0
    if not real or not (np.isfinite(values) & (values == np.floor(values))).all():
        raise invalid(name, rule, format_value(given))
    if values.min() < 1:
        raise invalid(name, rule, format_value(given))
    return values


def check_list(name: str, given: Sequence[float] | Reals) -> None:
    """Require a list of numbers that is not empty."""
    values = as_float64(name, given)
    if values.ndim != 1 or values.size == 0:
        raise invalid(name, "a list of numbers", format_value(given))


def whole_list(name: str, given: Sequence[int]) -> None:
    """Require a list of whole numbers of at least 1."""
    rule = "a list of whole numbers of at least 1"
    if np.ndim(check_wholes(name, given, rule)) != 1:
        raise invalid(name, rule, format_value(given))


def positive_list(name: str, given: Sequence[float] | Float64[Array, " k"]) -> None:
    """Require a list of positive finite numbers."""
    check_list(name, given)
    for value in given:
        positive(name, value)


@final
@dataclass(frozen=True, slots=True)
class FixedSteps(Validated):
    """The same steps every round: one number, or one per client.

    Attributes:
        steps: H_i ≥ 1, one number or one for each client.
    """

    steps: Annotated[int | Sequence[int], check_wholes]

    def draw(self, seed: int, t: int, sizes: Wholes, batches: Wholes) -> Wholes:
        """The list itself."""
        steps = np.asarray(self.steps, dtype=np.int64)
        if steps.ndim > 0 and len(steps) != len(sizes):
            raise invalid("steps", f"one number or {len(sizes)} of them", len(steps))
        return np.broadcast_to(steps, sizes.shape).copy()


@final
@dataclass(frozen=True, slots=True)
class ChoiceSteps(Validated):
    """A uniform choice from a list, once for the run or afresh every round.

    The paper's main experiments: {1, 2, 4, 8}, each client's value fixed.

    Attributes:
        choices: whole numbers of at least 1.
        every_round: whether to draw in every round, or once for the run.
    """

    choices: Annotated[Sequence[int], whole_list] = (1, 2, 4, 8)
    every_round: bool = False

    def draw(self, seed: int, t: int, sizes: Wholes, batches: Wholes) -> Wholes:
        """One value per client."""
        stream = (LOCAL_STEPS, t) if self.every_round else (SETUP, LOCAL_STEPS)
        return generator(seed, *stream).choice(
            np.asarray(self.choices, dtype=np.int64), len(sizes)
        )


@final
@dataclass(frozen=True, slots=True)
class PoissonSteps:
    """A mixture of Poisson laws, cut to a range, afresh every round.

    The paper's text experiment: rates 1, 4, 8 with probabilities 0.34, 0.33, 0.33,
    "truncation to the range [1, 12]".

    Attributes:
        rates: of the laws, each positive.
        probabilities: of the laws.
        least: of the steps.
        most: of the steps.
        clipped: whether a draw outside the range becomes its nearest end; otherwise the
            laws are conditioned on the range, so that it is drawn again.

    Raises:
        InvalidInputError: an attribute is out of its range.
    """

    rates: Sequence[float] = (1.0, 4.0, 8.0)
    probabilities: Sequence[float] = (0.34, 0.33, 0.33)
    least: int = 1
    most: int = 12
    clipped: bool = False

    def __post_init__(self) -> None:
        """Check ranges."""
        check_list("probabilities", self.probabilities)
        positive_list("rates", self.rates)
        if len(self.rates) != len(self.probabilities):
            raise invalid("probabilities", "one per rate", self.probabilities)
        if abs(sum(self.probabilities) - 1) > 1e-9 or min(self.probabilities) < 0:
            raise invalid("probabilities", "a distribution", self.probabilities)
        least, most = whole("least", self.least), whole("most", self.most)
        if not 1 <= least <= most:
            raise invalid("least", f"from 1 to `most` = {most}", least)

    def draw(self, seed: int, t: int, sizes: Wholes, batches: Wholes) -> Wholes:
        """One value per client; of the conditioned law by its inverse."""
        rng = generator(seed, LOCAL_STEPS, t)
        component = rng.choice(len(self.rates), len(sizes), p=self.probabilities)
        if self.clipped:
            drawn = rng.poisson(np.asarray(self.rates, dtype=np.float64)[component])
            return np.clip(drawn, self.least, self.most).astype(np.int64)
        values = np.arange(self.least, self.most + 1)
        factorials = np.cumsum(np.log(np.arange(1, self.most + 1)))[self.least - 1 :]
        rates = np.asarray(self.rates)[:, None]
        table = np.exp(values * np.log(rates) - factorials)
        table = np.cumsum(table / table.sum(axis=1, keepdims=True), axis=1)
        below = rng.random(len(sizes))[:, None] > table[component]
        picked: Wholes = values[np.minimum(below.sum(axis=1), len(values) - 1)]
        return picked


@final
@dataclass(frozen=True, slots=True)
class EpochSteps:
    """The steps of passes over a client's own data: H_i = ⌈epochs · m_i / b_i⌉.

    Only the number of steps is that of whole passes. Samples are drawn with
    replacement in every step, as under any other law: in one epoch some come twice
    and some not at all.

    Attributes:
        epochs: how many, or a list to choose from afresh every round.
        probabilities: of the entries of the list; equal ones if left out.

    Raises:
        InvalidInputError: an attribute is out of its range.
    """

    epochs: float | Sequence[float] = 1.0
    probabilities: Sequence[float] = ()

    def __post_init__(self) -> None:
        """Check ranges."""
        epochs = np.atleast_1d(as_float64("epochs", self.epochs))
        positive_list("epochs", epochs)
        if len(self.probabilities) > 0:
            shares = as_float64("probabilities", self.probabilities)
            if shares.shape != epochs.shape:
                raise invalid(
                    "probabilities", "one per entry of `epochs`", format_value(shares)
                )
            if abs(shares.sum() - 1) > 1e-9 or shares.min() < 0:
                raise invalid("probabilities", "a distribution", format_value(shares))

    def draw(self, seed: int, t: int, sizes: Wholes, batches: Wholes) -> Wholes:
        """Steps for the epochs of this round."""
        choices = np.atleast_1d(np.asarray(self.epochs, dtype=np.float64))
        shares = self.probabilities if len(self.probabilities) > 0 else None
        epochs = generator(seed, LOCAL_STEPS, t).choice(choices, len(sizes), p=shares)
        return np.maximum(np.ceil(epochs * sizes / batches), 1).astype(np.int64)


@final
@dataclass(frozen=True, slots=True)
class TimedSteps(Validated):
    """What each client manages in a time budget: H_i = ⌊budget · speed_i⌋, at least 1.

    Attributes:
        budget: seconds a round lasts.
        speeds: steps per second of each client.
        jitter: standard deviation of log speed from round to round.
    """

    budget: Positive
    speeds: Annotated[Sequence[float], positive_list]
    jitter: Nonnegative = 0.0

    def draw(self, seed: int, t: int, sizes: Wholes, batches: Wholes) -> Wholes:
        """Steps done when the time is up."""
        speeds = np.asarray(self.speeds, dtype=np.float64)
        if len(speeds) != len(sizes):
            raise invalid("speeds", f"{len(sizes)} numbers", len(speeds))
        noise = generator(seed, LOCAL_STEPS, t).standard_normal(len(sizes))
        steps = np.floor(self.budget * speeds * np.exp(self.jitter * noise))
        return np.maximum(steps, 1).astype(np.int64)
