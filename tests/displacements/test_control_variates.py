"""Control variates after a round: as values, and in place once it is accepted."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.displacements.test_chunked import in_pieces

from hewfl.core import native
from hewfl.core.round import Cohort, LocalPlan, Round
from hewfl.displacements.chunked import ChunkedDisplacements
from hewfl.displacements.control_variates import (
    ControlVariates,
    InPlaceVariates,
    commit,
    correction,
    in_place,
    map_records,
    start_variates,
)
from hewfl.displacements.dense import as_dense, matrix_round
from hewfl.errors import InvalidInputError

pytestmark = pytest.mark.usefixtures("path")


def a_round(rng: np.random.Generator) -> tuple[Round, Round, ControlVariates]:
    """Clients 1, 2 and 4 of five."""
    pieces, matrix = in_pieces(rng, 3)
    d = matrix.shape[1]
    H = np.array([1, 2, 5])
    cohort = Cohort(np.array([1, 2, 4]), H, np.ones(3, int), np.ones(3, int), 5)
    plan = LocalPlan(np.array([0.3, 0.1, 0.7]))
    clients = rng.standard_normal((5, d))
    variates = ControlVariates(clients.mean(axis=0), clients)
    anchor = np.zeros(d)
    known = matrix_round(anchor, matrix, cohort, plan)
    return Round(anchor, pieces, cohort, plan), known, variates


def test_variates_of_pieces_in_place(rng: np.random.Generator) -> None:
    round_, known, variates = a_round(rng)
    clients, server = variates.clients.copy(), variates.server.copy()
    expected = variates.after(known)
    assert np.array_equal(variates.clients, clients)
    ground = np.array([0.3, 0.2, 3.5])
    per_gradient = known.displacements.matrix() / ground[:, None]
    by_hand = clients.copy()
    by_hand[[1, 2, 4]] -= server + per_gradient
    np.testing.assert_allclose(expected.clients, by_hand, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(expected.server, by_hand.mean(axis=0), atol=1e-13)
    held = in_place(variates)
    noted = held.after(round_)
    assert np.array_equal(noted.clients, clients)  # only noted so far
    result = commit(noted)
    assert result.clients is variates.clients
    np.testing.assert_allclose(result.clients, expected.clients, atol=1e-13)
    np.testing.assert_allclose(result.server, expected.server, atol=1e-13)


def test_variates_are_the_mean_gradients_where_these_are_sent(
    rng: np.random.Generator,
) -> None:
    """As under an adaptive optimiser; displacements and step sizes do not matter."""
    round_, known, variates = a_round(rng)
    clients = variates.clients.copy()
    means = rng.standard_normal((3, clients.shape[1])).astype(np.float32)
    sent = as_dense("gradients", means)
    by_hand = clients.copy()
    by_hand[[1, 2, 4]] = means
    result = variates.after(replace(known, gradients=sent))
    assert np.array_equal(result.clients, by_hand)
    np.testing.assert_allclose(result.server, by_hand.mean(axis=0), atol=1e-13)
    assert np.array_equal(variates.clients, clients)
    commit(in_place(variates).after(replace(round_, gradients=sent)))
    assert np.array_equal(variates.clients, by_hand)
    assert np.array_equal(variates.server, result.server)
    huge = replace(round_, gradients=as_dense("gradients", np.full((3, 4), 1e300)))
    with pytest.raises(InvalidInputError, match="`mean gradients and c` must be below"):
        commit(in_place(variates).after(huge))


def test_variates_have_the_same_bits_without_kernels(rng: np.random.Generator) -> None:
    round_, known, variates = a_round(rng)
    ours = variates.after(known).clients, variates.after(round_).clients
    with native.disabled():
        twin = variates.after(known).clients, variates.after(round_).clients
    assert np.array_equal(ours[0], twin[0])
    assert np.array_equal(ours[1], twin[1])


@pytest.mark.parametrize("where", ["server", "step", "data"])
def test_variates_that_may_overflow_are_left_alone(
    where: str, rng: np.random.Generator
) -> None:
    round_, _, variates = a_round(rng)
    if where == "server":
        variates.server[3] = -1e300
    if where == "step":
        plan = LocalPlan(np.array([0.3, 1e-300, 0.7]))
        round_ = replace(round_, plan=plan)
    if where == "data":
        x = np.zeros(round_.displacements.d)
        rows = tuple(np.full(len(x), s) for s in (1e300, 1.0, 1.0))
        round_ = replace(round_, displacements=ChunkedDisplacements((rows,), x))
    clients = variates.clients.copy()
    with pytest.raises(InvalidInputError, match="below 1e\\+290 in size"):
        commit(in_place(variates).after(round_))
    assert np.array_equal(variates.clients, clients)


def test_the_start(rng: np.random.Generator) -> None:
    zero = start_variates(3, 4, "zero", None)
    assert not zero.clients.any()
    gradients = rng.standard_normal((3, 4))
    first = start_variates(3, 4, "gradient", gradients)
    assert first.server == pytest.approx(gradients.mean(axis=0))
    first.clients[0] = 7.0
    assert gradients[0, 0] != 7.0  # a copy
    with pytest.raises(InvalidInputError, match="`gradients` must be given"):
        start_variates(3, 4, "gradient", None)


def test_corrections_of_all_clients_add_up_to_nothing(rng: np.random.Generator) -> None:
    _, known, variates = a_round(rng)
    ones = np.ones(5, dtype=np.int64)
    everybody = Cohort(np.arange(5), ones, ones, ones, 5)
    whole = correction(variates, everybody)
    assert whole.sum(axis=0) == pytest.approx(np.zeros(whole.shape[1]), abs=1e-12)
    u = -1 / (5 * known.total_step)  # c⁺ = (1 − S/n) c + Σ_S u_iΔ_i
    share = 1 - len(u) / 5
    expected = share * variates.server + u @ known.displacements.matrix()
    assert variates.after(known).server == pytest.approx(expected, abs=1e-12)


@dataclass(frozen=True)
class Nested:
    """A state with control variates inside."""

    count: int
    parts: tuple[Any, ...]


def test_variates_inside_a_state_are_found(rng: np.random.Generator) -> None:
    round_, _, variates = a_round(rng)
    state = in_place(Nested(3, (None, variates)))
    held = state.parts[1]
    assert isinstance(held, InPlaceVariates)
    after = commit(replace(state, parts=(None, held.after(round_))))
    assert after.count == 3
    assert after.parts[1].round is None
    assert after.parts[1].clients is variates.clients
    assert map_records(state, lambda part: part).count == 3
