import mpmath
import numpy as np
import pytest
from mpmath import mpf

from hewfl import ClientProfile, InvalidInputError, ProblemBounds, UpperState
from hewfl.control.certificate import VARIANTS, Variant, round_bound
from hewfl.control.joint_problem import predictive_control
from hewfl.core.validation import Array
from hewfl.theory.appendix.lemmas import branch_sq_radius
from hewfl.theory.one_step_bound import (
    advantage,
    executable_system,
    largest_descent_amplitude,
    one_step,
    situation,
)
from hewfl.theory.statement import Constants, all_hold
from hewfl.theory.systems import System, system_of

RELATIVE = 1e-12
DIGITS = 50
variants = pytest.mark.parametrize("variant", VARIANTS)


def random_system(
    rng: np.random.Generator, size: int, n: int
) -> tuple[System, Array, Array]:
    """Systems over many decades, and a state (U, Q) for each."""
    L, R, U, Q = 10 ** rng.uniform(-6, 6, (4, size))
    v2 = 10 ** rng.uniform(-6, 6, (size, n)) * rng.integers(0, 2, (size, n))
    H = rng.choice([1, 2, 5, 1000], (size, n))
    return System(L, R, H, rng.choice([1, 32], (size, n)), v2), U, Q


# 50 digits


@pytest.mark.parametrize("capped", [False, True])
def test_the_certificate_has_all_its_digits(
    rng: np.random.Generator, capped: bool
) -> None:
    """The paper's formulas, transcribed; J relative to the sum of its terms."""
    size, n = 60, 3
    many, U, Q = random_system(rng, size, n)
    theta = 10 ** rng.uniform(-8, 0, (size, n))
    w = rng.dirichlet(np.ones(n), size)
    ours = one_step((w, theta), situation(many, U, Q, capped=capped))
    assert all_hold(ours.hypotheses).all()
    with mpmath.workdps(DIGITS):
        for c in range(size):
            L, R, cap = (
                mpf(many.L[c]),
                mpf(many.R[c]),
                mpf(many.L[c]) * many.R[c] ** 2 / 2,
            )
            sharp = min(mpf(U[c]), mpf(many.L[c]) * mpf(many.R[c]) ** 2 / 2)
            assert abs(sharp - min(mpf(U[c]), cap)) <= 1e-15 * sharp
            u, q = (sharp if capped else mpf(U[c])), mpf(Q[c])
            J, scale = sharp, sharp
            for i in range(n):
                t, e = mpf(theta[c, i]), mpmath.exp(2 * mpf(theta[c, i]))
                H, b = many.horizon[c, i], many.batch_size[c, i]  # type: ignore[call-overload, index]  # stored as arrays
                M = mpf(many.variance[c, i]) / (mpf(H) * mpf(b))  # type: ignore[call-overload, index]  # stored as arrays
                A = t / (2 * L * R**2)
                s = sharp - sharp / (1 + A * sharp)
                rho = (
                    32 * e * t**3 * u
                    + (16 * t + 64 * e * t**3) / L * q
                    + 8 * e * t**3 * M / L
                )
                kappa = (
                    16 * e * t**4 / L * u
                    + 32 * e * t**4 / L**2 * q
                    + (2 * t**2 + 4 * e * t**4) * M / L**2
                )
                for value, exact in (
                    (ours.descent, A),
                    (ours.decrease, s),
                    (ours.penalty, rho),
                    (ours.risk, kappa),
                ):
                    assert abs(mpf(value[c, i]) - exact) <= RELATIVE * exact
                weight = mpf(w[c, i])
                J += -weight * (s - rho) + L / 2 * weight**2 * kappa
                scale += weight * (s + rho) + L / 2 * weight**2 * kappa
            assert abs(mpf(ours.value[c]) - J) <= RELATIVE * scale


@variants
def test_the_solvers_certificate_is_the_same(
    rng: np.random.Generator, variant: Variant
) -> None:
    clients = ClientProfile([1, 4, 9], 8, [0.5, 0.0, 3.0])
    bounds, state = ProblemBounds(2.0, 3.0, 0.1, 1.0), UpperState(4.0, 0.3)
    w, theta = rng.dirichlet(np.ones(3), 20), rng.uniform(0.1, 1, (20, 3))
    at = situation(system_of(clients, bounds), 4.0, 0.3)
    ours = one_step((w, theta), at, variant=variant)
    alone = round_bound(w, theta, clients, state, bounds, variant=variant)
    np.testing.assert_allclose(ours.value, alone, rtol=1e-14)
    np.testing.assert_allclose(ours.value - ours.change, 4.0, rtol=1e-14)
    np.testing.assert_array_equal(ours.gain, ours.decrease - ours.penalty)


# the theory


def test_a_descent_is_certified_up_to_the_amplitudes_of_the_errata() -> None:
    """E-09: U = f̄, Q = v = 0: 0.08 as printed, 0.362 sharp at H = 4, 1 at H = 1."""
    at = situation(System(1.0, 1.0, [[4], [1]], 1, 0.0), 0.5, 0.0)
    paper = largest_descent_amplitude([1.0], at)
    assert paper == pytest.approx([0.0800, 0.0800], abs=5e-5)
    sharp = largest_descent_amplitude([1.0], at, variant="sharp")
    assert sharp == pytest.approx([0.3619, 1.0], abs=5e-5)


@variants
def test_descent_ends_where_it_says(rng: np.random.Generator, variant: Variant) -> None:
    size, n = 300, 3
    many = System(1.0, 1.0, rng.integers(1, 9, (size, n)), 4, 0.01)
    U, Q = rng.uniform(0.01, 0.5, size), 10 ** rng.uniform(-8, -2, size)
    at, w = situation(many, U, Q), rng.dirichlet(np.ones(n), size)
    top = largest_descent_amplitude(w, at, variant=variant)

    def change(theta: Array) -> Array:
        return one_step((w, theta[:, None]), at, variant=variant).change

    inside = (top > 0) & (top < 1)
    assert inside.sum() > size / 4
    assert (top == 0).any()
    assert (change(top * (1 - 1e-9)) <= 0).all()
    assert (change(np.minimum(top * (1 + 1e-6), 1))[inside] > 0).all()
    assert (change(np.full(size, 1e-3))[top == 0] > 0).all()


@variants
def test_proxies_give_a_larger_bound(
    rng: np.random.Generator, variant: Variant
) -> None:
    many, U, Q = random_system(rng, 50, 4)
    proxies = np.asarray(many.variance) * rng.uniform(1, 2, (50, 4)) + 1e-3
    controls = (rng.dirichlet(np.ones(4), 50), rng.uniform(0, 1, (50, 4)))
    ideal = one_step(controls, situation(many, U, Q), variant=variant)
    at = situation(executable_system(many, proxies), U, Q)
    assert (ideal.value <= one_step(controls, at, variant=variant).value).all()
    assert (ideal.risk < one_step(controls, at, variant=variant).risk).any()


def test_the_cap_may_be_used_everywhere() -> None:
    """E-25: no change below f̄, a smaller J above it."""
    one = System(1.0, 1.0, [2, 4], 1, 0.1)
    controls = ([0.5, 0.5], 0.3)
    U = np.array([0.2, 3.0])
    loose = one_step(controls, situation(one, U, 0.01)).value
    tight = one_step(controls, situation(one, U, 0.01, capped=True)).value
    assert tight[0] == loose[0]
    assert tight[1] < loose[1]


@variants
def test_the_optimal_controls_beat_every_benchmark(
    rng: np.random.Generator, variant: Variant
) -> None:
    """th:one-step-hetero: Γ ≥ 0, and Γ is the difference of the two bounds."""
    clients = ClientProfile([1, 4, 9], 8, [0.5, 0.1, 3.0])
    bounds, state = ProblemBounds(1.0, 1.0, 0.02, 0.9), UpperState(0.4, 1e-4)
    best = predictive_control(clients, state, bounds, variant=variant)
    at = situation(system_of(clients, bounds), 0.4, 1e-4)
    rivals = (rng.dirichlet(np.ones(3), 300), rng.uniform(0.02, 0.9, (300, 3)))
    ours = (best.weights, best.amplitudes)
    gains = advantage(ours, rivals, at, variant=variant)
    assert gains.shape == (300,)
    assert gains.min() >= 0
    values = [one_step(x, at, variant=variant).value for x in (rivals, ours)]
    np.testing.assert_allclose(gains, values[0] - values[1], atol=1e-13)
    assert float(advantage(ours, ours, at, variant=variant)) == 0


def test_hypotheses_name_what_fails() -> None:
    at = situation(System(1.0, 1.0, [2, 4], 1, 0.1), [0.2, 0.2, 0.2], 0.0)
    w = np.array([[0.5, 0.5], [0.5, 0.6], [1.5, -0.5]])
    step = one_step((w, np.array([[0.5, 1.2], [1.0, 1.0], [0.1, 0.1]])), at)
    names = {h.name: h.holds.tolist() for h in step.hypotheses}
    assert names == {
        "θ ≤ 1": [False, True, True],
        "0 ≤ w": [True, True, False],
        "|Σw − 1| ≤ 1e-9": [True, False, True],
    }
    assert step.hypotheses[0].left.tolist() == [1.2, 1.0, 0.1]


# radii


# errors


def test_bad_input_is_named() -> None:
    one = System(1.0, 1.0, [2, 4], 1, 0.1)
    at = situation(one, 0.2, 0.0)
    with pytest.raises(InvalidInputError, match="`gap` must be nonnegative"):
        situation(one, -1.0, 0.0)
    text = "`proxies` must be no smaller than the variances"
    with pytest.raises(InvalidInputError, match=text):
        executable_system(one, [0.05, 1.0])
    with pytest.raises(InvalidInputError, match="`form` must be one of sharp, stated"):
        branch_sq_radius(0.1, at, form="loose")  # type: ignore[arg-type]  # the point
    text = "`weights` must be one for each of 2 clients; got 3"
    with pytest.raises(InvalidInputError, match=text):
        one_step(([0.2, 0.3, 0.5], 0.1), at)
    text = "`amplitudes` must be nonnegative; got -0.1"
    with pytest.raises(InvalidInputError, match=text):
        one_step(([0.5, 0.5], -0.1), at)


@pytest.mark.parametrize("variant", ["paper", "sharp", "absorbed", "joint"])
def test_kinds_of_clients_stand_for_clients(variant: Constants) -> None:
    """A weight is the total of its kind; the joint bound needs n to be all clients."""
    kinds = System(1.5, 2.0, [1, 4], [2, 8], [1e-3, 2e-1], count=[2, 3])
    each = System(
        1.5, 2.0, [1, 1, 4, 4, 4], [2, 2, 8, 8, 8], np.repeat([1e-3, 0.2], [2, 3])
    )
    theta, w = np.array([0.2, 0.7]), np.array([0.3, 0.7])
    apart = np.repeat(w / [2, 3], [2, 3]), np.repeat(theta, [2, 3])
    for U, Q in ((1.0, 0.1), (9.0, 0.0), (0.01, 0.5), (0.0, 0.0)):
        ours, theirs = (
            one_step(controls, situation(system, U, Q), variant=variant).value
            for controls, system in (((w, theta), kinds), (apart, each))
        )
        assert ours == pytest.approx(theirs, rel=1e-12)


def test_the_joint_bound_is_the_largest_value_over_gradients(
    rng: np.random.Generator,
) -> None:
    """The closed form against a fine grid of ‖∇F‖ (T9)."""
    for _ in range(50):
        n = int(rng.integers(1, 5))
        H, M = rng.integers(1, 6, n), rng.exponential(0.1, n)
        w, theta = rng.dirichlet(np.ones(n)), rng.uniform(0.01, 1, n)
        U, Q = 0.5 * rng.random(), rng.exponential(0.1)
        system = System(1.0, 1.0, H, 1, M * H)
        at = situation(system, U, Q)
        value = one_step((w, theta), at, variant="joint").value
        y = np.linspace(0, np.sqrt(2 * U), 20_001)[:, None]
        p, h2 = w * theta / (w @ theta), (H - 1) / (2 * H)
        own = theta * (h2 * (y + 2 * (1 - 1 / n) * np.sqrt(Q)) + np.sqrt(h2 * M))
        s = np.abs(1 / n - p).sum() * np.sqrt(Q) + own @ p
        t, g = w @ theta, y[:, 0]
        step = t * (-(g**2) + g * s + t / 2 * (g - s) ** 2)
        gap = np.minimum(U, g - g**2 / 2)
        exact = (gap + step).max() + (w**2 * theta**2 * M).sum() / 2
        assert exact <= value * (1 + 1e-12)
        assert value == pytest.approx(exact, rel=1e-4)  # of the grid
        wide = one_step((w, 3 * theta / theta.max()), at, variant="joint")
        assert np.isnan(wide.value)
        assert [h.name for h in wide.hypotheses if not h.holds] == ["θ ≤ 1"]
