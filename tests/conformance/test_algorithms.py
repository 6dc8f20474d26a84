"""One battery for all algorithms: a newcomer is one line in `ALGORITHMS`."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final, get_type_hints

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.conformance.rounds import make_round, step_of, subset
from tests.simulation.unchecked import unchecked
from tests.tolerances import GAP, WEIGHTS

import hewfl
from hewfl import ExactWeights, InvalidInputError, LocalSGD, Method
from hewfl import aggregators as baselines
from hewfl.algorithms.online_curvature import OnlineCurvature
from hewfl.core.algorithm import Algorithm
from hewfl.core.round import Cohort, Decision, Round
from hewfl.displacements.dense import as_dense
from hewfl.server.checkpoint import flatten

Array = NDArray[np.floating[Any]]

N, D = 7, 11  # unequal, so that a state's rows tell themselves from its columns
L = 2.0
PRESENT = [0, 2, 5]


@final
@dataclass(frozen=True, slots=True)
class Case:
    """An algorithm and what it promises.

    Attributes:
        id: unique.
        algorithm: the hyper-parameters under test.
        averages: whether its weights sum to one in every round.
    """

    id: str
    algorithm: Algorithm[Any]
    averages: bool = True


def of_baselines() -> list[Case]:
    b = baselines
    return [
        Case("uniform", b.UniformLocalSGD(L, 0.4)),
        Case("fedavg", b.FedAvg(L, 0.4)),
        Case("fedprox", b.FedProx(L, 0.4, proximal=0.1)),
        Case("fednova", b.FedNova(L, 0.4), averages=False),
        Case("fednova-equal", b.FedNova(L, 0.4, by_size=False), averages=False),
        Case("scaffold", b.Scaffold(L, 0.4)),
        Case("scaffold-gradient", b.Scaffold(L, 0.4, start="gradient")),
        Case("scaffold-long", b.Scaffold(L, 0.4, server_step=1.5), averages=False),
        Case("minibatch", b.MinibatchSGD(L, 0.4)),
        Case("step-weighted", b.StepWeighted(L, 0.4)),
        Case("fedmgda", b.FedMGDAPlus(L, 0.4), averages=False),
        Case("fedmgda-box", b.FedMGDAPlus(L, 0.4, epsilon=0.05), averages=False),
        Case("fedmgda-length", b.FedMGDAPlus(L, 0.4, relative=False), averages=False),
        Case("fedaware", b.FedAWARE(L, 0.4), averages=False),
        Case("fedaware-unit", b.FedAWARE(L, 0.4, unit=True), averages=False),
        Case("fedexp", b.FedExP(L, 0.4), averages=False),
        Case("fedadp", b.FedAdp(L, 0.4)),
        Case("qfedavg", b.QFedAvg(L, 0.4, q=1.0), averages=False),
        Case("qfedavg-half", b.QFedAvg(L, 0.4, q=0.5), averages=False),
        Case("disagreement", b.Disagreement(L, 0.4)),
        Case("agreement", b.Agreement(L, 0.4)),
        Case("sieve", b.Sieve(L, 0.4), averages=False),
        Case("agreement-half", b.Agreement(L, 0.4, power=0.5)),
        Case("geometric-median", b.GeometricMedian(L, 0.4)),
        Case("geometric-median-sizes", b.GeometricMedian(L, 0.4, by_size=True)),
        Case("coordinate-median", b.CoordinateMedian(L, 0.4)),
        Case("trimmed-mean", b.TrimmedMean(L, 0.4)),
        Case("trimmed-mean-most", b.TrimmedMean(L, 0.4, trim=0.4)),
        Case("krum", b.Krum(L, 0.4)),
        Case("multi-krum", b.MultiKrum(L, 0.4)),
        Case("centred-clipping", b.CentredClipping(L, 0.4), averages=False),
        Case(
            "centred-clipping-length",
            b.CentredClipping(L, 0.4, radius=0.1, relative=False),
            averages=False,
        ),
        Case("trust", b.Trust(L, 0.4)),
        Case("trust-forgetful", b.Trust(L, 0.4, memory=0.0, doubt=3.0)),
        Case("known-quality", b.KnownQuality(L, 0.4)),
        Case("equal-ground", b.EqualGround(b.Disagreement(L, 0.4))),
        Case(
            "equal-ground-fedaware", b.EqualGround(b.FedAWARE(L, 0.4)), averages=False
        ),
    ]


def of_controllers() -> list[Case]:
    """The paper's algorithms."""
    bounds = hewfl.ProblemBounds(L, 5.0, 1e-3, 1.0)
    return [
        Case("hew-hom", hewfl.HewHom(L, 0.4)),
        Case("hew-hom-null", hewfl.HewHom(L, 0.4, null_endpoint=True), averages=False),
        Case("hew-het", hewfl.HewHet(L, 0.4)),
        Case("hew-het-zero", hewfl.HewHet(L, 0.4, start="zero")),
        Case("hew-het-null", hewfl.HewHet(L, 0.4, null_endpoint=True), averages=False),
        Case("hew-hom-online", OnlineCurvature(hewfl.HewHom(L, 0.4))),
        Case("hew-het-online", OnlineCurvature(hewfl.HewHet(L, 0.4))),
        Case(
            "hew-hom-kappa",
            Method(
                LocalSGD(total=0.2),
                ExactWeights(kappa=2.0, normalize="total_step", cross_fit=False),
            ),
        ),
        Case(
            "hew-hom-fit",
            Method(
                LocalSGD(total=0.2),
                ExactWeights(kappa=1.0, normalize="total_step", cross_fit=True),
            ),
        ),
        Case(
            "hew-hom-fit-null",
            hewfl.HewHom(L, 0.4, null_endpoint=True, cross_fit=True),
            averages=False,
        ),
        Case(
            "hew-hom-length",
            Method(
                LocalSGD(total=0.2),
                ExactWeights(kappa=1.25, normalize="length", cross_fit=False),
            ),
        ),
        Case(
            "hew-het-kappa",
            Method(
                LocalSGD(total=0.2, variates="gradient"),
                ExactWeights("variate", kappa=2.0),
            ),
        ),
        Case(
            "hew-mean",
            Method(LocalSGD(0.4 / L), ExactWeights(by="size", cross_fit=False)),
        ),
        Case(
            "hew-mean-steps",
            Method(
                LocalSGD(0.4 / L), ExactWeights(kappa=1.5, by="steps", cross_fit=False)
            ),
        ),
        Case(
            "hew-mean-fit",
            Method(
                LocalSGD(0.4 / L), ExactWeights(kappa=1.25, by="size", cross_fit=True)
            ),
        ),
        Case("hew-fixed", hewfl.HewFixed(total=0.4 / L)),
        Case(
            "hew-fixed-even",
            hewfl.HewFixed(total=0.4 / L, variates="gradient", power=0.0),
        ),
        Case("hew-fixed-corrected", hewfl.HewFixed(total=0.4 / L, variates="gradient")),
        Case("hew-control", hewfl.HewControl(bounds, 1.0)),
        Case("hew-control-caps", hewfl.HewControl(bounds, 1.0, source="caps")),
        Case("hew-control-sharp", hewfl.HewControl(bounds, 1.0, variant="sharp")),
    ]


ALGORITHMS = of_baselines() + of_controllers()
every_algorithm = pytest.mark.parametrize("case", ALGORITHMS, ids=lambda case: case.id)


# ------------------------------------------------------------------ material


def full_cohort(rng: np.random.Generator) -> Cohort:
    return Cohort(
        np.arange(N),
        rng.integers(1, 9, N),
        rng.integers(1, 33, N),
        rng.integers(40, 400, N),
        N,
    )


def start(algorithm: Algorithm[Any], rng: np.random.Generator, n: int = N) -> Any:
    gradients = rng.standard_normal((n, D)) if algorithm.demands.gradients else None
    return algorithm.init(n, D, gradients)


def round_of(
    algorithm: Algorithm[Any], cohort: Cohort, displacements: Array, state: Any
) -> Round:
    """Losses, for those who ask, are a function of the client."""
    losses = 0.5 + cohort.clients if algorithm.demands.losses else None
    return make_round(algorithm, cohort, displacements, state, losses)


def settled(
    algorithm: Algorithm[Any], rng: np.random.Generator
) -> tuple[Cohort, Array, Any]:
    """A cohort, displacements, and a state that one full round has marked."""
    cohort, state = full_cohort(rng), start(algorithm, rng)
    warm = round_of(algorithm, cohort, rng.standard_normal((N, D)), state)
    _, state = algorithm.decide(warm, state)
    return cohort, rng.standard_normal((N, D)), state


def arrays(value: Any) -> Iterator[NDArray[Any]]:
    """Every array in a record of records."""
    if isinstance(value, np.ndarray):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from arrays(getattr(value, field.name))


def permuted(value: Any, order: NDArray[np.int64]) -> Any:
    """The same record with every array of one row per client reordered."""
    if isinstance(value, np.ndarray):
        return value[order] if value.shape[:1] == (N,) else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        moved = {name: permuted(field, order) for name, field in fields.items()}
        return dataclasses.replace(value, **moved)
    return value


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    for left, right in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_array_equal(left, right)


def assert_sane(case: Case, decision: Decision, count: int) -> None:
    weights = decision.weights
    assert weights.shape == (count,)
    assert weights.dtype == np.float64
    assert np.isfinite(weights).all()
    assert (weights >= 0).all()
    assert 0 <= decision.gap < math.inf
    assert decision.status
    if case.averages:
        assert weights.sum() == pytest.approx(1.0, rel=1e-14)
    if decision.step is not None:
        assert decision.step.dtype == np.float64
        assert np.isfinite(decision.step).all()


# ------------------------------------------------------------------ the properties


@every_algorithm
def test_tensors_on_the_host_are_arrays(case: Case, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    cohort, moved = full_cohort(rng), rng.standard_normal((2, N, D))
    state = other = start(case.algorithm, rng)
    for own in moved:
        round_ = round_of(case.algorithm, cohort, own, state)
        decision, state = case.algorithm.decide(round_, state)
        told = round_of(case.algorithm, cohort, own, other)
        tensors = as_dense("displacements", torch.tensor(own))
        told = dataclasses.replace(told, displacements=tensors)
        found, other = case.algorithm.decide(told, other)
        np.testing.assert_allclose(found.weights, decision.weights, atol=WEIGHTS)


def test_ids_and_names_are_unique() -> None:
    assert len({case.id for case in ALGORITHMS}) == len(ALGORITHMS)
    names = {type(case.algorithm): case.algorithm.name for case in ALGORITHMS}
    assert len(set(names.values())) == len(names)


def test_every_public_algorithm_is_in_the_battery() -> None:
    tested = {type(case.algorithm).__name__ for case in of_baselines()}
    wrappers = {"EqualGround"}  # around a rule: no method that a spec can name
    assert tested == set(baselines.__all__) | wrappers


@every_algorithm
def test_follows_the_protocol(case: Case) -> None:
    algorithm = case.algorithm
    assert isinstance(algorithm, Algorithm)
    assert hash(algorithm) == hash(dataclasses.replace(algorithm))  # type: ignore[type-var]  # a protocol of dataclasses
    traffic = algorithm.demands.traffic
    assert traffic.down >= 1
    assert traffic.paper_up >= traffic.up >= 1
    assert traffic.up_scalars >= algorithm.demands.losses


@every_algorithm
def test_plans_what_clients_can_do(case: Case, rng: np.random.Generator) -> None:
    cohort, _, state = settled(case.algorithm, rng)
    for present in (cohort, subset(cohort, PRESENT)):
        s = len(present.clients)
        plan = case.algorithm.plan(present, state)
        assert plan.step_sizes.shape == (s,)
        assert (plan.step_sizes > 0).all()
        assert plan.correction is None or plan.correction.shape == (s, D)
        assert plan.proximal >= 0


@every_algorithm
def test_is_pure(case: Case, rng: np.random.Generator) -> None:
    """Read-only inputs, and the same answer twice."""
    cohort, displacements, state = settled(case.algorithm, rng)
    round_ = round_of(case.algorithm, cohort, displacements, state)
    for array in (*arrays(round_), *arrays(state)):
        array.flags.writeable = False
    plans = [case.algorithm.plan(cohort, state) for _ in range(2)]
    assert_same(*plans)
    (one, after), (other, after_other) = (
        case.algorithm.decide(round_, state) for _ in range(2)
    )
    assert_same(one, other)
    assert (one.status, one.gap) == (other.status, other.gap)
    assert_same(after, after_other)


@every_algorithm
def test_new_state_shares_nothing_with_the_old(
    case: Case, rng: np.random.Generator
) -> None:
    """A later change of the displacements in place cannot reach the state."""
    cohort, displacements, state = settled(case.algorithm, rng)
    round_ = round_of(case.algorithm, cohort, displacements, state)
    _, after = case.algorithm.decide(round_, state)
    for array in arrays(after):
        assert not np.shares_memory(array, displacements)


@every_algorithm
def test_weights_are_as_promised(case: Case, rng: np.random.Generator) -> None:
    cohort, displacements, state = settled(case.algorithm, rng)
    for members in (list(range(N)), PRESENT):
        present = subset(cohort, members)
        round_ = round_of(case.algorithm, present, displacements[members], state)
        decision, _ = case.algorithm.decide(round_, state)
        assert_sane(case, decision, len(members))
        assert decision.gap < GAP * N * D  # displacements have length √D


@every_algorithm
def test_weights_move_with_the_clients(case: Case, rng: np.random.Generator) -> None:
    cohort, displacements, state = settled(case.algorithm, rng)
    order = rng.permutation(N)
    round_ = round_of(case.algorithm, cohort, displacements, state)
    decision, after = case.algorithm.decide(round_, state)

    moved = dataclasses.replace(permuted(cohort, order), clients=np.arange(N))
    state_moved = permuted(state, order)
    losses = None if round_.losses is None else round_.losses[order]
    round_moved = make_round(
        case.algorithm, moved, displacements[order], state_moved, losses
    )
    decision_moved, after_moved = case.algorithm.decide(round_moved, state_moved)

    expected = permuted(decision.weights, order)
    np.testing.assert_allclose(decision_moved.weights, expected, atol=WEIGHTS)
    step_moved = step_of(decision_moved, displacements[order])
    np.testing.assert_allclose(
        step_moved, step_of(decision, displacements), atol=WEIGHTS
    )
    leaves = arrays(after_moved), arrays(permuted(after, order))
    for left, right in zip(*leaves, strict=True):
        np.testing.assert_allclose(left, right, atol=WEIGHTS)


@every_algorithm
def test_one_client(case: Case, rng: np.random.Generator) -> None:
    """Alone in the population, or the only one present."""
    algorithm = case.algorithm
    one = subset(full_cohort(rng), [3])
    alone = dataclasses.replace(one, clients=np.array([0]), population=1)
    fresh = start(algorithm, rng, n=1)
    round_ = round_of(algorithm, alone, rng.standard_normal((1, D)), fresh)
    assert_sane(case, algorithm.decide(round_, fresh)[0], 1)

    _, displacements, state = settled(algorithm, rng)
    round_ = round_of(algorithm, one, displacements[:1], state)
    assert_sane(case, algorithm.decide(round_, state)[0], 1)


@every_algorithm
def test_zero_displacements_give_a_zero_step(
    case: Case, rng: np.random.Generator
) -> None:
    cohort, state = full_cohort(rng), start(case.algorithm, rng)
    nothing = np.zeros((N, D))
    round_ = round_of(case.algorithm, cohort, nothing, state)
    decision, after = case.algorithm.decide(round_, state)
    assert_sane(case, decision, N)
    np.testing.assert_array_equal(step_of(decision, nothing), 0.0)
    assert all(np.isfinite(array).all() for array in arrays(after))


@every_algorithm
def test_a_client_at_rest_among_others(case: Case, rng: np.random.Generator) -> None:
    cohort, displacements, state = settled(case.algorithm, rng)
    displacements[4] = 0.0
    round_ = round_of(case.algorithm, cohort, displacements, state)
    decision, _ = case.algorithm.decide(round_, state)
    assert_sane(case, decision, N)


@every_algorithm
def test_identical_clients_get_equal_weight(
    case: Case, rng: np.random.Generator
) -> None:
    """The first and the last are twins in everything; then all are."""
    algorithm, cohort = case.algorithm, full_cohort(rng)
    for twins in ([N - 1], list(range(1, N))):
        rows = np.arange(N)
        rows[twins] = 0
        same = dataclasses.replace(permuted(cohort, rows), clients=np.arange(N))
        state = permuted(start(algorithm, rng), rows)
        for _ in range(2):
            displacements = rng.standard_normal((N, D))[rows]
            losses = 0.5 + rows if algorithm.demands.losses else None
            round_ = make_round(algorithm, same, displacements, state, losses)
            decision, state = algorithm.decide(round_, state)
            expected = decision.weights[rows]
            np.testing.assert_allclose(decision.weights, expected, atol=WEIGHTS)
            for array in arrays(state):
                np.testing.assert_allclose(array, permuted(array, rows), atol=WEIGHTS)


@every_algorithm
def test_float32_displacements_are_read_at_full_precision(
    case: Case, rng: np.random.Generator
) -> None:
    cohort, displacements, state = settled(case.algorithm, rng)
    narrow = displacements.astype(np.float32)
    found = []
    for given in (narrow, narrow.astype(np.float64)):
        round_ = round_of(case.algorithm, cohort, given, state)
        found.append(case.algorithm.decide(round_, state))
    (one, after), (other, after_other) = found
    assert one.weights.dtype == np.float64
    np.testing.assert_allclose(one.weights, other.weights, atol=WEIGHTS)
    for left, right in zip(arrays(after), arrays(after_other), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_allclose(left, right, rtol=1e-12)


@every_algorithm
@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_finite_on_extremes(case: Case, scale: float, rng: np.random.Generator) -> None:
    cohort, displacements, _ = settled(case.algorithm, rng)
    state = start(case.algorithm, rng)
    round_ = round_of(case.algorithm, cohort, scale * displacements, state)
    decision, _ = case.algorithm.decide(round_, state)
    assert_sane(case, decision, N)
    assert np.isfinite(step_of(decision, scale * displacements)).all()


@every_algorithm
def test_the_absent_keep_their_state(case: Case, rng: np.random.Generator) -> None:
    cohort, displacements, state = settled(case.algorithm, rng)
    present = subset(cohort, PRESENT)
    round_ = round_of(case.algorithm, present, displacements[PRESENT], state)
    _, after = case.algorithm.decide(round_, state)
    absent = np.setdiff1d(np.arange(N), PRESENT)
    following = flatten(after)
    for name, before in flatten(state).items():
        if before.shape[:1] != (N,):
            continue
        later = following[name]
        if name == ".upper.tracking":  # what is known of the absent grows worse (E-19)
            assert (later[absent] > before[absent]).all() or case.id.endswith("caps")
        else:
            np.testing.assert_array_equal(later[absent], before[absent])


@every_algorithm
def test_state_keeps_shape_and_dtype(case: Case, rng: np.random.Generator) -> None:
    fresh = start(case.algorithm, rng)
    cohort, displacements, state = settled(case.algorithm, rng)
    present = subset(cohort, PRESENT)
    round_ = round_of(case.algorithm, present, displacements[PRESENT], state)
    _, after = case.algorithm.decide(round_, state)
    assert type(fresh) is type(state) is type(after)
    for first, *later in zip(arrays(fresh), arrays(state), arrays(after), strict=True):
        for array in later:
            assert array.shape == first.shape
            assert array.dtype == first.dtype


@every_algorithm
def test_repr_holds_every_hyper_parameter(case: Case) -> None:
    text = repr(case.algorithm)
    assert text.startswith(type(case.algorithm).__name__)
    for field in dataclasses.fields(case.algorithm):  # type: ignore[arg-type]  # a protocol of dataclasses
        value = getattr(case.algorithm, field.name)
        assert f"{field.name}={value!r}" in text or value == field.default


def float_fields() -> Iterator[Any]:
    for case in ALGORITHMS:
        kinds = get_type_hints(type(case.algorithm))  # without the ranges
        for field in dataclasses.fields(case.algorithm):  # type: ignore[arg-type]  # a protocol of dataclasses
            if kinds[field.name] is float:
                yield pytest.param(case, field.name, id=f"{case.id}-{field.name}")


@pytest.mark.parametrize(("case", "name"), list(float_fields()))
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_bad_hyper_parameters_are_refused(case: Case, name: str, value: float) -> None:
    with pytest.raises(InvalidInputError, match=f"`{name}` must be .*; got {value}"):
        dataclasses.replace(case.algorithm, **{name: value})  # type: ignore[type-var]  # a protocol of dataclasses


@pytest.mark.parametrize(("case", "name"), list(float_fields()))
@pytest.mark.parametrize("value", ["1", None, True])
def test_what_is_no_number_is_refused(case: Case, name: str, value: Any) -> None:
    text = f"`{name}` must be .*; got {value!r}"
    with unchecked(), pytest.raises(InvalidInputError, match=text):
        dataclasses.replace(case.algorithm, **{name: value})  # type: ignore[type-var]  # a protocol of dataclasses
