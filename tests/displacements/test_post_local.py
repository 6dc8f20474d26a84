"""Weights and step from the data: every array library, precision, scale and subset."""

from collections.abc import Callable
from typing import Any

import array_api_strict as strict
import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests import known_solutions as problems
from tests.known_solutions import QPInstance
from tests.tolerances import GAP

from hewfl import (
    InvalidInputError,
    combine,
    data_gap,
    post_local_weights,
    solve_simplex_qp,
)

Array = NDArray[np.float64]


pytestmark = pytest.mark.usefixtures("path")


ALL = problems.degenerate_instances() + problems.tie_instances()


@pytest.mark.parametrize("instance", ALL, ids=lambda i: i.name)
def test_degenerate_rounds_from_the_data(instance: QPInstance) -> None:
    D, g, lam = instance.displacements, instance.reference, instance.curvature
    solution = post_local_weights(D, g, lam)
    assert problems.relative_gap(instance, solution.weights) <= GAP
    if instance.weights is not None:
        error = np.abs(solution.weights - instance.weights).max()
        assert error <= instance.tolerance * instance.weights.max()
    step = combine(D, solution.weights)
    terms = [float(g @ step), 0.5 * lam * float(step @ step)]
    unit = abs(terms[0]) + terms[1] + lam * float((D**2).sum(1).max()) * 1e-2
    assert float(solution.value) == pytest.approx(sum(terms), abs=1e-12 * unit)


def as_torch(dtype: torch.dtype) -> Callable[[Array], Any]:
    return lambda array: torch.tensor(array, dtype=dtype)


LIBRARIES: dict[str, tuple[Callable[[Array], Any], float]] = {
    "numpy float64": (np.asarray, 1e-12),
    "numpy float32": (lambda a: a.astype(np.float32), 1e-5),
    "numpy float16": (lambda a: a.astype(np.float16), 1e-2),
    "numpy bfloat16": (lambda a: a.astype(ml_dtypes.bfloat16), 5e-2),
    "torch float64": (as_torch(torch.float64), 1e-12),
    "torch float32": (as_torch(torch.float32), 1e-5),
    "torch bfloat16": (as_torch(torch.bfloat16), 5e-2),
    "array-api-strict float32": (
        lambda a: strict.asarray(a.astype(np.float32)),
        1e-5,
    ),
    "not contiguous": (
        lambda a: np.repeat(a, 2, axis=-1)[..., ::2].astype(np.float32)[..., :],
        1e-5,
    ),
    "column-major": (np.asfortranarray, 1e-12),
    "list": (lambda a: list(a) if a.ndim == 2 else a, 1e-12),
    "list of torch vectors": (
        lambda a: [torch.tensor(r) for r in a] if a.ndim == 2 else torch.tensor(a),
        1e-12,
    ),
}


def round_of(rng: np.random.Generator) -> tuple[Array, Array]:
    D = rng.standard_normal((7, 1001)) + 0.3 * rng.standard_normal(1001)
    return D, -D.mean(axis=0) - 0.2 * D[3]


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_gives_the_same_round(
    library: str, rng: np.random.Generator
) -> None:
    make, tolerance = LIBRARIES[library]
    D, g = round_of(rng)
    expected = post_local_weights(D, g, 2.0)
    data, reference = make(D), make(g)
    solution = post_local_weights(data, reference, 2.0)
    assert np.abs(solution.weights - expected.weights).max() <= tolerance
    step = combine(data, solution.weights)
    first = data[0] if isinstance(data, list) else data[0, ...]
    assert type(step) is type(first)
    assert step.dtype == first.dtype
    plain = np.asarray(step, dtype=np.float64) if "bfloat16" not in library else None
    if plain is not None:
        assert np.abs(plain - solution.weights @ D).max() <= 20 * tolerance


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_narrow_data_is_accumulated_in_double_precision(
    kind: str, rng: np.random.Generator
) -> None:
    """The answer is that of the float64 data which the narrow data stands for."""
    D = torch.tensor(round_of(rng)[0], dtype=getattr(torch, kind))
    g = torch.tensor(round_of(rng)[1], dtype=getattr(torch, kind))
    wide = post_local_weights(D.double().numpy(), g.double().numpy(), 2.0)
    narrow = post_local_weights(D, g, 2.0)
    assert np.abs(narrow.weights - wide.weights).max() <= 1e-13


def test_a_float32_step_is_rounded_once(rng: np.random.Generator) -> None:
    D = rng.standard_normal((9, 5003)).astype(np.float32)
    w = rng.dirichlet(np.ones(9))
    exact = (w.astype(np.longdouble) @ D.astype(np.longdouble)).astype(np.float32)
    step = combine(D, w)
    assert step.dtype == np.float32
    assert np.mean(step == exact) > 0.999  # double rounding is allowed to differ rarely
    assert np.abs(step - exact).max() <= np.spacing(np.abs(exact).max())


def test_a_common_part_costs_no_digits() -> None:
    """Where the raw Gram matrix has lost digits, the shifted one has lost none."""
    instance = next(i for i in ALL if i.name == "common part 1e4")
    D, g, lam = instance.displacements, instance.reference, instance.curvature
    ours = post_local_weights(D, g, lam).weights
    raw = solve_simplex_qp(instance.gram, instance.linear, curvature=lam).weights
    assert problems.relative_gap(instance, ours) <= GAP
    assert problems.relative_gap(instance, raw) > 1e3 * GAP


@pytest.mark.parametrize("decade", [-150, -100, 0, 100, 150])
def test_extreme_scales(decade: int, rng: np.random.Generator) -> None:
    D, g = round_of(rng)
    expected = post_local_weights(D, g, 1.0)
    factor = 10.0**decade
    solution = post_local_weights(D * factor, g * factor, 1.0)
    assert np.abs(solution.weights - expected.weights).max() <= 1e-12
    assert float(solution.value) / factor / factor == pytest.approx(
        float(expected.value)
    )


def test_a_quiet_beginning_does_not_fool_the_scaling(rng: np.random.Generator) -> None:
    D, g = np.zeros((4, 50_000)), np.zeros(50_000)
    D[:, 30_001:30_021] = rng.standard_normal((4, 20)) * 1e-140
    g[30_001:30_021] = -D[0, 30_001:30_021]
    expected = post_local_weights(D * 1e140, g * 1e140, 1.0)
    assert (
        np.abs(post_local_weights(D, g, 1.0).weights - expected.weights).max() < 1e-12
    )
    loud = post_local_weights(D * 1e290, g * 1e290, 1.0)
    assert np.abs(loud.weights - expected.weights).max() < 1e-12


@pytest.mark.parametrize("form", ["mask", "list", "unsorted"])
def test_inactive_clients_take_no_part(form: str, rng: np.random.Generator) -> None:
    D, g = round_of(rng)
    members = [1, 2, 5]
    active: object = {
        "mask": np.isin(np.arange(7), members),
        "list": members,
        "unsorted": [5, 1, 2],
    }[form]
    D[0] = np.nan  # never looked at
    solution = post_local_weights(D, g, 2.0, active=active)  # type: ignore[arg-type]  # a union
    expected = post_local_weights(D[members], g, 2.0)
    assert np.array_equal(solution.weights[members], expected.weights)
    assert solution.weights[[0, 3, 4, 6]].tolist() == [0, 0, 0, 0]
    assert not solution.support[[0, 3, 4, 6]].any()
    assert np.isfinite(combine(D, solution.weights)).all()  # weight zero is not read


def test_softmax_ties_survive_float32_noise(rng: np.random.Generator) -> None:
    """Updates of a softmax model sum to zero over classes; float32 lifts the rank."""
    instance = problems.sgd_round(rng, 600, 8, skew=0.3)
    D = instance.displacements.astype(np.float32)
    solution = post_local_weights(D, instance.reference, instance.curvature)
    assert "least-norm" in solution.status
    order = rng.permutation(600)
    again = post_local_weights(D[order], instance.reference, instance.curvature)
    error = np.abs(again.weights - solution.weights[order]).max()
    assert error <= 1e-6 * solution.weights.max()


def test_the_data_gap_certifies_any_weights(rng: np.random.Generator) -> None:
    D, g = round_of(rng)
    best = post_local_weights(D, g, 2.0)
    unit = 2.0 * float((D**2).sum(1).max())
    assert data_gap(D, g, 2.0, best.weights) <= GAP * unit

    def value(w: Array) -> float:
        x = w @ D
        return float(g @ x + x @ x)

    for _ in range(20):
        w = rng.dirichlet(np.ones(7))
        assert data_gap(D, g, 2.0, w) >= value(w) - float(best.value)


GOOD = np.eye(3, 4)


@pytest.mark.parametrize(
    ("arguments", "keywords", "text"),
    [
        ((GOOD[0], np.ones(4), 1.0), {}, r"`displacements` must be of shape \(n, d\)"),
        (([], np.ones(4), 1.0), {}, "`displacements` must be at least one vector"),
        (([np.ones(3), np.ones(4)], np.ones(4), 1.0), {}, "vectors of one positive"),
        (
            ([GOOD], np.ones(4), 1.0),
            {},
            "`displacements` must be a sequence of vectors",
        ),
        ((GOOD * 1j, np.ones(4), 1.0), {}, "`displacements` must be an array of real"),
        ((GOOD * np.nan, np.ones(4), 1.0), {}, "finite; got nan for client 0"),
        ((GOOD, np.full(4, np.inf), 1.0), {}, "`reference` must be finite; got inf"),
        (
            (GOOD, np.ones(3), 1.0),
            {},
            r"`reference` must be of shape \(4,\); got \(3,\)",
        ),
        ((GOOD, np.ones(4), -1.0), {}, "`curvature` must be a positive finite number"),
        ((GOOD, np.ones(4), 1.0), {"active": []}, "`active` must be a nonempty set"),
        (
            (GOOD, np.ones(4), 1.0),
            {"active": [False] * 3},
            "`active` must be a nonempty",
        ),
        (
            (GOOD, np.ones(4), 1.0),
            {"active": [0, 3]},
            "`active` must be indices from 0",
        ),
        ((GOOD, np.ones(4), 1.0), {"active": [0, 0]}, "indices without repetition"),
        (
            (GOOD, np.ones(4), 1.0),
            {"active": [True]},
            "`active` must be a mask of shape",
        ),
        (
            (GOOD, np.ones(4), 1.0),
            {"active": [0.5]},
            "`active` must be a mask or a list",
        ),
    ],
)
def test_bad_rounds_are_named(
    arguments: tuple[Any, Any, Any], keywords: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidInputError, match=text):
        post_local_weights(*arguments, **keywords)


def test_one_bad_client_among_many_is_named(rng: np.random.Generator) -> None:
    D = rng.standard_normal((600, 40)).astype(np.float32)
    D[417, 39] = np.inf
    for part in (D, D[400:430]):
        client = 417 if len(part) == 600 else 17
        with pytest.raises(
            InvalidInputError, match=f"finite; got inf for client {client}"
        ):
            post_local_weights(part, np.ones(40), 1.0)


def test_bad_combinations_are_named() -> None:
    with pytest.raises(InvalidInputError, match=r"`weights` must be of shape \(3,\)"):
        combine(GOOD, [0.5, 0.5])
    with pytest.raises(InvalidInputError, match="`weights` must be finite"):
        combine(GOOD, [0.5, np.nan, 0.5])
    assert combine(GOOD, [0.0, 0.0, 0.0]).tolist() == [0, 0, 0, 0]
