"""A class that implements `Displacements` runs wherever displacements are used."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from hewfl import Entry, HewHet, ServerStep, combine, data_gap, post_local_weights
from hewfl.aggregators import make
from hewfl.core.algorithm import Algorithm
from hewfl.core.displacements import (
    Displacements,
    LinearCombination,
    Products,
    RoundProducts,
)
from hewfl.core.round import Cohort, LocalPlan, Round
from hewfl.displacements.control_variates import in_place
from hewfl.displacements.dense import as_dense
from hewfl.displacements.sketched_displacements import SketchedDisplacements
from hewfl.methods.method import LocalSGD, Method
from hewfl.server.finish_round import finish_round
from hewfl.server.state import initial_state

N, D = 6, 40


@dataclass(frozen=True)
class PlainDisplacements:
    """The least that `Displacements` asks for: rows of NumPy, formulas as they are."""

    rows: Any

    @property
    def n(self) -> int:
        return len(self.rows)

    @property
    def d(self) -> int:
        return int(self.rows.shape[1])

    def gram(self) -> Any:
        return self.rows @ self.rows.T

    def products(self, reference: Any = None, curvature: float = 1.0) -> RoundProducts:
        g = np.zeros(self.d) if reference is None else reference
        if isinstance(g, LinearCombination):
            g = self.combine(g.weights)
        r = self.rows[0]
        c = self.rows - r
        offset = float(g @ r + 0.5 * curvature * r @ r)
        return RoundProducts(c @ c.T, c @ (g + curvature * r), offset, 0)

    def take(self, members: Any) -> "PlainDisplacements":
        return PlainDisplacements(self.rows[members])

    def append_zero(self) -> "PlainDisplacements":
        return PlainDisplacements(np.vstack([self.rows, np.zeros(self.d)]))

    def inner(self, vector: Any) -> Any:
        return self.rows @ vector

    def combine(self, weights: Any) -> Any:
        return weights @ self.rows

    def blocks(self) -> Iterator[Any]:
        yield from np.array_split(self.rows, 3, axis=1)

    def column_chunks(self) -> Iterator[tuple[slice, "PlainDisplacements"]]:
        for here in (slice(0, 7), slice(7, self.d)):
            yield here, PlainDisplacements(self.rows[:, here])

    def dot(self, u: Any, v: Any) -> float:
        return float(u @ v)

    def from_matrix(self, rows: Any) -> "PlainDisplacements":
        return PlainDisplacements(rows)

    def matrix(self) -> Any:
        return self.rows


@pytest.fixture
def rows(rng: np.random.Generator) -> Any:
    return -1.0 - 0.5 * rng.standard_normal((N, D))


def test_it_implements_the_protocols(rows: Any) -> None:
    assert isinstance(PlainDisplacements(rows), Displacements)
    sketches = SketchedDisplacements(N, D, rows)
    assert isinstance(sketches, Products)
    assert not isinstance(sketches, Displacements)


@pytest.mark.parametrize("active", [None, [0, 2, 5]])
@pytest.mark.parametrize("reference", ["zero", "vector", "sum"])
def test_weights_sums_and_certificates(
    reference: str, active: Any, rows: Any, rng: np.random.Generator
) -> None:
    g: Any = {"zero": None, "vector": rng.standard_normal(D)}.get(reference)
    if reference == "sum":
        g = LinearCombination(np.full(N, -0.3))
    data = PlainDisplacements(rows)
    ours = post_local_weights(data, g, 1.3, active=active)
    known = post_local_weights(rows, g, 1.3, active=active)
    assert ours.weights == pytest.approx(known.weights, abs=1e-9)
    assert float(ours.value) == pytest.approx(float(known.value), rel=1e-9)
    w = known.weights
    assert data_gap(data, g, 1.3, w) == pytest.approx(data_gap(rows, g, 1.3, w))
    assert combine(data, w) == pytest.approx(w @ rows)
    both = np.stack([w, 2 * w])
    assert combine(data, both) == pytest.approx(both @ rows)


def test_many_clients_of_few_parameters(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((300, 3))
    ours = post_local_weights(PlainDisplacements(rows), np.ones(3), 2.0)
    known = post_local_weights(rows, np.ones(3), 2.0)
    assert ours.weights == pytest.approx(known.weights, abs=1e-8)


METHODS: dict[str, Algorithm[Any]] = {
    "Algorithm 2": HewHet(2.0, 0.5),
    "Algorithm 2, null endpoint": HewHet(2.0, 0.5, null_endpoint=True),
    "geometric median, variates": Method(
        LocalSGD(total=0.5, variates="zero"), make("geometric-median")
    ),
    "coordinate median": Method(LocalSGD(0.1), make("coordinate-median")),
    "trust": Method(LocalSGD(0.1), make("trust")),
    "krum": Method(LocalSGD(0.1), make("krum")),
}


@pytest.mark.parametrize("sends_gradients", [False, True])
@pytest.mark.parametrize("changes_in_place", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_rounds(
    name: str,
    changes_in_place: bool,
    sends_gradients: bool,
    rows: Any,
    rng: np.random.Generator,
) -> None:
    method, ones = METHODS[name], np.ones(N, dtype=np.int64)
    entry = Entry(method, ServerStep(momentum=0.5))
    first, anchor = rng.standard_normal((N, D)), rng.standard_normal(D)
    means = rng.standard_normal((N, D)) if sends_gradients else None

    def after(make_data: Any) -> Any:
        state = initial_state(method, anchor, N, first, server_step=entry.server_step)
        if changes_in_place:
            state = replace(state, algorithm=in_place(state.algorithm))
        cohort = Cohort(np.arange(N), 3 * ones, ones, ones, N)
        plan = LocalPlan(np.full(N, 0.1))
        sent = None if means is None else make_data(means)
        round_ = Round(anchor, make_data(rows), cohort, plan, gradients=sent)
        return finish_round(entry, state, round_, with_terms=True, with_move=True)

    ours, known = after(PlainDisplacements), after(lambda x: as_dense("rows", x))
    assert ours.kind == known.kind == "ok", ours.status
    assert ours.decision.weights == pytest.approx(known.decision.weights, abs=1e-8)
    assert ours.state.anchor == pytest.approx(known.state.anchor, rel=1e-8)
    assert ours.move == pytest.approx(known.move, rel=1e-8)
    assert ours.terms == pytest.approx(known.terms, rel=1e-6)
    if method.demands.variates:
        for part in ("server", "clients"):
            ours_, known_ = (_variates(x.state.algorithm, part) for x in (ours, known))
            assert ours_ == pytest.approx(known_, rel=1e-9)


def _variates(state: Any, part: str) -> Any:
    """c or (c_i) in a method's state."""
    return getattr(getattr(state, "variates", state), part)
