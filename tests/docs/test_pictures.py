"""The pictures of docs/concepts.md show what the page says of them."""

import numpy as np
from docs_tools.pictures import doubt, ground, projection, promise


def test_steps_are_projections_of_the_mean_over_kappa() -> None:
    shown = projection()
    np.testing.assert_allclose(shown.weights[0], 1 / 6, atol=1e-12)  # κ = 1
    for target, step in zip(shown.targets, shown.steps, strict=True):
        # no point of the hull is nearer: every corner is on the far side
        assert ((shown.points - step) @ (step - target) >= -1e-9).all()
    assert shown.weights[1:, 3].max() < 1e-9  # Δ4 goes first


def test_long_branches_are_quiet_and_weigh_more_on_equal_ground() -> None:
    shown = ground()
    spread = [points.std(axis=0).mean() for points in shown.equal_ground]
    assert spread == sorted(spread, reverse=True)
    far = [3 - points[:, 0].mean() for points in shown.one_rate]
    assert far == sorted(far)
    assert shown.weights[0] < shown.weights[1:].min()


def test_the_bound_is_above_the_objective() -> None:
    shown = promise()
    assert (shown.bound >= shown.objective).all()
    assert shown.bound.argmin() == np.abs(shown.lengths - 1).argmin()
    assert shown.objective[-1] < shown.objective[shown.bound.argmin()]


def test_rules_differ_in_what_bad_clients_get() -> None:
    shown = doubt()
    bad = dict(zip(shown.names, shown.weights[:, 7:].sum(axis=1), strict=True))
    assert bad["Agreement"] == bad["Multi-Krum"] == 0
    assert bad["Trust"] < bad["Geometric median"] < bad["FedAvg"]
