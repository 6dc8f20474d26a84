"""One seed for all tests, one hypothesis profile: the same run everywhere."""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "hewfl",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("hewfl")


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator; HEWFL_TEST_SEED sweeps it."""
    return np.random.default_rng(int(os.environ.get("HEWFL_TEST_SEED", "7")))
