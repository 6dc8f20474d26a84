"""Pre-aggregations: each against its formula, composed, with memory, by name."""

import math
import re
import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.conformance.rounds import decide, make_cohort

from hewfl import (
    Federation,
    FixedSteps,
    InvalidInputError,
    LocalSGD,
    Method,
    Pipeline,
    RuleError,
    simulate,
)
from hewfl.aggregators import (
    ARC,
    NAMES,
    NNM,
    Bucketing,
    Clip,
    CoordinateMedian,
    GeometricMedian,
    Krum,
    Mean,
    MultiKrum,
    PreAggregation,
    SoftMix,
    TrimmedMean,
    Trust,
    WorkerMomentum,
    make,
)
from hewfl.aggregators.aggregator import faulty_count
from hewfl.core.round import Round
from hewfl.displacements.dense import as_dense, matrix_round
from hewfl.displacements.gram import round_products
from hewfl.displacements.sharded import ShardedDisplacements
from hewfl.experiments.method_spec import method_from_table, method_table
from hewfl.problems import random_quadratic
from hewfl.server.checkpoint import flatten, unflatten


def round_of(rows: Any, number: int = 0) -> Round:
    rows = np.asarray(rows, dtype=np.float64)
    cohort = replace(make_cohort([1] * len(rows)), round=number)
    plan = Method(LocalSGD(1.0), Mean()).plan(cohort, None)
    return matrix_round(np.zeros(rows.shape[1]), rows, cohort, plan)


def mapped(part: PreAggregation, rows: Any, number: int = 0) -> Any:
    return part.linear_map(round_of(rows, number)) @ np.asarray(rows)


# ------------------ the number of faulty clients


@pytest.mark.parametrize(
    ("f", "n", "most", "count"),
    [
        (4, 20, 9, 4),
        (4, 5, 2, 2),  # fewer clients present than it is meant for
        (0, 20, 9, 0),
        (0.29, 100, 49, 29),  # 28.999999999999996
        (0.25, 7, 3, 1),
        (0.25, 2, -1, 0),
        (0.4999, 4, 1, 1),
    ],
)
def test_faulty_clients_are_a_count_or_a_fraction(
    f: Any, n: int, most: int, count: int
) -> None:
    found, note = faulty_count(f, round_of(np.zeros((n, 2))), most)
    assert found == count
    asked = {4: 4}.get(f, count)
    assert note == ("" if asked == count else "; f = 2, not 4: 5 clients allow no more")


WITH_COUNT = [
    name
    for name in [*NAMES, "arc+geometric-median", "nnm+geometric-median"]
    if "f=0.25" in repr(make(name))
]


@pytest.mark.parametrize("name", WITH_COUNT)
def test_a_count_has_one_meaning_in_all_rules(name: str) -> None:
    """Half of all clients is an error; with few in a round the status has the count."""
    rows = np.random.default_rng(0).standard_normal((6, 8))
    rule = make(name, f=5)
    with pytest.raises(InvalidInputError, match=r"`aggregator.*\.f` .*half of the 6"):
        rule(rows)
    some, _ = rule(rows, clients=[0, 3, 5, 7, 11, 12])  # six of thirteen
    assert re.search(r"; f = [012], not 5: 6 clients allow no more$", some.status)
    few = int(some.status.split("; f = ")[1][0])
    fitting, _ = make(name, f=few)(rows)
    np.testing.assert_array_equal(some.weights, fitting.weights)
    assert "allow" not in fitting.status
    method = Method(LocalSGD(0.1), rule)
    federation = Federation(FixedSteps(1))
    with pytest.raises(InvalidInputError, match=r"`methods\[0\].*half of the 6"):
        simulate(random_quadratic(0, 6, 3), federation, [method], rounds=1, seed=0)


def test_parts_that_share_a_count_say_once_that_it_is_too_large() -> None:
    rows = np.random.default_rng(0).standard_normal((6, 8))
    decision, _ = make("arc+nnm+dnc", f=4)(rows, clients=[0, 3, 5, 7, 9, 11])
    assert decision.status.count("f = 2, not 4: 6 clients allow no more") == 1


@pytest.mark.parametrize("f", [-1, 0.5, -0.1, 1.0, math.nan, "4", True, None])
@pytest.mark.parametrize("cls", [ARC, NNM, Krum, MultiKrum, TrimmedMean])
@pytest.mark.unchecked  # the checks of tests would be first
def test_what_is_neither_is_refused(cls: Any, f: Any) -> None:
    with pytest.raises(InvalidInputError, match="`f` must be a count"):
        cls(f=f)


# ------------------ each map by its formula


def test_arc_by_hand() -> None:
    # lengths 1, …, 5 and f = 1: k = ⌊2 · 4/5⌋ = 1, so the longest becomes 4
    rows = np.diag([5.0, 1.0, 4.0, 2.0, 3.0])
    np.testing.assert_allclose(
        np.diagonal(mapped(ARC(f=1), rows)), [4.0, 1.0, 4.0, 2.0, 3.0], rtol=1e-14
    )
    # f = 2: k = ⌊4 · 3/5⌋ = 2
    np.testing.assert_allclose(
        np.diagonal(mapped(ARC(f=2), rows)), [3.0, 1.0, 3.0, 2.0, 3.0], rtol=1e-14
    )
    np.testing.assert_allclose(mapped(ARC(f=0), rows), rows)
    # most clients did not move: nobody may
    still = np.zeros((5, 3))
    still[2] = 1.0
    np.testing.assert_array_equal(mapped(ARC(f=1), still), 0.0)


def test_nnm_by_hand() -> None:
    # f = 1 of 4: three nearest of 0, 1, 3, 100
    found = mapped(NNM(f=1), [[0.0], [1.0], [3.0], [100.0]])
    np.testing.assert_allclose(found[:, 0], [4 / 3, 4 / 3, 4 / 3, 104 / 3])
    # three places: 0 itself, and two of the three that are as near to it share them
    rows = [[0.0, 0.0], [1.0, 0.0], [-0.5, math.sqrt(0.75)], [-0.5, -math.sqrt(0.75)]]
    A = NNM(f=1).linear_map(round_of(rows))
    np.testing.assert_allclose(A[0], [1 / 3, 2 / 9, 2 / 9, 2 / 9], rtol=1e-14)


@pytest.mark.parametrize("far", [1e3, 1e9, 1e15])
def test_nnm_loses_no_digits_to_a_far_client(
    far: float, rng: np.random.Generator
) -> None:
    """The client is in no honest mean: products of those must not know it."""
    rows = rng.standard_normal((9, 6))
    rows[4] *= far
    near = np.delete(np.arange(9), 4)
    apart = ((rows[:, None] - rows) ** 2).sum(axis=-1)
    mixed = rows[np.argsort(apart, axis=1)[:, :7]].mean(axis=1)
    decision, _ = Pipeline(NNM(f=2), GeometricMedian())(rows)
    plain, _ = GeometricMedian()(mixed)
    np.testing.assert_allclose(decision.step, plain.step, atol=1e-7)
    part = NNM(f=2)
    A = part.linear_map(round_of(rows))
    assert (A[near, 4] == 0).all()


def test_softmix_is_its_formula(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((7, 5))
    rows[2] *= 50
    lengths = np.linalg.norm(rows, axis=1)
    clipped = rows * np.minimum(1, np.median(lengths) / lengths)[:, None]
    apart = ((clipped[:, None] - clipped) ** 2).sum(axis=-1)
    M = np.exp(-apart / np.median(apart[np.triu_indices(7, 1)]))
    M /= M.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(mapped(SoftMix(), rows), M @ clipped, rtol=1e-10)
    plain, _ = GeometricMedian()(M @ clipped)
    decision, _ = make("softmix+geometric-median")(rows)
    np.testing.assert_allclose(decision.step, plain.step, rtol=1e-6)


def test_softmix_of_a_majority_of_twins_averages_equals() -> None:
    rows = np.vstack([np.tile([1.0, 2.0], (4, 1)), [[2.0, 1.0]]])
    found = mapped(SoftMix(), rows)
    np.testing.assert_allclose(found, rows, rtol=1e-12)


def test_buckets_are_means_of_all_clients_once() -> None:
    part = Bucketing(size=3, seed=5)
    A = part.linear_map(round_of(np.zeros((8, 2)), 4))
    assert A.shape == (3, 8)
    assert sorted((A > 0).sum(axis=1)) == [2, 3, 3]
    np.testing.assert_array_equal((A > 0).sum(axis=0), 1)
    np.testing.assert_allclose(A.sum(axis=1), 1.0)
    again = part.linear_map(round_of(np.ones((8, 2)), 4))
    np.testing.assert_array_equal(A, again)  # a function of seed and round
    others = [
        part.linear_map(round_of(np.zeros((8, 2)), 5)),
        Bucketing(size=3, seed=6).linear_map(round_of(np.zeros((8, 2)), 4)),
    ]
    assert all((other != A).any() for other in others)


def test_bucketing_before_a_rule_is_the_rule_on_the_means(
    rng: np.random.Generator,
) -> None:
    rows = rng.standard_normal((11, 6))
    part = Bucketing(size=2, seed=1)
    for number in range(3):
        means = mapped(part, rows, number)
        for rule in (GeometricMedian(), CoordinateMedian(), MultiKrum(f=2), Mean()):
            plain, _ = rule(means)
            decision, _ = Pipeline(part, rule)(rows, round_number=number)
            np.testing.assert_allclose(decision.step, plain.step, rtol=1e-7)
            assert decision.weights.shape == (11,)
            assert decision.weights.sum() == pytest.approx(1.0)


def test_a_fraction_counts_clients_not_buckets(rng: np.random.Generator) -> None:
    """A fifth of 20 clients can spoil 4 of 10 buckets."""
    rows = rng.standard_normal((20, 3))
    decision, _ = Pipeline(Bucketing(size=2), TrimmedMean(f=0.2))(rows)
    assert "but 4 values" in decision.status


# ------------------ composed


def test_maps_are_composed_in_order(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((9, 5))
    rows[1] *= 20
    steps = [Clip(), ARC(f=2), NNM(f=2)]
    expected = rows
    for part in steps:
        expected = mapped(part, expected)
    for rule in (GeometricMedian(), Krum(f=2), TrimmedMean(f=2), CoordinateMedian()):
        plain, _ = rule(expected)
        decision, _ = Pipeline(*steps, rule)(rows)
        np.testing.assert_allclose(decision.step, plain.step, rtol=1e-7, atol=1e-9)
        if rule.name not in ("Trimmed mean", "Coordinate median"):
            np.testing.assert_allclose(decision.weights @ rows, decision.step)


@pytest.mark.parametrize("rule", ["trust", "size-weighted", "oracle", "fedadp"])
def test_a_bucket_is_no_client(rule: str) -> None:
    with pytest.raises(InvalidInputError, match="`parts` must be without a need"):
        make(f"bucketing+{rule}")


def test_worker_momentum_after_buckets_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="need of clients"):
        make("bucketing+worker-momentum+krum")


# ------------------ worker momentum


def momenta(rounds: list[Any], beta: float) -> Any:
    """Weighted means from the first round on."""
    factors = beta ** np.arange(len(rounds))[::-1]
    return np.tensordot(factors / factors.sum(), np.stack(rounds), axes=1)


def test_worker_momentum_whole_steps_on_the_momenta(rng: np.random.Generator) -> None:
    rule, state = Pipeline(Clip(), WorkerMomentum(0.7), NNM(f=1), Krum(f=1)), None
    rounds = []
    for _ in range(4):
        rows = rng.standard_normal((6, 5))
        rounds.append(mapped(Clip(), rows))
        decision, state = rule(rows, state)
        m = momenta(rounds, 0.7)
        plain, _ = Pipeline(NNM(f=1), Krum(f=1))(m)
        np.testing.assert_allclose(decision.step, plain.step, rtol=1e-9)
        factors = Clip().linear_map(round_of(rows)).T @ plain.weights
        np.testing.assert_allclose(decision.weights, factors, atol=1e-12)


@pytest.mark.parametrize("size", [8, 64])
def test_worker_momentum_from_sketches_weighs_this_round(
    size: int, rng: np.random.Generator
) -> None:
    """A sketch of at most its size is exact; a short one is the rule on sketches."""
    part = WorkerMomentum(0.7, memory="sketch", size=size)
    rule, rounds = Pipeline(part, Krum(f=1)), []
    state: Any = None
    for _ in range(4):
        rows = rng.standard_normal((6, 40))
        rounds.append(rows)
        decision, state = rule(rows, state)
        np.testing.assert_allclose(decision.weights @ rows, decision.step)
        if size == 64:
            plain, _ = Krum(f=1)(momenta(rounds, 0.7))
            np.testing.assert_allclose(decision.weights, plain.weights)
    assert state.parts[0].momenta.shape == (6, size)


def test_the_memory_is_of_the_client() -> None:
    """One that is away keeps it; one that comes first late is not short."""
    rule = Pipeline(WorkerMomentum(0.5), Mean())
    one, two = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    _, state = rule(one, clients=[3])
    _, state = rule(two, state, clients=[1])
    decision, state = rule(np.vstack([two, one]), state, clients=[3, 1])
    # m_3 = (1, 0)/3 + 2(0, 1)/3, m_1 = (0, 1)/3 + 2(1, 0)/3
    np.testing.assert_allclose(decision.step, [0.5, 0.5])
    np.testing.assert_array_equal(state.parts[0].rounds, [0, 2, 0, 2])
    late, _ = rule(4 * one, state, clients=[0])
    np.testing.assert_allclose(late.step, [4.0, 0.0])


def test_sketches_need_rules_that_look_at_products() -> None:
    part = WorkerMomentum(memory="sketch")
    with pytest.raises(InvalidInputError, match="without a need of entries"):
        Pipeline(part, CoordinateMedian())
    with pytest.raises(InvalidInputError, match="without a need of root"):
        Pipeline(part, make("exact", reference="root"))
    assert Pipeline(part, Trust()).needs == {"clients", "entries", "steps"}


def test_sketches_of_a_part_of_the_entries_are_refused(
    rng: np.random.Generator,
) -> None:
    rows = as_dense("rows", rng.standard_normal((3, 4)))
    shard = ShardedDisplacements(rows, lambda x: 2 * x, 8)  # one machine of two
    part = WorkerMomentum(memory="sketch", size=8)
    round_ = replace(round_of(rows.data), displacements=shard)
    with pytest.raises(RuleError, match='use memory="whole"'):
        part.recall(round_, part.init(3, 8))


def test_a_state_of_another_pipeline_is_refused(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((3, 4))
    _, state = make("worker-momentum+krum")(rows)
    with pytest.raises(InvalidInputError, match="`state` must be one that this rule"):
        make("clip+worker-momentum+krum")(rows, state)
    with pytest.raises(InvalidInputError, match="`state` must be of updates"):
        make("worker-momentum+krum")(rows[:, :2], state)


def test_a_pipeline_with_memory_trains_in_a_method(rng: np.random.Generator) -> None:
    rule = Method(LocalSGD(total=1.0), make("worker-momentum+nnm+trimmed-mean"))
    state = rule.init(5, 3, None)
    for members in ([0, 1, 2, 3, 4], [0, 2, 4]):
        rows = rng.standard_normal((len(members), 3))
        cohort = make_cohort([1] * len(members), clients=members, population=5)
        decision, state = decide(rule, cohort, rows, state=state)
        assert decision.step.shape == (3,)
    np.testing.assert_array_equal(state.parts[0].rounds, [2, 1, 2, 1, 2])


# ------------------ by name


def test_pipelines_by_name() -> None:
    assert make("clip+nnm+geometric-median") == Pipeline(
        Clip(), NNM(), GeometricMedian()
    )
    # a field goes to every part that has it
    assert make("arc+nnm+multi-krum", f=4, selected_fraction=0.6) == Pipeline(
        ARC(f=4), NNM(f=4), MultiKrum(f=4, selected_fraction=0.6)
    )
    for name, text in (
        ("nnn+krum", r"before a \+.*did you mean nnm"),
        ("nnm+krun", "did you mean krum"),
        ("krum+nnm", r"before a \+; got 'krum'"),
        ("nnm", "`aggregator` must be one of"),
        ("nnm+", "`aggregator` must be one of"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            make(name)
    with pytest.raises(InvalidInputError, match="`options` must be fields of"):
        make("nnm+krum", g=4)
    for old in ("byzantine_fraction", "trim"):
        with pytest.raises(InvalidInputError, match=f"`{old}` is now called `f`"):
            make("nnm+krum", **{old: 0.2})


def test_a_spec_writes_a_pipeline() -> None:
    text = """
        method = "clip+nnm+trimmed-mean"
        learning_rate = 0.1
        ratio = 2.0
        grid.f = [4, 0.2]
    """
    spec = method_from_table(tomllib.loads(text), "methods.0")
    assert method_from_table(method_table(spec), "methods.0") == spec
    built = [one.entry(1.0).algorithm.aggregator for one in spec.candidates()]  # type: ignore[attr-defined]  # a `Method`
    for f, rule in zip((4, 0.2), built, strict=True):
        assert rule == Pipeline(Clip(ratio=2.0), NNM(f=f), TrimmedMean(f=f))
        assert type(rule.parts[1].f) is type(f)
    for method, field, error in (
        ("nnn+krum", "f = 2", r"`methods.0.method` must be one of .*did you mean nnm"),
        ("nnm+krum", "f = 0.5", r"methods\.nnm\+krum\.f` must be a count"),
        ("nnm+krum", "trim = 0.2", "`methods.0.trim` is now called `f`"),
        ("nnm+krum", "size = 2", "an unknown field"),
        ("bucketing+trust", "size = 2", "without a need of clients"),
    ):
        table = tomllib.loads(f'method = "{method}"\nlearning_rate = 0.1\n{field}')
        with pytest.raises(InvalidInputError, match=error):
            method_from_table(table, "methods.0")


@pytest.mark.parametrize(
    "name",
    ["worker-momentum+bucketing+krum", "clip+worker-momentum+nnm+trust"],
)
def test_a_resumed_pipeline_gives_the_same_bits(
    name: str, rng: np.random.Generator
) -> None:
    """A state through a checkpoint, and random numbers from the round alone."""
    rule, rows = make(name), rng.standard_normal((4, 6, 5))
    state: Any = None
    resumed: Any = rule.init(6, 5)
    for t in range(4):
        if t == 2:
            resumed = unflatten(rule.init(6, 5), flatten(state))
        decision, state = rule(rows[t], state, round_number=t)
        if t >= 2:
            again, resumed = rule(rows[t], resumed, round_number=t)
            assert again.step.tobytes() == decision.step.tobytes()
            assert again.weights.tobytes() == decision.weights.tobytes()


def test_pipelines_train_in_a_simulation() -> None:
    problem = random_quadratic(seed=0, n=8, d=5)
    work = LocalSGD(0.5 / problem.smoothness)
    names = ["bucketing+geometric-median", "worker-momentum+arc+nnm+trimmed-mean"]
    methods = [Method(work, make(name)) for name in (*names, "mean")]
    trace = simulate(problem, Federation(FixedSteps(2), 8), methods, rounds=30, seed=0)
    first = trace.curve(2, "objective")[0]
    by_mean = first - trace.curve(2, "objective")[-1]
    for k in range(2):
        assert first - trace.curve(k, "objective")[-1] > 0.5 * by_mean > 0


@pytest.mark.parametrize(
    "name", ["clip+nnm+geometric-median", "softmix+geometric-median", "arc+multi-krum"]
)
def test_a_pipeline_reads_the_updates_once_for_their_products(
    name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []

    def counted(*given: Any) -> Any:
        passes.append(1)
        return round_products(*given)

    monkeypatch.setattr("hewfl.displacements.dense.round_products", counted)
    make(name)(rng.standard_normal((8, 30)))
    assert len(passes) == 1
