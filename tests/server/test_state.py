"""The initial state: clients without a finite gradient start at the mean."""

import numpy as np
import pytest

from hewfl import FedAvg, HewHet
from hewfl.errors import DataError
from hewfl.server.state import fill_missing, finite_rows, initial_state


def test_the_mean_of_the_others_stands_in(rng: np.random.Generator) -> None:
    gradients = rng.standard_normal((4, 3))
    gradients[1, 2], gradients[3] = np.inf, np.nan
    state = initial_state(HewHet(1.0, 0.5), np.zeros(3), 4, gradients)
    mean = gradients[[0, 2]].mean(axis=0)
    variates = state.algorithm
    assert variates.clients[[1, 3]] == pytest.approx(np.stack([mean, mean]))
    assert variates.server == pytest.approx(mean)  # so that their branches start plain
    assert state.scalars == state.paper_scalars == 2 * 3  # who was heard has sent


def test_nobody_heard_cannot_start() -> None:
    nothing = np.full((2, 3), np.nan)
    with pytest.raises(DataError, match="no client has a finite gradient"):
        initial_state(HewHet(1.0, 0.5), np.zeros(3), 2, nothing)
    assert initial_state(FedAvg(0.5), np.zeros(3), 2, nothing).algorithm is None


def test_all_heard_are_left_as_they_are(rng: np.random.Generator) -> None:
    gradients = rng.standard_normal((3, 2))
    assert fill_missing(gradients, finite_rows(gradients)) is gradients
