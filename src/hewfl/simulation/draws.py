"""Every random number of a round, from (seed, round) alone.

Laid out step by step: step ℓ of round t has its own generator, so a longer branch
extends the draws of a shorter one and all methods see the same samples.
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
            of the cohort; client i counts its first b_i columns.
        counts: b_i.
    """

    samples: Int64[Ints, "steps s b"]
    counts: Int64[Ints, " s"]


def draw(
    seed: int,
    t: int,
    cohort: Cohort,
    offsets: Int64[Ints, " n"],
    steps: int | None = None,
) -> Draws:
    """Minibatches with replacement from each client's own samples.

    Args:
        seed: of the run.
        t: the round.
        cohort: who takes part.
        offsets: where each client's samples begin in the pool.
        steps: how many; the longest horizon of the cohort by default.
    """
    longest = int(cohort.horizons.max()) if steps is None else steps
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
        cohort: who is asked, and in which round.
        offsets: where each client's samples begin in the pool.
        count: samples of each client, with replacement.
    """
    rng = generator(seed, PROBES, cohort.round)
    uniform = rng.random((cohort.population, count))[cohort.clients]
    starts, sizes = offsets[cohort.clients][:, None], cohort.data_sizes[:, None]
    picks = np.minimum((uniform * sizes).astype(np.int64), sizes - 1)
    return np.asarray(starts + picks, dtype=np.int64)
