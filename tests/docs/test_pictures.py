"""The pictures of docs/concepts.md show what the page says of them."""

import numpy as np
from docs_tools.pictures import certificate, projection, robust_weights, unequal_steps


def test_steps_are_projections_of_the_mean_over_kappa() -> None:
    shown = projection()
    np.testing.assert_allclose(shown.weights[0], 1 / 6, atol=1e-12)  # κ = 1
    for target, step in zip(shown.targets, shown.steps, strict=True):
        # no point of the hull is nearer: every corner is on the far side
        assert ((shown.points - step) @ (step - target) >= -1e-9).all()
    assert shown.weights[1:, 3].max() < 1e-9  # Δ4 goes first


def test_long_branches_have_less_noise_and_more_weight() -> None:
    shown = unequal_steps()
    spread = [points.std(axis=0).mean() for points in shown.equal_totals]
    assert spread == sorted(spread, reverse=True)
    far = [3 - points[:, 0].mean() for points in shown.one_rate]
    assert far == sorted(far)
    assert shown.weights[0] < shown.weights[1:].min()


def test_the_bound_is_above_the_objective() -> None:
    shown = certificate()
    assert (shown.bound >= shown.objective).all()
    assert shown.bound.argmin() == np.abs(shown.lengths - 1).argmin()
    assert shown.objective[-1] < shown.objective[shown.bound.argmin()]


def test_robust_rules_give_faulty_clients_less() -> None:
    shown = robust_weights()
    faulty = dict(zip(shown.names, shown.weights[:, 7:].sum(axis=1), strict=True))
    assert faulty["Agreement"] == faulty["Multi-Krum"] == 0
    assert faulty["Trust"] < faulty["Geometric median"] < faulty["Mean"]
