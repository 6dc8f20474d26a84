"""Displacements spread over ranks: each holds all vectors on its own entries.

A vector of this space is, on a rank, a NumPy vector of the entries that the rank is
responsible for, bucket after bucket, padding included. Sums over entries are added up
over ranks, so every rank gets the same numbers and decides alike: all ranks must ask
for the same things in the same order, which a rule that is a pure function does.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import NDArray

from hewfl.aggregate.gram import (
    ORIGINS,
    nearer_origin,
    vector_products,
    weight_problem,
)
from hewfl.aggregate.memory import on_gpu
from hewfl.aggregate.rows import as_rows
from hewfl.core.checks import Array
from hewfl.core.displacements import OwnSum, RoundProducts

_BLOCK = 2**18
"""Entries of one float64 block of columns: 2 MiB stay in cache."""


@runtime_checkable
class Sums(Protocol):
    """What adds up numbers over ranks, such as a `Wire`."""

    def summed(self, values: Float64[Array, " k"]) -> Float64[Array, " k"]:
        """Numbers added over ranks in float64, the same bits on all of them."""


@final
@dataclass(frozen=True)
class Shards:
    """Vectors of which this rank holds some entries, and so does every other rank.

    Attributes:
        wire: the way to the other ranks.
        buckets: rows on this rank's part of each bucket, (rows, entries).
        members: which rows count, in order.
        d: length of a whole vector, without padding.
        known: products of all n vectors, and of `reference` after them if there is
            one, as `hewfl.aggregate.gram.vector_products` gives them, and which row of
            the buckets is their origin; None if they are yet to be formed.
        reference: the vector whose products are known besides, told by identity.
        nulls: zero vectors after the members.
    """

    wire: Sums
    buckets: Sequence[torch.Tensor]
    members: NDArray[np.int64]
    d: int
    known: tuple[RoundProducts, int] | None = None
    reference: Any = None
    nulls: int = 0

    @property
    def n(self) -> int:
        """Number of vectors."""
        return len(self.members) + self.nulls

    @cached_property
    def _found(self) -> tuple[RoundProducts, int]:
        """Products as `known` has them; where they are not, a collective call."""
        if self.known is not None:
            return self.known
        rows = [bucket[self.members] for bucket in self.buckets]

        def around(origin: int) -> RoundProducts:
            parts = [shard_products(part, None, origin) for part in rows]
            return summed(self.wire, parts)

        found, place = centred(around, around(0), np.arange(self.n), 0)
        return found, int(self.members[place])

    def gram(self) -> Float64[Array, "n n"]:
        """All pairwise products ⟨Δ_i, Δ_j⟩."""
        return self.products().plain()

    def against(self, vector: Float64[Array, " k"]) -> Float64[Array, " n"]:
        """⟨Δ_i, v⟩."""
        total, begin, v = np.zeros(self.n), 0, np.asarray(vector)
        for block in self.blocks():
            end = begin + block.shape[1]
            total += block @ v[begin:end]
            begin = end
        return self.wire.summed(total)

    def combine(self, weights: Float64[Array, " n"]) -> Float64[Array, " k"]:
        """Σ_i w_iΔ_i on this rank's entries."""
        return np.concatenate([weights @ block for block in self.blocks()])

    def blocks(self) -> Iterator[Float64[Array, "n k"]]:
        """This rank's columns in float64, some at a time."""
        step = max(1, _BLOCK // self.n)
        for rows in self.buckets:
            for lo in range(0, rows.shape[1], step):
                part = rows[:, lo : lo + step][self.members].double().cpu().numpy()
                yield np.vstack([part, np.zeros((self.nulls, part.shape[1]))])

    def products(self, reference: Any = None, curvature: float = 1.0) -> RoundProducts:
        """The weight problem of a reference g and Λ, from the products known."""
        if isinstance(reference, OwnSum):
            return self.products().against_sum(reference.weights, curvature)
        known, origin = self._found
        if reference is not None and reference is self.reference:
            return weight_problem(known, self.n, curvature)
        alone = products_of(known, np.arange(self.n))
        found = weight_problem(alone, self.n, curvature)
        if reference is None:
            return found
        # Δ_i − r before the product: ⟨Δ_i, g⟩ − ⟨r, g⟩ would lose the digits of a
        # difference that is small beside what all displacements have in common.
        around = replace(self, members=np.append(origin, self.members))
        total, begin, g = np.zeros(self.n + 1), 0, np.asarray(reference)
        for block in around.blocks():
            r, end = block[0], begin + block.shape[1]
            total[0] += r @ g[begin:end]
            total[1:] += (block[1:] - r) @ g[begin:end]
            begin = end
        with_r, *with_g = self.wire.summed(total)
        linear = found.linear + np.array(with_g)
        return replace(found, linear=linear, offset=found.offset + float(with_r))

    def dot(self, u: Any, v: Any) -> float:
        """⟨u, v⟩ over all ranks."""
        both = np.dot(np.asarray(u), np.asarray(v))
        return float(self.wire.summed(np.array([both]))[0])

    def take(self, members: NDArray[np.int64]) -> "Shards":
        """Some of the vectors, zero vectors last; products go with them."""
        is_null = members >= len(self.members)
        assert not is_null[:-1][~is_null[1:]].any(), "standing still comes last"
        found, origin = self._found
        besides = np.arange(self.n, len(found.linear))  # the reference, if there is one
        known = products_of(found, np.concatenate([members, besides])), origin
        real, nulls = self.members[members[~is_null]], int(is_null.sum())
        return replace(self, members=real, known=known, nulls=nulls)

    def with_null(self) -> "Shards":
        """The vectors and Δ = 0 after them, whose products need no look at the data.

        Around r it is −r: ⟨−r, c_j⟩, ⟨−r, −r⟩ and ⟨−r, r⟩ are known.
        """
        (found, origin), n = self._found, self.n
        K = np.insert(np.insert(found.gram, n, -found.linear, 0), n, 0.0, 1)
        K[:, n] = K[n] = np.insert(-found.linear, n, found.offset)
        linear = np.insert(found.linear, n, -found.offset)
        known = RoundProducts(K, linear, found.offset, 0), origin
        return replace(self, known=known, nulls=self.nulls + 1)

    def like(self, rows: Float64[Array, "m k"]) -> "Shards":
        """Other vectors of the same space, of which each rank gives its entries."""
        own = torch.from_numpy(np.ascontiguousarray(rows))
        return Shards(self.wire, [own], np.arange(len(rows)), self.d)

    def matrix(self) -> Float64[Array, "n k"]:
        """All vectors on this rank's entries."""
        return np.concatenate(list(self.blocks()), axis=1)


# ------------------------------------------------------------------ products of shards


def shard_products(
    rows: torch.Tensor, reference: torch.Tensor | None, origin: int
) -> RoundProducts:
    """Products of the rows of one shard, and of the reference after them, if any.

    Args:
        rows: all vectors on one shard, shape (n, s).
        reference: c_t on the same shard, shape (s,).
        origin: row that the others are taken relative to.
    """
    gpu = on_gpu(rows)
    found = None if gpu is None else gpu.vector_products(rows, reference, origin)
    if found is not None:
        kernels: RoundProducts = found
        return kernels
    vectors = rows if reference is None else [*rows, reference]
    return vector_products(as_rows("vectors", vectors), origin)


def summed(wire: Sums, parts: Sequence[RoundProducts]) -> RoundProducts:
    """Products of whole vectors from those of this rank's shards: a collective call."""
    m = len(parts[0].linear)
    flat = [np.concatenate([p.gram.ravel(), p.linear, [p.offset]]) for p in parts]
    total = wire.summed(np.asarray(np.sum(flat, axis=0)))
    gram, linear = total[: m * m].reshape(m, m), total[m * m : -1]
    return RoundProducts(gram, linear, float(total[-1]), 0)


def products_of(found: RoundProducts, chosen: NDArray[np.int64]) -> RoundProducts:
    """Products of some of the vectors, around the same origin."""
    part = found.gram[np.ix_(chosen, chosen)]
    return RoundProducts(part, found.linear[chosen], found.offset, found.exponent)


def centred(
    around: Callable[[int], RoundProducts],
    found: RoundProducts,
    members: NDArray[np.int64],
    origin: int,
) -> tuple[RoundProducts, int]:
    """Products around a vector that lies among the rest, and which one it is.

    Args:
        around: products around any of the vectors; a collective call.
        found: those around the origin.
        members: the vectors that matter.
        origin: one of them.
    """
    for _ in range(ORIGINS):
        place = int(np.flatnonzero(members == origin)[0])
        nearer = nearer_origin(found.gram[np.ix_(members, members)], place)
        if nearer is None:
            break
        origin = int(members[nearer])
        found = around(origin)
    return found, origin
