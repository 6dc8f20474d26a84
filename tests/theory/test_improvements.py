"""What one change would do: each number is that of the changed federation."""

from dataclasses import replace

import numpy as np
import pytest

from hewfl import InvalidInputError
from hewfl.theory import Case, System, design, improvements

CASE = Case(
    System(1.0, 1.0, [1, 2, 4, 8], 32, 1e-4), pl_constant=0.1, sampling="fresh draws"
)


def test_a_change_is_tried_not_guessed() -> None:
    result = {x.change: x for x in improvements(CASE, 0.05)}
    half = result["half the local steps"]
    system = replace(CASE.system, horizon=[1, 1, 2, 4])
    again = design(half.theorem, replace(CASE, system=system), 0.05, variant="joint")
    assert half.rounds == pytest.approx(float(again.rounds), rel=2e-3)
    even = result["the same H = 4 and b = 32 for all clients"]
    assert half.theorem == even.theorem == "th:pl-global"
    assert even.factor == min(x.factor for x in result.values()) < 0.9
    assert result["twice the local steps"].factor > 1
    assert "all clients in every round" not in result


def test_the_most_helpful_comes_first() -> None:
    part = improvements(replace(CASE, active=2), 0.05)
    assert part[0].change == "all clients in every round"
    assert np.isfinite(part[0].rounds)
    assert [x.factor for x in part] == sorted(x.factor for x in part)


def test_a_given_amplitude_is_kept_and_halved() -> None:
    result = {x.change: x for x in improvements(CASE, 0.05, amplitude=0.99)}
    best, half = result["the best amplitude ϑ"], result["half the amplitude ϑ"]
    assert np.isfinite(best.rounds)
    assert np.isinf(half.rounds)
    assert best.factor == 0


def test_shards_are_compared_with_a_common_pool() -> None:
    result = {
        x.change for x in improvements(replace(CASE, sampling="fixed shards"), 0.3)
    }
    assert "batches drawn afresh from one common pool" in result


def test_one_configuration_at_a_time() -> None:
    many = replace(CASE, system=System([1.0, 2.0], 1.0, [1, 2], 1, 0.0))
    with pytest.raises(InvalidInputError, match="`case` must be of one configuration"):
        improvements(many, 0.05)
