"""Local-step samplers: the number of local steps (the horizon H_i) of each client.

A sampler is a function of (seed, round) alone. So all methods of a comparison have the
same clients with the same work, and so has a resumed run.
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
    """A local-step sampler."""

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
    """A uniform choice from a list, once for the run or in every round.

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
    """A mixture of Poisson distributions, truncated to a range, in every round.

    The paper's text experiment: rates 1, 4, 8 with probabilities 0.34, 0.33, 0.33,
    "truncation to the range [1, 12]".

    Attributes:
        rates: of the distributions, each positive.
        probabilities: of the distributions.
        least: smallest number of steps.
        most: largest number of steps.
        clipped: whether a draw outside the range becomes its nearest end; otherwise the
            distributions are conditioned on the range.

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
        """One value per client; of the conditioned distribution by its inverse."""
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
    """Local epochs: steps of passes over a client's data, H_i = ⌈epochs · m_i / b_i⌉.

    Only the number of steps is that of whole passes. Samples are drawn with
    replacement in every step: in one epoch some occur twice and some not at all.

    Attributes:
        epochs: a number, or a list to choose from in every round.
        probabilities: of the numbers in the list; equal by default.

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
    """The steps in a time budget: H_i = ⌊budget · speed_i⌋, at least 1.

    Attributes:
        budget: seconds of a round.
        speeds: steps per second of each client.
        jitter: standard deviation of log speed from round to round.
    """

    budget: Positive
    speeds: Annotated[Sequence[float], positive_list]
    jitter: Nonnegative = 0.0

    def draw(self, seed: int, t: int, sizes: Wholes, batches: Wholes) -> Wholes:
        """The steps of this round."""
        speeds = np.asarray(self.speeds, dtype=np.float64)
        if len(speeds) != len(sizes):
            raise invalid("speeds", f"{len(sizes)} numbers", len(speeds))
        noise = generator(seed, LOCAL_STEPS, t).standard_normal(len(sizes))
        steps = np.floor(self.budget * speeds * np.exp(self.jitter * noise))
        return np.maximum(steps, 1).astype(np.int64)
