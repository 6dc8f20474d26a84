"""Rules on sketches: weights of the whole vectors, or a plain refusal."""

from collections.abc import Callable

import numpy as np
import pytest

from hewfl.core.displacements import Displacements, LinearCombination, Products
from hewfl.displacements.count_sketch import CountSketch
from hewfl.displacements.dense import DenseDisplacements
from hewfl.displacements.sketched_displacements import (
    NeedsEntriesError,
    NeedsProductsError,
    SketchedDisplacements,
)

D, N = 40, 5
WHOLE = np.random.default_rng(4).standard_normal((N, D))
SKETCH = CountSketch(64, seed=9)  # longer than the vectors: nothing is lost
ROWS = np.stack([SKETCH.of([row]) for row in WHOLE])


def test_products_are_those_of_the_vectors() -> None:
    sketches, rows = (
        SketchedDisplacements(N, D, ROWS),
        DenseDisplacements(WHOLE, np, N, D),
    )
    assert isinstance(sketches, Products)
    assert not isinstance(sketches, Displacements)
    assert sketches.gram() == pytest.approx(rows.gram(), abs=1e-12)
    some = np.array([3, 1, 4])
    combination = LinearCombination(np.array([0.2, 0.5, 0.1, 0.4]))
    result = sketches.take(some).append_zero().products(combination, 2.0)
    expected = rows.take(some).append_zero().products(combination, 2.0)
    assert result.gram == pytest.approx(expected.gram, abs=1e-12)
    assert result.linear == pytest.approx(expected.linear, abs=1e-12)


ENTRIES: dict[str, Callable[[SketchedDisplacements], object]] = {
    "inner": lambda s: s.inner(np.ones(D)),
    "combine": lambda s: s.combine(np.ones(N)),
    "blocks": lambda s: s.blocks(),
    "dot": lambda s: s.dot(np.ones(D), np.ones(D)),
    "like": lambda s: s.from_matrix(np.ones((2, D))),
    "matrix": lambda s: s.matrix(),
    "products": lambda s: s.products(np.ones(D)),
}


@pytest.mark.parametrize("what", ENTRIES)
def test_entries_are_not_there(what: str) -> None:
    with pytest.raises(NeedsEntriesError, match="asks for entries"):
        ENTRIES[what](SketchedDisplacements(N, D, ROWS))


def test_products_are_not_there_without_sketches() -> None:
    with pytest.raises(NeedsProductsError, match="asks for inner products"):
        SketchedDisplacements(N, D).take(np.array([0, 1])).append_zero().gram()
