"""Measured steps: how far to go, who votes, what it costs, and runs that go on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hewfl import (
    Decision,
    Demands,
    Entry,
    FedAvg,
    Federation,
    FixedSteps,
    HewFixed,
    InvalidInputError,
    LocalPlan,
    SampledParticipation,
    ServerStep,
    Trace,
    UniformLocalSGD,
    simulate,
)
from hewfl.core.round import Cohort, Round
from hewfl.problems import Quadratic, random_quadratic
from hewfl.server.line_search import best_length, fit_line_search
from tests.simulation.unchecked import unchecked

POINTS = np.array([0.0, 0.5, 1.0, 2.0])
EXACT = random_quadratic(seed=1, n=4, d=3, noise=0.0, heterogeneity=0.5)
"""All samples of a client are alike: losses on any of them are exact."""
FULL = Federation(FixedSteps([1, 2, 3, 2]), 2)


@pytest.mark.parametrize("vertex", [0.1, 0.5, 0.7, 1.0, 1.3, 1.9])
def test_the_vertex_of_a_parabola_is_found(vertex: float) -> None:
    values = 3 * (POINTS - vertex) ** 2 - 1
    a, shares = best_length(POINTS, values)
    assert a == pytest.approx(vertex)
    assert shares @ values == pytest.approx(-1.0)
    assert shares.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5.0, 4.0, 3.0, 1.0], 2.0),  # still falling: no further than was asked
        ([1.0, 2.0, 3.0, 5.0], 0.0),  # rising: stand still
        ([1.0, 1.0, 1.0, 1.0], 0.0),  # flat
        ([3.0, 1.0, np.inf, np.inf], 0.5),  # beyond all bounds
        ([2.0, 3.0, 1.0, 1.0], 1.5),  # not convex: between the least and its neighbours
    ],
)
def test_the_fit_is_safeguarded(values: list[float], expected: float) -> None:
    result = best_length(POINTS, np.array(values))[0]
    assert result == pytest.approx(expected, abs=0.3 if expected == 1.5 else 1e-12)
    assert 0 <= result <= 2


def test_clients_without_weight_do_not_vote() -> None:
    """The third client wants to go nowhere, the fourth has no finite loss."""
    server_step = ServerStep(line_search_samples=5)
    good = 2 * (POINTS - 1.2) ** 2
    faulty, lost = 1e6 * POINTS, np.full(4, np.nan)
    losses = np.stack([good, good + 1, faulty, lost])
    result = fit_line_search(server_step, np.array([0.5, 0.25, 0.0, 0.25]), losses)
    assert result.length == pytest.approx(1.2)
    assert result.decrease == pytest.approx(2 * 1.2**2)
    assert result.low == pytest.approx(result.high)  # both agree
    swayed = fit_line_search(server_step, np.array([0.5, 0.25, 0.01, 0.24]), losses)
    assert swayed.length < 0.1
    nobody = fit_line_search(server_step, np.array([0.0, 0.0, 0.0, 1.0]), losses)
    assert (nobody.length, nobody.decrease) == (1.0, None)
    assert "measured_decrease" not in nobody.observations(1.0)


def test_the_interval_is_students_for_equal_weights() -> None:
    """Decreases 1, 2, 3 and 6 at a = 2: mean 3, deviation √(14/3), t(3) = 3.182."""
    losses = np.zeros((4, 4))
    losses[:, 1:] = -np.outer([1.0, 2.0, 3.0, 6.0], [0.2, 0.5, 1.0])
    result = fit_line_search(
        ServerStep(line_search_samples=1), np.full(4, 0.25), losses
    )
    assert result.length == 2.0
    assert result.decrease == pytest.approx(3.0)
    half = 3.182446305 * np.sqrt(14 / 3) / 2
    assert (result.low, result.high) == pytest.approx((3 - half, 3 + half))
    alone = fit_line_search(
        ServerStep(line_search_samples=1), np.array([1.0, 0.0, 0.0, 0.0]), losses
    )
    assert alone.decrease == pytest.approx(1.0)
    assert "measured_low" not in alone.observations(1.0)  # one client has no spread


def entries(problem: Quadratic) -> list[Entry]:
    L = problem.smoothness
    return [
        Entry(FedAvg(0.3 / L), ServerStep(line_search_samples=3)),
        Entry(
            HewFixed(total=0.5 / L),
            ServerStep(1.0, 0.5, line_search_samples=3, average="ema"),
        ),
    ]


def test_on_a_quadratic_the_minimiser_along_the_step_is_found() -> None:
    start = EXACT.optimum().x + np.array([1.0, -2.0, 0.5])
    trace = simulate(EXACT, FULL, entries(EXACT)[:1], rounds=6, seed=2, start=start)
    for t in range(1, 7):
        models = [
            simulate(EXACT, FULL, entries(EXACT)[:1], rounds=k, seed=2, start=start)
            for k in (t - 1, t)
        ]
        x, y = (m.anchors[0] for m in models)
        record = trace.of(0)[t]
        w = np.array(record.weights)
        slope = w @ EXACT.full_gradients(y[None])[0] @ (y - x)
        begin = w @ EXACT.full_gradients(x[None])[0] @ (y - x)
        if record.observed["measured_step"] < 2:
            assert abs(slope) <= 1e-9 * abs(begin)
        else:
            assert slope < 0
        losses = EXACT.client_losses(np.stack([x, y])) @ w
        fallen = losses[0] - losses[1]
        assert record.observed["measured_decrease"] == pytest.approx(fallen)
        assert fallen > 0 or record.observed["measured_step"] == 0
    steps = trace.curve(0, "measured_step")[1:]
    scales = trace.curve(0, "amplitude_scale")[1:]
    assert scales[0] == 1
    factors = np.sqrt(np.clip(steps, 0.25, 4.0))
    assert scales[1:] == pytest.approx(np.cumprod(factors)[:-1])
    assert ((steps > 0) & (steps < 2)).any()


def test_step_sizes_are_those_measured() -> None:
    """Under a plan twice as long the first measured step is half as long."""
    L, start = EXACT.smoothness, EXACT.optimum().x + 1
    ones = Federation(FixedSteps(1), 2)
    methods = [UniformLocalSGD(1.0 / L), UniformLocalSGD(2.0 / L)]
    both = [
        Entry(m, ServerStep(line_search_samples=3), str(k))
        for k, m in enumerate(methods)
    ]
    trace = simulate(EXACT, ones, both, rounds=1, seed=0, start=start)
    short, long = (trace.of(k)[1].observed["measured_step"] for k in (0, 1))
    assert short == pytest.approx(2 * long)
    assert trace.anchors[0] == pytest.approx(trace.anchors[1])


def test_measured_runs_go_on_to_the_same_bytes(tmp_path: Path) -> None:
    problem = random_quadratic(seed=1, n=4, d=3)

    def run(rounds: int, folder: str) -> Trace:
        given = (problem, FULL, entries(problem))
        return simulate(*given, rounds=rounds, seed=3, checkpoint=tmp_path / folder)

    whole = run(7, "whole")
    run(4, "cut")
    rest = run(7, "cut")
    assert rest.records == whole.records
    assert rest.averages.tobytes() == whole.averages.tobytes()
    for name in ("trace.jsonl", "state-00000007.safetensors"):
        cut = (tmp_path / "cut" / name).read_bytes()
        assert cut == (tmp_path / "whole" / name).read_bytes()


def test_the_ledger_counts_scalars_and_samples_by_hand() -> None:
    """Four losses up from each, a* down; s besides x where some may be absent."""
    L, d, rounds = EXACT.smoothness, EXACT.d, 5
    entry = Entry(UniformLocalSGD(0.3 / L), ServerStep(line_search_samples=7))
    full = simulate(EXACT, FULL, [entry], rounds=rounds, seed=1)
    account = full.communication(0)
    assert account.total.scalars == rounds * (d + 4 * d + 4 * 4 + 1)
    assert full.of(0)[-1].scalars == account.total.scalars
    assert account.sent.tolist() == [rounds * (d + 4)] * 4
    assert account.received.tolist() == [rounds * (d + 1)] * 4
    assert account.samples.tolist() == [rounds * 7] * 4
    some = Federation(FixedSteps(2), 2, SampledParticipation(3))
    entry = Entry(
        UniformLocalSGD(0.3 / L),
        ServerStep(line_search_samples=7, line_search_points=(1.0, 3.0)),
    )
    part = simulate(EXACT, some, [entry], rounds=rounds, seed=1)
    assert part.of(0)[-1].scalars == rounds * (2 * d + 3 * d + 3 * 3 + 1)
    assert part.communication(0).samples.sum() == rounds * 3 * 7


@dataclass(frozen=True)
class AllButOne:
    """Equal weights, none for client 0, which is far away from the others."""

    name: str = "all but one"
    demands: ClassVar[Demands] = Demands()

    def init(self, n: int, d: int, gradients: Any) -> None:
        pass

    def plan(self, cohort: Cohort, state: None) -> LocalPlan:  # noqa: ARG002
        return LocalPlan(np.full(len(cohort.clients), 0.3))

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:  # noqa: ARG002
        w = (round_.cohort.clients > 0).astype(np.float64)
        return Decision(w / w.sum(), "some"), None


def test_a_bad_client_does_not_sway_the_run() -> None:
    """Its losses are a thousand times those of others, and point elsewhere."""
    far = EXACT.centers.copy()
    far[0] += 100.0
    faulty = Quadratic(EXACT.hessians, far, EXACT.noise, EXACT.data_sizes)
    entry = Entry(AllButOne(), ServerStep(line_search_samples=3))
    clean, swayed = (
        simulate(p, FULL, [entry], rounds=4, seed=0) for p in (EXACT, faulty)
    )
    assert np.array_equal(clean.anchors, swayed.anchors)
    steps = [trace.curve(0, "measured_step")[1:] for trace in (clean, swayed)]
    assert np.array_equal(steps[0], steps[1])


class Silent:
    """A problem without losses on chosen samples."""

    def __getattr__(self, name: str) -> Any:
        if name == "sample_losses":
            raise AttributeError(name)
        return getattr(EXACT, name)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"line_search_samples": 0}, "line_search_samples"),
        ({"line_search_samples": 5, "step": 0.5}, "`step`"),
        ({"line_search_samples": 5, "adapt": "adam"}, "`adapt`"),
        ({"line_search_points": (1.0, 2.0)}, "left out"),
        ({"line_search_samples": 5, "line_search_points": (1.0,)}, "two increasing"),
        (
            {"line_search_samples": 5, "line_search_points": (2.0, 1.0)},
            "two increasing",
        ),
        ({"line_search_samples": 5, "line_search_points": (0.0, 1.0)}, "positive"),
    ],
)
def test_senseless_measurements_are_refused(given: dict[str, Any], text: str) -> None:
    with unchecked(), pytest.raises(InvalidInputError) as caught:
        ServerStep(**given)
    assert text in str(caught.value)


def test_a_problem_that_cannot_answer_is_refused() -> None:
    silent: Any = Silent()
    with unchecked(), pytest.raises(InvalidInputError, match="with `sample_losses`"):
        simulate(silent, FULL, entries(EXACT), rounds=1, seed=0)
