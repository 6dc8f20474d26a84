"""Random streams: one generator for each purpose, from the seed."""

import numpy as np

COHORT, LOCAL_STEPS, SETUP, SAMPLES, SCENARIO, PROBES, ROOT = 1, 2, 3, 4, 5, 6, 7
"""Streams of random numbers that must not mix."""


def generator(seed: int, *stream: int) -> np.random.Generator:
    """The generator of one purpose: independent for different streams.

    Args:
        seed: of the run.
        stream: its purpose, such as (`COHORT`, round).
    """
    return np.random.default_rng([seed, *stream])
