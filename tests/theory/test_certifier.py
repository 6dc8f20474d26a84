from dataclasses import replace

import numpy as np
import pytest

from hewfl import InvalidInputError
from hewfl.theory.case import Case
from hewfl.theory.certificates import Certificate, Promise
from hewfl.theory.certifier import MOST_ITERATED, certify
from hewfl.theory.corrected import (
    corrected_coefficients,
    corrected_rate,
    corrected_recursion,
)
from hewfl.theory.noise import noise_of_mean
from hewfl.theory.one_step_bound import one_step, situation
from hewfl.theory.plain import plain_coefficients, plain_pl_rate
from hewfl.theory.post_local import PostLocal
from hewfl.theory.systems import System
from hewfl.theory.theorems import THEOREMS

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


def named(certificate: Certificate, label: str, variant: str = "paper") -> Promise:
    found = [
        p for p in certificate.promises if (p.label, p.variant) == (label, variant)
    ]
    assert len(found) == 1
    return found[0]


def test_numbers_are_those_of_the_theorems(at_given: Certificate) -> None:
    controls = PostLocal(2e-3, 3.0)
    het = corrected_coefficients(CASE.system, controls)
    rate = corrected_rate(het, CASE.start, 40)
    promise = named(at_given, "cor:realized-het-rate")
    assert promise.value == rate.value
    assert promise.floor == rate.floor
    assert promise.holds == rate.holds
    recursion = corrected_recursion(het, CASE.start, 40).gap[-1]
    assert promise.iterated == recursion < promise.value
    hom = plain_coefficients(CASE.system, controls, variant="sharp")
    pl = plain_pl_rate(hom, 0.2, CASE.start[0], 40)
    assert named(at_given, "cor:realized-hom-PL", "sharp").value == pl.value


def test_rounds_to_target_are_the_first_that_reach_it(at_given: Certificate) -> None:
    hom = plain_coefficients(CASE.system, PostLocal(2e-3, 3.0), variant="sharp")
    T = float(named(at_given, "cor:realized-hom-PL", "sharp").rounds_to_target)
    before, after = plain_pl_rate(hom, 0.2, CASE.start[0], [T - 1, T]).value
    assert after <= 0.4 < before


def test_every_theorem_is_listed_or_left_out_with_a_reason(
    at_given: Certificate,
) -> None:
    listed = {p.label for p in at_given.promises}
    assert at_given.unasked == (("th:ho-main", ("similarity", "hessian_lipschitz")),)
    assert listed | {"th:ho-main"} == set(THEOREMS)
    assert {p.variant for p in at_given.promises} == {"paper", "sharp", "absorbed"}


def test_unequal_horizons_void_the_uniform_controller(at_given: Certificate) -> None:
    promise = named(at_given, "th:pl-global")
    assert not promise.holds
    assert promise.rounds_to_target == np.inf
    broken = [h for h in promise.hypotheses if not h.holds]
    compared = [(h.name, float(h.left), float(h.right)) for h in broken]
    assert ("H_i = H", 8.0, 1.0) in compared


def test_without_an_amplitude_each_theorem_gets_its_best(at_best: Certificate) -> None:
    certified = 0
    for p in at_best.promises:
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
        assert 0 < first.uniform < 1
        inside, outside = (
            one_step((w, first.uniform * s), at, variant=first.variant).change
            for s in (1 - 1e-6, 1 + 1e-6)
        )
        assert inside < 0 < outside
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
    counts = [(s.algorithm, int(s.lean), int(s.printed)) for s in at_given.sent]
    assert counts == [("control", 604, 1004), ("het", 601, 1001), ("hom", 501, 501)]
    rounds = [p.rounds_to_target for p in at_given.promises if p.algorithm == "hom"]
    assert at_given.sent[2].to_target == 501 * min(rounds) < np.inf
    assert at_given.sent[1].to_target == np.inf


def test_absent_clients_leave_the_single_round_only(at_best: Certificate) -> None:
    part = certify(replace(CASE, active=3), 0.4, rounds=5, variants=["sharp"])
    assert not any(p.holds for p in part.promises)
    assert all(p.amplitudes[1] == 0 for p in part.promises)
    assert "3 of 4 clients" in part.participation
    assert part.first_round[0].uniform > 0
    assert part.sent[0].lean == 200 + 300 + 3
    assert at_best.participation.startswith("all 4 clients")


def test_long_runs_are_not_iterated() -> None:
    long = certify(CASE, rounds=MOST_ITERATED + 1, amplitude=1e-3, variants=["sharp"])
    assert all(np.isnan(p.iterated) for p in long.promises)
    assert np.isfinite(named(long, "th:sur-cvx", "sharp").value)


def test_configurations_are_certified_as_if_alone() -> None:
    both = replace(CASE, system=System([1.0, 2.0], 1.0, [2, 2], 8, 1e-5))
    together = certify(both, 0.1, rounds=50, amplitude=[1e-3, 0.3], variants=["sharp"])
    one = replace(CASE, system=System(2.0, 1.0, [2, 2], 8, 1e-5))
    alone = certify(one, 0.1, rounds=50, amplitude=0.3, variants=["sharp"])
    for p, q in zip(together.promises, alone.promises, strict=True):
        assert p.holds[1] == q.holds
        for name in ("value", "iterated", "floor", "rounds_to_target"):
            ours = np.broadcast_to(getattr(p, name), (2,))[1]
            np.testing.assert_allclose(ours, getattr(q, name), rtol=1e-12)
        np.testing.assert_allclose(p.amplitudes[1][1], q.amplitudes[1], rtol=1e-9)
    assert together.sent[2].to_target.shape == (2,)


def test_the_printed_form_is_marked_where_it_is_unsafe() -> None:
    many = Case(System(1.0, 1.0, [1] * 11, 1, 0.0))
    found = certify(many, 0.4, rounds=5, amplitude=1e-3, variants=["printed", "paper"])
    printed = named(found, "cor:realized-het-rate", "printed")
    assert [h.name for h in printed.hypotheses if not h.holds] == ["n ≤ 10"]
    assert named(found, "cor:realized-het-rate", "paper").holds
    assert found.sent == ()  # no dimension


def test_errors_name_the_argument() -> None:
    with pytest.raises(InvalidInputError, match="`variants` must be among printed"):
        certify(CASE, variants=["blunt"])  # type: ignore[list-item]  # on purpose
    with pytest.raises(InvalidInputError, match="`rounds` must be a whole number"):
        certify(CASE, rounds=0)
    with pytest.raises(InvalidInputError, match="`curvature` must be above"):
        certify(CASE, curvature=2.0)
    with pytest.raises(InvalidInputError, match="`target` must be below the cap"):
        certify(CASE, 2.25)
