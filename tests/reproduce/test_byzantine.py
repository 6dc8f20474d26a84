"""The study of hostile clients: trials, the three stages, worst cases, publishing."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reproduce.byzantine.byzantine_cells import (
    ACROSS_ROOT,
    AGAINST_ROOT,
    ATTACKS,
    CELLS,
    HELD_OUT,
    HELD_OUT_CELLS,
    ORACLE,
    PANELS,
    RULES,
    SHARES,
    TUNED_WITH,
    YARDSTICK_ATTACK,
    AcrossRoot,
    AgainstRoot,
    Cell,
    RootAlone,
)
from reproduce.byzantine.byzantine_scores import Scores
from reproduce.byzantine.publish_byzantine import publish_byzantine, results_text
from reproduce.byzantine.stages import FRESH, FULL, LEAST, MOST, START, Plan, Sizes
from reproduce.byzantine.trials import (
    Known,
    Outcome,
    Trial,
    read_trials,
    run_trials,
    write_trials,
)

from hewfl.aggregators import FLTrust
from tests.federation.test_omniscient import view_of

SIZES = Sizes(rounds=2, seeds=(0, 1, 2))
WIDER = Sizes(rounds=2, seeds=(0, 1, 2), kept=3)
CELL = Cell("digits-0.2", 8)
COLUMN = ("digits-0.2", 8)
BEST = {"RootWeights, root of 100": 1.25, "AngleMix + geometric median": 1.55}
"""Losses over the oracle's; other rules have 4."""


def made_up(
    cell: Cell = CELL, best_amplitude: float = 8.0, sizes: Sizes | None = None
) -> Known:
    """All trials of a cell: the worst attack is the last one, the oracle loses 0.5."""
    known: Known = {}
    plan = Plan(cell, sizes or SIZES, known)
    for rule in cell.rules:
        loss = 0.5 if rule == ORACLE else 0.5 * BEST.get(rule, 4.0)
        while asked := plan.open_amplitudes(rule):
            for amplitude in asked:
                far = abs(math.log2(amplitude / best_amplitude))
                for trial in plan.tuning(rule, amplitude):
                    known[trial] = Outcome(loss + far, 0.5)
        for k, trial in enumerate(plan.screening(rule)):
            known[trial] = Outcome(loss - 0.01 * (len(ATTACKS) - k), 0.5)
        for k, attack in enumerate(plan.worst_attacks(rule)):
            for trial in plan.judging(rule, attack):
                rng = np.random.default_rng([trial.seed, len(rule)])
                noise = 1 + 0.001 * rng.standard_normal()
                known[trial] = Outcome(loss * noise / (1 + 0.1 * k), 0.8 - loss / 10)
    return known


# ------------------ cells


def test_cells_cover_the_grid_once() -> None:
    assert len(set(CELLS)) == len(CELLS)
    main = {(c.panel, c.f) for c in CELLS if c.group == "main"}
    assert main == {
        (p, f) for p in PANELS if not p.startswith("digits") for f in SHARES
    }


def test_with_a_majority_of_attackers_no_rule_is_told_f() -> None:
    assert not any(RULES[rule].is_told for rule in Cell("mnist-iid", 12).rules)
    assert "RootWeights, root of 100" in Cell("mnist-iid", 12).rules


def test_every_rule_meets_every_attack_of_the_library() -> None:
    assert set(TUNED_WITH) <= set(ATTACKS)
    assert CELL.attacks("Trust") == tuple(ATTACKS)
    assert CELL.attacks("FLTrust, root of 100")[-1] == AGAINST_ROOT
    for rule in (ORACLE, "root of 100 alone"):
        assert CELL.attacks(rule) == (YARDSTICK_ATTACK,)
    assert Cell("mnist-iid", 0).attacks("Trust") == ("none",)


def test_the_attack_on_the_root_goes_down_with_it_and_undoes_the_rest() -> None:
    honest = np.array([[2.0, 1.0, 0.0], [2.0, 3.0, 0.0], [2.0, 2.0, 0.0]])
    view = view_of(honest, 2, FLTrust())
    root = np.array([-3.0, 0.0, 0.0])
    rooted = type(view.round)(
        view.round.anchor, view.round.displacements, view.round.cohort,
        view.round.plan, root=root,
    )  # fmt: skip
    view = type(view)(
        rooted, view.honest, view.attackers, view.algorithm, view.state, view.decide,
        view.seed,
    )  # fmt: skip
    sent = AgainstRoot(0.4).attack(view)
    np.testing.assert_allclose(sent[:, 0], 2.0)  # as the honest clients go
    assert (sent[:, 1] < 0).all()
    np.testing.assert_allclose(sent[:, 2], 0.0)


def test_across_the_root_each_attacker_turns_its_own_update() -> None:
    rng = np.random.default_rng(3)
    blind = view_of(1.0 + rng.standard_normal((7, 4)), 2, FLTrust())
    blind = replace(blind, honest=np.arange(5), attackers=np.array([5, 6]))
    own = blind.own_rows
    np.testing.assert_array_equal(AcrossRoot(0.4).attack(blind), -10 * own)
    root = np.array([-3.0, 0.0, 0.0, 0.0])
    view = replace(blind, round=replace(blind.round, root=root))
    sent = AcrossRoot(0.4).attack(view)
    np.testing.assert_allclose(sent[:, 1:], -10 * own[:, 1:])
    # shortened to the median honest length it goes down as far as the mean does
    shortened = sent[:, 0] * view.length / (10 * np.linalg.norm(own, axis=1))
    np.testing.assert_allclose(shortened, view.mean[0])
    assert view.mean[0] > 0


# ------------------ trials


def test_trials_are_read_back_without_the_line_that_was_cut(tmp_path: Path) -> None:
    file = tmp_path / "trials.csv"
    lost = Trial("digits-0.2", 8, "mean", 4.0, "ALIE, searched (inner)", 1, 2)
    known = {lost: Outcome(math.inf, 0.0)}
    write_trials(known, file)
    with file.open("a") as lines:
        lines.write("digits-0.2,8,mea")
    assert read_trials(file) == known
    assert read_trials(tmp_path / "none.csv") == {}


def test_trials_are_run_once_and_the_oracle_is_out_of_reach(tmp_path: Path) -> None:
    file, known = tmp_path / "trials.csv", Known()
    asked = [
        Trial("digits-0.2", 8, rule, 8.0, attack, 0, 3)
        for rule in (ORACLE, "mean", "RootWeights, root of 100")
        for attack in ("IPM 0.1", "sign flip, 10 times")
    ]
    run_trials(asked, known, file)
    assert read_trials(file) == known
    assert list(known)
    assert set(known) == set(asked)
    oracle = {known[t] for t in asked if t.rule == ORACLE}
    assert len(oracle) == 1
    mean, rooted = known[asked[3]], known[asked[5]]
    assert rooted.objective < mean.objective
    before = file.read_text()
    run_trials(asked, known, file)
    assert file.read_text() == before


def test_a_server_that_learns_alone_steps_against_its_gradient() -> None:
    rows, g = np.ones((3, 2)), np.array([1.0, -2.0])
    view = view_of(rows, 1, FLTrust())
    rooted = replace(view.round, root=g)
    decision, _ = RootAlone(0.5).decide(rooted, None)
    np.testing.assert_array_equal(decision.step, -0.5 * g)
    assert not decision.weights.any()


# ------------------ stages


def test_the_list_of_step_sizes_goes_on_until_the_best_has_neighbours() -> None:
    for best in (8.0, 64.0, 0.5):
        plan = Plan(CELL, SIZES, made_up(best_amplitude=best))
        assert plan.amplitude("mean") == best
        assert {best / 2, best, 2 * best, *START} <= set(plan.tried("mean"))
        assert not plan.is_at_edge("mean")
    for best, end in ((LEAST / 8, LEAST), (8 * MOST, MOST)):
        plan = Plan(CELL, SIZES, made_up(best_amplitude=best))
        assert plan.amplitude("mean") == end
        assert plan.is_at_edge("mean")
        assert plan.is_done()


def test_the_worst_attacks_of_the_screening_are_judged_on_other_seeds() -> None:
    plan = Plan(CELL, SIZES, made_up())
    assert plan.worst_attacks("mean") == ("flipped labels", "random labels")
    seeds = {t.seed for t in plan.all_judging()}
    assert seeds == {0, 1, 2}
    assert seeds.isdisjoint({SIZES.tuning, SIZES.screening})


def test_a_cell_is_done_when_its_last_trial_is() -> None:
    known = made_up()
    last = Plan(CELL, SIZES, known).all_judging()[-1]
    assert Plan(CELL, SIZES, known).is_done()
    del known[last]
    assert not Plan(CELL, SIZES, known).is_done()
    assert not Plan(CELL, SIZES, {}).is_done()


# ------------------ scores


@pytest.fixture(scope="module")
def scores() -> Scores:
    return Scores(made_up(), SIZES, (CELL, Cell("digits-0.2", 4)))


def test_the_worst_case_is_over_attacks_and_against_the_oracle(scores: Scores) -> None:
    score = scores.table[COLUMN]["mean"]
    assert score.attack == "flipped labels"
    assert scores.ratio(COLUMN, "mean") == pytest.approx(4.0, rel=0.01)
    assert scores.accuracy(COLUMN, "mean") == pytest.approx(0.6, abs=0.01)
    assert scores.oracle_loss(COLUMN) == pytest.approx(0.5, rel=0.01)


def test_a_run_that_diverged_is_the_worst_case() -> None:
    known = made_up()
    plan = Plan(CELL, SIZES, known)
    second = plan.worst_attacks("mean")[1]
    known[plan.judging("mean", second)[0]] = Outcome(math.inf, 0.0)
    scores = Scores(known, SIZES, (CELL,))
    assert scores.table[COLUMN]["mean"].attack == second
    assert scores.ratio(COLUMN, "mean") == math.inf
    assert not scores.is_level(COLUMN, "mean")


def test_rules_with_a_root_are_ranked_apart(scores: Scores) -> None:
    owned = RULES["RootWeights, root of 100"].root
    assert scores.rivals(COLUMN, owned)[0] == "RootWeights, root of 100"
    assert scores.rivals(COLUMN, None)[0] == "AngleMix + geometric median"
    assert scores.is_level(COLUMN, "AngleMix + geometric median")
    assert not scores.is_level(COLUMN, "mean")
    assert ORACLE not in scores.rivals(COLUMN, None)


def test_another_root_is_no_rival() -> None:
    roots = Cell("digits-0.2", 8, "roots")
    known = {**made_up(), **made_up(roots)}
    for trial, outcome in known.items():
        if trial.rule == "FLTrust, root of 500":
            known[trial] = Outcome(outcome.objective / 8, 0.5)
    both = Scores(known, SIZES, (CELL, roots))
    assert "FLTrust, root of 500" in both.table[COLUMN]
    assert both.is_level(COLUMN, "RootWeights, root of 100")
    assert not both.is_level(COLUMN, "RootWeights, root of 500")


def test_the_worst_attack_that_does_not_know_the_root(scores: Scores) -> None:
    rule = "FLTrust, root of 100"
    assert scores.table[COLUMN][rule].attack == AGAINST_ROOT
    attack, ratio = scores.with_secret_root(COLUMN, rule)
    assert attack == "flipped labels"  # the second: 1/1.1 of the first
    assert ratio == pytest.approx(scores.ratio(COLUMN, rule) / 1.1, rel=0.01)
    assert scores.with_secret_root(COLUMN, "mean") == (
        scores.table[COLUMN]["mean"].attack,
        scores.ratio(COLUMN, "mean"),
    )


def test_held_out_seeds_are_no_others_and_have_tables_of_their_own(
    scores: Scores, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    used = {*FULL.seeds, FULL.tuning, FULL.screening}
    assert used.isdisjoint({*FRESH.seeds, FRESH.tuning, FRESH.screening})
    assert not set(HELD_OUT_CELLS) & set(CELLS)
    cell = Cell("digits-0.2", 8, HELD_OUT)
    assert ORACLE in cell.rules
    assert ACROSS_ROOT in cell.attacks("FLTrust, root of 100")
    assert ACROSS_ROOT not in CELL.attacks("FLTrust, root of 100")
    fresh = Scores(made_up(cell, sizes=WIDER), WIDER, (cell,))
    assert fresh.with_secret_root(COLUMN, "FLTrust, root of 100")[0] == "flipped labels"
    publish_byzantine(scores, tmp_path, fresh)
    text = (tmp_path / "results.md").read_text("utf-8")
    ratios = cells_of(text, "Worst ratio, held-out seeds")
    assert set(ratios) == {f"*{ORACLE}*" if r == ORACLE else r for r in cell.rules}
    numbers = json.loads((tmp_path / "held_out.json").read_text("utf-8"))
    assert set(numbers["digits-0.2, 8"]) == set(cell.rules)
    assert numbers["digits-0.2, 8"]["FLTrust, root of 100"]["secret_ratio"] > 1


def cells_of(text: str, title: str) -> dict[str, str]:
    """The only column of a table, by rule."""
    part = text.partition(f"## {title}\n\n")[2].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines()[2:]]
    return dict(rows)


def test_what_was_not_run_is_said(scores: Scores) -> None:
    text = results_text(scores)
    assert "- Run, attackers of 20: digits, Dirichlet 0.2: 8." in text
    assert "- Not run, attackers of 20: digits, Dirichlet 0.2: 4." in text
    ratios = cells_of(text, "Worst ratio to the honest oracle")
    assert ratios[f"*{ORACLE}*"] == "1"
    assert ratios["AngleMix + geometric median"].startswith("**1.5")
    assert ratios["RootWeights, root of 100"].startswith("**1.2")
    assert float(ratios["mean"].split()[0]) == pytest.approx(4.0, rel=0.01)
    assert ratios["mean"].endswith(" flipped labels")


def test_misses_of_the_recommended_rules_are_said(scores: Scores) -> None:
    text = results_text(scores)
    assert "- AngleMix + geometric median: 1 of 1 cells: 1.5" in text
    known = made_up()
    for trial, outcome in known.items():
        if trial.rule == "RootWeights, root of 100":
            known[trial] = Outcome(outcome.objective * 0.85, 0.5)  # 1.06
    text = results_text(Scores(known, SIZES, (CELL,)))
    assert "- RootWeights, root of 100: 0 of 1 cells." in text


def test_what_a_recommended_rule_loses_comes_before_all_tables() -> None:
    known = made_up()
    for trial, outcome in known.items():
        if trial.rule == "SoftMix + geometric median":
            known[trial] = Outcome(outcome.objective / 4, 0.5)
    text = results_text(Scores(known, SIZES, (CELL,)))
    lost, _, rest = text.partition("## Misses")
    assert "behind the best rule of its kind in 1 of 1 cells" in lost
    assert lost.rstrip().endswith("behind the best rule of its kind in 0 of 1 cells.")
    assert "of SoftMix + geometric median\n" in lost
    assert "| --- |" not in lost
    assert "| --- |" in rest


def test_one_against_one_is_a_family_over_the_cells(scores: Scores) -> None:
    duel = scores.duel("RootWeights, root of 100", "FLTrust, root of 100")
    assert {c: d.verdict for c, d in duel.items()} == {COLUMN: "better"}
    assert duel[COLUMN].mean == pytest.approx(1.25 / 4, rel=0.01)
    text = results_text(scores)
    row = "| RootWeights, root of 100 | FLTrust, root of 100 | 1 | 0 | 0 | 0.31"
    assert row in text


def test_ends_of_lists_are_counted_with_those_where_no_step_trains() -> None:
    known = made_up(best_amplitude=LEAST / 8)
    for trial, outcome in list(known.items()):
        if trial.rule == "mean":  # worse than the model before training, log 10
            known[trial] = Outcome(outcome.objective + 9, 0.1)
    scores = Scores(known, SIZES, (CELL,))
    text, rules = results_text(scores), len(scores.table[COLUMN])
    assert f"lie {rules} of {rules} step sizes. 1 of them" in text
    assert f"The other {rules - 1}:" in text


def test_the_published_file_of_trials_is_compressed(tmp_path: Path) -> None:
    known = made_up()
    for name in ("trials.csv", "trials.csv.gz"):
        write_trials(known, tmp_path / name)
        assert read_trials(tmp_path / name) == known
    sizes = [(tmp_path / n).stat().st_size for n in ("trials.csv", "trials.csv.gz")]
    assert sizes[1] < sizes[0] / 4


def test_everything_is_published_and_can_be_published_again(
    scores: Scores, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    publish_byzantine(scores, tmp_path)
    names = {"results.md", "summary.json", "worst_ratios.png"}
    assert names <= {file.name for file in tmp_path.iterdir()}
    write_trials(scores.known, tmp_path / "trials.csv")
    again = Scores(read_trials(tmp_path / "trials.csv"), SIZES, scores.cells)
    assert results_text(again) == (tmp_path / "results.md").read_text()
