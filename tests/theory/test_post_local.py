import numpy as np
import pytest

from hewfl import InvalidInputError
from hewfl.theory.heterogeneous import corrected_coefficients
from hewfl.theory.homogeneous import (
    PostLocal,
    is_homogeneous,
    pathwise_bound,
    plain_slope_error,
)
from hewfl.theory.statement import all_hold
from hewfl.theory.systems import System

EXACT = 1e-12
"""Relative error of a closed formula of a few dozen roundings."""


def test_pathwise_bound_holds_for_any_step(rng: np.random.Generator) -> None:
    # F = ½ xᵀ diag(h) x with 0 ≤ h ≤ L: any reference, any step
    L = 3.0
    h, x, c, d = (rng.normal(size=(500, 4)) for _ in range(4))
    h = L * rng.uniform(0, 1, (500, 4))
    Lambda = L * rng.uniform(1.01, 5, 500)
    gap, after = (h * x**2).sum(-1) / 2, (h * (x + d) ** 2).sum(-1) / 2
    psi = (c * d).sum(-1) + Lambda / 2 * (d**2).sum(-1)
    mismatch = ((h * x - c) ** 2).sum(-1)
    bound = pathwise_bound(gap, psi, mismatch, Lambda, L)
    np.testing.assert_allclose(bound, gap + psi + mismatch / (2 * (Lambda - L)))
    assert (after <= bound * (1 + EXACT)).all()
    # tight: curvature L everywhere and d = (∇F − c)/(Λ − L)
    g = L * x
    best = (g - c) / (Lambda - L)[:, None]
    psi = (c * best).sum(-1) + Lambda / 2 * (best**2).sum(-1)
    gap, after = L * (x**2).sum(-1) / 2, L * ((x + best) ** 2).sum(-1) / 2
    bound = pathwise_bound(gap, psi, ((g - c) ** 2).sum(-1), Lambda, L)
    np.testing.assert_allclose(after, bound, rtol=1e-9)


def test_hypotheses_tell_experiments_from_theory() -> None:
    system = System(1.0, 1.0, [1] * 12, 1, 1.0)

    def failed(theta: float, Lambda: float, *, printed: bool = False) -> list[str]:
        controls = PostLocal(theta, Lambda)
        k = corrected_coefficients(system, controls, printed=printed)
        return [h.name for h in k.hypotheses if not h.holds]

    assert failed(0.25, 2.0) == []
    assert failed(0.25, 2.1) == ["Λ ≤ 2L", "Λϑ ≤ L/2"]
    for theta in (0.5, 1.0, 2.0, 4.0, 8.0):
        for ratio in (1.1, 1.25, 1.5, 1.75, 2.0):
            assert "Λϑ ≤ L/2" in failed(theta, ratio)
    assert failed(0.01, 2.0, printed=True) == ["n ≤ 10"]
    few = System(1.0, 1.0, [1] * 10, 1, 1.0)
    for theta, safe in ((0.2182, True), (0.2183, False)):
        k = corrected_coefficients(few, PostLocal(theta, 2.0), printed=True)
        assert bool(all_hold(k.hypotheses)) == safe


def test_only_fresh_draws_from_one_pool_are_homogeneous() -> None:
    assert is_homogeneous("one objective")
    assert is_homogeneous("fresh draws")
    assert not is_homogeneous("fixed shards")
    assert is_homogeneous("fixed shards", printed=True)
    with pytest.raises(
        InvalidInputError, match="`sampling` must be one of one objective"
    ):
        is_homogeneous("iid")  # type: ignore[arg-type]  # the point


def test_a_shard_dealt_once_breaks_the_printed_lemma() -> None:
    """E-14: given its shard, a client errs by more than lem:realized-hom-q allows.

    F averages (x − z)²/2 over z = ±1; the one client was dealt z = 1, so that batches
    from its shard have no variance, and sees −1 at the minimiser 0 in every round.
    """
    alone = System(1.0, 2.0, 1, 1, 0.0)
    x, pool, shard = 0.0, np.array([-1.0, 1.0]), np.array([1.0])
    off = ((x - shard).mean() - (x - pool).mean()) ** 2
    assert off == 1.0
    assert plain_slope_error(alone, 0.1, 0.0) == 0.0
