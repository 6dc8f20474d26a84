"""Random numbers of an environment: one generator for each purpose, from the seed."""

import numpy as np

ROSTER, HORIZONS, SETUP, SAMPLES, WORLD, PROBES = 1, 2, 3, 4, 5, 6
"""Streams of random numbers that must not mix."""


def generator(seed: int, *stream: int) -> np.random.Generator:
    """The generator of one purpose: independent for different streams.

    Args:
        seed: of the run.
        stream: what it is for, such as (`ROSTER`, round).
    """
    return np.random.default_rng([seed, *stream])
