"""Rounds made by hand: what an engine would give to an algorithm."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hewfl.core.algorithm import Algorithm
from hewfl.core.round import Cohort, Decision, Round
from hewfl.displacements.dense import matrix_round

Array = NDArray[np.floating[Any]]


def make_cohort(
    horizons: Sequence[int],
    data_sizes: Sequence[int] | None = None,
    clients: Sequence[int] | None = None,
    population: int | None = None,
) -> Cohort:
    """Batches of one; equal data sizes and all clients unless told otherwise."""
    s = len(horizons)
    return Cohort(
        np.array(range(s) if clients is None else clients, dtype=np.int64),
        np.array(horizons, dtype=np.int64),
        np.ones(s, dtype=np.int64),
        np.array([1] * s if data_sizes is None else data_sizes, dtype=np.int64),
        s if population is None else population,
    )


def make_round(
    algorithm: Algorithm[Any],
    cohort: Cohort,
    displacements: Any,
    state: Any,
    losses: Any = None,
) -> Round:
    """The round whose clients, told what the algorithm plans, moved as given.

    A root gradient, where it is needed, points away from their sum.
    """
    moved = np.asarray(displacements)
    if moved.dtype.kind != "f":
        moved = moved.astype(np.float64)
    root = root_of(moved) if "root" in algorithm.demands.needs else None
    round_ = matrix_round(
        anchor=np.zeros(moved.shape[1]),
        displacements=moved,
        cohort=cohort,
        plan=algorithm.plan(cohort, state),
        losses=None if losses is None else np.asarray(losses, dtype=np.float64),
    )
    return replace(round_, root=root)


def root_of(displacements: Any) -> Array:
    """A gradient along which the sum of some displacements goes downhill."""
    finite = np.asarray(displacements, dtype=np.float64)
    return np.asarray(-np.sum(finite[np.isfinite(finite).all(axis=1)], axis=0))


def decide(
    algorithm: Algorithm[Any],
    cohort: Cohort,
    displacements: Any,
    *,
    state: Any = None,
    losses: Any = None,
) -> tuple[Decision, Any]:
    """One decision; the state starts afresh unless it is given."""
    d = np.shape(displacements)[1]
    if state is None:
        gradients = None
        if algorithm.demands.gradients:
            gradients = np.zeros((cohort.population, d))
        state = algorithm.init(cohort.population, d, gradients)
    return algorithm.decide(
        make_round(algorithm, cohort, displacements, state, losses), state
    )


def step_of(decision: Decision, displacements: Any) -> Array:
    """What the engine adds to the anchor."""
    if decision.step is not None:
        own: Array = decision.step
        return own
    step: Array = decision.weights @ np.asarray(displacements, dtype=np.float64)
    return step


def subset(cohort: Cohort, members: Sequence[int]) -> Cohort:
    """The same population with some of its clients present."""
    rows = np.array(members, dtype=np.int64)
    return replace(
        cohort,
        clients=cohort.clients[rows],
        horizons=cohort.horizons[rows],
        batch_sizes=cohort.batch_sizes[rows],
        data_sizes=cohort.data_sizes[rows],
    )
