"""Weights and step from the data: every array library, precision, scale and subset."""

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
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
from hewfl.core.displacements import LinearCombination

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


def exact_gap(D: Array, g: Array, lam: float, w: Array) -> Fraction:
    """Ψ(w) − min Ψ without rounding; g has one entry for each column of D.

    d(w) at the optimum lies in a simplex of affinely independent vectors: the optimum
    is the least value over faces at which their equations give weights w ≥ 0.
    """
    rows = [[Fraction(float(x)) for x in row] for row in D]
    slope, curvature = [Fraction(float(x)) for x in g], Fraction(lam)

    def value(weights: list[Fraction], members: Any) -> Fraction:
        step = [
            sum((v * rows[i][j] for v, i in zip(weights, members, strict=True)), zero)
            for j in range(len(slope))
        ]
        return sum(
            (s * x + curvature * x * x / 2 for s, x in zip(slope, step, strict=True)),
            zero,
        )

    zero, n = Fraction(0), len(rows)
    values = []
    for k in range(1, min(n, len(slope) + 1) + 1):
        for face in combinations(range(n), k):
            weights = _stationary([rows[i] for i in face], slope, curvature)
            if weights is not None and min(weights) >= 0:
                values.append(value(weights, face))
    return value([Fraction(float(x)) for x in w], range(n)) - min(values)


def _stationary(
    rows: list[list[Fraction]], g: list[Fraction], curvature: Fraction
) -> list[Fraction] | None:
    """Weights of sum one at which all ⟨g + Λx, Δ_i⟩ are equal; None where singular."""

    def dot(a: list[Fraction], b: list[Fraction]) -> Fraction:
        return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))

    k = len(rows)
    system = [
        [curvature * dot(a, b) for b in rows] + [Fraction(-1), -dot(g, a)] for a in rows
    ]
    system.append([Fraction(1)] * k + [Fraction(0), Fraction(1)])
    for i in range(k + 1):
        pivot = next((r for r in range(i, k + 1) if system[r][i] != 0), None)
        if pivot is None:
            return None
        system[i], system[pivot] = system[pivot], system[i]
        system[i] = [x / system[i][i] for x in system[i]]
        for r in range(k + 1):
            if r != i and system[r][i] != 0:
                factor = system[r][i]
                pairs = zip(system[r], system[i], strict=True)
                system[r] = [x - factor * y for x, y in pairs]
    return [row[-1] for row in system[:k]]


def degenerate_round(rng: np.random.Generator) -> tuple[Array, Array, float, Array]:
    """Collinear, equal, nearly equal or zero vectors, of every size, near the optimum.

    The optimum's gap is all rounding there.
    """
    n, d = int(rng.integers(1, 5)), int(rng.integers(1, 3))
    D = rng.standard_normal((n, d))
    kind = rng.integers(5)
    if kind == 1:
        D[:] = D[0]
    elif kind == 2:
        D = D[:1] * (1 + 1e-15 * rng.integers(-4, 5, (n, 1)))
    elif kind == 3:
        D[: n // 2] = 0
    elif kind == 4:
        D = D + 1e8
    g = rng.choice([0.0, 1.0, 1e-8, 1e8]) * rng.standard_normal(d)
    lam = float(10.0 ** rng.integers(-3, 4))
    size = 10.0 ** rng.choice([0.0, 0.0, -150.0, 150.0, -170.0])
    if size == 1e150:
        D, g, lam = D.clip(-9, 9), g.clip(-9, 9), min(lam, 10.0)  # or out of range
    D, g = D * size, g * size
    w = post_local_weights(D, g, lam).weights
    if rng.random() < 0.2:
        w = rng.dirichlet(np.ones(n))
    return np.asarray(D), np.asarray(g), lam, np.asarray(w, dtype=np.float64)


@pytest.mark.unchecked
def test_the_data_gap_is_never_below_the_true_one(rng: np.random.Generator) -> None:
    """Compared with exact fractions, where the gap is nothing but rounding."""
    for _ in range(1500):
        D, g, lam, w = degenerate_round(rng)
        gap = data_gap(D, g, lam, w)
        assert 0 <= gap < np.inf
        assert Fraction(gap) >= exact_gap(D, g, lam, w)
        size = float(lam * np.abs(D).max() ** 2 + np.abs(D).max() * np.abs(g).max())
        assert gap <= 1e-11 * size + 1e-290 or w.min() > 0


@pytest.mark.unchecked
def test_a_reference_that_is_a_sum_adds_its_rounding(rng: np.random.Generator) -> None:
    """g = Σ u_jΔ_j in fractions: forming it rounds more than the rest."""
    for _ in range(500):
        D, _, lam, w = degenerate_round(rng)
        u = rng.standard_normal(len(w)) * 1e3
        exact = [
            sum((Fraction(a) * Fraction(b) for a, b in zip(u, column, strict=True)))
            for column in D.T
        ]
        gap = data_gap(D, LinearCombination(u), lam, w)
        rounded = np.array([float(x) for x in exact])
        # a tiny change of g moves the gap by it times the largest distance
        moved = sum(
            (
                abs(x - Fraction(float(y))) * Fraction(float(np.ptp(D[:, j])))
                for j, (x, y) in enumerate(zip(exact, rounded, strict=True))
            ),
            Fraction(0),
        )
        assert Fraction(gap) + moved >= exact_gap(D, rounded, lam, w)


@pytest.mark.parametrize("decade", [153, 155, 160, 200, 300])
@pytest.mark.parametrize("reference", ["none", "row", "sum"])
def test_a_value_out_of_range_is_refused(
    decade: int, reference: str, rng: np.random.Generator
) -> None:
    """Never NaN or infinity, and the true value wherever it has a float64."""
    for n, d in ((2, 1), (3, 2), (3, 5), (300, 1), (300, 2)):
        D = rng.standard_normal((n, d)) + (0.0 if n < 300 else 3.0)
        e = np.eye(n)[0]
        given: Any = {"none": None, "row": D[0], "sum": LinearCombination(e)}[reference]
        small = post_local_weights(D, given, 1.0)
        power = 3.32192809488736 * decade
        factor = 2.0 ** int(power)
        scaled = given * factor if reference == "row" else given
        true = Fraction(float(small.value)) * Fraction(factor) ** 2
        multiplier = Fraction(float(small.multipliers.max())) * Fraction(factor) ** 2
        if max(abs(true), multiplier) > Fraction(1.7e308):
            with pytest.raises(InvalidInputError, match="`displacements` must be so"):
                post_local_weights(D * factor, scaled, 1.0)
            continue
        loud = post_local_weights(D * factor, scaled, 1.0)
        assert loud.weights == pytest.approx(small.weights, abs=1e-12)
        assert np.isfinite([loud.value, loud.gap]).all()
        size = Fraction(float((D**2).sum(1).max())) * Fraction(factor) ** 2
        assert abs(Fraction(float(loud.value)) - true) <= size / 10**13


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


@pytest.mark.parametrize("decade", [20, 100, 138, 150, 155, 160, 200, 300])
@pytest.mark.parametrize("shape", [(4, 6), (4, 1), (600, 3)], ids=str)
def test_one_long_vector_is_refused_or_costs_nothing(
    decade: int, shape: tuple[int, int], rng: np.random.Generator
) -> None:
    """It points uphill, so that the others alone have the minimum.

    In units of its squares theirs are zero: value 0, gap 0 and "optimal" was printed.
    """
    D, g = rng.standard_normal(shape), rng.standard_normal(shape[1])
    small = post_local_weights(D[1:], g, 1.0)
    slope = g + combine(D[1:], small.weights)
    D[0] = slope / np.abs(slope).max() * 10.0**decade
    if decade > 139:
        with pytest.raises(InvalidInputError, match="`displacements` must be of leng"):
            post_local_weights(D, g, 1.0)
        return
    solution = post_local_weights(D, g, 1.0)
    assert float(solution.value) == pytest.approx(float(small.value), rel=1e-9)
    assert solution.weights[0] == 0


@pytest.mark.parametrize(("g", "curvature"), [(1e308, 1.0), (1.0, 1e308)])
def test_products_out_of_range_are_those_of_the_displacements(
    g: float, curvature: float, rng: np.random.Generator
) -> None:
    D = 4 * rng.standard_normal((4, 6))
    with pytest.raises(InvalidInputError, match="`displacements` must be so short"):
        post_local_weights(D, np.full(6, g), curvature)
