"""The tables of docs/results/flower.md are those of the runs that are kept."""

import math

from reproduce import stock_table as stock


def _runs(**ends: float) -> stock.Known:
    """Every cell of some strategies on two seeds for choosing and two others."""
    return {
        (app, scenario, name.replace("_", " "), seed): [0.1, end + 0.01 * (seed % 2)]
        for name, end in ends.items()
        for app in stock.APPS
        for scenario in stock.SCENARIOS
        for seed in (1, 2, 10, 11)
    }


def test_the_page_shows_the_runs_that_are_kept() -> None:
    page = stock.PAGE.read_text(encoding="utf-8")
    shown = page.split(stock.MARKS[0])[1].split(stock.MARKS[1])[0]
    assert shown == stock.section(stock.known())


def test_the_choice_is_the_safe_candidate_that_is_least_behind() -> None:
    names = list(stock.CANDIDATES)
    tuning, judged = stock.split(_runs(FedAvg=0.8))
    assert {cell[3] for cell in tuning} == {10, 11}
    assert {cell[3] for cell in judged} == {1, 2}
    for name in names:
        for (app, scenario, _, seed), curve in list(tuning.items()):
            tuning[app, scenario, name, seed] = [curve[-1] - 0.02]
    for app in stock.APPS:
        for seed in (10, 11):
            safe = tuning[app, "clean", "FedAvg", seed]
            tuning[app, "clean", names[1], seed] = safe
            tuning[app, "clean", names[2], seed] = safe
            tuning[app, "sign", names[2], seed] = [0.9]
    assert stock.choice(tuning) == names[2]
    assert math.isclose(stock.losses(tuning)[names[0]], 0.02)
    assert math.isclose(stock.shortfalls(tuning)["FedAvg"][0], 0.095)


def test_differences_are_paired_over_seeds() -> None:
    runs = _runs(FedAvg=0.5, other=0.6)
    pair = stock.difference(runs, "news", "sign", "other")
    assert math.isclose(pair.mean, 0.1)
    assert pair.half < 1e-12
