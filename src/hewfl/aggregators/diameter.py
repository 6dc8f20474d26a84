"""Minimum-diameter averaging, by an exact search."""

from dataclasses import dataclass
from math import comb
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.aggregator import FAULTY, Aggregator, faulty_count
from hewfl.aggregators.distance import TIED, distance_error, sq_distances
from hewfl.core.array_types import Float64
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, Faulty, PerClient
from hewfl.errors import RuleError

LIMIT = 100_000
"""Nodes of the search, a few seconds; 100 independent normal vectors with f = 45 need
about 7,000, 200 with f = 90 more than this."""


@final
@dataclass(frozen=True, slots=True)
class MDA(Aggregator):
    """The mean of the n − f clients that are nearest to each other [ElMhamdi2020].

        S = argmin over subsets of n − f clients of max_{i,j ∈ S} ‖Δ_i − Δ_j‖
        step = mean of Δ_i over S

    "Minimum-diameter averaging". Where several subsets have the least diameter, their
    means are averaged; the paper takes any. The search is exact: the f clients left out
    are a vertex cover of the pairs that are farther apart, found by branching on the
    client with most such pairs. Its time grows exponentially with f in the worst case;
    where it needs more than 100,000 nodes the round is refused.

    Attributes:
        f: faulty clients, a count or a fraction below ½ of those present.
    """

    f: Faulty = FAULTY

    name: ClassVar[str] = "MDA"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """Equal weights on the subset of least diameter.

        Raises:
            RuleError: the search is too long.
        """
        gram = round_.displacements.products().gram
        n = len(gram)
        f, note = faulty_count(self.f, round_, (n - 1) // 2)
        search = _Search(sq_distances(gram), f, distance_error(gram))
        shares = search.shares()
        status = f"least diameter of {n - f} clients{note}"
        return Decision(shares / shares.sum(), status), state


class _Search:
    """Vertex covers of at most f clients, in graphs of pairs that are too far apart.

    A set of clients is a whole number with a bit for each.
    """

    def __init__(self, apart: Float64[Array, "n n"], f: int, error: float) -> None:
        self.apart, self.f, self.error, self.nodes = apart, f, error, 0
        self.n = len(apart)
        self.conflicts = [0] * self.n

    def shares(self) -> PerClient:
        """In which share of the subsets of least diameter each client is."""
        values = np.unique(self.apart)
        low, high = 0, len(values) - 1
        while low < high:
            middle = (low + high) // 2
            self._limit(values[middle])
            if self._exists((1 << self.n) - 1, self.f):
                high = middle
            else:
                low = middle + 1
        self._limit(values[high])
        counts = [0] * self.n
        total = self._count((1 << self.n) - 1, 0, self.f, counts)
        return np.array([count / total for count in counts])

    def _limit(self, sq_diameter: float) -> None:
        """The graph of the pairs farther apart than a squared diameter."""
        far = self.apart > sq_diameter * (1 + TIED) + self.error
        self.conflicts = [sum(1 << int(j) for j in np.flatnonzero(row)) for row in far]

    def _busiest(self, alive: int, left: int) -> tuple[int, int, bool]:
        """A client of most conflicts, the others in them, and whether all is lost."""
        self.nodes += 1
        if self.nodes > LIMIT:
            rule = f"the search among {self.n} clients with f = {self.f} is too long"
            raise RuleError(
                f"MDA: {rule}; use a smaller f or another rule, such as CAF"
            )
        most, busiest, ends, rest = 0, 0, 0, alive
        while rest:
            bit = rest & -rest
            rest ^= bit
            degree = (self.conflicts[bit.bit_length() - 1] & alive).bit_count()
            ends += degree
            if degree > most:
                most, busiest = degree, bit.bit_length() - 1
        others = self.conflicts[busiest] & alive if most else 0
        return busiest, others, ends > 2 * left * most

    def _exists(self, alive: int, left: int) -> bool:
        """Whether `left` clients are in all conflicts of those alive."""
        busiest, others, is_lost = self._busiest(alive, left)
        if is_lost or not others:
            return not others
        bit, degree = 1 << busiest, others.bit_count()
        if self._exists(alive ^ bit, left - 1):
            return True
        return degree <= left and self._exists(alive & ~others & ~bit, left - degree)

    def _count(self, alive: int, kept: int, left: int, counts: list[int]) -> int:
        """Subsets in which no two conflict: how many, and how many with each client.

        Args:
            alive: clients that are not decided.
            kept: clients that are in the subset, without conflicts with those alive.
            left: how many of those alive are to be left out.
            counts: are added to.
        """
        busiest, others, is_lost = self._busiest(alive, left)
        if not others:
            m = alive.bit_count()
            total = comb(m, left)
            with_one = comb(m - 1, left) if m else 0
            for i in range(self.n):
                if kept >> i & 1:
                    counts[i] += total
                elif alive >> i & 1:
                    counts[i] += with_one
            return total
        if is_lost:
            return 0
        bit, degree = 1 << busiest, others.bit_count()
        total = self._count(alive ^ bit, kept, left - 1, counts)
        if degree <= left:
            rest = alive & ~others & ~bit
            total += self._count(rest, kept | bit, left - degree, counts)
        return total
