"""The state before the first round.

Methods that start their control variates at gradients (erratum E-29) ask every client
for one. **A client that has no finite one starts at the mean of the others.** Its first
branch is then not corrected (c_i = c), and c is the mean of what was heard. Where no
client has a finite gradient the method cannot start.
"""

from typing import Any

import numpy as np

from hewfl.core.algorithm import Algorithm, Informed, Truth
from hewfl.core.array_types import Bool, Float, Float64, Int64
from hewfl.core.validation import Array, Ints, Mask
from hewfl.errors import DataError
from hewfl.server.server_step import Average, ServerStep
from hewfl.server.state import ServerState


def first_state(
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
        gradients: of all clients at x_0, for methods that demand them; rows that are
            not finite, or of clients that were not heard, are NaN.
        samples: of how many samples each gradient is the mean; one, if not told.
        server_step: of the run; it says what the state remembers of steps and iterates.

    Raises:
        DataError: gradients are demanded and no client has a finite one.
    """
    given, sent = None, 0
    if algorithm.demands.gradients:
        assert gradients is not None, "the method demands gradients"
        heard = finite_rows(gradients)
        given, sent = filled(gradients, heard), len(anchor) * int(heard.sum())
    first = algorithm.init(population, len(anchor), given)
    if given is not None and isinstance(algorithm, Informed):
        counts = np.ones(population, dtype=np.int64) if samples is None else samples
        truth = Truth(samples=np.where(heard, counts, 0))
        first = algorithm.with_truth(first, truth)
    server_step = ServerStep() if server_step is None else server_step
    memory = np.zeros(len(anchor))
    if server_step.adapt is not None:
        memory = np.repeat(np.array(server_step.memory)[:, None], len(anchor), axis=1)
    average = None if server_step.average is None else Average(anchor)
    scale = None if server_step.measure is None else 1.0
    return ServerState(anchor, memory, first, sent, sent, average=average, scale=scale)


def finite_rows(rows: Float[Array, "n d"]) -> Bool[Mask, " n"]:
    """Which vectors have no NaN and no infinite entry."""
    return np.asarray(np.isfinite(rows).all(axis=1))


def filled(
    gradients: Float64[Array, "n d"], heard: Bool[Mask, " n"]
) -> Float64[Array, "n d"]:
    """First gradients of all clients: the mean of those heard stands for the others."""
    if heard.all():
        return gradients
    if not heard.any():
        raise DataError("no client has a finite gradient to start from")
    whole = gradients.copy()
    whole[~heard] = gradients[heard].mean(axis=0)
    return whole
