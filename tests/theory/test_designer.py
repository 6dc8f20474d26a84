from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from tests.theory.cases import EQUAL, RICH, rows

from hewfl import InvalidInputError
from hewfl.theory.designer import certified_amplitudes, design
from hewfl.theory.post_local import PostLocal
from hewfl.theory.rounds_to_target import (
    MOST_ROUNDS,
    first_round_at,
    rounds_needed,
    rounds_to,
)
from hewfl.theory.systems import Case, System
from hewfl.theory.theorem_table import THEOREMS, Form, theorem_curve

pytestmark = pytest.mark.unchecked
DIGITS = 50
EXACT = 1e-12
"""Relative error of a closed formula of a few dozen roundings."""
FOUND = 1e-5
"""How far, in relative terms, the search may stay above the fewest rounds."""

QUIET = Case(System(1.0, 1.0, [1] * 4, 1, 0.0), sampling="one objective")
SOME: list[tuple[str, Form]] = [
    ("th:sur-cvx", "absorbed"),
    ("th:pl-global", "sharp"),
    ("th:ho-main", "paper"),
    ("cor:realized-het-rate", "paper"),
    ("cor:realized-hom-PL", "printed"),
]
some_rows = pytest.mark.parametrize(("theorem", "variant"), SOME)


def fewest(first: mp.mpf) -> float:
    return float(max(0, mp.ceil(first)))


def printed_hom(
    system: System, theta: float, Lambda: float
) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    """(A, β, δ) of cor:realized-hom-rate, from the text."""
    L, R, n = mp.mpf(float(system.L)), mp.mpf(float(system.R)), system.n
    t, lam = mp.mpf(theta), mp.mpf(Lambda)
    noise = mp.fsum(mp.mpf(float(m)) for m in system.noise)
    A = t / (4 * L * R**2 * (1 + t / 8))
    beta = 16 * t**3 + 16 * L * t**2 / (lam - L)
    delta = (4 * t**3 / L + 4 * t**2 / (lam - L)) * noise / n
    return A, beta, delta + (t / L + 1 / (lam - L)) * noise / n**2


# rounds_to


def test_rounds_of_the_printed_convex_rate_are_those_of_its_formula() -> None:
    rng = np.random.default_rng(0)
    with mp.workdps(DIGITS):
        for _ in range(25):
            L, R = 10 ** rng.uniform(-3, 3, 2)
            v2 = rng.uniform(0, 1e-4, 3) * (L * R) ** 2
            system = System(L, R, rng.integers(1, 9, 3), rng.integers(1, 64, 3), v2)
            theta, Lambda = 10 ** rng.uniform(-4, -2.2), L * rng.uniform(1.2, 2)
            A, beta, delta = printed_hom(system, theta, Lambda)
            m = (beta + mp.sqrt(beta**2 + 4 * A * delta)) / (2 * A)
            g, eps = float(system.cap), float(system.cap) * rng.uniform(0.05, 1)
            case = Case(system, sampling="fresh draws")
            bound = theorem_curve(
                "cor:realized-hom-rate", case, PostLocal(theta, Lambda), "printed"
            )
            result = float(rounds_to(bound.rate, eps))
            if m >= eps:
                assert result == np.inf
                continue
            exact = fewest((1 / (eps - m) - 1 / (g - m)) / A)
            assert abs(result - exact) <= max(1.0, EXACT * exact * eps / float(eps - m))


def test_rounds_of_the_printed_pl_rate_are_those_of_its_formula() -> None:
    with mp.workdps(DIGITS):
        A, beta, delta = printed_hom(EQUAL, 1e-3, 2.0)
        rho = mp.mpf("0.1") * mp.mpf(1e-3) / 2 - beta
        level = delta / rho
        for eps in (0.4, 0.1, 0.05, float(level) * 1.001):
            exact = fewest(mp.log((eps - level) / mp.mpf("0.5")) / mp.log(1 - rho))
            bound = theorem_curve(
                "cor:realized-hom-PL", RICH, PostLocal(1e-3, 2.0), "printed"
            )
            assert abs(float(rounds_to(bound.rate, eps)) - exact) <= 1
        assert A > 0


@rows
def test_the_answer_is_the_first_round_at_the_target(
    theorem: str, variant: Form
) -> None:
    least = THEOREMS[theorem].least
    theta = np.array([2e-4, 1e-3, 5e-3])
    rate = theorem_curve(theorem, RICH, PostLocal(theta, 2.0), variant).rate
    target = np.array([[0.499], [0.2], [0.05]])
    T = rounds_to(rate, target, least=least)
    finite = np.isfinite(T)
    assert finite.any()
    at = np.where(finite, T, least)
    assert (rate(at).value <= target)[finite].all()
    assert (rate(np.maximum(at - 1, least)).value > target)[finite & (at > least)].all()
    assert (rate(MOST_ROUNDS).value > target)[~finite].all()


def test_rounds_to_a_target_that_the_start_meets_are_none() -> None:
    case = replace(QUIET, gap=0.01)
    rate = theorem_curve("cor:realized-hom-rate", case, PostLocal(1e-4, 2.0)).rate
    assert rounds_to(rate, [0.02, 0.015]).tolist() == [0, 0]
    with pytest.raises(InvalidInputError, match=r"`target` must be positive; got 0"):
        rounds_to(rate, 0.0)


# laws


# certified range


@pytest.mark.parametrize(
    ("theorem", "ratio", "threshold"),
    [  # the table of erratum E-09
        ("cor:realized-het-rate", 2.0, 0.00282),
        ("cor:realized-het-rate", 1.5, 0.00163),
        ("cor:realized-hom-rate", 2.0, 0.00775),
        ("th:sur-cvx", 2.0, 0.00161),
    ],
)
def test_the_range_ends_where_the_errata_say(
    theorem: str, ratio: float, threshold: float
) -> None:
    _, high = certified_amplitudes(theorem, QUIET, curvature=ratio, variant="printed")
    assert float(high) == pytest.approx(threshold, abs=6e-6)


def test_the_plain_range_ends_at_the_root_of_its_equation() -> None:
    # without noise m = β/A, and m = f̄ reads 128ϑ(1 + ϑ)(1 + ϑ/8) = 1
    _, high = certified_amplitudes("cor:realized-hom-rate", QUIET)
    with mp.workdps(DIGITS):
        root = mp.findroot(lambda t: 128 * t * (1 + t) * (1 + t / 8) - 1, 0.0077)
    assert float(high) == pytest.approx(float(root), rel=1e-10)


@some_rows
def test_the_range_is_where_the_bound_says_something(
    theorem: str, variant: Form
) -> None:
    ends = certified_amplitudes(theorem, RICH, variant=variant)
    low, high = (float(end) for end in ends)
    assert 0 < low < high < 1
    theta = [low * 0.999, low * 1.001, np.sqrt(low * high), high * 0.999, high * 1.001]
    curve = theorem_curve(theorem, RICH, PostLocal(theta, 2.0), variant)
    says = (curve.rate(1).holds & (curve.floor < 0.5)).tolist()
    assert says[1:] == [True, True, True, False]
    assert not says[0] or low == pytest.approx(1e-12)


def test_no_range_is_zero() -> None:
    noisy = replace(QUIET, system=System(1.0, 1.0, [1] * 4, 1, 10.0))
    for end in certified_amplitudes("cor:realized-het-rate", noisy):
        assert end == 0


# design


def test_the_search_finds_what_a_fine_grid_of_the_formula_finds() -> None:
    target = 0.3
    result = design("cor:realized-hom-rate", RICH, target, variant="printed")
    theta = np.geomspace(1e-5, 0.25, 200_001)
    M = 1e-4 / 32
    A = theta / (4 * (1 + theta / 8))
    beta = 16 * theta**3 + 16 * theta**2
    delta = (4 * theta**3 + 4 * theta**2) * M + (theta + 1) * M / 3
    m = (beta + np.sqrt(beta**2 + 4 * A * delta)) / (2 * A)
    with np.errstate(divide="ignore"):
        T = np.where(m < target, (1 / (target - m) - 1 / (0.5 - m)) / A, np.inf)
    assert result.certified
    assert float(result.rounds) == pytest.approx(np.ceil(T.min()), rel=FOUND, abs=1)
    assert float(result.amplitude) == pytest.approx(theta[T.argmin()], rel=0.01)
    assert float(result.curvature) == 2  # Λ > L only hurts here


@some_rows
def test_a_design_beats_a_grid_and_proves_itself(theorem: str, variant: Form) -> None:
    target, least = 0.1, THEOREMS[theorem].least
    result = design(theorem, RICH, target, variant=variant)
    theta = np.geomspace(1e-6, 1, 400)[:, None]
    Lambda = 1 + np.geomspace(0.01, 1, 9)
    rate = theorem_curve(theorem, RICH, PostLocal(theta, Lambda), variant).rate
    T = np.where(rate(least).holds, rounds_to(rate, target, least=least), np.inf)
    floors = np.where(rate(least).holds, rate(least).floor, np.inf)
    assert result.rounds <= T.min() * (1 + FOUND)
    assert result.least_target <= floors.min() * (1 + FOUND)
    assert bool(result.certified) == bool(np.isfinite(result.rounds))
    if result.certified:
        controls = PostLocal(result.amplitude, result.curvature)
        again = theorem_curve(theorem, RICH, controls, variant)
        assert again.rate(result.rounds).holds
        assert all(h.holds for h in result.hypotheses)
        assert result.value <= target
        needed = rounds_needed(again, target, least=least)
        assert needed.fewest == result.rounds
        if needed.iterated < needed.closed:
            assert again.recursion is not None
            path = again.recursion.trajectory(again.start, int(result.rounds)).gap
            assert path[-1] <= target < path[-2]
        else:
            assert again.rate(result.rounds).value <= target
    else:
        assert result.value == result.floor >= target


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in (1, 2, 3))]
)
def test_no_amplitude_of_a_fine_grid_needs_fewer_rounds(seed: int) -> None:
    """Whole rounds have plateaus, on which the search stood still, up to 5 % off."""
    rng = np.random.default_rng(seed)
    H, n, v2 = (
        int(rng.integers(1, 9)),
        int(rng.integers(2, 30)),
        10 ** rng.uniform(-7, -3),
    )
    case = replace(RICH, system=System(1.0, 1.0, [H] * n, 8, v2))
    target = float(10 ** rng.uniform(-1.6, -0.5))
    for theorem in ("th:sur-cvx", "th:pl-global", "cor:realized-hom-rate"):
        result = design(theorem, case, target, variant="sharp")
        theta = np.geomspace(1e-4, 1, 300)[:, None]
        Lambda = 1 + np.geomspace(1e-3, 1, 12 if theorem.startswith("cor") else 1)
        edge = np.broadcast_to(0.5 / Lambda * (1 - 1e-14), (1, Lambda.size))
        both = np.concatenate([np.broadcast_to(theta, (300, Lambda.size)), edge])
        curve = theorem_curve(theorem, case, PostLocal(both, Lambda), "sharp")
        holds, law = curve.rate(1).holds, curve.recursion
        assert law is not None
        least = np.where(
            holds, first_round_at(law, curve.start, target, most=3000), np.inf
        )
        if np.isfinite(least.min()):
            assert result.rounds <= max(least.min() * 1.002, least.min() + 0.5)


@pytest.mark.parametrize("theorem", ["cor:realized-het-rate", "cor:realized-hom-PL"])
def test_targets_just_above_the_least_one_are_certified(theorem: str) -> None:
    # noise lifts the floor at both ends, so the range that certifies is narrow
    least = float(design(theorem, RICH, 0.4).least_target)
    hard, easy = (design(theorem, RICH, least * k) for k in (0.9999, 1.0001))
    assert not hard.certified
    assert hard.rounds == np.inf
    assert easy.certified


def test_curvature_below_2l_pays_where_the_amplitude_is_the_bottleneck() -> None:
    # one step per client and no noise: nothing drifts, so only Λϑ ≤ L/2 limits ϑ
    target, theorem = 1e-4, "cor:realized-hom-rate"
    free = design(theorem, QUIET, target, variant="sharp")
    held = design(theorem, QUIET, target, curvature=2.0, variant="sharp")
    assert free.rounds < 0.6 * held.rounds
    assert free.curvature == pytest.approx(1.001, abs=1e-4)
    assert float(free.curvature * free.amplitude) == pytest.approx(0.5, rel=1e-4)
    assert float(held.amplitude) == pytest.approx(0.25, rel=1e-4)
    assert held.amplitude <= 0.25


@some_rows
def test_units_do_not_matter(theorem: str, variant: Form) -> None:
    # lengths in units of 1/ℓ, objectives in units of 1/s
    s, ell = 2.0**20, 2.0**-7
    scaled = replace(
        RICH,
        system=System(s / ell**2, ell, [4, 4, 4], 8, 1e-4 * (s / ell) ** 2),
        pl_constant=0.1 * s / ell**2,
        similarity=0.1 * s / ell**2,
        hessian_lipschitz=0.01 * s / ell**3,
    )
    ours = design(theorem, RICH, 0.1, variant=variant)
    theirs = design(theorem, scaled, 0.1 * s, variant=variant)
    assert float(theirs.rounds) == pytest.approx(float(ours.rounds), rel=1e-9)
    assert float(theirs.floor) == pytest.approx(s * float(ours.floor), rel=1e-6)


def test_a_statement_that_never_holds_certifies_nothing() -> None:
    unequal = replace(RICH, system=System(1.0, 1.0, [1, 8], 1, 0.0))
    result = design("th:pl-global", unequal, 0.1)
    assert not result.certified
    assert result.least_target == np.inf
    assert [h.name for h in result.hypotheses if not h.holds] == ["H_i = H"]


# errors


def test_errors_name_the_argument() -> None:
    at = PostLocal(0.01, 2.0)
    with pytest.raises(InvalidInputError, match=r"`theorem` must be one of th:sur-cvx"):
        theorem_curve("th:none", RICH, at)
    with pytest.raises(InvalidInputError, match="paper, sharp for cor:realized-het"):
        theorem_curve("cor:realized-het-rate", RICH, at, "absorbed")
    with pytest.raises(
        InvalidInputError, match="`pl_constant` must be given for th:pl"
    ):
        theorem_curve("th:pl-global", QUIET, at)
    with pytest.raises(InvalidInputError, match="`amplitude` must be positive and at"):
        theorem_curve("th:sur-cvx", QUIET, PostLocal([0.1, 101.0], 2.0))
    with pytest.raises(InvalidInputError, match=r"below the cap f̄ = 0.5, .*; got 0.5"):
        design("th:sur-cvx", QUIET, 0.5)
    with pytest.raises(InvalidInputError, match="`target` must be one number"):
        design("th:sur-cvx", QUIET, [0.1, 0.2])
    many = replace(QUIET, system=System([1.0, 2.0], 1.0, [1, 2], 1, 0.0))
    with pytest.raises(InvalidInputError, match="`case` must be of one configuration"):
        certified_amplitudes("th:sur-cvx", many)
    with pytest.raises(InvalidInputError, match="`active` must be between 1 and"):
        replace(QUIET, active=5)
    with pytest.raises(InvalidInputError, match="`sampling` must be one of"):
        replace(QUIET, sampling="shuffled")  # type: ignore[arg-type]  # on purpose
