"""Partitions: every row once, the seed decides, and the promised skew."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hewfl.cli import app
from hewfl.data import (
    Partition,
    PartitionSpec,
    TrainingRows,
    class_counts,
    class_partition,
    dirichlet_partition,
    feature_partition,
    iid_partition,
    load,
    natural_partition,
    partition,
    quantity_partition,
    row_clients,
    shard_partition,
    split_rows,
)
from hewfl.data.partitions import KINDS
from hewfl.errors import InvalidInputError

LABELS = np.random.default_rng(0).integers(0, 10, 3000)


def same(first: Partition, second: Partition) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def is_partition_of(shards: Partition, m: int) -> bool:
    rows = np.concatenate(shards)
    return len(rows) == m and (np.sort(rows) == np.arange(m)).all()


@given(m=st.integers(1, 200), n=st.integers(1, 30), seed=st.integers(0, 2**40))
def test_even_shards_use_each_sample_once(m: int, n: int, seed: int) -> None:
    if n > m:
        with pytest.raises(InvalidInputError, match=rf"`n` must be .*; got {n}"):
            iid_partition(m, n, seed)
        return
    shards = iid_partition(m, n, seed)
    sizes = [len(shard) for shard in shards]
    assert len(sizes) == n
    assert max(sizes) - min(sizes) <= 1
    assert is_partition_of(shards, m)
    assert same(shards, iid_partition(m, n, seed))


def test_even_shards_are_shuffled_by_the_seed() -> None:
    assert not same(iid_partition(100, 4, 0), iid_partition(100, 4, 1))
    assert iid_partition(100, 4, 0)[0].tolist() != list(range(25))


@given(data=st.data())
def test_skewed_shards_use_each_sample_once_and_meet_the_minimum(
    data: st.DataObject,
) -> None:
    m, n = data.draw(st.integers(1, 120)), data.draw(st.integers(1, 25))
    minimum = data.draw(st.integers(0, m // n))  # every feasible one ends
    classes, seed = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 10**6))
    exponent = data.draw(st.floats(-300, 300))
    labels = np.random.default_rng(seed).integers(0, classes, m)
    shards = dirichlet_partition(labels, n, 10**exponent, seed, min_samples=minimum)
    assert len(shards) == n
    assert is_partition_of(shards, m)
    assert min(len(shard) for shard in shards) >= minimum
    again = dirichlet_partition(labels, n, 10**exponent, seed, min_samples=minimum)
    assert same(shards, again)


def test_the_draw_is_the_one_documented() -> None:
    n, alpha, seed = 7, 0.3, 5
    sequence = np.random.SeedSequence(seed, spawn_key=(2,))
    rng = np.random.default_rng(sequence)
    shares = [rng.dirichlet([alpha] * n) for _ in range(10)]
    owned: list[list[int]] = [[] for _ in range(n)]
    for c in range(10):
        rows = rng.permutation(np.flatnonzero(c == LABELS))
        start = 0
        for client in range(n):
            total = sum(shares[c][: client + 1])
            stop = len(rows) if client == n - 1 else round(len(rows) * total)
            owned[client] += rows[start:stop].tolist()
            start = stop
    shards = dirichlet_partition(LABELS, n, alpha, seed, min_samples=0)
    assert [shard.tolist() for shard in shards] == [sorted(o) for o in owned]


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5])
def test_the_minimum_moves_as_few_samples_as_possible(alpha: float) -> None:
    moved_any = False
    for seed in range(10):
        plain = dirichlet_partition(LABELS, 20, alpha, seed, min_samples=0)
        filled = dirichlet_partition(LABELS, 20, alpha, seed, min_samples=60)
        short = sum(max(0, 60 - len(shard)) for shard in plain)
        stayed = sum(
            len(np.intersect1d(a, b)) for a, b in zip(plain, filled, strict=True)
        )
        assert stayed == len(LABELS) - short
        moved_any |= short > 0
    assert moved_any


def test_who_is_filled_up_stays_skewed() -> None:
    labels = np.repeat(np.arange(10), 300)
    seed = 1
    plain = dirichlet_partition(labels, 20, 0.05, seed, min_samples=0)
    filled = dirichlet_partition(labels, 20, 0.05, seed, min_samples=30)
    before, after = class_counts(labels, plain, 10), class_counts(labels, filled, 10)
    short = before.sum(axis=1) < 30
    assert short.sum() > 3
    assert ((after > before)[short].sum(axis=1) == 1).all()  # one class, not a mix


def test_shares_follow_the_dirichlet_law() -> None:
    # Var p_i = (n − 1) / (n² (n α + 1)) for a symmetric Dirichlet vector.
    n, alpha, m = 5, 0.4, 10_000
    labels = np.zeros(m, dtype=np.int64)
    sizes = np.array(
        [
            [len(s) for s in dirichlet_partition(labels, n, alpha, seed, min_samples=0)]
            for seed in range(400)
        ]
    )
    p = sizes / m
    assert np.abs(p.mean(axis=0) - 1 / n).max() < 0.05
    assert p.var() == pytest.approx((n - 1) / (n**2 * (n * alpha + 1)), rel=0.1)


def test_a_large_concentration_is_even() -> None:
    for alpha in (1e12, 1e308):
        sizes = [len(s) for s in dirichlet_partition(LABELS, 4, alpha, 0)]
        assert max(sizes) - min(sizes) <= 10


def test_labels_may_skip_numbers() -> None:
    shards = dirichlet_partition(LABELS * 100, 5, 0.5, 3)
    assert same(shards, dirichlet_partition(LABELS, 5, 0.5, 3))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"n": 0}, "`n` must be at least 1; got 0"),
        (
            {"n": 301, "min_samples": 10},
            r"`n` must be at most the 3000 .* = 10; got 301",
        ),
        ({"alpha": 0.0}, "`alpha` must be a positive finite number; got 0.0"),
        ({"alpha": float("nan")}, "`alpha` must be a positive finite number"),
        ({"seed": -1}, "`seed` must be a whole number from 0; got -1"),
        ({"min_samples": -1}, "`min_samples` must be at least 0; got -1"),
        ({"labels": [0.5, 1.0]}, "`labels` must be a vector of whole numbers from 0"),
        ({"labels": [0, -1]}, "`labels` must be a vector of whole numbers from 0"),
        ({"labels": np.zeros(0, dtype=int)}, "`samples` must be at least one; got 0"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], text: str) -> None:
    given: dict[str, object] = {"labels": LABELS, "n": 5, "alpha": 0.5, "seed": 0}
    with pytest.raises(InvalidInputError, match=text):
        dirichlet_partition(**(given | change))  # type: ignore[arg-type]  # on purpose


def test_class_counts_count() -> None:
    shards = dirichlet_partition(LABELS, 6, 0.5, 0)
    counts = class_counts(LABELS, shards, 12)
    assert counts.shape == (6, 12)
    assert (counts.sum(axis=0)[:10] == np.bincount(LABELS)).all()
    assert counts[2, 3] == (LABELS[shards[2]] == 3).sum()


FIVE_CLASSES = np.repeat(np.arange(5), 40)
ROWS = TrainingRows(
    np.random.default_rng(0).permutation(FIVE_CLASSES),
    np.random.default_rng(1).normal(size=(200, 3)) * [5.0, 1.0, 1.0],
    np.arange(200) % 8,
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_goes_to_one_client_and_the_seed_decides(kind: str) -> None:
    def shared(seed: int) -> Partition:
        return partition(ROWS, PartitionSpec(kind, 8, classes_per_client=3), seed)

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
    counts = class_counts(FIVE_CLASSES, class_partition(FIVE_CLASSES, n, k, seed=3), 5)
    assert ((counts > 0).sum(axis=1) == k).all()
    owners = (counts > 0).sum(axis=0)
    assert owners.max() - owners.min() <= 1
    for held in counts.T:
        counts_held = held[held > 0]
        assert counts_held.max() - counts_held.min() <= 1


def test_shards_hold_few_classes_and_sizes_are_even() -> None:
    shards = shard_partition(FIVE_CLASSES, 10, 2, seed=0)
    sizes = [len(shard) for shard in shards]
    assert set(sizes) == {20}
    assert (class_counts(FIVE_CLASSES, shards, 5) > 0).sum(axis=1).max() <= 2


def test_sizes_alone_differ() -> None:
    skewed = [
        len(s) for s in quantity_partition(10_000, 10, 0.3, seed=0, min_samples=5)
    ]
    even = [len(s) for s in quantity_partition(10_000, 10, 1e9, seed=0)]
    assert min(skewed) >= 5
    assert max(skewed) > 2000
    assert max(even) - min(even) <= 2


def test_clients_see_different_regions() -> None:
    """Spread of the clients' means along the axis of the largest variance."""
    first = ROWS.features[:, 0]

    def spread(alpha: float) -> float:
        shards = feature_partition(ROWS.features, 8, alpha, seed=0, min_samples=5)
        return float(np.std([first[shard].mean() for shard in shards]))

    assert spread(0.05) > 3 * spread(1e6)
    flipped = feature_partition(ROWS.features, 8, 0.2, seed=0)
    again = feature_partition(ROWS.features.astype(np.float32), 8, 0.2, seed=0)
    assert [len(s) for s in flipped] == [len(s) for s in again]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: class_partition(FIVE_CLASSES, 8, 6, 0),
            "`classes_per_client` must be at most the 5",
        ),
        (
            lambda: class_partition(FIVE_CLASSES, 2, 2, 0),
            "enough for 2 clients to hold",
        ),
        (
            lambda: class_partition(FIVE_CLASSES, 8, 0, 0),
            "`classes_per_client` must be at least 1",
        ),
        (
            lambda: shard_partition(FIVE_CLASSES, 150, 2, 0),
            "`n` must be at most the 200",
        ),
        (
            lambda: natural_partition([0, 2], 3),
            "`n` must be the number of clients with",
        ),
        (lambda: natural_partition([0, 1, 2], 2), "`n` must be the number of clients"),
        (
            lambda: partition(
                TrainingRows(FIVE_CLASSES, FIVE_CLASSES[:, None] * 1.0),
                PartitionSpec("natural"),
                0,
            ),
            "`partition` must be left out: the data have no clients",
        ),
        (
            lambda: partition(ROWS, PartitionSpec("clases"), 0),
            r"`partition` must be one of .*\(did you mean `classes`\?\)",
        ),
    ],
)
def test_mistakes_are_named(call: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()


@pytest.fixture
def wards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    rows = [f"{k % 7},{k % 3},w{min(k, 4)},{'ab'[k % 2]}" for k in range(60)]
    (tmp_path / "own.csv").write_text("x,y,ward,kind\n" + "\n".join(rows) + "\n")
    return tmp_path / "own.csv"


def test_a_client_of_one_row_keeps_it(wards: Path) -> None:
    dataset = load(wards, client_column="ward")
    for seed in range(12):
        rows, held_out = split_rows(dataset, seed)
        clients = row_clients(dataset, rows)
        assert clients is not None
        assert set(clients.tolist()) == {0, 1, 2, 3, 4}
        assert len(rows) + len(held_out) == 60
        assert not set(rows) & set(held_out)


@pytest.mark.parametrize("kind", [*KINDS, None])
def test_show_draws_every_partition(wards: Path, kind: str | None) -> None:
    words = ["data", "show", str(wards), "--client-column", "ward", "--clients", "4"]
    words += ["--json", *(["--partition", kind] if kind else [])]
    words += ["--classes-per-client", "1"] if kind in ("classes", "shards") else []
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    shown = json.loads(result.output)
    is_natural = kind in (None, "natural")
    assert len(shown["counts"]) == (5 if is_natural else 4)
    assert shown.get("clients") == (
        ["w0", "w1", "w2", "w3", "w4"] if is_natural else None
    )
    assert "own.csv: " in shown["title"]
