"""Algorithm 1: what it certifies holds, whoever stays away, and else it says so."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

import hewfl.algorithms.hew_control as controller
from hewfl import (
    ClientProfile,
    Entry,
    Federation,
    FixedSteps,
    HewControl,
    HewHet,
    HewHom,
    InvalidInputError,
    ProblemBounds,
    RandomParticipation,
    SampledParticipation,
    ServerStep,
    UpperState,
    simulate,
)
from hewfl.control.joint_problem import predictive_control
from hewfl.control.tracking import (
    ball_tracking,
    predictable_tracking,
    propagated_bounds,
)
from hewfl.core.algorithm import Truth
from hewfl.core.round import Cohort, LocalPlan
from hewfl.displacements.dense import matrix_round
from hewfl.federation import Scenario
from hewfl.federation.attacks import HiddenBatches, ScaledUpdates, StaleUpdates
from hewfl.federation.participation import RotatingParticipation
from hewfl.problems import Quadratic, random_quadratic
from hewfl.simulation.audit import control_audit
from hewfl.theory import System
from hewfl.theory.appendix import propagated_tracking
from tests.algorithms.exact import Always, audits

BOX = ProblemBounds(1.0, 3.0, 1e-3, 0.3)
SYSTEMS = 24
"""Random systems of the suite; `python -m tests.algorithms.exact 10000` has more."""


def observed(trace: Any, name: str, entry: int = 0) -> Any:
    return np.array([r.observed[name] for r in trace.of(entry) if name in r.observed])


# ------------------------------------------------------------------ absent clients


def lonely() -> Quadratic:
    """F_1 = 0 and F_2 = x²/2, without noise: erratum F's counter-example."""
    A, zeros = np.array([[[0.0]], [[1.0]]]), np.zeros((2, 1))
    return Quadratic(A, zeros, zeros, np.array([1, 1]))


@pytest.mark.unchecked
def test_one_client_alone_makes_no_false_promise() -> None:
    problem = lonely()
    control = HewControl(ProblemBounds(1.0, 6.0, 1e-4, 0.1), 0.0, "sharp")
    federation = Federation(FixedSteps(1), 1, Always((0,)))
    given: Any = {"rounds": 260, "seed": 0, "start": [1.0], "evaluate_every": None}
    audit = [control_audit(problem)]
    trace = simulate(problem, federation, [control], observers=audit, **given)
    gap, bound = observed(trace, "next_gap"), observed(trace, "certified_gap")
    assert len(gap) == 260
    assert (gap <= bound).all()


@pytest.mark.unchecked
def test_certificates_hold_exactly_in_random_systems_under_random_laws() -> None:
    falls = 0
    for seen in audits(SYSTEMS):
        assert not any(round_.is_broken for round_ in seen)
        falls += any(round_.bound < 0.99 * round_.cap for round_ in seen)
    assert falls > SYSTEMS / 10  # they say something, too


@pytest.mark.unchecked
def test_without_the_charge_for_absence_certificates_are_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the audit is for: the recursion of full participation, whoever is away."""

    def uncharged(tracking: Any, clients: Any, *rest: Any, **more: Any) -> Any:
        after = propagated(tracking, clients, *rest, **more)
        return np.full_like(after, after[clients].max())

    propagated = propagated_bounds
    monkeypatch.setattr(controller, "propagated_bounds", uncharged)
    assert any(any(r.is_broken for r in seen) for seen in audits(SYSTEMS))


def test_bounds_of_the_controller_are_those_of_the_theory() -> None:
    horizons, batches, v2 = np.array([1, 2, 4]), np.array([2, 2, 4]), [0.3, 0.1, 0.2]
    control = HewControl(BOX, v2, "sharp", tracking=0.01)
    state = control.init(3, 2, np.zeros((3, 2)))
    S = np.array([0, 2])
    cohort = Cohort(S, horizons[S], batches[S], batches[S], 3)
    plan = control.plan(cohort, state)
    round_ = matrix_round(np.zeros(2), np.zeros((2, 2)), cohort, plan)
    decision, after = control.decide(round_, state)
    theta, J = control.certified(round_, state, decision.weights)
    system = System(1.0, 3.0, horizons, batches, v2)
    given = ([True, False, True], 4.5, [0.01] * 3)
    expected = propagated_tracking(system, theta.max(), *given, variant="sharp")
    ball = ball_tracking(system.noise, 1.0, 3.0)
    np.testing.assert_allclose(after.upper.tracking, np.minimum(expected, ball))
    assert after.upper.gap == J


def test_printed_noise_is_replaced_where_it_is_not_proved() -> None:
    """A = 6M is proved for θ ≤ 1/√3 only (E-04)."""
    control = HewControl(ProblemBounds(1.0, 1e3, 1e-3, 1.0), 4.0, tracking=0.0)
    state = control.init(1, 1, np.zeros((1, 1)))
    state = replace(state, upper=controller.KnownBounds(0.0, np.zeros(1)))
    one = np.ones(1, dtype=np.int64)
    cohort = Cohort(np.zeros(1, dtype=np.int64), 9 * one, one, one, 1)
    round_ = matrix_round(np.zeros(1), [[0.1]], cohort, LocalPlan(np.array([0.01])))
    _, after = control.decide(round_, state)
    law = predictable_tracking(1.0, [4 / 9], [9], 1.0, variant="sharp")
    assert after.upper.tracking[0] == pytest.approx(float(law.after(0.0, 0.0)))
    assert after.upper.tracking[0] > 6 * 4 / 9


@pytest.mark.unchecked
@pytest.mark.parametrize("source", ["oracle", "caps", "surrogate"])
@pytest.mark.parametrize("law", [SampledParticipation(2), RandomParticipation(0.4)])
def test_the_mean_over_runs_keeps_to_what_each_state_certifies(
    source: Any, law: Any
) -> None:
    problem = random_quadratic(5, 4, 3, noise=0.2, heterogeneity=0.3, conditioning=3.0)
    v2 = tuple(problem.variance_bounds().tolist())
    box = ProblemBounds(problem.smoothness, 1.5, 1e-3, 0.2)
    control = HewControl(box, v2, "absorbed", source)
    excess = []
    for seed in range(12):  # the same clients in all runs: the law's seed is fixed
        federation = Federation(FixedSteps([1, 2, 3, 2]), 4, Seeded(law))
        audit = [control_audit(problem)]
        entries = [control]
        trace = simulate(
            problem, federation, entries, rounds=6, seed=seed, observers=audit
        )
        excess.append(observed(trace, "next_gap") - observed(trace, "certified_gap"))
    error = np.std(excess, axis=0, ddof=1) / np.sqrt(len(excess))
    assert (np.mean(excess, axis=0) <= 3 * error).all()


@final
@dataclass(frozen=True)
class Seeded:
    """A law with a seed of its own, so that runs differ in their minibatches alone."""

    law: Any

    def draw(self, seed: int, t: int, n: int) -> Any:  # noqa: ARG002 - its own
        return self.law.draw(7, t, n)


# ------------------------------------------------------------------ the start


def test_the_start_is_known_by_the_noise_of_its_gradients() -> None:
    control = HewControl(BOX, [2.25, 0.0, 1.0])
    state = control.init(3, 2, np.zeros((3, 2)))
    assert state.upper.tracking.tolist() == [2.25, 0.0, 1.0]
    told = control.with_truth(state, Truth(samples=np.array([9, 4, 0])))
    assert told.upper.tracking.tolist() == [0.25, 0.0, np.inf]
    given = replace(control, tracking=0.5)
    assert (
        given.with_truth(
            state, Truth(samples=np.array([9, 4, 0]))
        ).upper.tracking.tolist()
        == [0.5] * 3
    )
    capped = replace(control, source="caps").with_truth(
        state, Truth(samples=np.array([9, 4, 0]))
    )
    assert capped.upper.tracking.tolist() == [6.5**2, 36.0, np.inf]
    zero = replace(control, start="zero").init(3, 2, None)
    assert np.isinf(zero.upper.tracking).all()


def test_the_engine_tells_how_large_the_first_batches_were() -> None:
    problem = random_quadratic(1, 3, 2, noise=1.5)
    seen: list[Any] = []

    def look(step: Any) -> dict[str, float]:
        seen.append(step.state.upper.tracking)
        return {}

    entries = [HewControl(BOX, 2.25)]
    federation = Federation(FixedSteps(1), [1, 9, 3])
    simulate(problem, federation, entries, rounds=1, seed=0, observers=[look])
    assert seen[0].tolist() == [2.25, 0.25, 0.75]


def test_a_start_at_zero_is_not_certified_before_all_have_come() -> None:
    problem = random_quadratic(2, 3, 2, noise=0.0, heterogeneity=5.0)
    box = ProblemBounds(problem.smoothness, 3.0, 1e-4, 0.01)
    entries = [
        HewControl(box, 0.0, "sharp", start="zero"),
        HewControl(box, 0.0, "sharp", start="zero", tracking=1e-9),
    ]
    federation = Federation(FixedSteps(1), 1, RotatingParticipation(1))
    trace = simulate(problem, federation, entries, rounds=4, seed=0)
    words = [record.status.partition("; ")[2] for record in trace.of(0)][1:]
    for missing, said in zip((3, 2, 1), words, strict=False):
        text = f"nothing bounds the control variates of {missing} clients"
        assert said == f"no certificate: {text}"
    assert words[3].startswith("no certificate: the bound is not below")
    assert trace.of(1)[1].status.partition("; ")[2].startswith("certified: expected")


# ------------------------------------------------------------------ to the end


@pytest.mark.unchecked
def test_default_constants_do_not_stop_a_long_run() -> None:
    """The bound on Q left the number range in round 125."""
    problem = random_quadratic(3, 3, 2, noise=1.5)
    box = ProblemBounds(problem.smoothness, 3.0, 1e-3, 1.0)
    federation, rounds = Federation(FixedSteps(2), 1), 160
    more: Any = {"rounds": rounds, "seed": 0, "evaluate_every": None}
    last = simulate(problem, federation, [HewControl(box, 2.25)], **more).of(0)[-1]
    assert last.status.startswith("optimal: threshold law")
    assert "; no certificate: the bound is not below" in last.status


def test_an_outer_step_is_not_what_the_certificate_is_about() -> None:
    problem = random_quadratic(3, 3, 2, noise=0.0)
    control = HewControl(BOX, 0.0, "sharp")
    entries: list[Any] = [control, Entry(control, ServerStep(1.0, 0.9))]
    audit = [control_audit(problem)]
    federation = Federation(FixedSteps(1), 1)
    trace = simulate(problem, federation, entries, rounds=3, seed=0, observers=audit)
    assert "; certified: expected next gap at most" in trace.of(0)[1].status
    for record in trace.of(1)[1:]:
        assert record.status.endswith(
            "no certificate: it is not about this server step"
        )
    assert len(observed(trace, "certified_gap", 0)) == 3


UPDATES = "some updates are not the clients' own"


@pytest.mark.parametrize(
    ("fault", "objective", "why"),
    [
        (ScaledUpdates(0.25, -20.0), "honest", UPDATES),
        (ScaledUpdates(0.25, -20.0), "all", UPDATES),
        (StaleUpdates(0.25, 3), "honest", UPDATES),
        (HiddenBatches((1, 2)), "all", "batch sizes are not those declared"),
    ],
)
def test_a_simulation_certifies_nothing_that_it_knows_to_be_false(
    fault: Any, objective: Any, why: str
) -> None:
    """With these faults the certified gap was exceeded in 5 rounds of 5."""
    problem = random_quadratic(3, 8, 2, noise=0.0)
    box = ProblemBounds(problem.smoothness, 3.0, 1e-3, 0.05)
    entries: list[Any] = [HewControl(box, 0.0, "sharp")]
    words = {}
    for scenario in (Scenario(), Scenario((fault,), objective)):
        federation = Federation(FixedSteps(1), 1, scenario=scenario)
        trace = simulate(problem, federation, entries, rounds=5, seed=0)
        words[scenario] = [record.status for record in trace.of(0)][1:]
    honest, faulty = words.values()
    assert all("; certified: expected next gap at most" in text for text in honest)
    assert all(text.endswith(f"; no certificate: {why}") for text in faulty)


def test_clients_that_drop_out_by_their_draws_are_not_certified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which updates are finite depends on the minibatches; the proof excludes that."""
    problem = random_quadratic(3, 8, 2, noise=0.0)
    box = ProblemBounds(problem.smoothness, 3.0, 1e-3, 0.05)

    def all_but_one(rows: Any) -> Any:
        return np.arange(len(rows)) > 0

    monkeypatch.setattr("hewfl.simulation.rounds.finite_rows", all_but_one)
    entries: list[Any] = [HewControl(box, 0.0, "sharp")]
    federation = Federation(FixedSteps(1), 1)
    trace = simulate(problem, federation, entries, rounds=2, seed=0)
    for record in trace.of(0)[1:]:
        assert "; no certificate: who takes part depends on minib" in record.status


@pytest.mark.unchecked
def test_the_sentence_rounds_the_bound_up() -> None:
    """A bound of 1.00000038 was "at most 1"."""
    problem = random_quadratic(3, 5, 2, noise=1.0)
    for seed in range(20):
        radius = 1 + 0.1 * seed
        box = ProblemBounds(problem.smoothness, radius, 1e-4, 1e-2)
        audit = [control_audit(problem)]
        entries: list[Any] = [HewControl(box, 1.0, "sharp")]
        federation = Federation(FixedSteps(1), 1)
        trace = simulate(
            problem, federation, entries, rounds=4, seed=seed, observers=audit
        )
        for record in trace.of(0)[1:]:
            _, _, number = record.status.partition("at most ")
            shown = float(number.partition(",")[0])
            assert record.observed["certified_gap"] <= shown
            assert shown <= record.observed["certified_gap"] * (1 + 1e-5)


def test_work_other_than_planned_is_judged_as_it_was_done() -> None:
    control = HewControl(BOX, 0.1, "sharp", tracking=0.0)
    state = control.init(2, 1, np.zeros((2, 1)))
    ones = np.ones(2, dtype=np.int64)
    asked = Cohort(np.arange(2), 4 * ones, ones, ones, 2)
    plan = control.plan(asked, state)
    for done, text in ((2, "certified"), (400, "no certificate: an amplitude of ")):
        cohort = replace(asked, horizons=done * ones)
        round_ = matrix_round(np.zeros(1), [[0.1], [0.2]], cohort, plan)
        decision, after = control.decide(round_, state)
        theta, _ = control.certified(round_, state, decision.weights)
        np.testing.assert_allclose(theta, plan.step_sizes * done)
        assert decision.certificate.startswith(text)
        assert np.isfinite(after.upper.tracking).all()


# ------------------------------------------------------------------ proxies


@final
@dataclass(frozen=True)
class Proxies:
    """v̂_i,t² ≥ v_i² that come closer to it."""

    least: float

    def __call__(self, t: int) -> float:
        return self.least * (1 + 3 / (1 + t))


def test_proxies_that_change_are_used_and_charged() -> None:
    problem = random_quadratic(4, 4, 2, noise=0.5)
    steady, changing = HewControl(BOX, 1.0), HewControl(BOX, Proxies(0.25))
    assert changing.demands.traffic == replace(steady.demands.traffic, up_scalars=1)
    seen: list[Any] = []
    real = predictive_control

    def solve(profiles: ClientProfile, *rest: Any, **more: Any) -> Any:
        seen.append(np.unique(profiles.variance).tolist())
        return real(profiles, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controller, "predictive_control", solve)
        federation = Federation(FixedSteps(1), 2, SampledParticipation(3))
        trace = simulate(problem, federation, [changing, steady], rounds=3, seed=0)
    assert seen == [[1.0], [1.0], [0.625], [1.0], [0.5], [1.0]]
    spent = [trace.of(k)[-1].paper_scalars for k in range(2)]
    assert spent[0] - spent[1] == 3 * 3  # ν_t = S_t in each of three rounds
    with pytest.raises(InvalidInputError, match="`variance` must be one number or 4"):
        HewControl(BOX, lambda t: [1.0] * (3 + t)).init(4, 1, np.zeros((4, 1)))


# ------------------------------------------------------------------ older checkpoints


# ------------------------------------------------------------------ schedules


@final
@dataclass(frozen=True)
class Decay:
    """value/(1 + t), not below `least`."""

    value: float
    least: float = 0.0

    def __call__(self, t: int) -> float:
        return max(self.least, self.value / (1 + t))


@pytest.mark.parametrize("rule", [HewHet, HewHom])
def test_schedules_of_amplitude_and_curvature_are_asked_every_round(
    rule: Any, tmp_path: Path
) -> None:
    problem = random_quadratic(7, 4, 3)
    L = problem.smoothness
    entry = rule(L, Decay(0.4), Decay(4.0, 1.5))
    seen: list[Any] = []

    def look(step: Any) -> dict[str, float]:
        amplitude = step.round.total_step * L
        model = step.algorithm.model(step.round, step.state)
        seen.append((amplitude.min(), amplitude.max(), model.curvature / L))
        return {}

    given: Any = (problem, Federation(FixedSteps([1, 2, 3, 4]), 2), [entry])
    whole = simulate(*given, rounds=4, seed=0, observers=[look])
    expected = [(0.4 / (1 + t), 0.4 / (1 + t), max(1.5, 4 / (1 + t))) for t in range(4)]
    np.testing.assert_allclose(seen, expected)
    simulate(*given, rounds=2, seed=0, checkpoint=tmp_path)
    resumed = simulate(*given, rounds=4, seed=0, checkpoint=tmp_path)
    np.testing.assert_array_equal(whole.anchors, resumed.anchors)
    plain = rule(L, 0.4, 4.0)
    one = simulate(problem, given[1], [plain, entry], rounds=1, seed=0)
    np.testing.assert_array_equal(one.anchors[0], one.anchors[1])


def test_a_schedule_that_leaves_the_range_is_named() -> None:
    problem = random_quadratic(7, 3, 2)
    entries: list[Any] = [
        HewHom(1.0, Decay(0.4), Decay(2.0)),
        HewHet(1.0, lambda t: 0.2 - 0.1 * t),
    ]
    trace = simulate(problem, Federation(FixedSteps(1), 2), entries, rounds=4, seed=0)
    texts = [
        [r.status for r in trace.of(k) if "refused:" in r.status] for k in range(2)
    ]
    assert texts[0] == ["refused: `curvature_ratio` must be above 1 (Λ > L); got 1.0"]
    assert texts[1][0].startswith("refused: `amplitude of round 2` must be a positive")


def test_the_true_state_is_the_worst_over_all_clients() -> None:
    control = HewControl(BOX, 0.1, source="oracle")
    state = control.init(3, 1, np.zeros((3, 1)))
    told = control.with_truth(state, Truth(upper=UpperState(0.2, 0.7)))
    assert told.upper.tracking.tolist() == [0.7] * 3
