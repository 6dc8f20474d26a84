from collections.abc import Callable

import numpy as np
import pytest

from hewfl import ClientProfile, InvalidInputError, ProblemBounds
from hewfl.theory import Recursion, noise_optimal, one_step, situation
from hewfl.theory.appendix import round_work
from hewfl.theory.comparators import comparator_coefficients
from hewfl.theory.noise import (
    mean_noise,
    noise_of_mean,
    noise_optimal_level,
    uniform_mean_noise,
    uniform_noise_of_mean,
)
from hewfl.theory.post_local import (
    PostLocal,
    heterogeneous_coefficients,
    homogeneous_coefficients,
)
from hewfl.theory.statement import Rate, at_most, below
from hewfl.theory.systems import Case, System, coarsen, group_clients, system_of
from hewfl.theory.uniform import higher_order, uniform_coefficients


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


# kinds of client

EACH = System(
    1.5, 2.0, [1, 4, 1, 4, 4], [2, 8, 2, 8, 8], [1e-3, 2e-3, 1e-3, 2e-3, 2e-3]
)
KINDS = System(1.5, 2.0, [1, 4], [2, 8], [1e-3, 2e-3], count=[2, 3])


def test_identical_clients_are_counted_in_first_order() -> None:
    result = group_clients(EACH)
    np.testing.assert_array_equal(result.horizon, KINDS.horizon)
    np.testing.assert_array_equal(result.multiplicity, [2, 3])
    assert result.n == EACH.n == 5
    assert result.kinds == 2
    distinct = System(1.0, 1.0, [4, 1, 2], 1, 0.0)
    assert group_clients(distinct) is distinct
    again = group_clients(System(1.0, 1.0, [1, 2, 1], 1, 0.0, count=[5, 1, 7]))
    np.testing.assert_array_equal(again.multiplicity, [12, 1])
    several = System([1.0, 2.0], 1.0, [[1, 1, 2], [3, 3, 3]], 1, 0.0)
    assert group_clients(several).kinds == 2


@pytest.mark.parametrize(
    "family",
    [
        lambda s: comparator_coefficients(s, noise_optimal(s), 0.02),
        lambda s: comparator_coefficients(s, noise_optimal(s), 0.02, printed=True),
        lambda s: comparator_coefficients(
            s, noise_optimal(s), 0.02, variant="absorbed"
        ),
        lambda s: heterogeneous_coefficients(s, PostLocal(0.02, 2.5)),
        lambda s: heterogeneous_coefficients(s, PostLocal(0.02, 2.5), variant="sharp"),
        lambda s: homogeneous_coefficients(s, PostLocal(0.02, 2.5), variant="sharp"),
        lambda s: homogeneous_coefficients(s, PostLocal(0.02, 2.5)),
        lambda s: uniform_coefficients(s, 0.02).recursion,
        lambda s: higher_order(uniform_coefficients(s, 0.02), 0.1, 0.1).recursion,
    ],
)
def test_kinds_have_the_bounds_of_their_clients(
    family: Callable[[System], Recursion],
) -> None:
    for ours, theirs in zip(
        family(KINDS).coefficients, family(EACH).coefficients, strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-13)


def test_kinds_have_the_noise_and_the_round_of_their_clients() -> None:
    w = np.array([0.4, 0.6])
    each = np.array([0.2, 0.2, 0.2, 0.2, 0.2])
    np.testing.assert_allclose(noise_of_mean(KINDS, w), noise_of_mean(EACH, each))
    np.testing.assert_allclose(mean_noise(KINDS, w), mean_noise(EACH, each))
    for function in (uniform_mean_noise, uniform_noise_of_mean, noise_optimal_level):
        np.testing.assert_allclose(function(KINDS), function(EACH), rtol=1e-13)
    ours, theirs = (
        one_step((a, 0.1), situation(s, 0.5, 0.1)).value
        for s, a in ((KINDS, w), (EACH, each))
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-14)


def test_a_coarser_system_is_never_better(rng: np.random.Generator) -> None:
    H, b = rng.integers(1, 40, 3000), rng.integers(1, 9, 3000)
    fine = System(1.0, 1.0, H, b, 10 ** rng.uniform(-6, -2, 3000))
    coarse = coarsen(fine, 200)
    assert coarse.n == 3000
    assert coarse.kinds < 400
    assert np.max(coarse.horizon) == np.max(H) > np.min(coarse.horizon)
    controls = PostLocal(0.02, 1.5)
    for family in (homogeneous_coefficients, heterogeneous_coefficients):
        ours, exact = (family(s, controls, variant="sharp") for s in (coarse, fine))
        for name in ("growth", "staleness", "noise"):
            assert getattr(ours, name) >= getattr(exact, name) * (1 - 1e-12)
        assert (ours.tracking.noise, ours.tracking.tracking) >= (
            exact.tracking.noise,
            exact.tracking.tracking,
        )
    assert coarsen(KINDS, 2) is KINDS


def test_counts_are_whole_and_one_for_each_kind() -> None:
    with pytest.raises(InvalidInputError, match="`count` must be one for each of 2"):
        System(1.0, 1.0, [1, 2], 1, 0.0, count=[1, 2, 3])
    with pytest.raises(InvalidInputError, match="`count` must be a whole number"):
        System(1.0, 1.0, [1, 2], 1, 0.0, count=[1, 0])
    with pytest.raises(InvalidInputError, match="`count`"):
        round_work(KINDS, 10)


def test_the_start_is_the_cap_and_a_minibatch_gradient() -> None:
    system = System([1.0, 2.0], 3.0, [2, 4], [8, 16], [1.0, 5.0])
    case = Case(system)
    assert case.start[0].tolist() == [4.5, 9.0]
    assert case.start[1].tolist() == [5 / 16] * 2
