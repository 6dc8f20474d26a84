"""Rounds over real processes against the same algorithms on gathered data."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.torch.pool import Pool
from tests.torch.scenarios import (
    EXACT,
    SIZE,
    VARIATE,
    Plan,
    Quadratic,
    RoundView,
    descend,
    flat,
    make_aggregator,
    play,
    quadratic,
)

from hewfl import (
    Decision,
    Demands,
    FedAvg,
    FedNova,
    HewFixed,
    HewHet,
    HewHom,
    LocalSGD,
    Method,
    Round,
    Scaffold,
    ServerStep,
    StepWeighted,
    UniformLocalSGD,
)
from hewfl.aggregators import (
    Aggregator,
    Agreement,
    Certified,
    CoordinateMedian,
    FedExP,
    GeometricMedian,
    Mean,
)
from hewfl.core.algorithm import Algorithm, Corrected, Need
from hewfl.core.round import Cohort, LocalPlan
from hewfl.displacements.control_variates import ControlVariates
from hewfl.displacements.dense import matrix_round
from hewfl.methods.method import ClientTraining
from hewfl.server.trace import from_lines
from hewfl.torch import HewLocalSGD, SyncOptions
from hewfl.torch.sync import ZERO_WEIGHT_ROUNDS, name_zero_weights

Array = NDArray[np.float64]

pytestmark = pytest.mark.torch

WEIGHTS = 1e-11
"""Weights from products added over ranks against those from the rows: rounding."""
ROUNDING = {torch.float64: 1e-14, torch.float32: 3e-7, torch.bfloat16: 2e-2}
"""Of one model in its own precision, relative to its largest entry."""


def pure_round(
    algorithm: Algorithm[Any],
    history: list[RoundView],
    plan: Plan,
    participants: list[int],
) -> Any:
    """What the algorithm decides with all displacements in one place."""
    n = len(history)
    H = np.array([plan.steps[i] for i in participants])
    m = np.array([max(plan.tokens[i], 1) for i in participants])
    eta = np.array([plan.rates[i] for i in participants])
    updates = np.stack([history[i].before - history[i].start for i in participants])
    if plan.dtypes == (torch.float32,):  # as it was sent
        updates = updates.astype(np.float32)
    cohort = Cohort(np.array(participants), H, np.ones_like(H), m, n)
    round_ = matrix_round(history[0].start, updates, cohort, LocalPlan(eta))
    return algorithm.decide(round_, None)[0], updates


def same_bits(history: list[list[RoundView]]) -> None:
    for rounds in zip(*history, strict=True):
        for other in rounds[1:]:
            assert other.after.tobytes() == rounds[0].after.tobytes()
            assert other.report.weights == rounds[0].report.weights


def mean_travel(plan: Plan, n: int) -> float:
    pairs = zip(plan.steps[:n], plan.rates[:n], strict=True)
    return float(np.mean([h * r for h, r in pairs]))


def smoothness(total_step: float) -> float:
    """L such that Λϑ = L/2 with ϑ = L η H and Λ = 1.25 L."""
    return 1 / (2 * 1.25 * total_step)


HOM = Method(ClientTraining(), EXACT)
RULES: dict[str, tuple[Any, Any]] = {
    "exact": ("exact", lambda _: HOM),
    "agreement": ("agreement", lambda _: Method(LocalSGD(1.0), Agreement())),
    "geometric-median": (
        "geometric-median",
        lambda _: Method(LocalSGD(1.0), GeometricMedian()),
    ),
    "equal": ("mean", lambda _: UniformLocalSGD(1.0)),
    "steps": ("step-weighted", lambda _: StepWeighted(1.0)),
    "tokens": ("size-weighted", lambda _: FedAvg(1.0)),
    "normalized-mean": ("normalized-mean", lambda _: FedNova(1.0)),
    "an algorithm": (HewHom(2.0, 0.4, 1.1), lambda _: HewHom(2.0, 0.4, 1.1)),
    "a null endpoint": (
        HewHom(20.0, 0.4, null_endpoint=True),
        lambda _: HewHom(20.0, 0.4, null_endpoint=True),
    ),
    "a rival": (
        Method(LocalSGD(1.0), FedExP()),
        lambda _: Method(LocalSGD(1.0), FedExP()),
    ),
}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", RULES)
def test_weights_are_the_pure_rules(pool: Pool, name: str, ranks: int) -> None:
    rule, pure = RULES[name]
    plan = Plan(rule, rates=(0.1, 0.05, 0.2, 0.1), tokens=(10, 30, 20, 5))
    history = pool.run(play, ranks, plan)
    same_bits(history)
    first = [rounds[0] for rounds in history]
    algorithm = pure(mean_travel(plan, ranks))
    decision, updates = pure_round(algorithm, first, plan, list(range(ranks)))
    results = np.array(first[0].report.weights)
    assert np.abs(results - decision.weights).max() <= WEIGHTS
    expected = first[0].start + decision.weights @ updates
    error = np.abs(first[0].after - expected).max() / np.abs(expected).max()
    assert error <= ROUNDING[torch.float32]
    assert first[0].report.steps == plan.steps[:ranks]
    assert first[0].report.status == decision.status


@pytest.mark.parametrize("bucket", [8, 100, 2**24])
@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.bfloat16,),
        (torch.float64,),
        (torch.float32, torch.bfloat16),
    ],
    ids=str,
)
def test_precisions_and_buckets(
    pool: Pool, dtypes: tuple[torch.dtype, ...], bucket: int
) -> None:
    plan = Plan(dtypes=dtypes, options=SyncOptions(bucket_bytes=bucket))
    history = pool.run(play, 4, plan)
    same_bits(history)
    first = [rounds[0] for rounds in history]
    decision, updates = pure_round(HOM, first, plan, [0, 1, 2, 3])
    worst = max(ROUNDING[dtype] for dtype in dtypes)
    results = np.array(first[0].report.weights)
    assert np.abs(results - decision.weights).max() <= max(3 * worst, WEIGHTS)
    expected = first[0].start + decision.weights @ updates
    error = np.abs(first[0].after - expected).max() / np.abs(expected).max()
    assert error <= worst


def test_runs_repeat_to_the_bit(pool: Pool) -> None:
    plan = Plan(rounds=3)
    once, twice = pool.run(play, 4, plan), pool.run(play, 4, plan)
    for a, b in zip(once, twice, strict=True):
        assert a[-1].after.tobytes() == b[-1].after.tobytes()
        assert a[-1].report.weights == b[-1].report.weights


@pytest.mark.parametrize("rule", ["exact", "variate"])
def test_ddp_modules_are_as_plain_ones(pool: Pool, rule: str) -> None:
    plan = Plan(rule, rounds=2)
    plain = pool.run(play, 2, plan)
    wrapped = pool.run(play, 2, replace(plan, ddp=True))
    assert plain[0][-1].after.tobytes() == wrapped[0][-1].after.tobytes()
    assert not np.array_equal(plain[0][0].before, plain[1][0].before)


@pytest.mark.parametrize(
    "server_step",
    [ServerStep(0.7, 0.9, nesterov=True), ServerStep(1.0, 0.5), ServerStep(0.5)],
    ids=repr,
)
def test_outer_optimiser_is_the_engines(pool: Pool, server_step: ServerStep) -> None:
    options = SyncOptions(bucket_bytes=64, server_step=server_step)
    plan = Plan("step-weighted", rounds=3, dtypes=(torch.float64,), options=options)
    history = pool.run(play, 4, plan)
    same_bits(history)
    memory = np.zeros_like(history[0][0].start)
    for t in range(plan.rounds):
        rounds = [rank[t] for rank in history]
        updates = np.stack([r.before - r.start for r in rounds])
        step = np.array(rounds[0].report.weights) @ updates
        move, memory = server_step.apply(step, memory)
        expected = rounds[0].start + move
        assert np.abs(rounds[0].after - expected).max() <= 1e-13


def branch(i: int, y: Array, steps: int, eta: float, correction: Array) -> Array:
    A, b = quadratic(i)
    for _ in range(steps):
        y = y - eta * (A.T @ (A @ y - b) - correction)
    return y


@final
@dataclass(frozen=True)
class Falling:
    """A schedule of Λ_t/L: first/(1 + t), not below 1.1."""

    first: float

    def __call__(self, t: int) -> float:
        return max(1.1, self.first / (1 + t))


CORRECTED: dict[str, Callable[[float], Algorithm[Any]]] = {
    "het by a schedule": lambda far: HewHet(smoothness(far), 1.0, Falling(8.0)),
    "variate": lambda _: VARIATE,
    "het from zero": lambda far: HewHet(smoothness(far), 1.0, start="zero"),
    "scaffold": lambda _: Scaffold(1.0 / 10.0),
}


@pytest.mark.parametrize("name", CORRECTED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_corrected_branches_are_the_papers(
    pool: Pool, name: str, dtype: torch.dtype
) -> None:
    """Four rounds by NumPy, control variates of all clients in one place."""
    plan = Plan("variate", rounds=4, dtypes=(dtype,))
    algorithm = CORRECTED[name](mean_travel(plan, 4))
    if name != "variate":
        plan = replace(plan, rule=algorithm)
    history = pool.run(play, 4, plan)
    same_bits(history)
    x, n = history[0][0].start, 4
    H, eta = np.array(plan.steps), np.array(plan.rates)
    ones = np.ones(n, dtype=np.int64)
    cohort = Cohort(np.arange(n), H, ones, ones, n)
    first = np.stack([A.T @ (A @ x - b) for A, b in map(quadratic, range(n))])
    given = first if algorithm.demands.gradients else None
    state = algorithm.init(n, len(x), given)
    tolerance = {torch.float64: 1e-11, torch.float32: 2e-5}[dtype]
    for t in range(plan.rounds):
        assert isinstance(algorithm, Corrected)
        variates: ControlVariates = algorithm.variates(state)
        k = variates.clients - variates.server
        ends = [branch(i, x, H[i], eta[i], k[i]) for i in range(n)]
        now = replace(cohort, round=t)
        round_ = matrix_round(x, np.stack(ends) - x, now, LocalPlan(eta, k))
        decision, state = algorithm.decide(round_, state)
        x = x + decision.weights @ round_.displacements.matrix()
        got = history[0][t]
        assert np.abs(np.array(got.report.weights) - decision.weights).max() <= (
            tolerance * 10
        )
        assert np.abs(got.after - x).max() <= tolerance * np.abs(x).max()


@pytest.mark.parametrize("rule", ["exact", "variate", "step-weighted"])
@pytest.mark.parametrize("spoiled", [(2,), (0,), (0, 3)], ids=str)
def test_a_rank_that_is_not_finite_has_no_weight(
    pool: Pool, rule: str, spoiled: tuple[int, ...]
) -> None:
    """Rank 0 travels least: it is the origin that the products start from."""
    plan = Plan(rule, rounds=2, spoiled=spoiled)
    history = pool.run(play, 4, plan)
    same_bits(history)
    last = [rounds[-1] for rounds in history]
    report = last[0].report
    assert report.excluded == spoiled
    assert all(report.weights[i] == 0 for i in spoiled)
    assert sum(report.weights) == pytest.approx(1, abs=1e-12)
    assert np.isfinite(last[0].after).all()
    participants = [i for i in range(4) if i not in spoiled]
    if rule == "exact":
        decision, updates = pure_round(HOM, last, plan, participants)
        results = np.array(report.weights)[participants]
        assert np.abs(results - decision.weights).max() <= WEIGHTS
        expected = last[0].start + decision.weights @ updates
        assert np.abs(last[0].after - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("rule", ["exact", "mean", "variate", "full"])
def test_bytes_are_those_of_a_ring_and_a_little_more(pool: Pool, rule: str) -> None:
    """With control variates there is a second sum: one ring more."""
    options = SyncOptions(bucket_bytes=4 * SIZE - 4)  # two, so that none is sent whole
    if rule == "full":
        options, rule = replace(options, gram="full"), "exact"
    plan = Plan(rule, options=options, rounds=2)
    for ranks in (2, 4):
        report = pool.run(play, ranks, plan)[0][-1].report
        ring = 2 * (ranks - 1) / ranks
        is_sketched = rule != "variate" and options.gram != "full"
        more = 1.0 * (ranks - 1) * (192 + 2**16 * is_sketched)  # and what each rank did
        if rule == "variate" or options.gram == "full":
            m = ranks + (rule == "variate")
            padding = 4 * (-SIZE % (16 * ranks))  # of shards
            more += ring * ((m**2 + m + 1) * 8 + padding)
            more += ring * 8 * 2 * ranks  # whose displacement is finite, and not zero
        if rule == "variate":
            more += 2 * ring * 8  # ⟨c, m⟩ and ‖m‖² of κ
            more += ring * 4 * SIZE
        assert report.bytes_sent == pytest.approx(ring * 4 * SIZE + more, abs=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_from_sketches_are_checked_on_the_data(
    pool: Pool, dtype: torch.dtype
) -> None:
    """In the next round; this model is so small that its sketch is exact."""
    plan = Plan(rounds=3, dtypes=(dtype,))
    full = replace(plan, options=replace(plan.options, gram="full"))
    history, twins = pool.run(play, 4, plan)[1], pool.run(play, 4, full)[1]
    assert [s.report.sketch_check is None for s in history] == [True, False, False]
    for before, now, twin in zip(history, history[1:], twins, strict=False):
        results = now.report.sketch_check
        assert results is not None
        assert results.round == before.report.round
        assert results.error < 1e-6
        assert results.gap == pytest.approx(before.report.gap, abs=1e-5)
        assert results.gap == pytest.approx(twin.report.gap, abs=1e-5)
        assert before.report.weights == pytest.approx(twin.report.weights, abs=1e-6)


def test_a_rule_may_know_every_rank(pool: Pool) -> None:
    """One variance for each rank, as a federation has one for each client."""
    rule = HewFixed(total=1.0 / 10.0, variance=(1.0, 2.0, 4.0))
    for rounds in pool.run(play, 3, Plan(rule)):
        worth = np.array([1.0, 3.0, 2.0]) / np.array([1.0, 2.0, 4.0])
        assert rounds[0].report.weights == pytest.approx(worth / worth.sum())
    for fine, (kind, text, _) in pool.outcomes(play, 2, Plan(rule)):
        assert not fine
        assert kind == "InvalidInputError"
        assert text == "`variance` must be one number or 2 of them; got 3 numbers"


def steady(rank: int, _: int, rule: str, in_one_pass: bool) -> list[tuple[Any, ...]]:
    """Eight rounds: in the sixth the last rank turns round under the sieve and idles
    under other rules, in the seventh it is lost. Weights of each round, and the model
    after it.
    """
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    history = []
    with HewLocalSGD(module, optimizer, 10**9, make_aggregator(rule)) as local:
        for t in range(8):
            start = [p.detach().clone() for p in module.parameters()]
            turns = rank == 2 and t == 5
            if rule == "sieve" or not turns:
                descend(module, optimizer, 2)
            for p, x in zip(module.parameters(), start, strict=True):
                if turns and rule == "sieve":
                    p.data = 3 * x - 2 * p.detach()
                elif rank == 2 and t == 6:
                    p.data = p.detach() * torch.nan
            if not in_one_pass:
                local._job.exchange._is_steady = False
            report = local.sync()
            assert report is not None
            history.append((report.weights, flat(module).tobytes()))
    return history


@pytest.mark.parametrize("rule", ["sieve", "mean", "step-weighted"])
def test_the_weight_of_the_round_before_changes_no_bit(pool: Pool, rule: str) -> None:
    """What was written with it is written again where the weight is another."""
    results, plain = (pool.run(steady, 3, rule, one)[1] for one in (True, False))
    assert results == plain
    weights = [one[0] for one in results]
    assert weights[4] == weights[3] == weights[2] != weights[5]
    assert weights[6][2] == 0


ALL = np.arange(3)


def test_a_rank_is_named_once() -> None:
    counts, weights = np.zeros(3, dtype=np.int64), np.array([0.5, 0.0, 0.5])
    rounds = range(2 * ZERO_WEIGHT_ROUNDS)
    texts = [name_zero_weights(counts, weights, ALL) for _ in rounds]
    expected = f"weight zero for {ZERO_WEIGHT_ROUNDS} rounds in a row: rank 1"
    assert texts[ZERO_WEIGHT_ROUNDS - 1] == expected
    assert [text for text in texts if text] == [expected]


def test_only_consecutive_rounds_with_a_displacement_count() -> None:
    counts = np.zeros(3, dtype=np.int64)

    def text_of(weights: list[float], ranks: Any = ALL) -> str:
        return name_zero_weights(counts, np.array(weights), ranks)

    for _ in range(ZERO_WEIGHT_ROUNDS - 1):
        text_of([1.0, 0.0, 0.0])
    assert text_of([0.5, 0.5, 0.0]).endswith("in a row: rank 2")
    for _ in range(ZERO_WEIGHT_ROUNDS):  # rank 1 takes no part: its count stays
        assert text_of([1.0, 0.0], np.array([0, 2])) == ""
    for _ in range(ZERO_WEIGHT_ROUNDS - 1):
        assert text_of([1.0, 0.0, 0.0]) == ""
    assert text_of([1.0, 0.0, 0.0]).endswith("in a row: rank 1")


def zero_weight_job(rank: int, _: int, folder: str) -> str:
    """Two ranks; the rule gives weight to the first alone."""
    module = Quadratic(rank, (torch.float64,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    options = SyncOptions(folder=folder)
    with HewLocalSGD(module, optimizer, 1, First(), None, options) as local:
        descend(module, optimizer, ZERO_WEIGHT_ROUNDS)
    assert local.last is not None
    return local.last.status


@final
@dataclass(frozen=True)
class First:
    """All weight to the first rank."""

    name: ClassVar[str] = "first"
    demands: ClassVar[Demands] = Demands()

    def init(self, n: int, d: int, gradients: Any) -> None:
        """There is no state."""

    def plan(self, cohort: Cohort, state: None) -> LocalPlan:  # noqa: ARG002 - none
        return LocalPlan(np.full(len(cohort.clients), 0.1))

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        weights = np.zeros(round_.displacements.n)
        weights[0] = 1.0
        return Decision(weights, "the first"), state


@pytest.mark.torch
def test_the_trace_of_a_job_names_it(pool: Pool, tmp_path: Path) -> None:
    statuses = pool.run(zero_weight_job, 2, str(tmp_path))
    assert set(statuses) == {
        f"the first; weight zero for {ZERO_WEIGHT_ROUNDS} rounds in a row: rank 1"
    }
    lines = (tmp_path / "seed-0" / "trace.jsonl").read_text().splitlines()
    assert [record.status for record in from_lines(lines)][-1] == statuses[0]


@final
@dataclass(frozen=True)
class TowardsZero(Aggregator):
    """An aggregator that reads the anchor: a tenth of the way to zero."""

    name: ClassVar[str] = "Towards zero"
    needs: ClassVar[frozenset[Need]] = frozenset({"entries"})

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        n = round_.displacements.n
        step = -0.1 * round_.anchor
        return Decision(np.full(n, 1 / n), "a tenth", step=step), state


def test_an_aggregator_may_read_the_anchor(pool: Pool) -> None:
    plan = Plan(TowardsZero(), rounds=2, dtypes=(torch.float64,))
    for rounds in pool.run(play, 3, plan):
        assert rounds[0].after == pytest.approx(0.9 * rounds[0].start)
        assert rounds[1].after == pytest.approx(0.81 * rounds[0].start)


@pytest.mark.parametrize("rule", [Mean(), CoordinateMedian(), GeometricMedian()])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_rejected_round_restarts_every_rank_from_the_model(
    rule: Aggregator, overlap: bool, pool: Pool, tmp_path: Path
) -> None:
    if overlap and "entries" in rule.needs:
        pytest.skip("such rules exchange entries, which do not overlap")
    options = SyncOptions(
        bucket_bytes=64,
        overlap=overlap,
        server_step=ServerStep(0.7, 0.9),
        folder=tmp_path,
    )
    refused = Certified(rule, f=1, refuse_above=1e-9)
    history = pool.run(play, 4, Plan(refused, rounds=3, options=options))
    for rank in history:
        for view in rank:
            assert view.after.tobytes() == rank[0].start.tobytes()
            assert not view.report.accepted
            assert view.report.weights == (0.0,) * 4
            assert view.report.measured["kappa"] > 1e-9
            assert view.report.status.startswith("rejected: ")
        assert rank[-1].report.round == 3
    lines = (tmp_path / "seed-0" / "trace.jsonl").read_text().splitlines()
    records = from_lines(lines)
    assert [record.round for record in records] == [0, 1, 2, 3]
    kappas = [record.observed.get("kappa") for record in records[1:]]
    assert kappas == [view.report.measured["kappa"] for view in history[0]]


def test_a_certified_job_is_the_job(pool: Pool) -> None:
    plain = pool.run(play, 4, Plan(GeometricMedian(), rounds=4))
    certified = pool.run(play, 4, Plan(Certified(GeometricMedian(), f=1), rounds=4))
    for one, other in zip(plain[0], certified[0], strict=True):
        assert one.after.tobytes() == other.after.tobytes()
        assert other.report.accepted
        numbers = other.report.measured
        assert numbers["kappa_lower"] <= numbers["kappa"] <= numbers["kappa_upper"]


@final
@dataclass(frozen=True)
class OneVotes(Aggregator):
    """Rejects on one rank alone, as rounding may on a machine of another kind."""

    name: ClassVar[str] = "One votes"

    def decide(self, round_: Round, state: Any) -> tuple[Decision, Any]:
        n = round_.displacements.n
        numbers = {"kappa": 1.0}
        rejected = torch.distributed.get_rank() == 2
        return Decision(
            np.full(n, 1 / n), "one", measured=numbers, rejected=rejected
        ), state


def test_one_rank_that_rejects_is_enough(pool: Pool) -> None:
    for rank in pool.run(play, 3, Plan(OneVotes(), rounds=2)):
        assert not any(view.report.accepted for view in rank)
        assert rank[-1].after.tobytes() == rank[0].start.tobytes()
