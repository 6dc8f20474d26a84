"""Laws of participation: those that look at the past, and those that do not."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

from hewfl import Federation, FixedSteps, HewHet, InvalidInputError, simulate
from hewfl.federation.participation import (
    History,
    RotatingParticipation,
    SampledParticipation,
    draw_clients,
    draw_history,
)
from hewfl.problems import random_quadratic

SIZES = np.array([3, 5, 4, 6, 2])


@final
@dataclass(frozen=True)
class Newcomers:
    """Those with the fewest rounds so far, and a coin of the seed among them."""

    def draw_after(self, seed: int, history: History) -> Any:
        fewest = np.flatnonzero(history.counts == history.counts.min())
        return fewest[[(seed + len(history.rounds)) % len(fewest)]]


@final
@dataclass(frozen=True)
class Written:
    """A law as they were written before there was a history."""

    def draw(self, seed: int, t: int, n: int) -> Any:
        return np.array([(seed + t) % n])


def sets(law: Any, rounds: int) -> list[list[int]]:
    federation = Federation(FixedSteps(1), 1, law)
    cohorts = [federation.cohort(7, t, SIZES) for t in range(rounds)]
    assert [cohort.round for cohort in cohorts] == list(range(rounds))
    return [cohort.clients.tolist() for cohort in cohorts]


def test_a_history_counts_and_dates_each_client() -> None:
    history = History(4).after(np.array([0, 2])).after(np.array([2]))
    assert len(history.rounds) == 2
    assert history.counts.tolist() == [1, 0, 2, 0]
    assert history.last.tolist() == [0, -1, 1, -1]
    assert History(3).counts.tolist() == [0, 0, 0]


def test_rotation_asks_those_away_longest() -> None:
    result = sets(RotatingParticipation(2), 10)
    for t in range(0, 10, 5):  # five rounds of two are two turns of five clients
        assert sorted(np.concatenate(result[t : t + 5])) == sorted(
            [*range(5), *range(5)]
        )
    assert sets(RotatingParticipation(5), 2) == [[0, 1, 2, 3, 4]] * 2
    with pytest.raises(InvalidInputError, match="`count` must be at most 5"):
        sets(RotatingParticipation(6), 1)


def test_the_past_is_drawn_again_where_it_is_not_given() -> None:
    law, history = Newcomers(), History(5)
    for t in range(12):
        given = draw_clients(law, 3, t, 5, history)
        assert draw_clients(law, 3, t, 5).tolist() == given.tolist()
        history = history.after(given)
    assert draw_history(law, 3, 12, 5).counts.tolist() == history.counts.tolist()
    assert history.counts.max() - history.counts.min() <= 1
    assert draw_history(SampledParticipation(2), 3, 12, 5).rounds == ()


def test_a_law_of_the_old_form_goes_on_as_it_was() -> None:
    assert sets(Written(), 4) == [[2], [3], [4], [0]]


@pytest.mark.parametrize("wrong", [[0, 0], [5], [-1], [0.5]])
def test_a_law_that_answers_nonsense_is_named(wrong: list[Any]) -> None:
    class Nonsense:
        def draw_after(self, seed: int, history: History) -> Any:  # noqa: ARG002
            return np.array(wrong)

    with pytest.raises(InvalidInputError, match="`participation` must be"):
        sets(Nonsense(), 1)


@pytest.mark.parametrize("law", [RotatingParticipation(2), Newcomers()])
def test_a_run_that_goes_on_meets_the_same_clients(law: Any, tmp_path: Path) -> None:
    problem = random_quadratic(1, 5, 3)
    given: Any = (problem, Federation(FixedSteps(2), 2, law), [HewHet(1.0, 0.3)])
    whole = simulate(*given, rounds=7, seed=2)
    simulate(*given, rounds=3, seed=2, checkpoint=tmp_path)
    resumed = simulate(*given, rounds=7, seed=2, checkpoint=tmp_path)
    assert [r.clients for r in resumed.records] == [r.clients for r in whole.records]
    np.testing.assert_array_equal(resumed.anchors, whole.anchors)
