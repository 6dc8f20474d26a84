"""Scenarios: faulty clients are the same for all methods and hidden from them."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hewfl import (
    ConstantUpdates,
    DataError,
    Federation,
    FixedSteps,
    FlippedLabels,
    GrowingNoise,
    HewFixed,
    HewHet,
    HiddenBatches,
    InvalidInputError,
    LocalSGD,
    Method,
    RandomLabels,
    RandomUpdates,
    SampledParticipation,
    ScaledUpdates,
    Scenario,
    StaleUpdates,
    UniformLocalSGD,
    simulate,
)
from hewfl.aggregators import Oracle
from hewfl.core.round import Decision, Round
from hewfl.problems import (
    Softmax,
    Training,
    softmax_common_pool,
    softmax_from_arrays,
    torch_from_arrays,
)
from hewfl.server.trace import from_lines
from hewfl.simulation.rounds import Step
from tests.simulation.toy import least_squares
from tests.simulation.unchecked import unchecked

Array = NDArray[np.floating[Any]]
N, M, P, C = 6, 12, 3, 4
ONE = 1 / N
"""The share of one client."""
FAULTS: dict[str, Any] = {
    "random labels": RandomLabels(ONE),
    "flipped labels": FlippedLabels(ONE, labels=0.7),
    "flipped signs": ScaledUpdates(ONE),
    "loud": ScaledUpdates(2 * ONE, 10.0),
    "random": RandomUpdates(ONE, 3.0),
    "constant": ConstantUpdates(2 * ONE, 2.0),
    "stale": StaleUpdates(ONE, every=3),
    "noise": GrowingNoise(ONE, 0.5),
    "hidden": HiddenBatches((1, 3)),
}


def softmax() -> Softmax:
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((N * M, P)), rng.integers(C, size=N * M)
    rows = np.arange(N * M).reshape(N, M)
    return softmax_from_arrays(X, y, list(rows), l2=0.1)


def federation(*faults: Any, **more: Any) -> Federation:
    return Federation(FixedSteps(2), 2, scenario=Scenario(faults), **more)


@pytest.fixture(scope="module")
def problem() -> Softmax:
    return softmax()


def displacements(
    problem: Any, federation: Federation, rounds: int = 4, seed: int = 0
) -> list[Array]:
    """What the server hears round by round from a rule that never moves."""
    observed: list[Array] = []

    def observe(step: Step) -> dict[str, float]:
        observed.append(step.round.displacements.matrix())
        return {}

    simulate(
        problem, federation, [Still()], rounds=rounds, seed=seed, observers=[observe],
        evaluate_every=None,
    )  # fmt: skip
    return observed


@dataclass(frozen=True)
class Still:
    """A rule that stays where it is: what clients send is all that changes."""

    rule: Any = field(default_factory=lambda: UniformLocalSGD(0.3))
    name: str = "still"

    @property
    def demands(self) -> Any:
        return self.rule.demands

    def init(self, n: int, d: int, gradients: Any) -> None:
        """There is no state."""

    def plan(self, cohort: Any, state: None) -> Any:
        return self.rule.plan(cohort, state)

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        return Decision(np.zeros(round_.displacements.n), "stands still"), state


# ------------------------------------------------------------------ each fault


@pytest.mark.parametrize("name", FAULTS)
def test_only_bad_clients_send_something_else(problem: Softmax, name: str) -> None:
    fed = federation(FAULTS[name])
    faults_of = fed.scenario.assign(0, fed.batches(N))
    good, received = displacements(problem, federation()), displacements(problem, fed)
    if name == "hidden":  # draws have another width: honest clients differ as well
        assert not faults_of.faulty
        assert not np.allclose(good[0], received[0])
        return
    differs = [i for i in range(N) if not np.array_equal(good[2][i], received[2][i])]
    assert differs == sorted(faults_of.faulty)
    assert len(differs) == round(N * FAULTS[name].share)


def test_updates_are_what_the_laws_say(problem: Softmax) -> None:
    def both(fault: Any) -> tuple[list[Array], list[Array], list[int]]:
        fed = federation(fault)
        bad = sorted(fed.scenario.assign(0, fed.batches(N)).faulty)
        received = [rows[bad] for rows in displacements(problem, fed)]
        return [rows[bad] for rows in honest], received, bad

    honest = displacements(problem, federation())
    good, received, _ = both(ScaledUpdates(ONE, -2.0))
    np.testing.assert_allclose(received[1], -2 * good[1])
    good, received, _ = both(RandomUpdates(ONE, 3.0))
    size = np.linalg.norm
    np.testing.assert_allclose(size(received[1]), 3 * size(good[1]))
    assert abs(np.vdot(received[0], received[1])) < 0.95 * size(received[0]) * size(
        received[1]
    )
    good, received, _ = both(ConstantUpdates(2 * ONE, 2.0))
    every = np.concatenate(received)
    every /= size(every, axis=1)[:, None]
    np.testing.assert_allclose(every - every[0], 0, atol=1e-12)
    good, received, _ = both(GrowingNoise(ONE, 0.5))
    for t in range(4):
        noise = size(received[t] - good[t])
        np.testing.assert_allclose(noise, 0.5 * t * size(good[t]), atol=1e-12)
    good, received, _ = both(StaleUpdates(ONE, every=3))
    for t, last in enumerate((0, 0, 0, 3)):
        np.testing.assert_array_equal(received[t], good[last])


@pytest.mark.torch
def test_mean_gradients_are_as_wrong_as_displacements() -> None:
    """Under AdamW control variates are gradients that are sent, by bad clients too."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((N * M, P)), rng.integers(C, size=N * M)
    rows = list(np.arange(N * M).reshape(N, M))
    # steps too small to move anything: gradients depend on the draws alone
    training = Training(optimiser="adamw")
    problem = torch_from_arrays(torch.nn.Linear(P, C), X, y, rows, training=training)

    def received(*faults: Any) -> tuple[list[Array], list[int]]:
        observed: list[Array] = []

        def observe(step: Step) -> dict[str, float]:
            assert step.round.gradients is not None
            observed.append(step.round.gradients.matrix())
            return {}

        fed = federation(*faults)
        entries = [HewHet(1e12, 1.0)]
        given: dict[str, Any] = {"observers": [observe], "evaluate_every": None}
        simulate(problem, fed, entries, rounds=4, seed=0, **given)
        return observed, sorted(fed.scenario.assign(0, fed.batches(N)).faulty)

    honest, _ = received()
    flipped, bad = received(ScaledUpdates(ONE, -2.0))
    np.testing.assert_allclose(flipped[2][bad], -2 * honest[2][bad], rtol=1e-4)
    again, bad = received(StaleUpdates(ONE, every=3))
    for t, last in enumerate((0, 0, 0, 3)):
        np.testing.assert_allclose(again[t][bad], honest[last][bad], rtol=1e-4)
        rest = np.delete(np.arange(N), bad)
        np.testing.assert_allclose(again[t][rest], honest[t][rest], rtol=1e-4)


def test_labels_are_what_the_laws_say(problem: Softmax) -> None:
    fed = federation(FlippedLabels(ONE))
    faults_of = fed.scenario.assign(0, fed.batches(N))
    (bad,) = faults_of.faulty
    wrong = faults_of.relabel(problem)
    mine = slice(bad * M, (bad + 1) * M)
    np.testing.assert_array_equal(wrong.labels[mine], C - 1 - problem.labels[mine])
    rest = np.delete(np.arange(N * M), np.arange(N * M)[mine])
    np.testing.assert_array_equal(wrong.labels[rest], problem.labels[rest])
    some = federation(RandomLabels(ONE, labels=0.5))
    drawn = some.scenario.assign(0, some.batches(N)).relabel(problem).labels[mine]
    changed = (drawn != problem.labels[mine]).sum()
    assert 0 < changed < M


def test_faults_fall_on_different_clients() -> None:
    fed = federation(RandomLabels(2 * ONE), ScaledUpdates(3 * ONE))
    bad = fed.scenario.assign(3, fed.batches(N)).faulty
    kinds = [type(fault).__name__ for fault in bad.values()]
    assert len(bad) == 5
    assert kinds.count("RandomLabels") == 2
    other = [
        tuple(fed.scenario.assign(seed, fed.batches(N)).faulty) for seed in range(8)
    ]
    assert len(set(other)) > 1  # who is bad depends on the seed


# ------------------------------------------------------------------ hidden from rules


def test_a_rule_never_sees_who_is_bad(problem: Softmax) -> None:
    """Everything a rule is given is the same when the names are exchanged.

    The rule keeps all it is given. With the update of one client flipped, the rounds of
    two runs differ in that client's displacement and in nothing else.
    """

    @dataclass(frozen=True)
    class Recorder:
        kept: list[Any]
        rule: Any = field(default_factory=lambda: UniformLocalSGD(0.3))
        name: str = "recorder"

        @property
        def demands(self) -> Any:
            return self.rule.demands

        def init(self, n: int, d: int, gradients: Any) -> None:
            self.kept.append(("init", n, d, gradients))

        def plan(self, cohort: Any, state: None) -> Any:
            self.kept.append(("plan", cohort, state))
            return self.rule.plan(cohort, state)

        def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
            self.kept.append(("decide", round_, state))
            return Decision(np.zeros(round_.displacements.n), "stands still"), state

    def words(value: Any) -> Iterator[Any]:
        """All that hangs on a value, but the displacements."""
        if dataclasses.is_dataclass(value):
            for part in dataclasses.fields(value):
                if part.name != "displacements":
                    yield from words(getattr(value, part.name))
        elif isinstance(value, list | tuple):
            for part in value:
                yield from words(part)
        else:
            yield value.tobytes() if isinstance(value, np.ndarray) else value

    observed: dict[str, list[Any]] = {}
    scenarios = {"good": (), "bad": (ScaledUpdates(ONE), HiddenBatches((1,)))}
    for name, faults in scenarios.items():
        kept: list[Any] = []
        fed = federation(*faults)
        trace = simulate(problem, fed, [Recorder(kept)], rounds=2, seed=0)
        observed[name] = list(words(kept))
    assert trace.faulty == tuple(fed.scenario.assign(0, fed.batches(N)).faulty)
    assert observed["good"] == observed["bad"]
    assert len(observed["good"]) > 20


def test_the_trace_says_who_is_bad(problem: Softmax, tmp_path: Path) -> None:
    fed = federation(ScaledUpdates(2 * ONE), HiddenBatches((1, 3)))
    entries = [UniformLocalSGD(0.3)]
    trace = simulate(problem, fed, entries, rounds=2, seed=1, checkpoint=tmp_path)
    faults_of = fed.scenario.assign(1, fed.batches(N))
    first, *later = from_lines((tmp_path / "trace.jsonl").read_text().splitlines())
    assert trace.faulty == tuple(sorted(faults_of.faulty)) == first.scenario["faulty"]
    assert first.scenario["batch_sizes"] == tuple(faults_of.batches)
    assert all(not record.scenario for record in later)


def test_the_yardstick_knows(problem: Softmax) -> None:
    fed = federation(ScaledUpdates(2 * ONE), HiddenBatches((1, 3)))
    trace = simulate(
        problem, fed, [Method(LocalSGD(total=0.3), Oracle())], rounds=1, seed=1
    )
    faults_of = fed.scenario.assign(1, fed.batches(N))
    worth = np.where(
        np.isin(np.arange(N), list(faults_of.faulty)), 0, faults_of.batches
    )
    np.testing.assert_allclose(trace.of(0)[-1].weights, worth / worth.sum())


# ------------------------------------------------------------------ the objective


@pytest.mark.parametrize("whose", ["honest", "all"])
def test_the_objective_is_of_those_who_are_judged(problem: Softmax, whose: str) -> None:
    scenario = Scenario((RandomLabels(2 * ONE),), whose)  # type: ignore[arg-type]  # both are right
    fed = Federation(FixedSteps(2), 2, scenario=scenario)
    trace = simulate(problem, fed, [UniformLocalSGD(0.3)], rounds=2, seed=0)
    faults_of = scenario.assign(0, fed.batches(N))
    losses = faults_of.relabel(problem).client_losses(trace.anchors)[0]
    chosen = losses[faults_of.honest] if whose == "honest" else losses
    (result,) = trace.final().values()
    np.testing.assert_allclose(result, chosen.mean())
    assert len(faults_of.honest) == N - 2


# ------------------------------------------------------------------ going on


@pytest.mark.parametrize("who", ["full", "sampled"])
def test_a_stopped_run_goes_on_with_the_same_bytes(
    problem: Softmax, tmp_path: Path, who: str
) -> None:
    more = {} if who == "full" else {"participation": SampledParticipation(4)}
    faults = (StaleUpdates(2 * ONE, every=4), GrowingNoise(ONE), HiddenBatches((1, 3)))
    fed = federation(*faults, **more)
    entries: list[Any] = [
        UniformLocalSGD(0.3), HewFixed(total=0.4), HewHet(1.0, 0.4)
    ]  # fmt: skip

    def run(name: str, rounds: int) -> bytes:
        folder = tmp_path / name
        simulate(problem, fed, entries, rounds=rounds, seed=2, checkpoint=folder)
        return (folder / "trace.jsonl").read_bytes()

    whole = run("whole", 7)
    run("parts", 3)
    assert run("parts", 7) == whole


def test_another_scenario_does_not_go_on(problem: Softmax, tmp_path: Path) -> None:
    entries = [UniformLocalSGD(0.3)]
    fed = federation(ScaledUpdates(ONE))
    simulate(problem, fed, entries, rounds=1, seed=0, checkpoint=tmp_path)
    with pytest.raises(DataError, match=r"its federation is .*ScaledUpdates"):
        simulate(problem, federation(), entries, rounds=2, seed=0, checkpoint=tmp_path)


def test_entries_do_not_touch_each_other(problem: Softmax) -> None:
    fed = federation(StaleUpdates(ONE, every=2), RandomUpdates(ONE))
    entries = [UniformLocalSGD(s) for s in np.linspace(0.1, 1.0, 9)]
    together = simulate(problem, fed, entries, rounds=3, seed=0).anchors
    alone = simulate(problem, fed, entries[4:5], rounds=3, seed=0).anchors[0]
    np.testing.assert_allclose(together[4], alone, rtol=1e-10)


# ------------------------------------------------------------------ bad input


def test_bad_input_is_refused(problem: Softmax) -> None:
    wrong: Any = 3
    cases: list[tuple[Any, str]] = [
        (lambda: RandomLabels(1.0), "`share` must be from 0 to below 1; got 1.0"),
        (lambda: FlippedLabels(0.1, 1.5), "`labels` must be from 0 to 1; got 1.5"),
        (lambda: ScaledUpdates(0.1, np.inf), "`factor` must be a finite number"),
        (lambda: StaleUpdates(0.1, 1), "`every` must be at least 2; got 1"),
        (lambda: HiddenBatches(()), "`choices`"),
        (lambda: Scenario([RandomLabels(0.1)]), "`faults` must be a tuple"),  # type: ignore[arg-type]  # refused
        (lambda: Scenario((3,)), "`faults` must be faults"),  # type: ignore[arg-type]  # refused
        (lambda: Scenario((), "me"), "`objective` must be one of honest, all"),  # type: ignore[arg-type]  # refused
        (lambda: Federation(FixedSteps(1), 2, scenario=wrong), "a Scenario"),
    ]
    for make, text in cases:
        with unchecked(), pytest.raises(InvalidInputError, match=text):
            make()
    fed = federation(RandomLabels(0.9))
    with pytest.raises(InvalidInputError, match="one of 2 is honest"):
        fed.scenario.assign(0, fed.batches(2))
    few = Scenario((FlippedLabels(0.25), RandomLabels(0.1)))
    with pytest.raises(InvalidInputError, match=r"RandomLabels\(share=0.1.*on none"):
        few.assign(0, fed.batches(4))
    none = Scenario((RandomLabels(0.0),)).assign(0, fed.batches(4))
    assert none.faulty == {}
    with pytest.raises(InvalidInputError, match="a problem that has classes"):
        displacements(least_squares(), federation(RandomLabels(0.3)), 1)
    pool = softmax_common_pool(problem.features, problem.labels, N, l2=0.1)
    with pytest.raises(InvalidInputError, match="clients that share no samples"):
        displacements(pool, federation(RandomLabels(0.3)), 1)


# ------------------------------------------------------------------ torch modules


@pytest.mark.torch
def test_scenarios_meet_torch_modules_too() -> None:
    torch = pytest.importorskip("torch")
    from hewfl.problems import TorchModule  # noqa: PLC0415 - only where torch is

    rng = np.random.default_rng(0)
    X, y = torch.tensor(rng.standard_normal((N * M, P))), rng.integers(C, size=N * M)
    net = torch.nn.Linear(P, C)
    sizes = np.full(N, M)
    module = TorchModule(net, X, torch.tensor(y), np.arange(N) * M, sizes)
    fed = federation(FlippedLabels(2 * ONE), ScaledUpdates(ONE), HiddenBatches((1, 3)))
    trace = simulate(module, fed, [UniformLocalSGD(0.1)], rounds=2, seed=0)
    faults_of = fed.scenario.assign(0, fed.batches(N))
    wrong = faults_of.relabel(module)
    mirrored = [
        i
        for i in range(N)
        if (wrong.labels[i * M : i * M + M] != module.labels[i * M : i * M + M]).any()
    ]
    assert mirrored == [
        i for i, f in faults_of.faulty.items() if isinstance(f, FlippedLabels)
    ]
    losses = wrong.client_losses(trace.anchors)[0]
    (result,) = trace.final().values()
    np.testing.assert_allclose(result, losses[faults_of.honest].mean(), rtol=1e-6)
    reals = TorchModule(
        torch.nn.Linear(P, 1), X, X[:, :1], np.arange(N) * M, sizes,
        loss=lambda a, b: ((a - b) ** 2).sum(1),
    )  # fmt: skip
    with pytest.raises(InvalidInputError, match="`labels` must be classes"):
        displacements(reals, federation(RandomLabels(ONE)), 1)
