"""The pictures of docs/concepts.md and the home page show what is said of them."""

import numpy as np
from docs_tools.pictures import (
    accuracies_under_attack,
    certificate,
    client_weights,
    projection,
    robust_weights,
    unequal_steps,
)


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


def test_the_weights_of_faulty_clients_vanish_under_trust() -> None:
    shown = client_weights()
    assert len(shown.faulty) == 3
    last = {k: rows[list(shown.faulty), -10:] for k, rows in shown.weights.items()}
    assert last["Trust"].max() < 0.005
    assert last["FedAvg"].min() > 0.04  # all clients have a twentieth


def test_some_rules_resist_the_attack() -> None:
    rounds, curves = accuracies_under_attack()
    end = {name: curve[-1] for name, curve in curves.items()}
    assert rounds[-1] == 40
    assert min(end["RootWeights"], end["AngleMix + median"]) > 0.9
    assert max(end["FedAvg"], end["Trust"]) < 0.85


def test_robust_rules_give_faulty_clients_less() -> None:
    shown = robust_weights()
    faulty = dict(zip(shown.names, shown.weights[:, 7:].sum(axis=1), strict=True))
    assert faulty["Agreement"] == faulty["Multi-Krum"] == 0
    assert faulty["Trust"] < faulty["Geometric median"] < faulty["Mean"]
