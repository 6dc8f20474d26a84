import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hewfl.data.partition import (
    Partition,
    class_counts,
    dirichlet_partition,
    iid_partition,
)
from hewfl.errors import InvalidInputError

LABELS = np.random.default_rng(0).integers(0, 10, 3000)


def same(first: Partition, second: Partition) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def is_partition_of(partition: Partition, m: int) -> bool:
    rows = np.concatenate(partition)
    return len(rows) == m and (np.sort(rows) == np.arange(m)).all()


@given(m=st.integers(1, 200), n=st.integers(1, 30), seed=st.integers(0, 2**40))
def test_even_shards_use_each_sample_once(m: int, n: int, seed: int) -> None:
    if n > m:
        with pytest.raises(InvalidInputError, match=rf"`n` must be .*; got {n}"):
            iid_partition(m, n, seed)
        return
    partition = iid_partition(m, n, seed)
    sizes = [len(shard) for shard in partition]
    assert len(sizes) == n
    assert max(sizes) - min(sizes) <= 1
    assert is_partition_of(partition, m)
    assert same(partition, iid_partition(m, n, seed))


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
    partition = dirichlet_partition(labels, n, 10**exponent, seed, minimum=minimum)
    assert len(partition) == n
    assert is_partition_of(partition, m)
    assert min(len(shard) for shard in partition) >= minimum
    again = dirichlet_partition(labels, n, 10**exponent, seed, minimum=minimum)
    assert same(partition, again)


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
    partition = dirichlet_partition(LABELS, n, alpha, seed, minimum=0)
    assert [shard.tolist() for shard in partition] == [sorted(o) for o in owned]


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5])
def test_the_minimum_moves_as_few_samples_as_possible(alpha: float) -> None:
    moved_any = False
    for seed in range(10):
        plain = dirichlet_partition(LABELS, 20, alpha, seed, minimum=0)
        filled = dirichlet_partition(LABELS, 20, alpha, seed, minimum=60)
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
    plain = dirichlet_partition(labels, 20, 0.05, seed, minimum=0)
    filled = dirichlet_partition(labels, 20, 0.05, seed, minimum=30)
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
            [len(s) for s in dirichlet_partition(labels, n, alpha, seed, minimum=0)]
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
    partition = dirichlet_partition(LABELS * 100, 5, 0.5, 3)
    assert same(partition, dirichlet_partition(LABELS, 5, 0.5, 3))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"n": 0}, "`n` must be at least 1; got 0"),
        ({"n": 301, "minimum": 10}, r"`n` must be at most the 3000 .* = 10; got 301"),
        ({"alpha": 0.0}, "`alpha` must be a positive finite number; got 0.0"),
        ({"alpha": float("nan")}, "`alpha` must be a positive finite number"),
        ({"seed": -1}, "`seed` must be a whole number from 0; got -1"),
        ({"minimum": -1}, "`minimum` must be at least 0; got -1"),
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
    partition = dirichlet_partition(LABELS, 6, 0.5, 0)
    counts = class_counts(LABELS, partition, 12)
    assert counts.shape == (6, 12)
    assert (counts.sum(axis=0)[:10] == np.bincount(LABELS)).all()
    assert counts[2, 3] == (LABELS[partition[2]] == 3).sum()
