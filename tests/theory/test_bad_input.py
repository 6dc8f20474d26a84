"""Every public function of `hewfl.theory` names what is wrong with its arguments.

Each is called as it should be, then with one number, array or field at a time spoilt:
of a shape that fits nothing, negative, NaN, empty. A new function needs a line in
`CALLS`, or a test says so.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pytest
from tests.theory.public import PUBLIC, theory

from hewfl import ClientProfile, InvalidInputError, ProblemBounds, UpperState
from hewfl.control.certificate import horizon_factors
from hewfl.core.round import Cohort, LocalPlan
from hewfl.displacements.dense import matrix_round
from hewfl.theory.appendix import Terms

L, THETA, LAMBDA = np.array([1.0, 2.0]), np.array([0.02, 0.03]), np.array([1.8, 3.6])
ONE, W = np.array([1.0, 0.5]), np.array([0.2, 0.3, 0.5])
SYSTEM = theory.System(L, 1.0, [1, 2, 4], 8, 1e-4)
CASE = theory.Case(SYSTEM, 0.3, 1e-4, 0.1, 0.1, 0.1, "fresh draws", dimension=10)
FLOW = theory.QuadraticGenerator(ONE)
TERMS = Terms(ONE, 0.01, 0.01)
SCHEDULE = Terms(np.tile(ONE, (4, 1)), 0.01, 0.01)
CONTROLS = Terms(np.ones((2, 5)), 0.01, 0.01)
POST = theory.PostLocal(THETA, LAMBDA)
START = (0.3 * ONE, 1e-4 * ONE)
UNIFORM = theory.uniform_coefficients(SYSTEM, THETA)
HIGHER = theory.higher_order(UNIFORM, 0.1, 0.1)
CORRECTED = theory.corrected_coefficients(SYSTEM, POST)
PLAIN = theory.plain_coefficients(SYSTEM, POST)
COMPARATOR = theory.comparator_coefficients(SYSTEM, W, 0.01)
AT = theory.situation(SYSTEM, *START)
TRACKING = theory.predictable_tracking(THETA, SYSTEM.noise, [1, 2, 4], L)
PROFILE = ClientProfile(2, 8, 1e-4)
STATE, BOUNDS = UpperState(0.1, 1e-4), ProblemBounds(1.0, 1.0, 1e-3, 1.0)
TWO = np.array([2, 2, 2])
ROSTER = Cohort(np.arange(3), TWO, TWO, TWO, 3)
ROUND = matrix_round(np.zeros(4), np.ones((3, 4)), ROSTER, LocalPlan(np.full(3, 0.1)))
PATH = theory.central_path(lambda z: z, np.ones(4), 0.1, 1.0, 2)
ENVELOPES = [theory.Envelope(lambda y, _: y[..., 0])] * 2


@final
@dataclass(frozen=True)
class Call:
    """Good arguments by name, and what may be done to some of them.

    Attributes:
        given: the arguments.
        signed: those that may be negative.
        wide: those that may be of any shape, since no other has one.
        free: those that the function hands on as they are.
        undefined: those that may be NaN, which fulfils no hypothesis.
    """

    given: dict[str, Any]
    signed: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()

    def refuses(self, path: str, value: Any, kind: str) -> bool:
        """Whether an argument spoilt like this must be refused."""
        allowed = {"negative": self.signed, "shape": self.wide, "nan": self.undefined}
        if path in (*self.free, *allowed.get(kind, ())):
            return False
        return kind == "negative" or not isinstance(value, int)


def call(
    *, signed: str = "", wide: str = "", free: str = "", nan: str = "", **given: Any
) -> Call:
    return Call(given, *(tuple(names.split()) for names in (signed, wide, free, nan)))


def law_of(u: Any) -> Terms:
    return Terms(u[..., 0] + 1, u[..., 0], 0.0)


ONE_CASE = theory.Case(theory.System(1.0, 1.0, [2, 2], 8, 1e-4))
CURVE = theory.theorem_curve("th:sur-cvx", CASE, theory.PostLocal(THETA, 2 * L))
CALLS: dict[str, Call] = {
    "comparator_moments": call(
        system=SYSTEM,
        controls=POST,
        comparator=W,
        state=START,
        signed="comparator",
    ),
    "drift_sq_norm": call(amplitudes=THETA[:, None], at=AT),
    "first_round_at": call(law=COMPARATOR, start=START, target=ONE, most=9),
    "improvements": call(case=ONE_CASE, target=0.1),
    "last_iterate_rate": call(bound=HIGHER, start=START, rounds=np.array([5, 6])),
    "mean_drift_sq_norm": call(controller=UNIFORM, state=START),
    "mean_noise_cost": call(controller=UNIFORM, state=START),
    "mismatch_sq_norm": call(tracking=ONE, n=np.array([3, 4])),
    "rounds_needed": call(curve=CURVE, target=ONE / 3),
    "staged_arrival": call(law=COMPARATOR, start=START, target=ONE),
    "advantage": call(
        controls=(W, THETA[:, None]),
        benchmark=(W, 0.1),
        at=AT,
        signed="controls[0] benchmark[0]",
    ),
    "at_most": call(
        name="x", left=ONE, right=ONE, signed="left right", nan="left right"
    ),
    "bellman_kernel": call(
        generator=theory.QuadraticGenerator(ONE[:, None]), state=ONE, controls=CONTROLS
    ),
    "bellman_operator": call(
        generator=theory.QuadraticGenerator(ONE[:, None]), state=ONE, controls=CONTROLS
    ),
    "below": call(name="x", left=ONE, right=ONE, signed="left right", nan="left right"),
    "best_comparator": call(
        linear=np.ones((2, 3)), quadratic=np.ones((2, 3)), signed="linear"
    ),
    "best_iterate_rate": call(bound=HIGHER, start=START, rounds=np.array([5, 6])),
    "box_selection": call(
        generator=theory.QuadraticGenerator(ONE[:, None]),
        state=ONE,
        law=law_of,
        box=([0.5], [1.0]),
        cells=4,
        signed="box[0] box[1]",
    ),
    "branch_sq_radius": call(amplitudes=THETA[:, None], at=AT),
    "central_path": call(
        gradient=lambda z: z,
        anchor=np.ones((2, 4)),
        amplitude=THETA,
        smoothness=L,
        horizon=2,
        signed="anchor",
    ),
    "central_round_hypotheses": call(
        round_=ROUND,
        weights=W,
        path=PATH,
        reference=np.ones(4),
        signed="weights reference",
    ),
    "certified_amplitudes": call(
        theorem="th:direct-bellman", case=CASE, curvature=LAMBDA
    ),
    "certify": call(
        case=CASE,
        target=np.array([0.1, 0.2]),
        rounds=5,
        amplitude=THETA,
        curvature=LAMBDA,
    ),
    "closed_higher_order": call(bound=HIGHER, tracking=ONE),
    "closed_kernel": call(
        envelopes=ENVELOPES,
        state=np.ones((2, 2)),
        control=1.0,
        signed="control",
        free="control",
    ),
    "closed_rate": call(start=ONE, level=ONE / 4, a=ONE, rounds=np.array([3, 4])),
    "common_quadratic_rate": call(controller=UNIFORM, gap=ONE, rounds=np.array([3, 4])),
    "communication": call(
        algorithm="control",
        active=np.array([2, 3]),
        dimension=np.array([4, 5]),
        proxies=np.array([0, 1]),
    ),
    "comparator_coefficients": call(
        system=SYSTEM, weights=W, amplitudes=np.full((2, 3), 0.01), box_end=THETA
    ),
    "comparator_rate": call(
        coefficients=COMPARATOR, start=START, rounds=np.array([3, 4]), solver_gap=ONE
    ),
    "comparator_recursion": call(
        coefficients=COMPARATOR, start=START, rounds=3, solver_gap=ONE
    ),
    "corrected_coefficients": call(
        system=SYSTEM, controls=POST, comparator=W, box_end=THETA
    ),
    "corrected_noise": call(system=SYSTEM, controls=POST),
    "corrected_rate": call(
        coefficients=CORRECTED, start=START, rounds=np.array([3, 4]), solver_gap=ONE
    ),
    "corrected_recursion": call(
        coefficients=CORRECTED, start=START, rounds=3, solver_gap=ONE
    ),
    "cumulative_gronwall": call(wide="a", a=np.ones((3, 2)), beta=ONE),
    "curvature_mismatch": call(similarity=ONE, hessian_lipschitz=ONE, radius=ONE),
    "design": call(
        theorem="th:direct-bellman",
        case=CASE,
        target=np.array([0.2, 0.3]),
        curvature=LAMBDA,
    ),
    "disagreement": call(bound=HIGHER, state=START),
    "effective_amplitude": call(
        weights=np.tile(W, (2, 1)), amplitudes=np.full((2, 3), 0.1)
    ),
    "epsilon_selection": call(
        generator=theory.QuadraticGenerator(ONE[:, None]),
        state=ONE,
        controls=CONTROLS,
        epsilon=ONE,
    ),
    "evolution": call(wide="factors", factors=np.ones((3, 2)), t=2, s=1),
    "executable": call(system=SYSTEM, proxies=np.full((2, 3), 1.0)),
    "floor_hypothesis": call(generator=FLOW, terms=TERMS, floor=ONE),
    "flow": call(a=ONE, u=ONE),
    "flow_excess": call(a=ONE, u=ONE),
    "flow_slope": call(a=ONE, u=ONE),
    "generator_hypotheses": call(
        wide="grid", generator=FLOW, grid=np.array([1.0, 2.0, 3.0])
    ),
    "gradient_step": call(
        anchor=np.ones((2, 4)),
        gradient=np.ones((2, 4)),
        amplitude=THETA,
        smoothness=L,
        signed="anchor gradient",
    ),
    "higher_order": call(controller=UNIFORM, similarity=ONE, hessian_lipschitz=ONE),
    "higher_order_step": call(bound=HIGHER, state=START),
    "higher_order_trajectory": call(bound=HIGHER, start=START, rounds=3),
    "largest_descent_amplitude": call(weights=W, at=AT, signed="weights"),
    "largest_gap": call(gradient_norm=ONE, radius=ONE),
    "largest_sq_gradient": call(gap=ONE, smoothness=ONE),
    "theorem_curve": call(theorem="th:direct-bellman", case=CASE, controls=POST),
    "linear_rate": call(start=ONE, a=ONE, delta=ONE, rounds=np.array([3, 4])),
    "linear_trajectory": call(start=ONE, a=ONE, delta=ONE, rounds=3),
    "master_trajectory": call(generator=FLOW, start=ONE, terms=SCHEDULE),
    "mean_noise": call(system=SYSTEM, weights=W),
    "noise_of_mean": call(system=SYSTEM, weights=W),
    "noise_term": call(
        weights=np.tile(W, (2, 1)),
        linear=np.ones((2, 3)),
        quadratic=np.ones((2, 3)),
        signed="linear quadratic",
    ),
    "noiseless_bounds": call(generator=FLOW, start=ONE, terms=SCHEDULE, objective=ONE),
    "noiseless_coordinate": call(generator=FLOW, start=ONE, elapsed=ONE, reference=ONE),
    "noiseless_rate": call(
        generator=FLOW, start=ONE, terms=TERMS, rounds=np.array([3, 4]), objective=ONE
    ),
    "noisy_bounds": call(
        generator=FLOW, start=ONE, terms=SCHEDULE, floor=ONE, objective=ONE
    ),
    "noisy_contraction": call(generator=FLOW, terms=TERMS, floor=ONE),
    "noisy_drift": call(generator=FLOW, terms=TERMS, state=ONE),
    "noisy_floor": call(generator=FLOW, terms=TERMS),
    "noisy_rate": call(
        generator=FLOW,
        start=ONE,
        terms=TERMS,
        rounds=np.array([3, 4]),
        floor=ONE,
        objective=ONE,
    ),
    "one_step": call(controls=(W, THETA[:, None]), at=AT, signed="controls[0]"),
    "pathwise_bound": call(
        gap=ONE,
        model_value=ONE,
        sq_mismatch=ONE,
        curvature=LAMBDA,
        smoothness=L,
        signed="model_value",
    ),
    "pl_contraction": call(controller=UNIFORM, pl_constant=ONE),
    "pl_rate": call(
        controller=UNIFORM, pl_constant=ONE, start=START, rounds=np.array([3, 4])
    ),
    "pl_step": call(controller=UNIFORM, pl_constant=ONE, state=START),
    "plain_advantage": call(
        uniform_value=ONE, model_value=ONE, signed="uniform_value model_value"
    ),
    "plain_coefficients": call(system=SYSTEM, controls=POST),
    "plain_pl_rate": call(
        coefficients=PLAIN,
        pl_constant=np.array([2.0, 8.0]),
        start=ONE,
        rounds=np.array([3, 4]),
        solver_gap=ONE,
    ),
    "plain_rate": call(
        coefficients=PLAIN, start=ONE, rounds=np.array([3, 4]), solver_gap=ONE
    ),
    "plain_recursion": call(coefficients=PLAIN, start=ONE, rounds=3, solver_gap=ONE),
    "plain_slope_error": call(system=SYSTEM, amplitude=THETA, gap=ONE),
    "plain_sq_radius": call(amplitudes=THETA[:, None], at=AT),
    "plain_step": call(coefficients=PLAIN, gap=ONE, solver_gap=ONE),
    "post_local_hypotheses": call(theta=THETA, Lambda=LAMBDA, L=L),
    "ball_tracking": call(noise=ONE, smoothness=L, radius=ONE),
    "predictable_tracking": call(
        amplitude=THETA,
        noise=np.ones((2, 3)),
        horizon=np.ones((2, 3)),
        smoothness=L,
        variant="sharp",
    ),
    "printed_scalar_rate": call(
        start=ONE, a=ONE, beta=ONE, delta=ONE, rounds=np.array([3, 4]), level=ONE
    ),
    "propagated_tracking": call(
        system=SYSTEM,
        amplitude=THETA,
        active=np.array([True, False, True]),
        gap=ONE,
        tracking=np.ones((2, 3)),
        signed="active",
    ),
    "raw_kernel": call(
        envelopes=ENVELOPES,
        state=np.ones((2, 2)),
        control=1.0,
        signed="control",
        free="control",
    ),
    "realised_tracking": call(
        amplitude=THETA, noise=np.ones((2, 3)), horizon=np.ones((2, 3)), smoothness=L
    ),
    "relative_decrease": call(generator=FLOW, time=ONE, state=ONE),
    "rho_lower": call(controller=UNIFORM, pl_constant=ONE),
    "round_work": call(
        system=SYSTEM,
        dimension=np.array([4, 5]),
        active=np.array([True, False, True]),
        signed="active",
    ),
    "rounds_to": call(
        wide="target",
        rate=lambda t: theory.linear_rate(ONE, 0.5, 0.0, t),
        target=ONE / 2,
        least=1,
    ),
    "safe_amplitude": call(smoothness=L, pl_constant=ONE),
    "safe_floor": call(controller=UNIFORM, pl_constant=ONE),
    "safe_rate": call(
        controller=UNIFORM, pl_constant=ONE, start=START, rounds=np.array([3, 4])
    ),
    "scalar_floor": call(a=ONE, beta=ONE, delta=ONE),
    "scalar_rate": call(
        start=ONE, a=ONE, beta=ONE, delta=ONE, rounds=np.array([3, 4]), level=ONE
    ),
    "scalar_trajectory": call(start=ONE, a=ONE, beta=ONE, delta=ONE, rounds=3),
    "server_move": call(amplitude=THETA, noise=np.ones((2, 3)), smoothness=L),
    "situation": call(system=SYSTEM, gap=ONE, tracking=ONE),
    "slice_bound": call(
        wide="amplitude",
        weights=W,
        amplitude=0.1,
        profile=PROFILE,
        state=STATE,
        bounds=BOUNDS,
    ),
    "slice_excess": call(
        wide="amplitude",
        weights=W,
        amplitude=0.1,
        profile=PROFILE,
        state=STATE,
        bounds=BOUNDS,
    ),
    "slice_hypotheses": call(wide="amplitudes", profiles=PROFILE, amplitudes=THETA),
    "slope_modulus": call(generator=FLOW, time=ONE, floor=ONE),
    "surrogate_system": call(
        system=SYSTEM, box=(THETA / 2, THETA), start=START, rounds=1
    ),
    "surrogate_under": call(
        system=SYSTEM,
        controls=(W, THETA[:, None]),
        start=START,
        rounds=2,
        box_end=THETA,
    ),
    "symmetric_exact_hypotheses": call(
        cohort=ROSTER,
        gradients=np.ones((3, 4)),
        used=np.ones((3, 4)),
        signed="gradients used",
    ),
    "system_of": call(profiles=PROFILE, bounds=BOUNDS, n=3),
    "telescoped": call(start=ONE, a=np.ones((3, 2)), b=np.ones((3, 2))),
    "tracking_cap": call(recursion=TRACKING, start=ONE, cap=ONE),
    "uniform_coefficients": call(system=SYSTEM, amplitude=THETA),
    "uniform_model_value": call(
        amplitude=THETA, curvature=LAMBDA, smoothness=L, sq_slope=ONE
    ),
    "uniform_step": call(controller=UNIFORM, state=START),
    "uniform_tracking_cap": call(controller=UNIFORM, start=ONE),
    "uniform_trajectory": call(controller=UNIFORM, start=START, rounds=3),
    "young_hypothesis": call(pair=theory.PowerYoung(), gains=ONE, levels=ONE),
}
WITHOUT_NUMBERS = {
    "all_hold",
    "pl_coefficient_bounds",
    "is_homogeneous",
    "noise_optimal",
    "noise_optimal_level",
    # of what a controller knows, infinite bounds among it
    "absent_tracking",
    "propagated_bounds",
    "tracking_after",
    "uniform_mean_noise",
    "uniform_noise_of_mean",
}


def functions() -> dict[str, Callable[..., Any]]:
    return {name: x for name, x in PUBLIC.items() if inspect.isfunction(x)}


FUNCTIONS = functions()


def is_number(value: Any) -> bool:
    if isinstance(value, bool | str):
        return False
    return isinstance(value, int | float | np.ndarray) or (
        isinstance(value, list) and all(isinstance(v, int | float) for v in value)
    )


def places(given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every number or array among the arguments, with its path."""
    for name, value in given.items():
        if is_number(value):
            yield name, value
        elif isinstance(value, tuple):
            for k, part in enumerate(value):
                if is_number(part):
                    yield f"{name}[{k}]", part


def put(given: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The arguments with another value at a path."""
    name, _, index = path.rstrip("]").partition("[")
    if not index:
        return given | {name: value}
    parts = list(given[name])
    parts[int(index)] = value
    return given | {name: tuple(parts)}


def spoilt(kind: str, value: Any) -> Any:
    if isinstance(value, int):
        return -3
    array = np.asarray(value, dtype=np.float64)
    if kind == "shape":
        return np.full((7, 11), np.abs(array).max())
    if kind == "nan":
        return np.where(np.arange(array.size).reshape(array.shape) == 0, np.nan, array)
    if kind == "negative":
        return -np.abs(array) - 0.5
    return np.zeros((0,))


CASES = [
    (name, path, kind)
    for name, one in CALLS.items()
    for path, value in places(one.given)
    for kind in ("shape", "nan", "negative", "empty")
    if one.refuses(path, value, kind)
]


def test_every_function_is_here() -> None:
    assert set(CALLS) | WITHOUT_NUMBERS == set(FUNCTIONS)


@pytest.mark.parametrize("name", CALLS)
def test_good_arguments_are_taken(name: str) -> None:
    FUNCTIONS[name](**CALLS[name].given)


@pytest.mark.parametrize(("name", "path", "kind"), CASES)
def test_bad_arguments_are_named(name: str, path: str, kind: str) -> None:
    given = CALLS[name].given
    bad = put(given, path, spoilt(kind, dict(places(given))[path]))
    with pytest.raises(InvalidInputError) as caught:
        FUNCTIONS[name](**bad)
    text = str(caught.value)
    match = re.fullmatch(r"`([^`]+)` must be (.+); got (.*)", text, re.DOTALL)
    assert match is not None, text
    named = set(re.split(r", |\.|\[", match[1]))
    known = set(inspect.signature(FUNCTIONS[name]).parameters)
    assert named & (known | {"weights", "amplitudes", "s", "t"}), text


# ------------------------------------------------------------------ the texts


def test_shapes_are_told_by_name() -> None:
    text = r"`a, u` must be arrays that broadcast; got shapes a \(2,\), u \(3,\)"
    with pytest.raises(InvalidInputError, match=text):
        theory.flow([1, 2], [1, 2, 3])
    text = r"`start, a` must be .* got shapes start \(2,\), a \(3,\)$"
    with pytest.raises(InvalidInputError, match=text):  # not the names of `flow`
        theory.closed_rate(np.ones(2), 0.5, a=np.ones(3), rounds=2)
    text = r"got shapes system \(2,\) and \(2, 3\), amplitude \(5,\)"
    with pytest.raises(InvalidInputError, match=text):
        theory.uniform_coefficients(SYSTEM, np.ones(5))


def test_emptiness_is_told_by_name() -> None:
    text = r"`start\[1\]` must be nonempty; got shape \(0,\)"
    with pytest.raises(InvalidInputError, match=text):
        theory.pl_rate(UNIFORM, 0.1, (ONE, []), 3)


def test_records_are_of_one_shape() -> None:
    with pytest.raises(InvalidInputError, match="`coefficient, power` must be arrays"):
        theory.PowerGenerator(np.ones(2), np.ones(3))
    with pytest.raises(InvalidInputError, match="`exponent, weight` must be arrays"):
        theory.PowerYoung(np.full(2, 2.0), np.ones(3))


@pytest.mark.parametrize("active", [2, 1.0, [0, 2], [1, 0, 1], [True, False]])
def test_a_mask_is_one_boolean_for_each_client(active: Any) -> None:
    """A count or a list of indices would pass for a mask and give wrong numbers."""
    rule = "`active` must be booleans, one for each of 3 clients; got "
    with pytest.raises(InvalidInputError, match=rule):
        theory.round_work(SYSTEM, 10, active)
    with pytest.raises(InvalidInputError, match=rule):
        theory.propagated_tracking(SYSTEM, 0.1, active, 0.1, np.ones(3))


def test_other_errors_come_through() -> None:
    def broken(_: Any) -> Any:
        raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own") as caught:
        theory.rounds_to(broken, 0.1)
    assert not isinstance(caught.value, InvalidInputError)


@pytest.mark.parametrize(
    "call",
    [
        lambda T: theory.scalar_trajectory(0.5, 0.1, 0.0, 0.0, T),
        lambda T: theory.linear_trajectory(0.5, 0.1, 0.0, T),
        lambda T: theory.uniform_trajectory(UNIFORM, (ONE, ONE), T),
        lambda T: theory.surrogate_system(SYSTEM, (0.1, 0.2), (ONE, ONE), T),
        lambda T: theory.plain_recursion(
            theory.plain_coefficients(SYSTEM, theory.PostLocal(0.1, 9.0)), ONE, T
        ),
    ],
)
def test_a_trajectory_has_one_number_of_rounds(call: Any) -> None:
    text = r"`rounds` must be one whole number; got \[10, 20\]"
    with pytest.raises(InvalidInputError, match=text):
        call([10, 20])


def test_numbers_serve_where_lists_do() -> None:
    lists = theory.post_local_hypotheses([0.1, 0.2], [2.0], 1.0)
    assert [h.holds.tolist() for h in lists] == [[True], [True], [True, True]]
    assert theory.evolution([0.5, 0.5], 0.0) == 1
    assert theory.evolution([0.5, 0.25], 2.0, 1.0) == 0.25
    with pytest.raises(InvalidInputError, match="`t` must be a whole number"):
        theory.evolution([0.5], 0.5)


def test_horizons_beyond_the_range_of_squares_have_their_limits() -> None:
    h1, h2 = horizon_factors(np.array([1e99, 1e155, 1e160, 1e308]))
    np.testing.assert_allclose(h1, 1 / 3, rtol=1e-15)
    np.testing.assert_allclose(h2, 1 / 2, rtol=1e-15)
    k = theory.uniform_coefficients(
        theory.System(1.0, 1.0, [1e160, 1e160], 1, 1.0), 0.01, variant="sharp"
    )
    assert np.isfinite(k.recursion.growth)
