"""Partitions beside iid and Dirichlet: classes, shards, sizes, features, natural."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hewfl.cli import app
from hewfl.data import (
    Partition,
    Rows,
    Sharing,
    class_counts,
    class_partition,
    feature_partition,
    load,
    natural_partition,
    quantity_partition,
    row_clients,
    shard_partition,
    share_out,
    split_rows,
)
from hewfl.data.partition import KINDS
from hewfl.errors import InvalidInputError

LABELS = np.repeat(np.arange(5), 40)
ROWS = Rows(
    np.random.default_rng(0).permutation(LABELS),
    np.random.default_rng(1).normal(size=(200, 3)) * [5.0, 1.0, 1.0],
    np.arange(200) % 8,
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_goes_to_one_client_and_the_seed_decides(kind: str) -> None:
    def shared(seed: int) -> Partition:
        return share_out(ROWS, Sharing(kind, 8, per_client=3), seed)

    shards = shared(1)
    assert len(shards) == 8
    assert np.array_equal(np.sort(np.concatenate(shards)), np.arange(200))
    assert all((np.diff(shard) > 0).all() for shard in shards if len(shard) > 1)
    again, other = shared(1), shared(2)
    assert all(np.array_equal(a, b) for a, b in zip(shards, again, strict=True))
    same = [np.array_equal(a, b) for a, b in zip(shards, other, strict=True)]
    assert all(same) == (kind == "natural")


@pytest.mark.parametrize(("n", "k"), [(5, 1), (8, 2), (3, 5), (20, 2)])
def test_clients_hold_k_classes_and_classes_are_held_evenly(n: int, k: int) -> None:
    counts = class_counts(LABELS, class_partition(LABELS, n, k, seed=3), 5)
    assert ((counts > 0).sum(axis=1) == k).all()
    owners = (counts > 0).sum(axis=0)
    assert owners.max() - owners.min() <= 1
    for held in counts.T:
        own = held[held > 0]
        assert own.max() - own.min() <= 1


def test_shards_hold_few_classes_and_sizes_are_even() -> None:
    shards = shard_partition(LABELS, 10, 2, seed=0)
    sizes = [len(shard) for shard in shards]
    assert set(sizes) == {20}
    assert (class_counts(LABELS, shards, 5) > 0).sum(axis=1).max() <= 2


def test_sizes_alone_differ() -> None:
    skewed = [len(s) for s in quantity_partition(10_000, 10, 0.3, seed=0, minimum=5)]
    even = [len(s) for s in quantity_partition(10_000, 10, 1e9, seed=0)]
    assert min(skewed) >= 5
    assert max(skewed) > 2000
    assert max(even) - min(even) <= 2


def test_clients_see_different_regions() -> None:
    """Spread of the clients' means along the axis of the largest variance."""
    first = ROWS.features[:, 0]

    def spread(alpha: float) -> float:
        shards = feature_partition(ROWS.features, 8, alpha, seed=0, minimum=5)
        return float(np.std([first[shard].mean() for shard in shards]))

    assert spread(0.05) > 3 * spread(1e6)
    flipped = feature_partition(ROWS.features, 8, 0.2, seed=0)
    again = feature_partition(ROWS.features.astype(np.float32), 8, 0.2, seed=0)
    assert [len(s) for s in flipped] == [len(s) for s in again]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: class_partition(LABELS, 8, 6, 0),
            "`per_client` must be at most the 5",
        ),
        (lambda: class_partition(LABELS, 2, 2, 0), "enough for 2 clients to hold"),
        (lambda: class_partition(LABELS, 8, 0, 0), "`per_client` must be at least 1"),
        (lambda: shard_partition(LABELS, 150, 2, 0), "`n` must be at most the 200"),
        (
            lambda: natural_partition([0, 2], 3),
            "`n` must be the number of clients with",
        ),
        (lambda: natural_partition([0, 1, 2], 2), "`n` must be the number of clients"),
        (
            lambda: share_out(
                Rows(LABELS, LABELS[:, None] * 1.0), Sharing("natural"), 0
            ),
            "`partition` must be left out: the data do not say whose",
        ),
        (
            lambda: share_out(ROWS, Sharing("clases"), 0),
            r"`partition` must be one of .*\(did you mean `classes`\?\)",
        ),
    ],
)
def test_mistakes_are_named(call: Any, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        call()


@pytest.fixture
def wards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    rows = [f"{k % 7},{k % 3},w{min(k, 4)},{'ab'[k % 2]}" for k in range(60)]
    (tmp_path / "own.csv").write_text("x,y,ward,kind\n" + "\n".join(rows) + "\n")
    return tmp_path / "own.csv"


def test_a_client_of_one_row_keeps_it(wards: Path) -> None:
    dataset = load(wards, client="ward")
    for seed in range(12):
        rows, held_out = split_rows(dataset, seed)
        whose = row_clients(dataset, rows)
        assert whose is not None
        assert set(whose.tolist()) == {0, 1, 2, 3, 4}
        assert len(rows) + len(held_out) == 60
        assert not set(rows) & set(held_out)


@pytest.mark.parametrize("kind", [*KINDS, None])
def test_show_draws_every_partition(wards: Path, kind: str | None) -> None:
    words = ["data", "show", str(wards), "--client", "ward", "--clients", "4"]
    words += ["--json", *(["--partition", kind] if kind else [])]
    words += ["--per-client", "1"] if kind in ("classes", "shards") else []
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    is_natural = kind in (None, "natural")
    assert len(found["counts"]) == (5 if is_natural else 4)
    assert found.get("clients") == (
        ["w0", "w1", "w2", "w3", "w4"] if is_natural else None
    )
    assert "own.csv: " in found["title"]
