from dataclasses import replace

import numpy as np
import pytest

from hewfl import InvalidInputError
from hewfl.theory.certificates import MOST_ITERATED, Certificate, Guarantee, certify
from hewfl.theory.noise import noise_of_mean
from hewfl.theory.one_step_bound import one_step, situation
from hewfl.theory.post_local import (
    PostLocal,
    heterogeneous_coefficients,
    homogeneous_coefficients,
    homogeneous_pl_rate,
)
from hewfl.theory.systems import Case, System
from hewfl.theory.theorem_table import THEOREMS
from hewfl.theory.uniform import uniform_coefficients

pytestmark = pytest.mark.unchecked
CASE = Case(
    System(2.0, 1.5, [1, 2, 4, 8], 16, [1e-4, 2e-4, 3e-4, 1e-4]),
    pl_constant=0.2,
    sampling="fresh draws",
    dimension=100,
)


@pytest.fixture(scope="module")
def at_given() -> Certificate:
    return certify(CASE, 0.4, rounds=40, amplitude=2e-3, curvature=3.0)


@pytest.fixture(scope="module")
def at_best() -> Certificate:
    return certify(CASE, rounds=5, variants=["sharp"])


def find_guarantee(
    certificate: Certificate, label: str, variant: str = "paper"
) -> Guarantee:
    result = [
        p for p in certificate.guarantees if (p.label, p.variant) == (label, variant)
    ]
    assert len(result) == 1
    return result[0]


def test_numbers_are_those_of_the_theorems(at_given: Certificate) -> None:
    controls = PostLocal(2e-3, 3.0)
    het = heterogeneous_coefficients(CASE.system, controls)
    rate = het.rate(CASE.start, 40)
    promise = find_guarantee(at_given, "cor:realized-het-rate")
    assert promise.value == rate.value
    assert promise.closed_floor == rate.floor > promise.floor
    assert promise.holds == rate.holds
    recursion = het.trajectory(CASE.start, 40).gap[-1]
    assert promise.iterated == recursion < promise.value
    hom = homogeneous_coefficients(CASE.system, controls, variant="sharp")
    pl = homogeneous_pl_rate(hom, 0.2, CASE.start[0], 40)
    assert find_guarantee(at_given, "cor:realized-hom-PL", "sharp").value == pl.value


def test_rounds_to_target_are_the_first_that_reach_it(at_given: Certificate) -> None:
    hom = homogeneous_coefficients(CASE.system, PostLocal(2e-3, 3.0), variant="sharp")
    T = float(find_guarantee(at_given, "cor:realized-hom-PL", "sharp").rounds_to_target)
    before, after = homogeneous_pl_rate(hom, 0.2, CASE.start[0], [T - 1, T]).value
    assert after <= 0.4 < before


def test_the_headline_is_the_better_of_rate_and_recursion() -> None:
    """The recursion lets q fall with the gap; the closed rate leaves it at its cap."""
    same = Case(
        System(1.0, 1.0, [4] * 10, 1, 1e-4), similarity=0.0, hessian_lipschitz=0.0
    )
    result = certify(same, 0.05, rounds=9, variants=["sharp"])
    for p in result.guarantees:
        assert p.rounds_to_target == min(p.closed_rounds, p.iterated_rounds)
    direct = find_guarantee(result, "th:direct-bellman", "sharp")
    assert direct.iterated_rounds < 0.9 * direct.closed_rounds
    best = float(direct.rounds_to_target)
    law = uniform_coefficients(same.system, direct.amplitude, variant="sharp").recursion
    gap = law.trajectory(same.start, int(best)).gap
    assert gap[-1] <= 0.05 < gap[-2]


def test_one_step_each_asks_nothing_of_the_tracking_error() -> None:
    """H = 1: no drift, so no coupling. C < 1 was asked, and ϑ = 0.144 the largest."""
    single = Case(System(1.0, 1.0, [1] * 10, 1, 0.0), pl_constant=0.1)
    result = certify(single, 0.05, rounds=9, variants=["sharp"])
    direct = find_guarantee(result, "th:direct-bellman", "sharp")
    assert direct.amplitudes[1] == 1
    assert direct.rounds_to_target == 34
    law = uniform_coefficients(single.system, 1.0, variant="sharp").recursion
    gap = law.trajectory(single.start, 34).gap
    assert gap[-1] <= 0.05 < gap[-2]
    assert find_guarantee(result, "th:pl-global", "sharp").rounds_to_target == 22
    alike = replace(single, similarity=0.0, hessian_lipschitz=0.0)
    similar = certify(alike, 0.05, rounds=9, variants=["sharp"])
    assert find_guarantee(similar, "th:ho-main", "sharp").amplitudes[1] == 1


@pytest.mark.parametrize("gap", [0.0, 1e-9, 0.04])
def test_a_start_at_the_target_needs_no_round(gap: float) -> None:
    start = replace(CASE, gap=gap, similarity=0.1, hessian_lipschitz=0.1)
    result = certify(start, 0.05, rounds=5, amplitude=1e-3, variants=["sharp"])
    held = [p for p in result.guarantees if p.holds]
    assert len(held) >= 4
    assert all(p.rounds_to_target == p.design.rounds == 0 for p in held)


def test_a_start_above_the_cap_is_read_as_the_cap() -> None:
    high, cap = (
        certify(replace(CASE, gap=g), rounds=5, amplitude=1e-3, variants=["sharp"])
        for g in (100.0, None)
    )
    for p, q in zip(high.guarantees, cap.guarantees, strict=True):
        assert p.holds == q.holds
        assert p.value == q.value


def test_the_largest_amplitude_is_never_below_the_best() -> None:
    """Λ was 2L for the one and searched for the other: 0.25 against 0.465."""
    single = Case(System(1.0, 1.0, [1] * 10, 32, 1e-4), 0.5, sampling="fresh draws")
    result = certify(single, 0.05, rounds=5)
    for p in result.guarantees:
        assert not p.design.certified or p.design.amplitude <= p.amplitudes[1] * 1.0001
    plain = find_guarantee(result, "cor:realized-hom-rate", "sharp")
    assert 0.45 < plain.design.amplitude <= plain.amplitudes[1] < 0.5


def test_every_theorem_is_listed_or_left_out_with_a_reason(
    at_given: Certificate,
) -> None:
    listed = {p.label for p in at_given.guarantees}
    assert at_given.not_evaluated == (
        ("th:ho-main", ("similarity", "hessian_lipschitz")),
    )
    assert listed | {"th:ho-main"} == set(THEOREMS)
    variants = {p.variant for p in at_given.guarantees}
    assert variants == {"paper", "sharp", "absorbed", "joint"}


def test_unequal_horizons_void_the_uniform_controller(at_given: Certificate) -> None:
    promise = find_guarantee(at_given, "th:pl-global")
    assert not promise.holds
    assert promise.rounds_to_target == np.inf
    broken = [h for h in promise.hypotheses if not h.holds]
    compared = [(h.name, float(h.left), float(h.right)) for h in broken]
    assert ("H_i = H", 8.0, 1.0) in compared


def test_without_an_amplitude_each_theorem_gets_its_best(at_best: Certificate) -> None:
    certified = 0
    for p in at_best.guarantees:
        assert p.amplitude == p.design.amplitude
        assert p.curvature == p.design.curvature
        assert p.rounds_to_target == p.design.rounds
        certified += int(p.design.certified)
    assert certified >= 3
    half = at_best.first_round[0]
    assert half.amplitude == half.uniform / 2 > 0


def test_the_target_is_a_tenth_of_the_cap_by_default(at_best: Certificate) -> None:
    assert float(at_best.target) == pytest.approx(0.1 * 2.25)


def test_the_first_round_descends_up_to_its_largest_amplitude(
    at_given: Certificate,
) -> None:
    at, w = situation(CASE.system, *CASE.start), np.full(4, 0.25)
    for first in at_given.first_round:
        assert 0 < first.uniform <= 1
        assert (first.uniform == 1) == (first.variant == "joint")
        inside, outside = (
            one_step((w, first.uniform * s), at, variant=first.variant).change
            for s in (1 - 1e-6, 1 + 1e-6)
        )
        assert inside < 0
        assert (outside > 0) == (first.uniform < 1)
        played = one_step((w, 2e-3), at, variant=first.variant)
        assert first.value == played.value
        assert first.amplitude == 2e-3


def test_noise_and_its_best_weights(at_given: Certificate) -> None:
    noise, M = at_given.noise, np.array([1e-4, 2e-4, 3e-4, 1e-4]) / [16, 32, 64, 128]
    np.testing.assert_allclose(noise.levels, M, rtol=1e-14)
    np.testing.assert_allclose(noise.optimal, (1 / M) / (1 / M).sum(), rtol=1e-13)
    assert float(noise.optimal_level) == pytest.approx(1 / (1 / M).sum(), rel=1e-13)
    assert float(noise.of_mean) == pytest.approx(M.sum() / 16, rel=1e-13)
    assert float(noise.mean) == pytest.approx(M.mean(), rel=1e-13)
    assert noise_of_mean(CASE.system, noise.optimal) < noise.of_mean
    assert noise.comparator_term < noise.optimal_term
    p, q = 64 * 2e-3**3 / 2, 16 * 3 * 2e-3**2 / 4
    at_optimal = (4 * p + q) / (1 / M).sum()  # V₁(a*) = nα, V₂(a*) = α
    assert float(noise.optimal_term) == pytest.approx(at_optimal, rel=1e-12)


def test_what_is_sent(at_given: Certificate) -> None:
    counts = [
        (s.algorithm, int(s.per_round), int(s.printed)) for s in at_given.communication
    ]
    assert counts == [("control", 604, 1004), ("het", 601, 1001), ("hom", 501, 501)]
    rounds = [p.rounds_to_target for p in at_given.guarantees if p.algorithm == "hom"]
    assert at_given.communication[2].to_target == 501 * min(rounds) < np.inf
    assert at_given.communication[1].to_target == np.inf


def test_absent_clients_leave_the_bound_of_algorithm_1(at_best: Certificate) -> None:
    part = certify(replace(CASE, active=3), 0.4, rounds=5, variants=["sharp"])
    *others, row = part.guarantees
    assert not any(p.holds for p in others)
    assert all(p.amplitudes[1] == 0 for p in others)
    assert row.label == "th:sur-system"
    assert row.holds
    assert row.rounds_to_target == np.inf  # clients may stay away for ever
    returning = certify(replace(CASE, active=3, absence=1), 0.4, variants=["sharp"])
    assert returning.guarantees[-1].rounds_to_target < 10_000
    assert "3 of 4 clients" in part.participation
    assert part.first_round[0].uniform > 0
    assert part.communication[0].per_round == 200 + 300 + 3
    assert at_best.participation.startswith("All 4 clients")


def test_long_runs_are_not_iterated() -> None:
    long = certify(CASE, rounds=MOST_ITERATED + 1, amplitude=1e-3, variants=["sharp"])
    assert all(np.isnan(p.iterated) for p in long.guarantees)
    assert np.isfinite(find_guarantee(long, "th:sur-cvx", "sharp").value)


def test_the_printed_form_is_marked_where_it_is_unsafe() -> None:
    many = Case(System(1.0, 1.0, [1] * 11, 1, 0.0))
    result = certify(many, 0.4, rounds=5, amplitude=1e-3, variants=["printed", "paper"])
    printed = find_guarantee(result, "cor:realized-het-rate", "printed")
    assert [h.name for h in printed.hypotheses if not h.holds] == ["n ≤ 10"]
    assert find_guarantee(result, "cor:realized-het-rate", "paper").holds
    assert result.communication == ()  # no dimension


def test_errors_name_the_argument() -> None:
    with pytest.raises(InvalidInputError, match="`variants` must be among printed"):
        certify(CASE, variants=["blunt"])  # type: ignore[list-item]  # on purpose
    with pytest.raises(InvalidInputError, match="`rounds` must be a whole number"):
        certify(CASE, rounds=0)
    with pytest.raises(InvalidInputError, match="`curvature` must be above"):
        certify(CASE, curvature=2.0)
    with pytest.raises(InvalidInputError, match="`target` must be below the cap"):
        certify(CASE, 2.25)
    many = replace(CASE, system=System([1.0, 2.0], 1.0, [1, 2], 1, 0.0))
    with pytest.raises(InvalidInputError, match="`case` must be of one configuration"):
        certify(many, 0.05)
