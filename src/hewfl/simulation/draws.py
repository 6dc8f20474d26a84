"""The draws of a round: all its random numbers, from (seed, round) alone.

Step ℓ of round t has its own generator. So a longer branch extends the draws of a
shorter one, and all methods use the same samples.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from hewfl.core.array_types import Int64
from hewfl.core.round import Cohort
from hewfl.core.validation import Ints
from hewfl.federation.rng import PROBES, SAMPLES, generator


@final
@dataclass(frozen=True, slots=True)
class Draws:
    """Minibatches of a round.

    Attributes:
        samples: for each step ℓ, indices into the pooled samples, one row per client
            of the cohort; client i uses its first b_i columns.
        counts: b_i.
    """

    samples: Int64[Ints, "steps s b"]
    counts: Int64[Ints, " s"]


def draw(
    seed: int,
    t: int,
    cohort: Cohort,
    offsets: Int64[Ints, " n"],
) -> Draws:
    """Minibatches with replacement from each client's own samples.

    Args:
        seed: of the run.
        t: the round.
        cohort: the clients, with their horizons and batch sizes.
        offsets: where each client's samples begin in the pool.
    """
    longest = int(cohort.horizons.max())
    width = int(cohort.batch_sizes.max())
    starts, sizes = offsets[cohort.clients], cohort.data_sizes
    samples = np.empty((longest, len(starts), width), dtype=np.int64)
    for step in range(longest):
        uniform = generator(seed, SAMPLES, t, step).random((cohort.population, width))
        picks = (uniform[cohort.clients] * sizes[:, None]).astype(np.int64)
        samples[step] = starts[:, None] + np.minimum(picks, sizes[:, None] - 1)
    return Draws(samples, cohort.batch_sizes)


def draw_probes(
    seed: int, cohort: Cohort, offsets: Int64[Ints, " n"], count: int
) -> Int64[Ints, "s b"]:
    """Fresh samples of each client of a round, for losses along a step.

    Args:
        seed: of the run.
        cohort: the clients, and the round.
        offsets: where each client's samples begin in the pool.
        count: number of samples of each client, with replacement.
    """
    rng = generator(seed, PROBES, cohort.round)
    uniform = rng.random((cohort.population, count))[cohort.clients]
    starts, sizes = offsets[cohort.clients][:, None], cohort.data_sizes[:, None]
    picks = np.minimum((uniform * sizes).astype(np.int64), sizes - 1)
    return np.asarray(starts + picks, dtype=np.int64)
