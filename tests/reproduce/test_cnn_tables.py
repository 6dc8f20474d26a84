"""Published tables of deep networks under attack: stacks of replicas, files, pages."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reproduce.byzantine import cnn_tables
from reproduce.byzantine.byzantine_scores import Scores
from reproduce.byzantine.cnn_tables import (
    BETWEEN,
    BUCKETING,
    BYZFL,
    TABLES,
    OneEach,
    Opposite,
    Run,
    read_accuracies,
    run,
    run_missing,
    sorted_shards,
    worst,
)
from reproduce.byzantine.publish_byzantine import results_text
from reproduce.byzantine.stages import FULL

from hewfl import Federation, FixedSteps, LocalSGD, Method, Scenario, simulate
from hewfl.aggregators import make
from hewfl.data import Dataset, load
from hewfl.federation.omniscient import ALIE, IPM, Mimic
from hewfl.problems import random_quadratic

pytestmark = pytest.mark.torch


def test_one_simulation_of_many_attacks_is_one_simulation_for_each() -> None:
    problem = random_quadratic(n=6, d=4, seed=0)
    local = LocalSGD(0.1, worker_momentum=0.5)
    attacks = (
        ("IPM", IPM(0.34, search="inner")),
        ("ALIE", ALIE(0.34)),
        ("mimic", Mimic(0.34, warmup=2)),
        ("flip", Opposite(0.34)),
    )

    def ended(fault: Any, names: tuple[str, ...]) -> list[float]:
        methods = [
            Method(local, make(rule), name=f"{rule}{BETWEEN}{name}")
            for rule in ("mean", "geometric-median")
            for name in names
        ]
        federation = Federation(FixedSteps(1), 1, scenario=Scenario((fault,)))
        trace = simulate(problem, federation, methods, rounds=5, seed=0)
        return [trace.final()[m.name] for m in methods]

    names = tuple(name for name, _ in attacks)
    together = ended(OneEach(0.34, attacks), names)
    apart = [ended(attack, (name,)) for name, attack in attacks]
    assert together == [row[k] for k in range(2) for row in apart]
    assert len(set(together)) == 8


def test_honest_clients_hold_sorted_labels_and_attackers_all_of_them() -> None:
    labels = np.tile(np.arange(10), 20)
    shards = sorted_shards(labels, (0, 2, 3, 5, 6), 7, seed=0)
    held = [set(labels[rows].tolist()) for rows in shards]
    assert [held[i] for i in (0, 2, 3, 5, 6)] == [
        {0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}
    ]  # fmt: skip
    assert all(len(held[i]) == 10 for i in (1, 4))
    honest = np.concatenate([shards[i] for i in (0, 2, 3, 5, 6)])
    assert sorted(honest) == list(range(200))


@pytest.mark.parametrize(
    ("model", "size"), [(BUCKETING.model, 1_199_882), (BYZFL.model, 431_080)]
)
def test_networks_have_the_published_sizes(model: Any, size: int) -> None:
    assert sum(p.numel() for p in model(0).parameters()) == size


def test_settings_in_the_units_of_an_update() -> None:
    """Theirs: θ ← θ − 0.01 Σ β^k g clipped at 10, and θ ← θ − 0.1 m clipped at 2."""
    assert BUCKETING.rate * (1 - BUCKETING.momentum) == pytest.approx(0.01)
    clipped: Any = BUCKETING.theirs["centred clipping"](5)
    assert clipped.radius == pytest.approx(10 * 0.01)
    assert not clipped.relative
    pipeline: Any = BYZFL.theirs["clip 2 + NNM + geometric median (f)"](3)
    assert pipeline.parts[0].max_norm == pytest.approx(2 * 0.1)
    assert pipeline.parts[1].f == 3


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of three kinds, and small networks."""
    rng = np.random.default_rng(0)
    labels = np.arange(240) % 10
    images = rng.integers(0, 60, (240, 784), dtype=np.uint8)
    images[np.arange(240), 70 * labels] = 255
    part = images[:40], labels[:40]
    data = Dataset("tiny", images, labels, part, tuple("0123456789"), "made up")
    monkeypatch.setattr(cnn_tables, "load", lambda _: data)

    def linear(seed: int) -> Any:
        import torch  # noqa: PLC0415

        torch.manual_seed(seed)
        return torch.nn.Linear(784, 10)

    for key, table in TABLES.items():
        short = replace(table, model=linear, honest=5, rounds=2, batch=4)
        monkeypatch.setitem(cnn_tables.TABLES, key, short)


@pytest.mark.usefixtures("tiny")
def test_all_rules_and_attacks_of_a_table_are_run(tmp_path: Path) -> None:
    file = tmp_path / "cnn.csv"
    for name in TABLES:
        table = cnn_tables.TABLES[name]
        found = run(Run(name, 1))
        assert set(found) == {(r, a) for r in table.rules for a in table.attacks}
        assert all(0 <= value <= 100 for value in found.values())
        run_missing(Run(name, 1, rules=("mean",)), file)
    known = read_accuracies(file)
    assert len(known) == len(BUCKETING.attacks) + len(BYZFL.attacks)
    before = file.read_text()
    run_missing(Run("byzfl", 1, rules=("mean",)), file)
    assert file.read_text() == before
    run_missing(Run("byzfl", 1, rules=("mean", "FLTrust, root of 100")), file)
    assert file.read_text().startswith(before)
    found = run(Run("byzfl", 1, rules=("mean",)))
    found_worst = worst(read_accuracies(file), Run("byzfl", 1), "mean")
    assert found_worst is not None
    attack, accuracy = found_worst
    assert accuracy == min(found.values()) == found["mean", attack]
    assert worst(read_accuracies(file), Run("byzfl", 2), "mean") is None


@pytest.mark.usefixtures("tiny")
def test_a_run_that_diverged_has_no_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    far = replace(cnn_tables.TABLES["byzfl"], rate=1e38, rounds=4)
    monkeypatch.setitem(cnn_tables.TABLES, "byzfl", far)
    assert set(run(Run("byzfl", 1, rules=("mean",))).values()) == {0.0}


@pytest.mark.data
def test_pixels_are_standardised() -> None:
    images = np.asarray(load("mnist").features, dtype=np.float64)
    assert pytest.approx((images.mean(), images.std()), rel=1e-3) == cnn_tables.PIXELS


def test_ours_stands_beside_theirs_and_what_was_not_run_is_said() -> None:
    rule = "clip 2 + NNM + geometric median (f)"
    known = {
        ("byzfl", 4, seed, 800, rule, attack): 30.0 + k + seed
        for k, attack in enumerate(BYZFL.attacks)
        for seed in (0, 1)
    }
    known |= {("byzfl", 4, 0, 800, "mean", "sign flip"): 50.0}  # not all attacks
    text = results_text(Scores({}, FULL, ()), known)
    assert "4 of 14 attack; 800 of 800 steps; seeds 0, 1." in text
    assert f"| {rule} | 27 | 30.5 | 30.5 | 31.5 | 32.5 |" in text
    assert "| mean |" not in text
    assert "Not run with all 800 steps: f = 1, 2, 3." in text
    assert "--table byzfl --attackers 1 --attackers 2 --attackers 3" in text
    assert "--table bucketing --attackers 5 --device cuda" in text
