"""Rules that break the contract: one error that names entry, round and rule."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hewfl import Decision, Demands, Entry, Federation, FixedSteps, LocalPlan, simulate
from hewfl.errors import RuleError
from tests.simulation.toy import least_squares

FEDERATION = Federation(FixedSteps(2), batch_size=2)


@dataclass(frozen=True)
class Mine:
    """Equal weights, but for one mistake in the third round."""

    mistake: str
    name: ClassVar[str] = "Mine"
    demands: ClassVar[Demands] = Demands()

    def init(self, n: int, d: int, gradients: Any) -> Any:  # noqa: ARG002
        if self.mistake == "init":
            raise KeyError("no start")
        return {"rounds": 0} if self.mistake == "state" else 0

    def plan(self, cohort: Any, state: Any) -> Any:  # noqa: ARG002
        steps: Any = np.full(len(cohort.clients), 0.01)
        if cohort.round < 2:
            return LocalPlan(steps)
        plans: dict[str, Any] = {
            "negative": lambda: LocalPlan(-steps),
            "not a number": lambda: LocalPlan(steps * np.nan),
            "short steps": lambda: LocalPlan(steps[1:]),
            "no plan": lambda: None,
            "plan raises": lambda: LocalPlan(steps[99]),
        }
        return plans[self.mistake]() if self.mistake in plans else LocalPlan(steps)

    def decide(self, round_: Any, state: Any) -> Any:
        s = len(round_.cohort.clients)
        weights: Any = np.full(s, 1 / s)
        if round_.cohort.round < 2:
            return Decision(weights, "equal"), state
        odd: Any = Decision(weights, "equal")
        given = {
            "short": weights[1:],
            "flags": weights > 0,
            "text": [str(weight) for weight in weights],
            "complex": weights.astype(np.complex128),
            "backwards": -np.ones(s),
            "nan": weights * np.nan,
            "infinite": weights * np.inf,
        }
        if self.mistake in given:  # a frozen record, as a careless user makes it
            object.__setattr__(odd, "weights", given[self.mistake])
        answers = {"none": None, "no state": odd}
        if self.mistake == "exits":
            sys.exit(3)
        if self.mistake == "memory":
            raise MemoryError("no room for 9 TB")
        if self.mistake == "raises":
            return (Decision(weights * (1 // len(())), "division"), state)
        return answers.get(self.mistake, (odd, state))


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        ("init", "before the first round, init: .*: KeyError: 'no start'$"),
        ("negative", "round 3, plan: .*: step_sizes must not be negative.*; got -0.01"),
        ("not a number", "round 3, plan: .*: step_sizes must not .*; got nan"),
        ("short steps", r"round 3, plan: .* must be \d real numbers; got .* shape"),
        ("no plan", "round 3, plan: .*: it must return a LocalPlan; got None"),
        ("plan raises", "round 3, plan: .*test_rule_errors.py, line .*: IndexError"),
        (
            "short",
            r"round 3, decide: .*its weights,` must be \d real numbers; got dtype",
        ),
        ("flags", r"round 3, decide: .*its weights,` must be .*; got dtype bool"),
        ("text", r"round 3, decide: .*its weights,` must be .*; got list, dtype <U"),
        ("complex", r"round 3, decide: .*its weights,` must be .*; got dtype complex"),
        ("backwards", r"round 3, decide: .*sum is not negative.*; got \[-1.0, "),
        ("exits", r"round 3, decide: .*, line .*: SystemExit: 3$"),
        ("nan", r"round 3, decide: .*: weights must be finite; got \[nan"),
        ("infinite", r"round 3, decide: .*: weights must be finite; got \[inf"),
        ("none", "round 3, decide: .* must be a Decision and the next state; got None"),
        ("no state", "round 3, decide: .* must be a Decision and the next state; got"),
        ("raises", "round 3, decide: .*, line .*: ZeroDivisionError: "),
    ],
)
@pytest.mark.unchecked
def test_one_error_names_entry_round_and_rule(mistake: str, expected: str) -> None:
    entries: Any = [Entry(Mine("")), Entry(Mine(mistake), label="broken one")]
    with pytest.raises(RuleError, match=expected) as caught:
        simulate(least_squares(), FEDERATION, entries, rounds=4, seed=0)
    text = str(caught.value)
    assert text.startswith("entry 'broken one', ")
    assert "the rule tests.simulation.test_rule_errors.Mine is wrong: " in text
    assert "\n" not in text


def test_a_shortage_of_memory_names_the_rule() -> None:
    expected = "round 3, decide: the rule .*Mine ran out of memory: .*no room for 9 TB"
    with pytest.raises(RuleError, match=expected):
        simulate(least_squares(), FEDERATION, [Mine("memory")], rounds=4, seed=0)


@dataclass(frozen=True)
class Loose(Mine):
    """Weights and step sizes as a careless user makes them."""

    kind: str = "float64"

    def _given(self, values: Any) -> Any:
        return values.tolist() if self.kind == "list" else values.astype(self.kind)

    def plan(self, cohort: Any, state: Any) -> Any:  # noqa: ARG002
        return LocalPlan(self._given(np.full(len(cohort.clients), 1.0)))

    def decide(self, round_: Any, state: Any) -> Any:
        s = len(round_.cohort.clients)
        return Decision(self._given(np.arange(s) + 0.0), "as they are"), state


@pytest.mark.unchecked
@pytest.mark.parametrize("kind", ["float32", "int64", "uint8", "list"])
def test_numbers_of_other_types_are_converted(kind: str) -> None:
    entries: Any = [Loose("", kind="float64"), Loose("", kind=kind)]
    same = [
        Entry(entry, label=label) for entry, label in zip(entries, "ab", strict=True)
    ]
    trace = simulate(least_squares(), FEDERATION, same, rounds=2, seed=0)
    first, second = (trace.records[k::2][-1] for k in (0, 1))
    assert first.weights == second.weights
    assert first.objective == second.objective


def test_a_state_that_cannot_be_kept(tmp_path: Path) -> None:
    entries: Any = [Mine("state")]
    simulate(least_squares(), FEDERATION, entries, rounds=1, seed=0)
    expected = "entry 'Mine', round 1, its state: .* a state may not hold a dict"
    with pytest.raises(RuleError, match=expected):
        simulate(
            *(least_squares(), FEDERATION, entries),
            rounds=1,
            seed=0,
            checkpoint=tmp_path,
        )
