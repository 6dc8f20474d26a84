import numpy as np
import pytest

from hewfl import ClientProfile, InvalidInputError, ProblemBounds
from hewfl.theory.statement import Rate, at_most, below
from hewfl.theory.systems import System, system_of


def test_fields_broadcast_over_configurations_and_clients() -> None:
    many = System([1.0, 2.0], 3.0, [1, 2, 4], 8, 0.5)
    assert many.L.shape == many.R.shape == many.cap.shape == (2,)
    assert many.noise.shape == (2, 3)
    np.testing.assert_array_equal(many.cap, [4.5, 9.0])
    np.testing.assert_array_equal(many.noise[0], 0.5 / (np.array([1, 2, 4]) * 8))
    assert many.n == 3


def test_a_system_is_built_from_the_solvers_records() -> None:
    bounds = ProblemBounds(2.0, 1.0, 0.1, 0.5)
    shared = system_of(ClientProfile(4, 8, 0.5), bounds, n=3)
    assert shared.noise.shape == (3,)
    assert system_of(ClientProfile([1, 2], 8, 0.5), bounds).n == 2


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("smoothness", 0.0, "`smoothness` must be positive; got 0.0"),
        ("radius", [1.0, -2.0], "`radius` must be positive; got -2.0"),
        ("horizon", 1.5, "`horizon` must be a whole number of at least 1; got 1.5"),
        ("batch_size", 0, "`batch_size` must be a whole number of at least 1; got 0.0"),
        ("variance", -1.0, "`variance` must be nonnegative; got -1.0"),
        ("variance", [[1.0], []], "`variance` must be an array of real numbers"),
        ("horizon", [1, 2], "must be arrays that broadcast, clients last"),
    ],
)
def test_bad_fields_are_named(field: str, value: object, text: str) -> None:
    fields: dict[str, object] = {
        "smoothness": 1.0,
        "radius": 1.0,
        "horizon": [1, 2, 4],
        "batch_size": [8, 8, 8],
        "variance": 0.5,
    }
    with pytest.raises(InvalidInputError, match=text.replace("`", "`")):
        System(**(fields | {field: value}))  # type: ignore[arg-type]  # the point


def test_hypotheses_are_met_entry_by_entry() -> None:
    first, second = (
        at_most("a ≤ 1", [0.5, 1.0, 2.0], 1.0),
        below("b < 1", 1.0, [2, 1, 2]),
    )
    rate = Rate("x", np.ones(3), np.ones(3), np.zeros(3, dtype=bool), (first, second))
    np.testing.assert_array_equal(rate.holds, [True, False, False])
    assert Rate("x", np.ones(1), np.ones(1), np.zeros(1, dtype=bool), ()).holds
