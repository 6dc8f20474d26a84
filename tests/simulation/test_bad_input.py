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
from hewfl.core.validation import positive, whole
from tests.simulation.toy import LeastSquares, least_squares
from tests.simulation.unchecked import unchecked

ONE: Any = FixedSteps(2)
FEDERATION = Federation(ONE, 4)
METHOD = FedAvg(1.0 / 10.0)


def refused(text: str, make: Callable[[], object]) -> None:
    with unchecked(), pytest.raises(InvalidInputError) as caught:
        make()
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"seed": -1}, "`seed` must be at least 0; got -1"),
        ({"seed": "7"}, "`seed` must be a whole number; got '7'"),
        ({"rounds": 2.5}, "`rounds` must be a whole number; got 2.5"),
        ({"rounds": np.float64(2)}, "`rounds` must be a whole number; got 2.0"),
        ({"rounds": True}, "`rounds` must be a whole number; got True"),
        ({"evaluate_every": 0}, "`evaluate_every` must be at least 1; got 0"),
        ({"evaluate_every": 0.5}, "`evaluate_every` must be a whole number; got 0.5"),
        ({"checkpoint_every": 0}, "`checkpoint_every` must be at least 1; got 0"),
        ({"checkpoint": 5}, "`checkpoint` must be a folder; got 5"),
        ({"checkpoint": __file__}, f"`checkpoint` must be a folder; got {__file__!r}"),
        (
            {"methods": METHOD},
            "`methods` must be a list of methods",
        ),
        (
            {"methods": "FedAvg"},
            "`methods` must be a list of methods; got 'FedAvg'",
        ),
        (
            {"methods": [METHOD, "FedAvg"]},
            "`methods[1]` must be a method",
        ),
        (
            {"methods": [FedAvg]},
            "`methods[0]` must be a method",
        ),
        (
            {"problem": "softmax"},
            "`problem` must be a federated problem, such as hewfl.problems.Softmax; "
            "got 'softmax'",
        ),
        ({"observers": None}, "`observers` must be a list of functions; got None"),
        (
            {"federation": ONE},
            "`federation` must be a Federation, such as Federation(FixedSteps(4)); "
            "got FixedSteps(steps=2)",
        ),
        (
            {"dtype": "half precision"},
            "`dtype` must be a type of reals, such as numpy.float32; "
            "got 'half precision'",
        ),
        (
            {"dtype": "int32"},
            "`dtype` must be a type of reals, such as numpy.float32; got 'int32'",
        ),
        ({"start": "zero"}, "`start` must be an array of real numbers; got dtype <U4"),
        ({"start": [1.0, np.nan]}, "`start` must be finite; got nan at index (1,)"),
        (
            {"start": [[1.0], []]},
            "`start` must be an array of real numbers; got [[1.0], []]",
        ),
    ],
)
def test_a_run_is_refused(changes: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"federation": FEDERATION, "methods": [METHOD]}
    given |= {"problem": least_squares(), "rounds": 1, "seed": 0}
    refused(text, lambda: simulate(**given | changes))


WHOLE = "whole numbers of at least 1"
LAW = "`local_steps` must be a local-step sampler"
BOUNDS = ProblemBounds(1.0, 1.0, 0.1, 1.0)


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        (Federation, (4,), LAW),
        (Federation, (FixedSteps,), LAW),
        (
            Federation,
            (ONE, 2, 0.5),
            "`participation` must be a client sampler",
        ),
        (Federation, (ONE, "8"), f"`batch_size` must be {WHOLE}; got '8'"),
        (Federation, (ONE, [np.int64(0)]), f"`batch_size` must be {WHOLE}; got [0]"),
        (
            FixedSteps,
            ([[1], [2, 3]],),
            f"`steps` must be {WHOLE}; got [[1], [2, 3]]",
        ),
        (FixedSteps, (np.inf,), f"`steps` must be {WHOLE}; got inf"),
        (ChoiceSteps, (4,), f"`choices` must be a list of {WHOLE}; got 4"),
        (
            ChoiceSteps,
            ((1, 2.5),),
            f"`choices` must be a list of {WHOLE}; got (1, 2.5)",
        ),
        (PoissonSteps, (2.0,), "`rates` must be a list of numbers; got 2.0"),
        (
            PoissonSteps,
            ((1.0,), 1.0),
            "`probabilities` must be a list of numbers; got 1.0",
        ),
        (
            PoissonSteps,
            ((1.0,), (1.0,), 1, "12"),
            "`most` must be a whole number; got '12'",
        ),
        (
            EpochSteps,
            ("1",),
            "`epochs` must be an array of real numbers; got dtype <U1",
        ),
        (TimedSteps, (1.0, 3.0), "`speeds` must be a list of numbers; got 3.0"),
        (
            TimedSteps,
            (1.0, [3.0], -0.1),
            "`jitter` must be a nonnegative finite number; got -0.1",
        ),
        (SampledParticipation, (2.5,), "`count` must be a whole number; got 2.5"),
        (
            RandomParticipation,
            ("half",),
            "`probability` must be an array of real numbers; got dtype <U4",
        ),
        (
            RandomParticipation([0.5, 0.5]).draw,
            (0, 0, 3),
            "`probability` must be one number or 3 of them; got [0.5, 0.5]",
        ),
        (
            Entry,
            ("FedAvg",),
            "`algorithm` must be a method",
        ),
        (Entry, (METHOD, 0.9), "`server_step` must be a ServerStep; got 0.9"),
        (ServerStep, ("1",), "`step` must be a positive finite number; got '1'"),
        (
            lambda text: HewFixed(1.0, variance=text),
            ("1",),
            "`variance` must be an array of real numbers; got dtype <U1",
        ),
        (
            HewControl,
            (BOUNDS, [1.0, -1.0]),
            "`variance` must be nonnegative; got -1.0",
        ),
    ],
)
def test_a_setting_is_refused(kind: Any, given: tuple[Any, ...], text: str) -> None:
    refused(text, lambda: kind(*given))


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
    refused(
        f"`L` must be a positive finite number; got {shown}",
        lambda: positive("L", value),
    )


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
    text = "`problem.start` must be of shape (5,); got (2,)"
    refused(text, lambda: play(Placed(least_squares(), np.zeros(2))))


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
