"""Block pivoting from one factorisation: its two steps agree, and so do its answers."""

import numpy as np
import pytest
from tests import known_solutions as problems
from tests.solver.prepared import Array, scaled_problem
from tests.tolerances import WEIGHTS

from hewfl.solver import pivoting as schur
from hewfl.solver.active_set import active_set
from hewfl.solver.large import lifted_factor
from hewfl.solver.pivoting import _Border, _bordered_step, _face_step, schur_pivoting


def border_of(H: Array) -> _Border:
    n = len(H)
    factor = lifted_factor(H).factor
    return _Border(factor, np.full(n, -1), np.zeros((n, 0), order="F"))


def test_the_inverse_is_that_of_the_lifted_matrix(rng: np.random.Generator) -> None:
    H, _ = scaled_problem(problems.gaussian_instance(rng, 30, 60))
    P = np.linalg.inv(H + np.median(np.diagonal(H)))
    border = border_of(H)
    for B in ([4, 7], [7, 1, 4], [20], [1, 20, 29, 3]):
        at = np.array(B)
        result = border.inverse(at)
        assert np.abs(result - P[np.ix_(at, at)]).max() <= 1e-10 * np.abs(P).max()


@pytest.mark.parametrize("held", [0, 1, 5, 11])
def test_both_steps_are_the_newton_step_of_the_face(
    held: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KKT of the face: H_SS δ + ν1 = f, 1ᵀδ = 0, δ = 0 off it."""
    n = 30
    H, _ = scaled_problem(problems.gaussian_instance(rng, n, 60))
    f = rng.standard_normal(n)
    support = np.arange(n) >= held
    S = np.flatnonzero(support)
    kkt = np.block([[H[np.ix_(S, S)], np.ones((len(S), 1))], [np.ones(len(S)), 0.0]])
    exact = np.zeros(n)
    exact[S] = np.linalg.solve(kkt, np.append(f[S], 0.0))[:-1]
    bordered = _bordered_step(f, border_of(H), np.flatnonzero(~support))
    monkeypatch.setattr(schur, "BORDER", -1.0)  # factorise the face itself
    dense = _face_step(H, f, border_of(H), support)
    for step in (bordered, dense):
        assert np.abs(step - exact).max() <= 1e-9 * np.abs(exact).max()
        assert (step[~support] == 0).all()


@pytest.mark.parametrize("pull", [0.2, 0.9])
def test_it_agrees_with_the_active_set(pull: float, rng: np.random.Generator) -> None:
    instance = problems.gaussian_instance(rng, 80, 200)
    D = instance.displacements
    instance = problems.with_reference(instance, -pull * D.mean(axis=0))
    H, c = scaled_problem(instance)
    guess = np.ones(80, dtype=np.bool_)
    w, sweeps, solved = schur_pivoting(H, c, lifted_factor(H).factor, guess)
    assert solved
    assert sweeps >= 2  # the last one confirms
    assert np.abs(w - active_set(H, c).weights).max() <= WEIGHTS
    assert guess.all()


def test_a_small_support_is_given_up_at_once(rng: np.random.Generator) -> None:
    H, c = scaled_problem(problems.constructed_instance(rng, 60, 90, 2))
    everybody = np.ones(60, dtype=np.bool_)
    _, sweeps, solved = schur_pivoting(H, c, lifted_factor(H).factor, everybody, 0.1)
    assert (sweeps, solved) == (1, False)
