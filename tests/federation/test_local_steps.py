"""Local-step samplers, and the arguments of a federation."""

import numpy as np
import pytest

from hewfl import (
    ChoiceSteps,
    EpochSteps,
    Federation,
    FixedSteps,
    InvalidInputError,
    PoissonSteps,
    RandomParticipation,
    SampledParticipation,
    ServerStep,
    TimedSteps,
)

SIZES = np.array([5, 50, 20, 7, 1])


def horizons_of(rule: object, t: int = 0, seed: int = 0) -> list[int]:
    federation = Federation(rule, [1, 2, 4, 7, 1])  # type: ignore[arg-type]  # any rule
    return [int(h) for h in federation.cohort(seed, t, SIZES).horizons]


def test_fixed_and_chosen_horizons() -> None:
    assert horizons_of(FixedSteps(3)) == [3] * 5
    assert horizons_of(FixedSteps([1, 2, 3, 4, 5])) == [1, 2, 3, 4, 5]
    assert set(horizons_of(ChoiceSteps())) <= {1, 2, 4, 8}
    assert horizons_of(ChoiceSteps(), t=0) == horizons_of(ChoiceSteps(), t=9)
    again = ChoiceSteps(every_round=True)
    assert any(horizons_of(again, t=0) != horizons_of(again, t=t) for t in range(1, 5))


def test_epochs_and_time_budgets() -> None:
    assert horizons_of(EpochSteps(1.0)) == [5, 25, 5, 1, 1]
    assert horizons_of(EpochSteps(0.5)) == [3, 13, 3, 1, 1]
    assert horizons_of(TimedSteps(2.0, [0.1, 1.0, 2.4, 3.0, 10.0])) == [
        1,
        2,
        4,
        6,
        20,
    ]
    jittered = TimedSteps(100.0, [1.0] * 5, jitter=0.5)
    assert horizons_of(jittered, t=0) != horizons_of(jittered, t=1)


def test_the_poisson_mixture_is_the_truncated_law() -> None:
    rule = PoissonSteps()
    sizes, ones = np.ones(200_000, np.int64), np.ones(200_000, np.int64)
    drawn = rule.draw(0, 0, sizes, ones)
    values = np.arange(1, 13)
    law = np.zeros(12)
    for rate, p in zip(rule.rates, rule.probabilities, strict=True):
        log = values * np.log(rate) - np.cumsum(np.log(values))
        part = np.exp(log)
        law += p * part / part.sum()
    counts = np.bincount(drawn, minlength=13)[1:] / len(drawn)
    assert np.abs(counts - law).max() < 0.005


def test_laws_that_are_clipped_or_have_probabilities() -> None:
    """What lies outside the range becomes its end: e⁻¹ and e⁻¹ of a Poisson law."""
    sizes, ones = np.full(100_000, 64), np.full(100_000, 64)
    law = PoissonSteps((1.0,), (1.0,), most=2, clipped=True)
    counts = np.bincount(law.draw(0, 0, sizes, ones), minlength=3) / len(sizes)
    assert counts[0] == 0
    assert abs(counts[1] - 2 / np.e) < 0.01
    epochs = EpochSteps((1.0, 2.0, 4.0), (0.5, 0.0, 0.5))
    counts = np.bincount(epochs.draw(0, 0, sizes, ones), minlength=5) / len(sizes)
    assert np.abs(counts - [0, 0.5, 0, 0, 0.5]).max() < 0.01


def test_participation() -> None:
    sampled = Federation(FixedSteps(1), 1, SampledParticipation(2))
    chosen = [tuple(sampled.cohort(0, t, SIZES).clients.tolist()) for t in range(200)]
    assert all(len(c) == 2 and c[0] < c[1] for c in chosen)
    frequency = np.bincount(np.ravel(chosen), minlength=5) / 200
    assert np.abs(frequency - 0.4).max() < 0.15
    coins = Federation(FixedSteps(1), 1, RandomParticipation([0.0, 1.0, 0.5, 0.0, 1.0]))
    for t in range(20):
        active = set(coins.cohort(0, t, SIZES).clients.tolist())
        assert {1, 4} <= active <= {1, 2, 4}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: FixedSteps(0),
            "`steps` must be whole numbers",
        ),
        (lambda: ChoiceSteps([]), "`choices` must be a list"),
        (lambda: PoissonSteps(probabilities=(1.0, 1.0, 1.0)), "a distribution"),
        (lambda: PoissonSteps(least=0), "`least` must be from 1"),
        (lambda: EpochSteps(0.0), "`epochs` must be a positive"),
        (lambda: EpochSteps((1.0,), (0.5, 0.5)), "`probabilities` must be one per"),
        (lambda: EpochSteps((1.0, 2.0), (0.5, 0.6)), "must be a distribution"),
        (lambda: TimedSteps(-1.0, [1.0]), "`budget` must be a positive"),
        (lambda: SampledParticipation(0), "`count` must be at least 1"),
        (lambda: RandomParticipation(1.5), "`probability` must be from 0 to 1"),
        (
            lambda: Federation(FixedSteps(1), 0),
            "`batch_size` must be whole",
        ),
        (lambda: ServerStep(0.0), "`step` must be a positive"),
        (lambda: ServerStep(momentum=1.0), "`momentum` must be from 0 to below 1"),
        (lambda: horizons_of(FixedSteps([1, 2])), "`steps` must be one number or 5"),
        (
            lambda: Federation(FixedSteps(1), 1, SampledParticipation(9)).cohort(
                0, 0, SIZES
            ),
            "`count` must be at most 5",
        ),
    ],
)
def test_bad_settings_are_named(make: object, text: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidInputError, match=text):
        make()
