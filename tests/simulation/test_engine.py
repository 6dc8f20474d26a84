"""The engine: one round like the pseudo-code, entries that do not touch each other."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hewfl import (
    ChoiceSteps,
    Entry,
    FedAvg,
    FedAvgM,
    Federation,
    FedNova,
    FedProx,
    FixedSteps,
    HewControl,
    HewFixed,
    HewHet,
    HewHom,
    InvalidInputError,
    LocalPlan,
    LocalSGD,
    Method,
    MinibatchSGD,
    ProblemBounds,
    RandomParticipation,
    SampledParticipation,
    Scaffold,
    ServerStep,
    StepWeighted,
    UniformLocalSGD,
    simulate,
)
from hewfl.aggregators import (
    Aggregator,
    Agreement,
    CenteredClipping,
    CoordinateMedian,
    Disagreement,
    FedAdp,
    FedAWARE,
    FedExP,
    FedMGDAPlus,
    GeometricMedian,
    Krum,
    MultiKrum,
    Oracle,
    QFedAvg,
    TrimmedMean,
    Trust,
)
from hewfl.algorithms.online_curvature import OnlineCurvature
from hewfl.control.certificate import Variant
from hewfl.core.round import Decision, Round
from hewfl.methods.registry import require_available
from hewfl.simulation.audit import control_audit, pathwise_audit
from hewfl.simulation.branches import run_branches, run_branches_plain
from hewfl.simulation.draws import draw
from hewfl.simulation.rounds import Step
from tests.delegation import delegating
from tests.simulation.toy import LeastSquares, least_squares

Array = NDArray[np.floating]
FEDERATION = Federation(ChoiceSteps(), 4)


def all_entries(L: float) -> list[Any]:
    """Every method there is."""
    bounds = ProblemBounds(L, 5.0, 1e-4, 1.0)
    return [
        HewHom(L, 0.4),
        HewHet(L, 0.4),
        HewHet(L, 0.4, start="zero", null_endpoint=True),
        OnlineCurvature(HewHom(L, 0.4)),
        OnlineCurvature(HewHet(L, 0.4)),
        HewFixed(total=0.4 / L),
        HewFixed(total=0.4 / L, variates="gradient", power=0.0),
        HewControl(bounds, 10.0),
        HewControl(bounds, 10.0, variant="sharp", source="caps", tracking=1.0),
        HewControl(bounds, 10.0, variant="absorbed", source="oracle"),
        UniformLocalSGD(0.3 / L),
        FedAvg(0.3 / L),
        FedProx(0.3 / L, prox=0.1),
        FedNova(0.3 / L),
        Scaffold(0.3 / L),
        MinibatchSGD(0.3 / L),
        StepWeighted(0.3 / L),
        Method(LocalSGD(0.3 / L), FedMGDAPlus()),
        Method(LocalSGD(0.3 / L), FedAWARE()),
        Method(LocalSGD(0.3 / L), FedExP()),
        Method(LocalSGD(0.3 / L), FedAdp()),
        Method(LocalSGD(0.3 / L), QFedAvg(1.0)),
        *for_unequal_quality(L),
        Entry(FedAvg(0.3 / L), ServerStep(momentum=0.9), "FedAvgM"),
        Entry(HewHet(L, 0.4), ServerStep(0.7, 0.5, nesterov=True)),
    ]


def for_unequal_quality(L: float) -> list[Any]:
    """The rules for clients of unequal quality."""
    return [
        Method(LocalSGD(0.3 / L), Disagreement()),
        Method(LocalSGD(0.3 / L), Agreement()),
        Method(LocalSGD(0.3 / L), GeometricMedian()),
        Method(LocalSGD(0.3 / L), CoordinateMedian()),
        Method(LocalSGD(0.3 / L), TrimmedMean()),
        Method(LocalSGD(0.3 / L), Krum()),
        Method(LocalSGD(0.3 / L), MultiKrum()),
        Method(LocalSGD(0.3 / L), CenteredClipping()),
        Method(LocalSGD(total=0.3 / L), Trust()),
        Method(LocalSGD(total=0.3 / L), Oracle()),
        Method(LocalSGD(total=0.3 / L), Disagreement()),
    ]


@pytest.fixture(scope="module")
def problem() -> LeastSquares:
    return least_squares()


def plans(rng: np.random.Generator, s: int, d: int) -> list[LocalPlan]:
    eta = rng.uniform(0.001, 0.01, s)
    correction = rng.standard_normal((s, d))
    return [
        LocalPlan(eta),
        LocalPlan(2 * eta, correction),
        LocalPlan(eta, proximal=0.3),
        LocalPlan(eta, hold=True),
        LocalPlan(eta, correction, proximal=0.1),
    ]


@pytest.mark.parametrize("horizons", [FixedSteps(1), FixedSteps(4), ChoiceSteps()])
def test_branches_equal_their_plain_twin(
    horizons: Any, problem: LeastSquares, rng: np.random.Generator
) -> None:
    federation = Federation(horizons, [1, 2, 3, 4, 5, 6], SampledParticipation(4))
    for t in range(3):
        cohort = federation.cohort(5, t, problem.data_sizes)
        draws = draw(5, t, cohort, problem.offsets)
        expected = plans(rng, 4, problem.d)
        anchors = rng.standard_normal((len(expected), problem.d))
        fast = run_branches(problem, anchors, cohort, expected, draws)
        for k, plan in enumerate(expected):
            plain = run_branches_plain(problem, anchors[k], cohort, plan, draws)
            assert np.abs(fast[k] - plain).max() <= 1e-13 * np.abs(anchors).max()
            assert np.abs(plain).max() > 1e-4


def test_a_round_is_the_pseudo_code(problem: LeastSquares) -> None:
    """Algorithm 2, two rounds, against a transcription that knows nothing of hewfl."""
    L, theta, ratio = problem.smoothness, 0.4, 1.25
    trace = simulate(
        problem, FEDERATION, [HewHet(L, theta, ratio, start="zero")], rounds=2, seed=3
    )
    x = np.zeros(problem.d)
    c, ci = np.zeros(problem.d), np.zeros((problem.n, problem.d))
    for t in range(2):
        cohort = FEDERATION.cohort(3, t, problem.data_sizes)
        draws = draw(3, t, cohort, problem.offsets)
        delta = np.zeros((problem.n, problem.d))
        renewed = ci.copy()
        for i in range(problem.n):
            H = int(cohort.horizons[i])
            eta, y = theta / (L * H), x.copy()
            for step in range(H):
                rows = draws.samples[step, i]
                A, b = problem.A[rows], problem.b[rows]
                y = y - eta * (A.T @ (A @ y - b) / len(b) - ci[i] + c)
            delta[i] = y - x
            renewed[i] = ci[i] - c + (x - y) / (H * eta)
        weights = np.array(trace.of(0)[t + 1].weights)
        gradient = delta @ (c + ratio * L * (weights @ delta))
        assert (weights @ gradient - gradient).max() < 1e-12  # optimal
        x = x + weights @ delta
        c, ci = c + (renewed - ci).mean(axis=0), renewed
    assert np.abs(trace.anchors[0] - x).max() < 1e-13


def test_entries_do_not_touch_each_other(problem: LeastSquares) -> None:
    entries = all_entries(problem.smoothness)
    together = simulate(problem, FEDERATION, entries, rounds=4, seed=1)
    for k, entry in enumerate(entries):
        alone = simulate(problem, FEDERATION, [entry], rounds=4, seed=1)
        error = np.abs(alone.anchors[0] - together.anchors[k]).max()
        assert error <= 1e-9 * (1 + np.abs(alone.anchors).max()), together.names[k]


def test_same_seed_same_bits_other_seed_other_run(problem: LeastSquares) -> None:
    entries = all_entries(problem.smoothness)
    first = simulate(problem, FEDERATION, entries, rounds=3, seed=1)
    again = simulate(problem, FEDERATION, entries, rounds=3, seed=1)
    other = simulate(problem, FEDERATION, entries, rounds=3, seed=2)
    assert np.array_equal(first.anchors, again.anchors)
    assert first.records == again.records
    assert (first.anchors != other.anchors).any(axis=1).all()


@pytest.mark.unchecked
def test_methods_make_progress(problem: LeastSquares) -> None:
    entries = all_entries(problem.smoothness)
    trace = simulate(problem, FEDERATION, entries, rounds=40, seed=1)
    best = problem.optimum().objective
    for k, name in enumerate(trace.names):
        gaps = trace.curve(k, "objective") - best
        assert gaps[-1] >= -1e-12
        if "control" not in name:  # its certificate allows next to no motion (E-09)
            assert gaps[-1] < 0.5 * gaps[0], name


def test_the_certificate_is_never_violated(problem: LeastSquares) -> None:
    L = problem.smoothness
    entries: list[Any] = [
        HewHom(L, 0.4),
        HewHom(L, 4.0, 2.0),
        HewHet(L, 0.4),
        HewHet(L, 8.0, 1.1, start="zero"),
        Entry(HewHet(L, 1.0), ServerStep(momentum=0.9)),
        Entry(HewHom(L, 1.0, null_endpoint=True), ServerStep(1.5, 0.5, nesterov=True)),
    ]
    trace = simulate(
        problem, FEDERATION, entries, rounds=30, seed=4, observers=[pathwise_audit]
    )
    for k in range(len(entries)):
        records = trace.of(k)[1:]
        assert sum(r.observed["certificate_violated"] for r in records) == 0
        assert min(r.observed["certificate_slack"] for r in records) >= -1e-9


def test_the_audit_can_fail() -> None:
    """With L far too small the certificate is no certificate, and the audit says so."""
    problem = symmetric()  # exact gradients, so no tracking error covers for it
    entry = HewHom(problem.smoothness / 1000, 1e-3)
    federation = Federation(FixedSteps(1), 2)
    trace = simulate(
        problem, federation, [entry], rounds=1, seed=4, observers=[pathwise_audit]
    )
    assert trace.of(0)[1].observed["certificate_violated"] == 1
    assert trace.of(0)[1].observed["certificate_slack"] < 0


@pytest.mark.parametrize("variant", ["paper", "sharp", "absorbed"])
def test_the_control_certificate_holds_in_the_mean(
    variant: Variant, problem: LeastSquares
) -> None:
    L, best = problem.smoothness, problem.optimum()
    radius = 2 * float(np.linalg.norm(best.x)) + 1
    noise = 0.0
    for x in (np.zeros(problem.d), best.x):  # v² at the points the run visits
        per_sample = problem.A * (problem.A @ x - problem.b)[:, None]
        noise = max(noise, float((per_sample**2).sum(axis=1).max()))
    algorithm = HewControl(
        ProblemBounds(L, radius, 1e-3, 1.0),
        noise,
        variant=variant,
        source="oracle",
    )
    bound, outcome = [], []
    for seed in range(30):
        trace = simulate(
            problem,
            FEDERATION,
            [algorithm],
            rounds=1,
            seed=seed,
            observers=[control_audit(problem)],
        )
        seen = trace.of(0)[1].observed
        bound.append(seen["certified_gap"])
        outcome.append(seen["next_gap"])
    assert np.mean(outcome) <= np.mean(bound)


# ------------------------------------------------------------------ faults


@delegating(LeastSquares)
@dataclass(frozen=True)
class Broken:
    """A problem some of whose clients answer nonsense."""

    inner: LeastSquares
    bad: tuple[int, ...]
    value: float

    def minibatch_gradients(self, models: Array, samples: Any, counts: Any) -> Array:
        gradients = self.inner.minibatch_gradients(models, samples, counts)
        owner = np.searchsorted(self.inner.offsets, samples[:, 0], side="right") - 1
        gradients[:, np.isin(owner, self.bad)] = self.value
        return gradients


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_client_that_is_not_finite_is_left_out(
    value: float, problem: LeastSquares
) -> None:
    L = problem.smoothness
    broken: Any = Broken(problem, (1, 4), value)
    entries = [entry for entry in all_entries(L) if not isinstance(entry, Entry)]
    trace = simulate(broken, FEDERATION, entries, rounds=3, seed=1)
    assert np.isfinite(trace.anchors).all()
    for record in trace.records:
        asked = entries[record.entry].demands.gradients
        if record.round > 0 or asked:  # those asked for a gradient at the start, too
            assert record.excluded == (1, 4)
        if record.round > 0:
            assert record.clients == (0, 2, 3, 5)


def test_entries_of_one_name_are_numbered(problem: LeastSquares) -> None:
    L = problem.smoothness
    entries: list[Any] = [FedAvg(0.1 / L), FedAvg(0.2 / L), HewHom(L, 0.4)]
    trace = simulate(problem, FEDERATION, entries, rounds=2, seed=1)
    assert trace.names == ("FedAvg #1", "FedAvg #2", "HEW (plain)")
    assert len(trace.final()) == 3
    with pytest.raises(InvalidInputError, match="`entry` must be one of FedAvg #1"):
        trace.of("FedAvg")
    with pytest.raises(InvalidInputError, match="`entry` must be from 0 to 2; got 3"):
        trace.communication(3)


@dataclass(frozen=True)
class Odd:
    """A law that answers what it was told to."""

    answer: Any

    def draw(self, *given: Any) -> Any:
        assert given
        return self.answer


@pytest.mark.parametrize(
    ("federation", "text"),
    [
        (Federation(FixedSteps(1), 4, Odd([0, 0, 1])), "distinct indices"),
        (Federation(FixedSteps(1), 4, Odd(np.ones(6, dtype=bool))), "distinct ind"),
        (Federation(FixedSteps(1), 4, Odd([0, 6])), "indices from 0 to 5"),
        (Federation(Odd(np.zeros(6, dtype=np.int64)), 4), "6 whole numbers"),
        (Federation(Odd(np.ones(6)), 4), "6 whole numbers"),
        (Federation(FixedSteps(1), [4, 4]), "`batch_size` must be one number or 6"),
    ],
)
def test_laws_that_break_the_rules_are_named(
    federation: Federation, text: str, problem: LeastSquares
) -> None:
    L = problem.smoothness
    with pytest.raises(InvalidInputError, match=text):
        simulate(problem, federation, [FedAvg(0.1 / L)], rounds=1, seed=0)


def test_when_nobody_is_finite_the_entry_stops(problem: LeastSquares) -> None:
    broken: Any = Broken(problem, tuple(range(6)), np.nan)
    L = problem.smoothness
    trace = simulate(broken, FEDERATION, [FedAvg(0.3 / L)], rounds=3, seed=1)
    assert [r.status[:8] for r in trace.of(0)] == ["start", *["diverged"] * 3]
    assert np.isfinite(trace.anchors).all()


def test_a_diverging_entry_stops_and_others_go_on(problem: LeastSquares) -> None:
    L = problem.smoothness
    calls = 0

    @delegating(LeastSquares)
    @dataclass(frozen=True)
    class Counting:
        inner: LeastSquares

        def minibatch_gradients(self, models: Array, *rest: Any) -> Array:
            nonlocal calls
            calls = len(models)
            return self.inner.minibatch_gradients(models, *rest)

    wild: Any = UniformLocalSGD(500.0 / L)
    calm: Any = FedAvg(0.3 / L)
    counting: Any = Counting(problem)
    trace = simulate(counting, FEDERATION, [wild, calm], rounds=30, seed=1)
    alone = simulate(problem, FEDERATION, [calm], rounds=30, seed=1)
    assert trace.of(0)[-1].status.startswith("diverged")
    assert calls == 1  # it costs nothing any more
    assert np.abs(trace.anchors[1] - alone.anchors[0]).max() < 1e-12
    assert trace.of(0)[-1].scalars < trace.of(1)[-1].scalars


def test_empty_rounds_change_nothing_and_cost_nothing(problem: LeastSquares) -> None:
    L = problem.smoothness
    federation = Federation(FixedSteps(2), 4, RandomParticipation(0.15))
    entries: list[Any] = [HewHet(L, 0.4), FedAvg(0.3 / L)]
    trace = simulate(problem, federation, entries, rounds=12, seed=2)
    empty = [r for r in trace.of(1) if r.status == "no client took part"]
    assert empty
    for record in empty:
        before = trace.of(1)[record.round - 1]
        assert record.objective == before.objective
        assert record.scalars == before.scalars


def test_inactive_clients_keep_their_control_variates(problem: LeastSquares) -> None:
    L = problem.smoothness
    seen: list[tuple[Any, Any]] = []

    def watch(step: Any) -> dict[str, float]:
        seen.append((step.round.cohort.clients, step.state.clients.copy()))
        return {}

    federation = Federation(FixedSteps(2), 4, SampledParticipation(2))
    simulate(problem, federation, [HewHet(L, 0.4)], rounds=5, seed=2, observers=[watch])
    for (active, before), (_, after) in pairwise(seen):
        idle = np.setdiff1d(np.arange(problem.n), active)
        assert np.array_equal(before[idle], after[idle])
        assert (before[active] != after[active]).any(axis=1).all()


def test_only_the_mean_of_the_variates_is_the_server_s(problem: LeastSquares) -> None:
    """lem:c-average: c_t stays the mean of the c_i,t under any participation."""
    L = problem.smoothness
    worst = 0.0

    def watch(step: Any) -> dict[str, float]:
        nonlocal worst
        variates = step.algorithm.variates(step.state)
        error = variates.server - variates.clients.mean(axis=0)
        worst = max(worst, float(np.abs(error).max()))
        return {}

    federation = Federation(ChoiceSteps(), 4, SampledParticipation(3))
    algorithms: list[Any] = [HewHet(L, 0.4), Scaffold(0.3 / L)]
    for algorithm in algorithms:
        simulate(problem, federation, [algorithm], rounds=20, seed=2, observers=[watch])
    assert 0 < worst < 1e-12


# ------------------------------------------------------------------ degenerations


def symmetric(d: int = 4) -> LeastSquares:
    """Identical clients whose every sample is the whole objective."""
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((1, d)), rng.standard_normal(1)
    return LeastSquares(np.repeat(a, 5, 0), np.repeat(b, 5), np.ones(5, np.int64))


@pytest.mark.parametrize("H", [1, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda L: HewHom(L, 0.6),
        lambda L: HewHet(L, 0.6),
        lambda L: HewFixed(total=0.6 / L),
    ],
)
def test_symmetric_exact_gradients_are_centralised_steps(
    H: int, make: Callable[[float], Any]
) -> None:
    """prop:corrected_exact_microsteps, prop:plain_exact_microsteps; GD for H = 1."""
    problem = symmetric()
    L = problem.smoothness
    federation = Federation(FixedSteps(H), 2)
    trace = simulate(problem, federation, [make(L)], rounds=3, seed=0)
    x = np.zeros(problem.d)
    for _ in range(3 * H):
        x = x - 0.6 / (L * H) * problem.full_gradients(x[None])[0].mean(axis=0)
    assert np.abs(trace.anchors[0] - x).max() < 1e-14
    for record in trace.of(0)[1:]:
        assert np.abs(np.array(record.weights) - 0.2).max() < 1e-12


# ------------------------------------------------------------------ bad input


def test_bad_arguments_are_named(problem: LeastSquares) -> None:
    entry = FedAvg(0.3 / problem.smoothness)
    with pytest.raises(InvalidInputError, match="`methods` must be at least one"):
        simulate(problem, FEDERATION, [], rounds=1, seed=0)
    with pytest.raises(InvalidInputError, match="`rounds` must be at least 0; got -1"):
        simulate(problem, FEDERATION, [entry], rounds=-1, seed=0)
    with pytest.raises(InvalidInputError, match=r"`start` must be of shape \(5,\)"):
        simulate(problem, FEDERATION, [entry], rounds=1, seed=0, start=np.zeros(3))
    with pytest.raises(InvalidInputError, match="`evaluate_every` must be at least 1"):
        simulate(problem, FEDERATION, [entry], rounds=1, seed=0, evaluate_every=0)


def test_evaluation_may_be_rare(problem: LeastSquares) -> None:
    entry = FedAvg(0.3 / problem.smoothness)
    often = simulate(problem, FEDERATION, [entry], rounds=7, seed=0)
    rarely = simulate(problem, FEDERATION, [entry], rounds=7, seed=0, evaluate_every=3)
    measured = [r.round for r in rarely.of(0) if r.objective is not None]
    assert measured == [0, 3, 6, 7]
    assert np.array_equal(often.anchors, rarely.anchors)
    assert rarely.final("objective") == often.final("objective")
    with pytest.raises(InvalidInputError, match="`quantity` must be one that was"):
        rarely.curve(0, "nonsense")
    assert rarely.curve("FedAvg", "length")[-1] > 0


def test_float32_branches_stay_close(problem: LeastSquares) -> None:
    entries: list[Any] = [
        HewHom(problem.smoothness, 0.4),
        HewHet(problem.smoothness, 0.4),
    ]
    wide = simulate(problem, FEDERATION, entries, rounds=5, seed=0)
    small = simulate(problem, FEDERATION, entries, rounds=5, seed=0, dtype=np.float32)
    assert small.anchors.dtype == np.float64
    assert np.abs(wide.anchors - small.anchors).max() < 1e-5


# ------------------------------------------------------------------ worker momentum


@dataclass(frozen=True)
class Still(Aggregator):
    """An aggregator that never moves: displacements depend on the draws alone."""

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        return Decision(np.zeros(round_.displacements.n), "stands still"), state


def received(
    problem: Any, *locals_: LocalSGD, rounds: int
) -> list[list[tuple[Any, Array]]]:
    """Participants and what they send, round by round, of each entry."""
    observed: list[list[tuple[Any, Array]]] = [[] for _ in locals_]

    def observe(step: Step) -> dict[str, float]:
        rows = step.round.displacements.matrix()
        observed[step.entry].append((step.round.cohort.clients, rows))
        return {}

    fed = Federation(FixedSteps(2), 4, SampledParticipation(4))
    methods = [Method(local, Still()) for local in locals_]
    simulate(problem, fed, methods, rounds=rounds, seed=3, observers=[observe])
    return observed


@delegating(LeastSquares)
@dataclass(frozen=True)
class Flaky:
    """A problem whose clients sometimes have no finite gradient."""

    inner: LeastSquares

    def minibatch_gradients(self, models: Array, samples: Any, counts: Any) -> Array:
        gradients = self.inner.minibatch_gradients(models, samples, counts)
        gradients[:, samples[:, 0] % 4 == 1] = np.nan
        return gradients


@pytest.mark.parametrize("is_flaky", [False, True])
def test_worker_momentum_is_a_mean_over_a_client_s_rounds(
    problem: LeastSquares, is_flaky: bool
) -> None:
    """m_i = (1 − β) Σ_s β^(k − s) Δ_i,s over the k rounds that i took part in.

    A round in which its displacement is not finite does not count.
    """
    beta, clients_of = 0.7, Flaky(problem) if is_flaky else problem
    locals_ = LocalSGD(0.02), LocalSGD(0.02, worker_momentum=beta)
    plain, sent = received(clients_of, *locals_, rounds=8)
    done: dict[int, list[Array]] = {}
    for (clients, rows), (same, momenta) in zip(plain, sent, strict=True):
        np.testing.assert_array_equal(clients, same)
        for i, row, momentum in zip(map(int, clients), rows, momenta, strict=True):
            done.setdefault(i, []).append(row)
            ages = np.arange(len(done[i]))[::-1]
            expected = (1 - beta) * beta**ages @ np.stack(done[i])
            np.testing.assert_allclose(momentum, expected, rtol=1e-12)
    assert {len(rows) for rows in done.values()} != {8}  # some were absent
    assert is_flaky == any(len(clients) < 4 for clients, _ in plain)


def test_worker_momentum_is_in_the_checkpoint(
    problem: LeastSquares, tmp_path: Path
) -> None:
    def run(name: str, rounds: int) -> bytes:
        local = LocalSGD(0.02, worker_momentum=0.9)
        methods = [
            Method(local, Trust()),
            FedAvg(0.02),
            Method(local, GeometricMedian()),
        ]
        fed = Federation(FixedSteps(2), 4, SampledParticipation(4))
        folder = tmp_path / name
        simulate(problem, fed, methods, rounds=rounds, seed=0, checkpoint=folder)
        return (folder / "trace.jsonl").read_bytes()

    whole = run("whole", 6)
    run("parts", 2)
    assert run("parts", 6) == whole


def test_worker_momentum_belongs_to_plain_local_steps() -> None:
    with pytest.raises(InvalidInputError, match="`worker_momentum` must be left out"):
        LocalSGD(0.1, variates="zero", worker_momentum=0.9)
    with pytest.raises(InvalidInputError, match="`worker_momentum` must be from 0"):
        LocalSGD(0.1, worker_momentum=1.0)
    local = LocalSGD(0.1, worker_momentum=0.9)
    assert Method(local, Trust()).name == "Trust, worker momentum 0.9"
    with pytest.raises(InvalidInputError, match="without `worker_momentum`"):
        require_available(Method(local, Trust()))


def test_a_label_does_not_take_a_method_s_server_step() -> None:
    """`Entry(FedAvgM(…), label=…)` was FedAvg without momentum."""
    method = FedAvgM(0.1, momentum=0.8)
    assert Entry(method, label="mine").server_step == method.server_step
    assert Entry(method, ServerStep()).server_step == ServerStep()
    assert Entry(HewHom(1.0, 0.5)).server_step == ServerStep()
