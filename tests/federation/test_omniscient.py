"""Attacks that see everything: their formulas, what they know, runs that resume."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hewfl import (
    ALIE,
    IPM,
    Alternating,
    AttackView,
    Drift,
    Federation,
    FixedSteps,
    Gaussian,
    HewControl,
    HewHet,
    HewHom,
    InvalidInputError,
    LocalSGD,
    Method,
    Mimic,
    MinMax,
    MinSum,
    ProblemBounds,
    RandomLabels,
    RandomUpdates,
    SampledParticipation,
    ScaledUpdates,
    Scenario,
    Sleeper,
    StaleUpdates,
    UniformLocalSGD,
    aggregators,
    simulate,
)
from hewfl.aggregators import (
    CoordinateMedian,
    ExactWeights,
    GeometricMedian,
    Mean,
    Trust,
)
from hewfl.core.round import Cohort, LocalPlan, Round
from hewfl.displacements.dense import as_dense
from hewfl.federation.adversary import deciding
from hewfl.federation.omniscient import search_strength
from hewfl.problems import Training, torch_from_arrays
from hewfl.simulation.audit import control_audit
from hewfl.simulation.rounds import Step
from tests.aggregators.byzfl_library import load_byzfl
from tests.simulation.toy import least_squares
from tests.simulation.unchecked import unchecked

Array = NDArray[np.floating[Any]]
HONEST = np.array([[1.0, 0.0, 2.0], [3.0, 1.0, 0.0], [2.0, 5.0, 1.0], [6.0, 2.0, 1.0]])
ATTACKS: dict[str, Any] = {
    "ALIE": ALIE(0.34),
    "ALIE, distance": ALIE(0.34, search="distance"),
    "ALIE, inner": ALIE(0.34, search="inner"),
    "IPM": IPM(0.34, 0.5),
    "IPM, inner": IPM(0.34, search="inner"),
    "mimic": Mimic(0.34, warmup=2),
    "mimic, named": Mimic(0.34, client=1),
    "min-max": MinMax(0.34),
    "min-max, unit": MinMax(0.34, "unit"),
    "min-sum": MinSum(0.34, "sign"),
    "Gaussian": Gaussian(0.34, std=0.1),
    "drift": Drift(0.34),
    "drift, distance": Drift(0.34, around="mean", search="distance"),
    "sleeper": Sleeper(IPM(0.34), 2, "mean"),
    "alternating": Alternating(Mimic(0.34, warmup=3), 2, 1),
}


def view_of(
    honest: Array = HONEST,
    b: int = 2,
    rule: Any = None,
    *,
    t: int = 0,
    memory: Any = None,
) -> AttackView:
    """A round in which the last b clients attack; they computed zeros honestly."""
    h, d = honest.shape
    n, ones = h + b, np.ones(h + b, dtype=np.int64)
    cohort = Cohort(np.arange(n), ones, ones, ones, n, t)
    rows = as_dense("updates", np.vstack([honest, np.zeros((b, d))]))
    round_ = Round(np.zeros(d), rows, cohort, LocalPlan(np.ones(n)))
    rule = rule or Mean()
    state = rule.init(n, d)
    return AttackView(
        round_, np.arange(h), np.arange(h, n), rule, state,
        deciding(lambda asked, s: rule.decide(asked, s)[0], state), 7, memory=memory,
    )  # fmt: skip


# ------------------------------------------------------------------ formulas


def test_alie_of_one_number() -> None:
    """Honest 1, 2, 3: mean 2, sample deviation 1; the attackers send 2 + z."""
    view = view_of(np.array([[1.0], [2.0], [3.0]]))
    np.testing.assert_allclose(ALIE(0.4, z=-1.5).attack(view), [[0.5], [0.5]])
    single = view_of(np.array([[4.0]]), 1)
    np.testing.assert_allclose(ALIE(0.4, z=3.0).attack(single), [[4.0]])


def test_alie_needs_as_many_supporters_as_the_paper_says() -> None:
    """n = 50, f = 24: s = 2 of 26 honest clients, z = Φ⁻¹(24/26) = 1.4261."""
    np.testing.assert_allclose(ALIE(0.4).strength(50, 24), 1.4260769, rtol=1e-7)
    np.testing.assert_allclose(ALIE(0.4).strength(20, 8), 0.6744898, rtol=1e-7)
    assert ALIE(0.4).strength(20, 19) == 0.0  # one honest client
    assert np.isfinite(ALIE(0.4).strength(20, 15))  # attackers are a majority
    assert ALIE(0.4).strength(4, 4) == 0.0


def test_inner_product_manipulation_is_minus_the_mean() -> None:
    np.testing.assert_allclose(
        IPM(0.3, 0.5).attack(view_of()), -0.5 * np.tile(HONEST.mean(axis=0), (2, 1))
    )


@pytest.mark.parametrize("kind", ["std", "unit", "sign"])
def test_min_max_and_min_sum_touch_their_bounds(kind: Any) -> None:
    gaps = np.linalg.norm(HONEST[:, None] - HONEST, axis=2)
    far = MinMax(0.3, kind).attack(view_of())[0]
    np.testing.assert_allclose(np.linalg.norm(far - HONEST, axis=1).max(), gaps.max())
    near = MinSum(0.3, kind).attack(view_of())[0]
    total = (np.linalg.norm(near - HONEST, axis=1) ** 2).sum()
    np.testing.assert_allclose(total, (gaps**2).sum(axis=1).max())
    mean = HONEST.mean(axis=0)
    p = {"std": -HONEST.std(axis=0, ddof=1), "unit": -mean, "sign": -np.sign(mean)}
    for sent in (far, near):  # along p, on its positive side
        gamma = (sent - mean) @ p[kind] / (p[kind] @ p[kind])
        np.testing.assert_allclose(sent, mean + gamma * p[kind])
        assert gamma > 0


def test_min_max_of_two_numbers() -> None:
    """Honest 0 and 2: mean 1, largest distance 2; p = −1, so γ = 1 and 0 is sent."""
    view = view_of(np.array([[0.0], [2.0]]), 1)
    np.testing.assert_allclose(MinMax(0.3, "unit").attack(view), [[0.0]], atol=1e-15)
    same = view_of(np.array([[3.0], [3.0]]), 1)
    np.testing.assert_allclose(MinMax(0.3).attack(same), [[3.0]])
    still = view_of(np.array([[-1.0], [1.0]]), 1)  # μ = 0 has no direction
    np.testing.assert_allclose(MinSum(0.3, "unit").attack(still), [[0.0]])


def test_gaussian_noise_is_new_in_every_round() -> None:
    attack, wide = Gaussian(0.3, 2.0, 3.0), np.tile(HONEST, (1, 4000))
    sent = attack.attack(view_of(wide))
    np.testing.assert_allclose([sent.mean(), sent.std()], [2, 3], rtol=0.05)
    assert not np.array_equal(sent[0], sent[1])
    np.testing.assert_array_equal(sent, attack.attack(view_of(wide)))
    assert not np.array_equal(sent, attack.attack(view_of(wide, t=1)))


def test_drift_keeps_one_direction_of_honest_length() -> None:
    sent = [
        Drift(0.3, 2.0).attack(view_of(HONEST * s, t=t)) for t, s in enumerate((1, 3))
    ]
    length = np.median(np.linalg.norm(HONEST, axis=1))
    np.testing.assert_allclose(np.linalg.norm(sent[0], axis=1), 2 * length)
    np.testing.assert_allclose(sent[1], 3 * sent[0])
    around = Drift(0.3, 2.0, around="mean").attack(view_of())
    np.testing.assert_allclose(around - HONEST.mean(axis=0), sent[0])


def test_mimic_copies_the_client_of_largest_variance() -> None:
    """Client 2 alone differs along the third axis, and differs most."""
    honest = np.array([[1.0, 0.1, 0.0], [1.0, -0.1, 0.0], [1.0, 0.0, 9.0]])
    attack = Mimic(0.3, warmup=3)
    memory: Any = attack.init(5, 3)
    for t in range(3):
        memory = attack.remember(view_of(honest, t=t, memory=memory))
    np.testing.assert_allclose(abs(memory.direction[2]), 1, atol=0.05)
    np.testing.assert_allclose(np.linalg.norm(memory.direction), 1)
    np.testing.assert_allclose(memory.mean, honest.mean(axis=0))
    later = view_of(np.roll(honest, 1, axis=0), t=9, memory=memory)
    assert attack.remember(later) is memory  # the warm-up is over
    np.testing.assert_array_equal(attack.attack(later), np.tile(honest[1], (2, 1)))
    named = Mimic(0.3, client=0)
    np.testing.assert_array_equal(named.attack(view_of(honest)), honest[[0, 0]])
    assert not Mimic(0.3, client=4).attack(view_of(honest)).any()  # it is no honest one


def test_first_round_of_mimic_is_oja() -> None:
    attack = Mimic(0.3)
    view = view_of(memory=attack.init(6, 3))
    z = view.run_rng().standard_normal(3)
    z /= np.linalg.norm(z)
    C = HONEST - HONEST.mean(axis=0)
    step = C.T @ C @ z
    memory = attack.remember(view)
    np.testing.assert_allclose(memory.direction, step / np.linalg.norm(step))
    np.testing.assert_allclose(memory.scores, [*(HONEST @ memory.direction), 0, 0])


def test_sleeper_and_alternating_follow_the_round() -> None:
    base = IPM(0.3, 1.0)
    struck, mean = -HONEST.mean(axis=0), HONEST.mean(axis=0)
    sleeper = Sleeper(base, 2, "mean")
    assert sleeper.share == 0.3
    rows = [sleeper.attack(view_of(t=t))[1] for t in range(4)]
    np.testing.assert_allclose(rows, [mean, mean, struck, struck])
    assert not Sleeper(base, 2).attack(view_of()).any()  # their own updates are zero
    rows = [Alternating(base, 1, 2).attack(view_of(t=t))[0] for t in range(5)]
    np.testing.assert_allclose(rows, [struck, 0 * mean, 0 * mean, struck, 0 * mean])


def test_byzfl_sends_the_same() -> None:
    byzfl = load_byzfl("attacks")
    if byzfl is None:
        pytest.skip("byzfl is not installed")
    view = view_of()
    pairs: list[tuple[Any, Any]] = [
        (ALIE(0.3, z=1.3), byzfl.ALittleIsEnough(1.3)),
        (ALIE(0.3, z=-0.4), byzfl.ALittleIsEnough(-0.4)),
        (IPM(0.3, 2.0), byzfl.InnerProductManipulation(2.0)),
        (IPM(0.3, 1.0), byzfl.SignFlipping()),
        (Mimic(0.3, client=2), byzfl.Mimic(2)),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours.attack(view)[0], theirs(HONEST), rtol=1e-12)


# ------------------------------------------------------------------ the rule is asked


def rules() -> dict[str, Any]:
    """Rules that look at the updates alone, with a root where they need one."""
    unable = ("oracle", "qfedavg", "fedexp")
    made = {
        name: aggregators.make(name) for name in aggregators.NAMES if name not in unable
    }
    return {
        name: rule for name, rule in made.items()
        if rule.needs.isdisjoint(("losses", "root", "variate", "truth"))
    }  # fmt: skip


@pytest.mark.parametrize("name", rules())
def test_a_probe_is_the_rule_on_the_rows(name: str, rng: np.random.Generator) -> None:
    """In products and through mapped blocks: the step that the sent rows would give."""
    rule = rules()[name]
    honest = 1.0 + 0.3 * rng.standard_normal((6, 40))
    view, u = view_of(honest, 2, rule), rng.standard_normal(40)
    coefficients = np.zeros((2, 9))
    coefficients[0, :3], coefficients[0, 8] = (0.5, -0.2, 0.1), 0.7
    coefficients[1, 4], coefficients[1, 8] = 1.0, -0.3
    rows = np.vstack([honest, np.zeros((2, 40)), u])
    response = view.probe(u).respond(coefficients)
    decision, _ = rule(np.vstack([honest, coefficients @ rows]))
    assert response is not None
    np.testing.assert_allclose(response.decision.weights, decision.weights, atol=1e-6)
    gap = decision.step - honest.mean(axis=0)
    np.testing.assert_allclose(response.sq_distance, gap @ gap, rtol=1e-4, atol=1e-9)
    inner = decision.step @ honest.mean(axis=0)
    np.testing.assert_allclose(response.inner, inner, rtol=1e-4)


def test_distances_keep_their_digits_beside_a_long_common_part() -> None:
    """1e7 in all updates: the square of the distance would be lost in 1e14 · 2^−52."""
    rng = np.random.default_rng(0)
    honest = 1e7 + 1e-3 * rng.standard_normal((5, 8))
    view = view_of(honest, 1)
    response = view.probe().respond(np.eye(6)[:1])
    assert response is not None
    gap = (honest.sum(axis=0) + honest[0]) / 6 - honest.mean(axis=0)
    np.testing.assert_allclose(response.sq_distance, gap @ gap, rtol=1e-3)


def test_a_probe_never_changes_the_state() -> None:
    problem = least_squares(n=8)
    states: list[Any] = []

    @dataclass(frozen=True)
    class Asking:
        share: float

        def attack(self, view: AttackView) -> Array:
            for strength in (0.1, 3.0):
                coefficients = np.zeros((view.b, view.n + 1))
                coefficients[:, -1] = strength
                assert view.probe(view.mean).respond(coefficients) is not None
            states.append(view.state)
            return view.own_rows

    def run(*faults: Any) -> Array:
        fed = Federation(FixedSteps(2), 4, scenario=Scenario(faults, "all"))
        methods: list[Any] = [
            HewHet(problem.smoothness, 0.5), Method(LocalSGD(0.02), Trust()),
            HewControl(ProblemBounds(problem.smoothness, 5.0, 1e-6, 1.0), variance=1.0),
        ]  # fmt: skip
        return simulate(problem, fed, methods, rounds=4, seed=0).anchors

    np.testing.assert_array_equal(run(Asking(0.3)), run())
    assert len(states) == 12


def test_an_exact_search_on_the_mean() -> None:
    """The mean follows any strength: the best is an end of the grid."""
    view = view_of()
    u, grid, zero = np.ones(3), (0.5, 1.0, 2.0), np.zeros(3)
    assert search_strength(view, zero, u, grid, "distance") == 0.5  # far from μ: small
    assert search_strength(view, zero, -u, grid, "distance") == 2.0
    assert search_strength(view, zero, -u, grid, "inner") == 2.0


@pytest.mark.parametrize("goal", ["distance", "inner"])
@pytest.mark.parametrize(
    "rule", [GeometricMedian(), CoordinateMedian(), Trust(), ExactWeights(kappa=2.0)]
)
def test_a_search_is_as_good_as_a_dense_one(rule: Any, goal: Any) -> None:
    rng = np.random.default_rng(3)
    honest = 0.5 + rng.standard_normal((9, 30))

    def harm(sent: Array) -> float:
        step = rule(np.vstack([honest, sent]))[0].step
        mean = honest.mean(axis=0)
        return float(((step - mean) ** 2).sum() if goal == "distance" else -step @ mean)

    view = view_of(honest, 4, rule)
    mean, std = honest.mean(axis=0), honest.std(axis=0, ddof=1)
    attack = ALIE(0.3, search=goal)
    found = harm(attack.attack(view))
    z = attack.strength(13, 4)
    tried = [
        harm(np.tile(mean + s * std, (4, 1))) for s in z * np.linspace(-16, 16, 321)
    ]
    spread = max(tried) - min(tried)
    assert found >= max(tried) - 0.15 * spread  # 24 calls against 321
    assert found >= harm(ALIE(0.3).attack(view))  # never worse than the formula's z


def test_a_search_looks_elsewhere_where_the_rule_refuses() -> None:

    view = view_of()

    def decide(asked: Round) -> Any:
        step = asked.displacements.combine(np.full(6, 1 / 6))
        if np.abs(step).max() > 2.0:
            return None
        return Mean().decide(asked, None)[0]

    view = replace(view, decide=decide)
    best = search_strength(view, np.zeros(3), np.ones(3), (1.0, 2.0, 100.0), "distance")
    assert best < 100.0


# ------------------------------------------------------------------ in a simulation


def methods_of(problem: Any) -> list[Any]:
    L, work = problem.smoothness, LocalSGD(total=0.5 / problem.smoothness)
    return [
        UniformLocalSGD(0.02), HewHet(L, 0.5), HewHom(L, 0.5),
        HewControl(ProblemBounds(L, 5.0, 1e-6, 1.0), variance=1.0),
        Method(work, GeometricMedian()), Method(work, CoordinateMedian()),
        Method(work, Trust()),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attacked_run_resumes_to_the_same_bytes(name: str, tmp_path: Path) -> None:
    problem = least_squares(n=9)
    faults = (ATTACKS[name], StaleUpdates(0.12, every=3))
    who = SampledParticipation(7)
    fed = Federation(FixedSteps(2), 4, who, scenario=Scenario(faults))

    def run(folder: str, rounds: int) -> bytes:
        with unchecked():
            simulate(
                problem, fed, methods_of(problem), rounds=rounds, seed=2,
                checkpoint=tmp_path / folder,
            )  # fmt: skip
        return (tmp_path / folder / "trace.jsonl").read_bytes()

    whole = run("whole", 5)
    run("parts", 2)
    assert run("parts", 5) == whole
    assert b"diverged" not in whole


def test_entries_are_attacked_each_by_its_own_rule() -> None:
    problem = least_squares(n=9)
    fed = Federation(FixedSteps(2), 4, scenario=Scenario((ALIE(0.34, search="inner"),)))
    entries = methods_of(problem)
    together = simulate(problem, fed, entries, rounds=3, seed=0).anchors
    for k, entry in enumerate(entries):
        alone = simulate(problem, fed, [entry], rounds=3, seed=0).anchors[0]
        np.testing.assert_allclose(together[k], alone, rtol=1e-9, atol=1e-12)


def received(*faults: Any, rounds: int = 2, dtype: Any = np.float64) -> list[Round]:
    """What the server receives."""
    rounds_: list[Round] = []

    def observe(step: Step) -> dict[str, float]:
        rounds_.append(step.round)
        return {}

    fed = Federation(FixedSteps(2), 4, scenario=Scenario(faults))
    simulate(
        least_squares(n=9), fed, [UniformLocalSGD(0.02)], rounds=rounds, seed=0,
        observers=[observe], dtype=dtype,
    )  # fmt: skip
    return rounds_


def test_attacks_see_the_updates_of_honest_clients_alone() -> None:
    attack, flip = IPM(0.34, 1.0), ScaledUpdates(0.12, -50.0)
    fed = Federation(FixedSteps(2), 4, scenario=Scenario((attack, flip)))
    assignment = fed.scenario.assign(0, fed.batches(9))
    rows = received(attack, flip)[0].displacements.matrix()
    honest = rows[assignment.honest].mean(axis=0)
    np.testing.assert_allclose(
        rows[list(assignment.attackers)], np.tile(-honest, (3, 1))
    )
    assert len(assignment.faulty) == 4


def test_two_attacks_act_in_order() -> None:
    first, second = IPM(0.23, 1.0), Mimic(0.23, client=0)
    rows = received(first, second)[0].displacements.matrix()
    assignment = Scenario((first, second)).assign(0, np.ones(9, dtype=np.int64))
    (_, _, ipm), (_, _, mimic) = assignment.attacks
    assert len({*ipm, *mimic}) == 4
    np.testing.assert_allclose(
        rows[list(ipm)], -np.tile(rows[assignment.honest].mean(axis=0), (2, 1))
    )


def test_single_precision_is_sent_in_single_precision() -> None:
    (round_,) = received(ALIE(0.34, search="distance"), rounds=1, dtype=np.float32)
    assert np.asarray(round_.displacements).dtype == np.float32


def test_an_attack_that_sends_infinity_is_excluded() -> None:
    @dataclass(frozen=True)
    class Endless:
        share: float

        def attack(self, view: AttackView) -> Array:
            return np.full((view.b, view.d), np.inf)

    fed = Federation(FixedSteps(2), 4, scenario=Scenario((Endless(0.34),)))
    trace = simulate(least_squares(n=9), fed, [UniformLocalSGD(0.02)], rounds=2, seed=0)
    assert trace.of(0)[-1].excluded == trace.attackers
    assert len(trace.attackers) == 3


def test_the_trace_names_the_attackers() -> None:
    fed = Federation(
        FixedSteps(2), 4, scenario=Scenario((IPM(0.34), ScaledUpdates(0.12)))
    )
    trace = simulate(least_squares(n=9), fed, [UniformLocalSGD(0.02)], rounds=1, seed=0)
    assert len(trace.attackers) == 3
    assert set(trace.attackers) < set(trace.faulty)


def test_nothing_is_certified_among_faulty_clients() -> None:
    problem = least_squares(n=9)
    L = problem.smoothness
    entry = HewControl(ProblemBounds(L, 5.0, 1e-6, 1.0), variance=1e-6)

    def run(*faults: Any) -> tuple[str, dict[str, float]]:
        fed = Federation(FixedSteps(2), 4, scenario=Scenario(faults))
        audit = control_audit(problem)
        trace = simulate(problem, fed, [entry], rounds=2, seed=0, observers=[audit])
        return trace.of(0)[-1].status, dict(trace.of(0)[-1].observed)

    status, observed = run()
    assert "no certificate: some updates" not in status
    assert observed
    for fault in (IPM(0.2), Sleeper(IPM(0.2)), RandomUpdates(0.2)):
        status, observed = run(fault)
        assert "no certificate: some updates are not the clients' own" in status
        assert not observed


def test_attackers_alone_in_a_round_know_their_own_updates() -> None:
    view = view_of()
    alone = replace(view, honest=view.attackers)
    np.testing.assert_array_equal(alone.mean, np.zeros(3))
    fed = Federation(
        FixedSteps(2), 4, SampledParticipation(1), scenario=Scenario((MinMax(0.8),))
    )
    trace = simulate(
        least_squares(n=9), fed, methods_of(least_squares(n=9)), rounds=6, seed=0
    )
    assert all("refused" not in record.status for record in trace.records)


def test_bad_input_is_refused() -> None:
    wrong: Any = IPM
    cases: list[tuple[Any, str]] = [
        (lambda: ALIE(0.2, z=np.inf), "`z` must be a finite number"),
        (lambda: ALIE(0.2, search="loss"), "`search` must be one of distance, inner"),  # type: ignore[arg-type]  # refused
        (lambda: Sleeper(wrong), "`base` must be an attack, such as"),
        (lambda: Sleeper(RandomLabels(0.2)), "`base` must be an attack"),  # type: ignore[arg-type]  # refused
        (lambda: Alternating(IPM(0.2), 0), "`on` must be at least 1; got 0"),
        (lambda: Mimic(0.2, warmup=0), "`warmup` must be at least 1"),
    ]
    for make, text in cases:
        with unchecked(), pytest.raises(InvalidInputError, match=text):
            make()

    @dataclass(frozen=True)
    class Short:
        share: float

        def attack(self, view: AttackView) -> Array:
            return view.own_rows[:, 1:]

    with pytest.raises(InvalidInputError, match=r"of shape \(3, 5\); got \(3, 4\)"):
        received(Short(0.34))


@pytest.mark.torch
def test_mean_gradients_of_attackers_fit_what_they_send() -> None:
    """Under AdamW gradients are sent, too: −Δ_i/(η_iH_i) of what is sent."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((54, 3)), rng.integers(4, size=54)
    problem = torch_from_arrays(
        torch.nn.Linear(3, 4), X, y, list(np.arange(54).reshape(9, 6)),
        training=Training(optimiser="adamw"),
    )  # fmt: skip
    observed: list[Round] = []

    def observe(step: Step) -> dict[str, float]:
        observed.append(step.round)
        return {}

    fed = Federation(FixedSteps(2), 4, scenario=Scenario((IPM(0.34, 1.0),)))
    trace = simulate(
        problem, fed, [HewHet(5.0, 1.0)], rounds=2, seed=0, observers=[observe]
    )
    bad = list(trace.attackers)
    for round_ in observed:
        assert round_.gradients is not None
        sent = round_.displacements.matrix()
        shown = -sent / round_.total_step[:, None]
        gradients = round_.gradients.matrix()
        np.testing.assert_allclose(gradients[bad], shown[bad], rtol=1e-5)
        assert not np.allclose(gradients, shown)  # the others' are no plain SGD
