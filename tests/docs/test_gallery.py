"""The galleries: every rule and attack has a card, and its two lines mean the same."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from docs_tools.gallery import OWN, RULES, attacks, expanded, rules
from docs_tools.pages import ROOT

import hewfl
from hewfl import FedAvg, Federation, FixedSteps, RootSet, Scenario, simulate
from hewfl import aggregators as every
from hewfl.cli.references import REFERENCES
from hewfl.experiments.spec_sections import FAULTS, make_scenario
from hewfl.problems import Problem, softmax_from_arrays

RULE_CARDS = {card.name: card for cards in rules().values() for card in cards}
ATTACK_CARDS = {card.name: card for cards in attacks().values() for card in cards}
NAMES = {name: getattr(m, name) for m in (hewfl, every) for name in m.__all__}


@pytest.fixture(scope="module")
def problem() -> Problem:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(120, 4)), rng.integers(3, size=120)
    return softmax_from_arrays(X, y, np.array_split(np.arange(120), 10), l2=1e-2)


def test_every_rule_and_attack_has_a_card() -> None:
    names = [name for names in RULES.values() for name in names]
    assert len(names) == len(set(names))
    assert set(names) == {*every.NAMES, *every.YARDSTICKS, *every.PREAGGREGATIONS}
    assert set(ATTACK_CARDS) == set(FAULTS)
    for card in [*RULE_CARDS.values(), *ATTACK_CARDS.values()]:
        assert len(card.formula) > 8, card.name
        assert card.reference in (*REFERENCES.values(), OWN), card.name
        page, _, anchor = card.link.partition("#")
        assert f"::: {anchor}\n" in (ROOT / "docs" / page).read_text("utf-8")


def test_lines_of_rules_run_and_mean_the_same(problem: Problem) -> None:
    methods = {name: eval(card.code, dict(NAMES)) for name, card in RULE_CARDS.items()}
    for name, card in RULE_CARDS.items():
        written = every.make(tomllib.loads(card.spec)["method"])
        assert methods[name].aggregator == written
    federation = Federation(FixedSteps(2), 4, root=RootSet(20))
    entries = [hewfl.Entry(method, label=name) for name, method in methods.items()]
    trace = simulate(problem, federation, entries, rounds=2, seed=0)
    assert all(np.isfinite(loss) for loss in trace.final("objective").values())


@pytest.mark.parametrize("name", ATTACK_CARDS)
def test_lines_of_attacks_run_and_mean_the_same(name: str, problem: Problem) -> None:
    card = ATTACK_CARDS[name]
    scenario: Scenario = eval(card.code, dict(NAMES))
    assert make_scenario(tomllib.loads(card.spec)) == scenario
    federation = Federation(FixedSteps(2), 4, scenario=scenario)
    trace = simulate(problem, federation, [FedAvg(0.1)], rounds=2, seed=0)
    assert len(trace.faulty) == (0 if name == "HiddenBatches" else 2)


@pytest.mark.parametrize("kind", ["rules", "attacks"])
def test_pages_get_their_cards(kind: str) -> None:
    page: Path = ROOT / "docs" / f"gallery_{kind}.md"
    text = expanded(page.read_text("utf-8"))
    cards = RULE_CARDS if kind == "rules" else ATTACK_CARDS
    assert "<!-- gallery" not in text
    for card in cards.values():
        assert f"\n### {card.name}\n" in text
        assert f"`{card.spec}`" in text
