"""Kept after every round: stopped anywhere, a run goes on to the same bytes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord, MetricRecord

from hewfl import (
    ChoiceSteps,
    DataError,
    FedNova,
    HewControl,
    HewHet,
    HewHom,
    LocalPlan,
    OnlineCurvature,
    ProblemBounds,
    SampledParticipation,
    Scaffold,
    ServerStep,
    UniformLocalSGD,
)
from hewfl.experiments.results import read_results
from hewfl.experiments.run_folder import open_folder
from hewfl.flower import AlgorithmStrategy, load_model
from hewfl.report.page import write_report
from hewfl.server.trace import from_lines
from tests.flower.federation import StubGrid, app_of
from tests.simulation.toy import least_squares

N, D, SEED = 6, 5, 4
TABLE = np.asfortranarray(np.arange(6).reshape(2, 3))
PROBLEM = least_squares(5, n=N, d=D)
L = PROBLEM.smoothness
METHODS: list[Any] = [
    HewHom(L, 0.4),
    HewHet(L, 0.4),
    HewControl(ProblemBounds(L, 5.0, 1e-3, 1.0), 0.1),
    Scaffold(0.1 / L),
    FedNova(0.1 / L),
]


def options(folder: Path | str | None, **changes: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "population": N,
        "local_steps": ChoiceSteps((1, 3), every_round=True),
        "participation": SampledParticipation(4),
        "server_step": ServerStep(0.9, momentum=0.3),
        "seed": SEED,
        "fraction_evaluate": 0.0,
        "folder": folder,
    }
    return {**told, **changes}


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    x = arrays["w"].numpy().astype(np.float64)[None]
    found = PROBLEM.objectives(x)[0]
    known = {"objective": float(found[0]), "pooled": float(found[1])}
    return MetricRecord(known | {"test_accuracy": 0.5, "seen": server_round})


def model() -> ArrayRecord:
    """Parameters, between arrays that are none."""
    arrays = {"count": np.array(7), "w": np.zeros(D, np.float32), "at": TABLE}
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def start(strategy: AlgorithmStrategy, rounds: int, *, arrivals: int = 0) -> Any:
    """In a federation of its own: new node ids, nothing remembered."""
    grid = StubGrid(app_of(PROBLEM, SEED), N, seed=arrivals)
    return strategy.start(grid, model(), rounds, evaluate_fn=evaluate)


def bytes_of(folder: Path) -> dict[str, bytes]:
    """All that a run leaves, but how long it took."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
    kept = [p for p in files if p.name not in ("times.json", "manifest.json")]
    return {str(p.relative_to(folder)): p.read_bytes() for p in kept}


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_five_and_five_rounds_are_ten(method: Any, tmp_path: Path) -> None:
    whole, parts = tmp_path / "a" / "run", tmp_path / "b" / "run"
    known = AlgorithmStrategy(method, **options(whole))
    start(known, 10)
    start(AlgorithmStrategy(method, **options(str(parts))), 5)
    resumed = AlgorithmStrategy(method, **options(parts, fraction_evaluate=0.5))
    result = start(resumed, 10, arrivals=1)
    assert resumed.state.anchor.tobytes() == known.state.anchor.tobytes()
    assert bytes_of(parts) == bytes_of(whole)
    assert sorted(result.train_metrics_clientapp) == [6, 7, 8, 9, 10]
    count, w, at = result.arrays.to_numpy_ndarrays()  # in their places
    assert (count.shape, int(count)) == ((), 7)
    np.testing.assert_array_equal(w, load_model(whole)["w"].numpy())
    np.testing.assert_array_equal(w, known.state.anchor)
    np.testing.assert_array_equal(at, TABLE)


def test_stopped_in_the_middle_of_a_round(tmp_path: Path) -> None:
    """Killed between the trace and the checkpoint, the longer trace is cut back."""
    whole, parts = tmp_path / "a" / "run", tmp_path / "b" / "run"
    start(AlgorithmStrategy(METHODS[1], **options(whole)), 6)

    class StoppedError(Exception):
        pass

    def stop(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if server_round == 4:
            raise StoppedError
        return evaluate(server_round, arrays)

    strategy = AlgorithmStrategy(METHODS[1], **options(parts))
    grid = StubGrid(app_of(PROBLEM, SEED), N)
    with pytest.raises(StoppedError):
        strategy.start(grid, model(), 6, evaluate_fn=stop)
    with (parts / f"seed-{SEED}" / "trace.jsonl").open("a") as file:
        file.write('{"round": 4, half a li')
    start(AlgorithmStrategy(METHODS[1], **options(parts)), 6)
    assert bytes_of(parts) == bytes_of(whole)


def test_the_same_app_started_again_goes_on(tmp_path: Path) -> None:
    known = AlgorithmStrategy(METHODS[0], **options(None))
    start(known, 6)
    for rounds in (2, 6):
        again = AlgorithmStrategy(METHODS[0], **options(tmp_path, wait_seconds=9.0))
        start(again, rounds)
    assert again.state.anchor.tobytes() == known.state.anchor.tobytes()
    nothing_left = start(AlgorithmStrategy(METHODS[0], **options(tmp_path)), 6)
    assert nothing_left.train_metrics_clientapp == {}
    np.testing.assert_array_equal(nothing_left.arrays["w"].numpy(), known.state.anchor)


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    start(AlgorithmStrategy(METHODS[0], **options(tmp_path)), 1)
    other = AlgorithmStrategy(HewHom(L, 0.5), **options(tmp_path))
    with pytest.raises(DataError, match="its algorithm is"):
        start(other, 2)
    begin = ArrayRecord({name: model()[name] for name in ("w", "count")})
    again = AlgorithmStrategy(METHODS[0], **options(tmp_path))
    with pytest.raises(DataError, match="its arrays is"):
        again.start(StubGrid(app_of(PROBLEM, SEED), N), begin, 2)
    with pytest.raises(DataError, match="holds no run"):
        load_model(tmp_path / "nowhere")


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    start(AlgorithmStrategy(METHODS[0], **options(tmp_path)), 1)
    state = next(tmp_path.rglob("state-*.safetensors"))
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match="checksum"):
        load_model(tmp_path)
    with pytest.raises(DataError, match="checksum"):
        start(AlgorithmStrategy(METHODS[0], **options(tmp_path)), 2)


def test_methods_and_laws_of_a_user_can_be_kept(tmp_path: Path) -> None:
    class Mine:
        """Uniform weights under a name of my own."""

        name, demands = "mine", UniformLocalSGD(1.0).demands

        def init(self, n: int, d: int, gradients: Any) -> None:
            pass

        def plan(self, cohort: Any, state: None) -> LocalPlan:
            return UniformLocalSGD(0.1 / L).plan(cohort, state)

        def decide(self, round_: Any, state: None) -> Any:
            return UniformLocalSGD(0.1 / L).decide(round_, state)

    for method in (Mine, lambda: OnlineCurvature(HewHom(L, 0.4))):
        folder = tmp_path / method().name
        for rounds in (1, 3):
            strategy = AlgorithmStrategy(method(), **options(folder))
            result = start(strategy, rounds)
        assert sorted(result.train_metrics_clientapp) == [2, 3]


@pytest.mark.parametrize("method", METHODS[:3], ids=lambda m: m.name)
def test_the_folder_is_one_that_reports_read(method: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    strategy = AlgorithmStrategy(method, **options(run))
    result = start(strategy, 4)
    folder = open_folder(run)
    seeds = {seed: folder.of_seed(seed) for seed in folder.spec.seeds}
    results = read_results(folder.spec, seeds)
    curve = results.curve(method.name, "objective")[0]
    known = result.evaluate_metrics_serverapp
    assert curve.tolist() == [known[t]["objective"] for t in range(5)]
    assert curve[-1] < curve[0]
    lines = (folder.of_seed(SEED) / "trace.jsonl").read_text().splitlines()
    records = from_lines(lines)
    for record, (t, metrics) in zip(
        records[1:], result.train_metrics_clientapp.items(), strict=True
    ):
        assert record.round == t
        assert list(record.weights) == metrics["weights"]
        change = record.observed.get("certificate_change")
        assert change == metrics.get("certificate_change")
        assert change is not None or isinstance(method, HewControl)
        assert record.metrics["seen"] == t
    write_report([folder], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert method.name in page
    summary = folder.summary
    assert summary["methods"][0]["final"]["objective"]["mean"] == curve[-1]
