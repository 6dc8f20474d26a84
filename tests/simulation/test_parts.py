"""Draws, horizons, participation, server step, ledger and trace."""

import numpy as np
import pytest

from hewfl import (
    ChoiceSteps,
    EpochSteps,
    Federation,
    FixedSteps,
    HewHet,
    InvalidInputError,
    PoissonSteps,
    RandomParticipation,
    SampledParticipation,
    Scaffold,
    ServerStep,
    TimedSteps,
    Traffic,
)
from hewfl.server.communication import RoundCommunication, round_communication
from hewfl.server.trace import RoundRecord, from_lines, to_line
from hewfl.simulation.draws import draw

SIZES = np.array([5, 50, 20, 7, 1])
OFFSETS = np.cumsum(SIZES) - SIZES


# ------------------------------------------------------------------ draws


def test_draws_depend_on_seed_and_round_alone() -> None:
    cohort = Federation(FixedSteps(3), 4).cohort(1, 2, SIZES)
    first, again = draw(1, 2, cohort, OFFSETS), draw(1, 2, cohort, OFFSETS)
    assert np.array_equal(first.samples, again.samples)
    for other in (draw(2, 2, cohort, OFFSETS), draw(1, 3, cohort, OFFSETS)):
        assert (other.samples != first.samples).any()


def test_a_longer_branch_extends_a_shorter_one() -> None:
    short = draw(1, 2, Federation(FixedSteps(2), 4).cohort(1, 2, SIZES), OFFSETS)
    long = draw(1, 2, Federation(FixedSteps(5), 4).cohort(1, 2, SIZES), OFFSETS)
    assert np.array_equal(long.samples[:2], short.samples)


def test_absent_clients_do_not_move_the_draws_of_others() -> None:
    everybody = Federation(FixedSteps(2), 4).cohort(1, 2, SIZES)
    some = Federation(FixedSteps(2), 4, SampledParticipation(2)).cohort(1, 2, SIZES)
    whole = draw(1, 2, everybody, OFFSETS).samples
    assert np.array_equal(draw(1, 2, some, OFFSETS).samples, whole[:, some.clients])


def test_samples_are_the_client_s_own_and_uniform() -> None:
    cohort = Federation(FixedSteps(1), 4000).cohort(0, 0, SIZES)
    samples = draw(0, 0, cohort, OFFSETS).samples[0]
    for i, size in enumerate(SIZES):
        own = samples[i] - OFFSETS[i]
        assert own.min() >= 0
        assert own.max() < size
        counts = np.bincount(own, minlength=size) / 4000
        assert np.abs(counts - 1 / size).max() < 5 * np.sqrt(1 / size / 4000)


# ------------------------------------------------------------------ horizons


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


# ------------------------------------------------------------------ the rest


def test_outer_steps_follow_their_formulas() -> None:
    s, m = np.array([1.0, 2.0]), np.array([10.0, 0.0])
    move, memory = ServerStep(0.5).apply(s, m)
    assert move.tolist() == [0.5, 1.0]
    assert memory is m
    move, memory = ServerStep(2.0, 0.5).apply(s, m)
    assert memory.tolist() == [6.0, 2.0]
    assert move.tolist() == [12.0, 4.0]
    move, memory = ServerStep(1.0, 0.5, nesterov=True).apply(s, m)
    assert memory.tolist() == [6.0, 2.0]
    assert move.tolist() == [4.0, 3.0]


def test_the_ledger_counts_as_the_design_says() -> None:
    d, S = 1000, 7
    het = round_communication(HewHet(1.0, 0.4).demands.traffic, S, d)
    assert het.scalars == 2 * d + d * S + 1
    assert het.paper_scalars == 2 * d + 2 * d * S + 1
    assert het.up_per_client == d
    scaffold = round_communication(Scaffold(0.4).demands.traffic, S, d)
    assert (scaffold.scalars, scaffold.paper_scalars) == (9 * d, 16 * d)
    control = round_communication(Traffic(down=2, paper_up=2, down_scalars=1), S, d)
    assert control.paper_scalars == 2 * d + 2 * d * S + S  # eq:comm-main with ν = 0
    assert round_communication(Traffic(), 0, d) == RoundCommunication()


def test_records_survive_the_file_bit_for_bit() -> None:
    record = RoundRecord(
        3, 1, 0.1 + 0.2, None, {"accuracy": 1 / 3}, 5, 6, (0, 4), (2, 8), (0.1, 0.9)
    )
    assert from_lines([to_line(record)]) == [record]
