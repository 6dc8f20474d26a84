"""Every function that `hewfl.theory` exports, and others, name the argument at fault.

Each is called with good arguments, then with one number or array at a time of a wrong
shape, negative, NaN or empty. A new export needs an entry in `CALLS`.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pytest
from tests.theory.public import ALL, EXPORTS, theory

from hewfl import ClientProfile, InvalidInputError, ProblemBounds, UpperState
from hewfl.control.certificate import horizon_factors
from hewfl.control.tracking import predictable_tracking
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
CORRECTED = theory.heterogeneous_coefficients(SYSTEM, POST)
PLAIN = theory.homogeneous_coefficients(SYSTEM, POST)
COMPARATOR = theory.comparator_coefficients(SYSTEM, W, 0.01)
AT = theory.situation(SYSTEM, *START)
TRACKING = predictable_tracking(THETA, SYSTEM.noise, [1, 2, 4], L)
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
    "improvements": call(case=ONE_CASE, target=0.1),
    "literature": call(case=ONE_CASE, target=0.1, rounds=5, amplitude=0.1),
    "round_work": call(
        system=SYSTEM,
        dimension=np.array([4, 5]),
        active=np.array([True, False, True]),
        signed="active",
    ),
    "advantage": call(
        controls=(W, THETA[:, None]),
        benchmark=(W, 0.1),
        at=AT,
        signed="controls[0] benchmark[0]",
    ),
    "best_comparator": call(
        linear=np.ones((2, 3)), quadratic=np.ones((2, 3)), signed="linear"
    ),
    "best_iterate_rate": call(bound=HIGHER, start=START, rounds=np.array([5, 6])),
    "certify": call(
        case=ONE_CASE,
        target=np.array(0.1),
        rounds=5,
        amplitude=np.array(0.02),
        curvature=np.array(1.8),
    ),
    "communication": call(
        algorithm="control",
        active=np.array([2, 3]),
        dimension=np.array([4, 5]),
        proxies=np.array([0, 1]),
    ),
    "comparator_coefficients": call(
        system=SYSTEM, weights=W, amplitudes=np.full((2, 3), 0.01), box_end=THETA
    ),
    "heterogeneous_coefficients": call(
        system=SYSTEM, controls=POST, comparator=W, box_end=THETA
    ),
    "design": call(
        theorem="cor:realized-hom-rate",
        case=ONE_CASE,
        target=np.array(0.2),
        curvature=np.array(1.8),
    ),
    "higher_order": call(controller=UNIFORM, similarity=ONE, hessian_lipschitz=ONE),
    "largest_descent_amplitude": call(weights=W, at=AT, signed="weights"),
    "theorem": call(
        label="hew-het",
        system=SYSTEM,
        amplitude=THETA,
        curvature=LAMBDA,
        comparator=W,
        box_end=THETA,
    ),
    "theorem_curve": call(theorem="th:direct-bellman", case=CASE, controls=POST),
    "linear_rate": call(start=ONE, a=ONE, delta=ONE, rounds=np.array([3, 4])),
    "master_trajectory": call(generator=FLOW, start=ONE, terms=SCHEDULE),
    "noiseless_rate of a schedule": call(
        generator=FLOW, start=ONE, terms=SCHEDULE, objective=ONE
    ),
    "noiseless_rate": call(
        generator=FLOW, start=ONE, terms=TERMS, rounds=np.array([3, 4]), objective=ONE
    ),
    "noisy_rate of a schedule": call(
        generator=FLOW, start=ONE, terms=SCHEDULE, floor=ONE, objective=ONE
    ),
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
    "pl_rate": call(
        controller=UNIFORM, pl_constant=ONE, start=START, rounds=np.array([3, 4])
    ),
    "homogeneous_coefficients": call(system=SYSTEM, controls=POST),
    "homogeneous_pl_rate": call(
        coefficients=PLAIN,
        pl_constant=np.array([2.0, 8.0]),
        start=ONE,
        rounds=np.array([3, 4]),
        solver_gap=ONE,
    ),
    "propagated_tracking": call(
        system=SYSTEM,
        amplitude=THETA,
        active=np.array([True, False, True]),
        gap=ONE,
        tracking=np.ones((2, 3)),
        signed="active",
    ),
    "rounds_to": call(
        wide="target",
        rate=lambda t: theory.linear_rate(ONE, 0.5, 0.0, t),
        target=ONE / 2,
        least=1,
    ),
    "safe_amplitude": call(smoothness=L, pl_constant=ONE),
    "safe_rate": call(
        controller=UNIFORM, pl_constant=ONE, start=START, rounds=np.array([3, 4])
    ),
    "scalar_rate": call(
        start=ONE, a=ONE, beta=ONE, delta=ONE, rounds=np.array([3, 4]), level=ONE
    ),
    "situation": call(system=SYSTEM, gap=ONE, tracking=ONE),
    "surrogate": call(system=SYSTEM, box=(THETA / 2, THETA), start=START, rounds=1),
    "surrogate_under": call(
        system=SYSTEM,
        controls=(W, THETA[:, None]),
        start=START,
        rounds=2,
        box_end=THETA,
    ),
    "system_of": call(profiles=PROFILE, bounds=BOUNDS, n=3),
    "uniform_coefficients": call(system=SYSTEM, amplitude=THETA),
}
WITHOUT_NUMBERS = {"noise_optimal", "theorems"}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: ALL[name.split()[0]] for name in CALLS
}


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
    functions = {name for name, x in EXPORTS.items() if inspect.isfunction(x)}
    assert functions <= set(CALLS) | WITHOUT_NUMBERS


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


# the texts


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
        theory.power_pair(np.full(2, 2.0), np.ones(3))


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
        lambda T: UNIFORM.recursion.trajectory((ONE, ONE), T),
        lambda T: theory.surrogate(SYSTEM, (0.1, 0.2), (ONE, ONE), T),
        lambda T: (
            theory.homogeneous_coefficients(SYSTEM, theory.PostLocal(0.1, 9.0))
            .trajectory((ONE, 0.0), T)
            .gap
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
