"""The subset of m vectors that is farthest from a point, relative to its own spread.

    maximise R(S) = m Σ_{i∈S} t_i / Σ_{i<j∈S} d_ij     over all S of m out of n

With t_i = ‖Δ_i − s‖² and d_ij = ‖Δ_i − Δ_j‖² it is the mean squared distance of S from
the point s over the variance of S, so that R(S) − 1 = ‖s − mean_S‖²/variance of S. All
sums are of numbers that are not negative: they have no cancellation, and a relative
error of at most `ROUNDING`.

Up to `ENUMERATED` subsets are enumerated. Beyond, branch and bound: a node fixes some
vectors inside and some outside. With w_ij + w_ji = 2d_ij,

    Σ_{i<j∈S} d_ij = ½ Σ_{i∈S} Σ_{j∈S} w_ij ≥ ½ Σ_{i∈S} q_i,
    q_i = Σ of w_ij over the fixed j and the smallest w_ij of free j, m − 1 in all

so that a bound of the node is the largest ratio of two sums over S, which a few
Dinkelbach steps find. The split of d_ij into w_ij and w_ji is free: subgradient steps
at the root choose it (it is the multiplier of y_ij = y_ji in the linear relaxation with
y_ij = x_ix_j).
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations, islice
from math import comb
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Bool, Float64, Int64
from hewfl.core.validation import Array, Ints, Mask, PerClient

ENUMERATED = 200_000
"""Subsets up to which all are enumerated; 15 of 20 vectors are 15,504."""
_ROWS = 2**13
"""Subsets at once: their indicators stay in cache."""
WORK = 2**24
"""Additions of branch and bound: 6,700 nodes of 50 vectors, 1,700 of 100."""
_BATCH = 2**21
"""Additions at once: larger batches explore nodes that a better bound would close."""
_SPLITS = 200
"""Subgradient steps for the split of the distances; n³ of them are never above WORK."""
_STARTS = 8
"""Local searches, from the best of n neighbourhoods."""
CLOSED = 1e-9
"""A node whose bound is above the best ratio by no more than this share is closed."""
_DINKELBACH = 12
"""Steps for the ratio of a node, which converge in three to six."""


@final
@dataclass(frozen=True, slots=True)
class SubsetMaximum:
    """The best subset, and a bound on all.

    Attributes:
        members: S, increasing.
        value: R(S), rounded.
        upper: no subset has more; `value` but for rounding where `exact`.
        exact: whether the search is complete.
    """

    members: Int64[Ints, " m"]
    value: float
    upper: float
    exact: bool


def largest_ratio(
    numerators: PerClient,
    distances: Float64[Array, "n n"],
    size: int,
    work: int = WORK,
) -> SubsetMaximum:
    """The subset with the largest R, or the best that the work allows and a bound.

    R is infinite where the distances in S are zero and t is not, and 1 where both are.

    Args:
        numerators: t, not negative.
        distances: d, symmetric, not negative, zero on the diagonal.
        size: m, from 1 to n.
        work: additions of branch and bound; zero for the bound of the root.
    """
    n = len(numerators)
    largest = max(float(numerators.max()), float(distances.max()))
    if largest == 0:
        return SubsetMaximum(np.arange(size), 1.0, 1.0, exact=True)
    exponent = -np.frexp(largest)[1]
    t, d = np.ldexp(numerators, exponent), np.ldexp(distances, exponent)
    if comb(n, size) <= ENUMERATED:
        best, value = _enumerate(t, d, size)
        return SubsetMaximum(best, value, value * (1 + rounding(n)), exact=True)
    best, value = _local_search(t, d, size)
    if np.isinf(value):
        return SubsetMaximum(best, value, value, exact=True)
    return _Search(t, d, size, work).run(best, value)


def rounding(n: int) -> float:
    """Relative error of R: sums of n² numbers of one sign, in any order."""
    return 4 * n * n * 2.0**-53


def ratios(
    t: PerClient, d: Float64[Array, "n n"], members: Float64[Array, "s n"]
) -> Float64[Array, " s"]:
    """R of subsets, one indicator in each row."""
    above = members.sum(axis=1) * (members @ t)
    below = 0.5 * np.einsum("ij,ij->i", members @ d, members)
    return np.asarray(divide(above, below))


def divide(above: Any, below: Any) -> Any:
    """above/below; infinite where `below` alone is zero, 1 where both are."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(above == 0, np.where(below == 0, 1.0, 0.0), above / below)


# ------------------ enumeration


def _enumerate(
    t: PerClient, d: Float64[Array, "n n"], size: int
) -> tuple[Int64[Ints, " m"], float]:
    """The best of all subsets; the first one of those that tie."""
    n, best, value = len(t), np.arange(size), -1.0
    for left_out in _combinations(n, n - size):
        members = np.ones((len(left_out), n))
        np.put_along_axis(members, left_out, 0.0, axis=1)
        several = ratios(t, d, members)
        k = int(several.argmax())
        if several[k] > value:
            best, value = np.flatnonzero(members[k]), float(several[k])
    return best, value


@lru_cache(maxsize=2)
def _combinations(n: int, k: int) -> tuple[Int64[Ints, "s k"], ...]:
    """All choices of k out of n, some at a time; the same in every round."""
    choices, parts = combinations(range(n), k), []
    while rows := list(islice(choices, _ROWS)):
        flat = np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * k)
        parts.append(flat.reshape(len(rows), k))
    return tuple(parts)


# ------------------ local search


def _local_search(
    t: PerClient, d: Float64[Array, "n n"], size: int
) -> tuple[Int64[Ints, " m"], float]:
    """The best subset that no exchange of two vectors improves, of several starts."""
    nearest = np.argsort(d, axis=1, kind="stable")[:, :size]
    members = np.zeros_like(d)
    np.put_along_axis(members, nearest, 1.0, axis=1)
    first = ratios(t, d, members)
    results, starts = [], max(1, min(_STARTS, WORK // len(t) ** 3))
    for k in np.argsort(-first, kind="stable")[:starts]:
        results.append(improve(t, d, members[k] > 0))
        if np.isinf(results[-1][1]):
            break
    return max(results, key=lambda result: result[1])


def improve(
    t: PerClient, d: Float64[Array, "n n"], inside: Bool[Mask, " n"]
) -> tuple[Int64[Ints, " m"], float]:
    """Exchange two vectors while R grows."""
    inside = inside.copy()
    size = int(inside.sum())
    while True:
        near = d @ inside
        above, below = size * t[inside].sum(), 0.5 * near[inside].sum()
        value = float(divide(above, below))
        out, into = np.flatnonzero(inside), np.flatnonzero(~inside)
        if len(into) == 0 or np.isinf(value):
            return out, value
        tops = above + size * (t[into] - t[out, None])
        bottoms = below + near[into] - near[out, None] - d[np.ix_(out, into)]
        after = divide(np.maximum(tops, 0.0), np.maximum(bottoms, 0.0))
        i, j = np.unravel_index(int(after.argmax()), after.shape)
        trial = inside.copy()
        trial[out[i]], trial[into[j]] = False, True
        if not ratios(t, d, trial[None] * 1.0)[0] > value * (1 + rounding(len(t))):
            return out, value
        inside = trial


# ------------------ branch and bound


@final
@dataclass(frozen=True, slots=True)
class _Nodes:
    """Open nodes.

    Attributes:
        inside: vectors that are in S.
        outside: vectors that are not.
        bound: on R of every such S.
        branch: the vector to decide next.
    """

    inside: Bool[Mask, "k n"]
    outside: Bool[Mask, "k n"]
    bound: Float64[Array, " k"]
    branch: Int64[Ints, " k"]

    def take(self, chosen: Any) -> "_Nodes":
        """Some of the nodes, by a mask or by places."""
        return _Nodes(
            self.inside[chosen],
            self.outside[chosen],
            self.bound[chosen],
            self.branch[chosen],
        )

    def join(self, others: "_Nodes") -> "_Nodes":
        """These nodes, then the others."""
        return _Nodes(
            np.concatenate([self.inside, others.inside]),
            np.concatenate([self.outside, others.outside]),
            np.concatenate([self.bound, others.bound]),
            np.concatenate([self.branch, others.branch]),
        )


@final
class _Search:
    """Best-first branch and bound, many nodes at a time.

    Args:
        t: numerators, at most 1.
        d: distances, at most 1.
        size: m.
        work: additions allowed.
    """

    def __init__(
        self, t: PerClient, d: Float64[Array, "n n"], size: int, work: int
    ) -> None:
        self.t, self.d, self.size, self.work = t, d, size, work
        self.n = len(t)
        self.best, self.value = np.arange(size), 0.0

    def run(self, best: Int64[Ints, " m"], value: float) -> SubsetMaximum:
        """Search from the best subset known."""
        self.best, self.value = best, value
        n = self.n
        self._split()
        none = np.zeros((1, n), dtype=bool)
        nodes = self._evaluate(none, none)
        left, batch = self.work // n**2, max(1, _BATCH // n**2)
        closed = self.value  # the largest bound of a node that was closed early
        while True:
            closes = nodes.bound <= self.value * (1 + CLOSED)
            closed = max(closed, nodes.bound[closes].max(initial=0.0))
            nodes = nodes.take(~closes)
            if len(nodes.bound) == 0 or left <= 0 or np.isinf(self.value):
                break
            first = np.argsort(-nodes.bound, kind="stable")
            now, nodes = nodes.take(first[:batch]), nodes.take(first[batch:])
            left -= 2 * len(now.bound)
            rows, which = np.arange(len(now.bound)), now.branch
            inside, outside = now.inside.copy(), now.outside.copy()
            inside[rows, which], outside[rows, which] = True, True
            children = self._evaluate(
                np.concatenate([inside, now.inside]),
                np.concatenate([now.outside, outside]),
            )
            children.bound[:] = np.minimum(children.bound, np.tile(now.bound, 2))
            nodes = nodes.join(children)
        upper = float(max(self.value, closed, nodes.bound.max(initial=0.0)))
        exact = len(nodes.bound) == 0 or bool(np.isinf(self.value))
        return SubsetMaximum(self.best, self.value, upper * (1 + rounding(n)), exact)

    def _split(self) -> None:
        """Choose w_ij: subgradient steps on the bound of the root."""
        n, m, d = self.n, self.size, self.d
        shift, best, least_gap, scale = np.zeros_like(d), np.zeros_like(d), np.inf, 1.0
        for k in range(min(_SPLITS, 10 + WORK // n**3)):
            w = d + shift
            np.fill_diagonal(w, np.inf)
            near = np.argpartition(w, m - 2, axis=1)[:, : m - 1]
            chosen = np.zeros_like(d)
            np.put_along_axis(chosen, near, 1.0, axis=1)
            np.fill_diagonal(w, 0.0)
            q = (chosen * w).sum(axis=1)
            gains = 2 * m * self.t - self.value * q
            top = np.argpartition(-gains, m - 1)[:m]
            gap = float(gains[top].sum())
            if gap < least_gap * (1 - 1e-4):
                best, least_gap = shift, gap
            elif k % 10 == 9:
                scale *= 0.7
            y = np.zeros_like(d)
            y[top] = chosen[top]
            slope = y - y.T
            square = float((slope**2).sum()) / 2
            if square == 0 or gap <= 0:
                break
            step = 0.5 * scale * gap / (self.value * square)
            # no w_ij is negative: sums keep their digits
            shift = np.clip(shift + step * slope, -d, d)
        w = d + best
        np.fill_diagonal(w, 0.0)
        self.w = w
        off = w + np.diag(np.full(n, np.inf))
        self.order = np.argsort(off, axis=1, kind="stable")[:, : n - 1]
        self.ordered = np.take_along_axis(w, self.order, axis=1)

    def _evaluate(
        self, inside: Bool[Mask, "k n"], outside: Bool[Mask, "k n"]
    ) -> _Nodes:
        """Bounds of nodes; the best subset is updated."""
        m, k = self.size, len(inside)
        counts = inside.sum(axis=1)
        wanted = (m - counts)[:, None] - ~inside  # free ones of row i, besides i
        free = ~(inside | outside)
        near = free[:, self.order]
        near &= np.cumsum(near, axis=2, dtype=np.int16) <= wanted[:, :, None]
        q = inside @ self.w.T + np.einsum("kij,ij->ki", near, self.ordered)
        top, gains = 2 * m * self.t, np.empty(q.shape)
        take = m - counts  # of the free ones
        ratio, rank = np.full(k, self.value), np.arange(self.n)
        for _ in range(_DINKELBACH):
            known = ratio
            gains = np.where(free, top - known[:, None] * q, -np.inf)
            order = np.argsort(-gains, axis=1, kind="stable")
            chosen = np.zeros_like(free)
            np.put_along_axis(chosen, order, rank < take[:, None], axis=1)
            chosen |= inside
            above, below = chosen @ top, (chosen * q).sum(axis=1)
            after = divide(above, below)
            ratio = np.where(np.isinf(after), known, np.maximum(known, after))
            if (ratio <= known * (1 + 1e-15)).all():
                break
        # No S has Σ2mt − λΣq above `over`, so none has a ratio above λ + over/least.
        least = np.sort(np.where(free, q, np.inf), axis=1)
        least = np.where(rank < take[:, None], least, 0.0).sum(axis=1)
        least += (inside * q).sum(axis=1)
        over = np.maximum(above - known * below, 0.0) + rounding(self.n) * above
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = np.where(over == 0, known, known + over / least)
        self._update(chosen)
        # the least attractive vector: with it inside, a bound falls most
        branch = np.where(free, -gains, -np.inf).argmax(axis=1)
        return _Nodes(inside, outside, bound, branch)

    def _update(self, chosen: Bool[Mask, "k n"]) -> None:
        """Keep the best of the subsets that the nodes chose."""
        several = ratios(self.t, self.d, chosen * 1.0)
        k = int(several.argmax())
        if several[k] > self.value:
            self.best, self.value = improve(self.t, self.d, chosen[k])
