"""Values of wrong types and ranges: one error that names argument, rule and value."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hewfl import (
    ChoiceSteps,
    Entry,
    EpochSteps,
    FedAvg,
    Federation,
    FixedSteps,
    HewControl,
    HewFixed,
    InvalidInputError,
    PoissonSteps,
    ProblemBounds,
    RandomParticipation,
    SampledParticipation,
    ServerStep,
    TimedSteps,
    simulate,
)
from hewfl.aggregators import ExactWeights, Mean
from hewfl.core.validation import positive, whole
from hewfl.methods.method import ClientTraining, LocalSGD, Method
from hewfl.problems import random_quadratic
from tests.simulation.toy import LeastSquares, least_squares
from tests.simulation.unchecked import unchecked

ONE: Any = FixedSteps(2)
FEDERATION = Federation(ONE, 4)
METHOD = FedAvg(1.0 / 10.0)


def refused(name: str, make: Callable[[], object], got: str = "") -> None:
    """The error names the argument, its rule and the value."""
    with unchecked(), pytest.raises(InvalidInputError) as caught:
        make()
    assert str(caught.value).startswith(f"`{name}` must be ")
    assert str(caught.value).partition("; got ")[2].startswith(got)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": "7"}, "seed"),
        ({"rounds": 2.5}, "rounds"),
        ({"rounds": np.float64(2)}, "rounds"),
        ({"rounds": True}, "rounds"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"evaluate_every": 0.5}, "evaluate_every"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"checkpoint": 5}, "checkpoint"),
        ({"checkpoint": __file__}, "checkpoint"),
        ({"methods": METHOD}, "methods"),
        ({"methods": "FedAvg"}, "methods"),
        ({"methods": [METHOD, "FedAvg"]}, "methods[1]"),
        ({"methods": [FedAvg]}, "methods[0]"),
        ({"problem": "softmax"}, "problem"),
        ({"observers": None}, "observers"),
        ({"federation": ONE}, "federation"),
        ({"dtype": "half precision"}, "dtype"),
        ({"dtype": "int32"}, "dtype"),
        ({"start": "zero"}, "start"),
        ({"start": [1.0, np.nan]}, "start"),
        ({"start": [[1.0], []]}, "start"),
    ],
)
def test_a_run_is_refused(changes: dict[str, Any], name: str) -> None:
    given: dict[str, Any] = {"federation": FEDERATION, "methods": [METHOD]}
    given |= {"problem": least_squares(), "rounds": 1, "seed": 0}
    refused(name, lambda: simulate(**given | changes))


BOUNDS = ProblemBounds(1.0, 1.0, 0.1, 1.0)


@pytest.mark.parametrize(
    ("kind", "given", "name"),
    [
        (Federation, (4,), "local_steps"),
        (Federation, (FixedSteps,), "local_steps"),
        (Federation, (ONE, 2, 0.5), "participation"),
        (Federation, (ONE, "8"), "batch_size"),
        (Federation, (ONE, [np.int64(0)]), "batch_size"),
        (FixedSteps, ([[1], [2, 3]],), "steps"),
        (FixedSteps, (np.inf,), "steps"),
        (ChoiceSteps, (4,), "choices"),
        (ChoiceSteps, ((1, 2.5),), "choices"),
        (PoissonSteps, (2.0,), "rates"),
        (PoissonSteps, ((1.0,), 1.0), "probabilities"),
        (PoissonSteps, ((1.0,), (1.0,), 1, "12"), "most"),
        (EpochSteps, ("1",), "epochs"),
        (TimedSteps, (1.0, 3.0), "speeds"),
        (TimedSteps, (1.0, [3.0], -0.1), "jitter"),
        (SampledParticipation, (2.5,), "count"),
        (RandomParticipation, ("half",), "probability"),
        (RandomParticipation([0.5, 0.5]).draw, (0, 0, 3), "probability"),
        (Entry, ("FedAvg",), "algorithm"),
        (Entry, (METHOD, 0.9), "server_step"),
        (ServerStep, ("1",), "step"),
        (lambda text: HewFixed(1.0, variance=text), ("1",), "variance"),
        (HewControl, (BOUNDS, [1.0, -1.0]), "variance"),
    ],
)
def test_a_setting_is_refused(kind: Any, given: tuple[Any, ...], name: str) -> None:
    refused(name, lambda: kind(*given))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("1", "'1'"),
        (None, "None"),
        (True, "True"),
        (np.bool_(True), "True"),
        (np.array([1.0]), "array([1.])"),
        (1j, "1j"),
        (10**400, "1" + 79 * "0"),
        (np.float64(-1.5), "-1.5"),
        (0, "0"),
    ],
)
def test_what_is_no_positive_number(value: Any, shown: str) -> None:
    refused("L", lambda: positive("L", value), shown)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), np.array(2.0)])
def test_what_is_one(value: Any) -> None:
    with unchecked():
        assert positive("L", value) == 2.0


def test_whole_numbers_of_numpy_become_plain() -> None:
    seed: Any = np.int64(3)
    with unchecked():
        assert type(whole("seed", seed)) is int


# ------------------------------------------------------------------ what is accepted


def test_a_checkpoint_may_be_named_by_a_text(tmp_path: Path) -> None:
    given: dict[str, Any] = {"federation": FEDERATION, "methods": [METHOD]}
    given |= {"rounds": 2, "seed": 0}
    simulate(least_squares(), **given, checkpoint=str(tmp_path / "run"))
    assert (tmp_path / "run" / "manifest.json").exists()


@dataclass(frozen=True)
class Placed:
    """A problem with a start of its own."""

    inner: LeastSquares
    start: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def play(problem: Any, **given: Any) -> Any:
    with unchecked():
        return simulate(problem, FEDERATION, [METHOD], rounds=1, seed=0, **given)


def test_a_run_starts_where_the_problem_says() -> None:
    problem = least_squares()
    x = np.arange(problem.d, dtype=np.float64)
    asked = play(problem, start=x).anchors
    assert not np.array_equal(play(problem).anchors, asked)
    assert np.array_equal(play(Placed(problem, x)).anchors, asked)
    assert np.array_equal(play(Placed(problem, x.tolist())).anchors, asked)
    assert np.array_equal(play(Placed(problem, -x), start=x).anchors, asked)
    assert np.array_equal(play(Placed(problem, None)).anchors, play(problem).anchors)
    assert np.array_equal(x, np.arange(problem.d))


def test_a_bad_start_of_the_problem_is_named() -> None:
    refused("problem.start", lambda: play(Placed(least_squares(), np.zeros(2))))


def test_a_trace_says_what_it_measured() -> None:
    trace = simulate(
        least_squares(),
        FEDERATION,
        [METHOD],
        rounds=1,
        seed=0,
        observers=[lambda step: {"clients": float(len(step.round.cohort.clients))}],
    )
    known = "round, objective, pooled, scalars, paper_scalars, gap, length, clients"
    for name in ("accuracy", "status"):
        with pytest.raises(InvalidInputError, match=f"measured: {known}; got '{name}'"):
            trace.final(name)
    assert all(np.isfinite(trace.curve(0, k)[-1]) for k in known.split(", "))


def test_what_only_other_transports_have_is_refused() -> None:
    problem, federation = random_quadratic(0, 3, 2), Federation(FixedSteps(1))
    refused: list[tuple[Any, str]] = [
        (Method(ClientTraining(), Mean()), "local work to simulate"),
        (Method(LocalSGD(0.1), ExactWeights("root")), "no root gradient"),
        (Mean(), "give it local work"),
    ]
    for method, text in refused:
        with unchecked(), pytest.raises(InvalidInputError, match=text):
            simulate(problem, federation, [method], rounds=1, seed=0)
