"""A federation of which everything is known, and all theorems with all constants."""

import pytest

from hewfl.theory.systems import Case, System
from hewfl.theory.theorem_table import THEOREMS, Form

EQUAL = System(1.0, 1.0, [4, 4, 4], 8, 1e-4)
RICH = Case(
    EQUAL,
    pl_constant=0.1,
    similarity=0.1,
    hessian_lipschitz=0.01,
    sampling="fresh draws",
)
ROWS: list[tuple[str, Form]] = [
    (label, variant) for label, t in THEOREMS.items() for variant in t.variants
]
rows = pytest.mark.parametrize(("theorem", "variant"), ROWS)
