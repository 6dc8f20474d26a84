"""Who wins on a quantity, and how sure that is: all pairs, with Holm's correction."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import final

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array
from hewfl.experiments.compare import (
    LEVEL,
    Comparison,
    Verdict,
    compare_finals,
    final_of,
    holm,
    paired_p,
)
from hewfl.experiments.results import Results
from hewfl.experiments.tune import LARGER_IS_BETTER

EQUAL = 1e-7
"""Relative difference that single precision cannot tell from none."""
_OTHER: dict[Verdict, Verdict] = {
    "better": "worse",
    "worse": "better",
    "undecided": "undecided",
}


@final
@dataclass(frozen=True, slots=True)
class Certain:
    """Two methods of several, compared with regard to how many pairs there are.

    Attributes:
        found: the comparison for itself.
        p: corrected by Holm over all pairs of the quantity; 0 where one method
            diverged for every seed, which needs no test.
    """

    found: Comparison
    p: float

    @property
    def verdict(self) -> Verdict:
        """Better or worse where the corrected p leaves no more than 5 % doubt."""
        return self.found.verdict if self.p < 1 - LEVEL else "undecided"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """The methods of a run on one quantity, after the last round.

    Attributes:
        quantity: what `Results.curve` knows.
        finals: last values of each method, seed by seed, best mean first; those that
            diverged in a seed come last.
        pairs: the earlier of two against the later.
    """

    quantity: str
    finals: Mapping[str, Float64[Array, " seeds"]]
    pairs: Mapping[tuple[str, str], Certain]

    @property
    def labels(self) -> tuple[str, ...]:
        """Best first."""
        return tuple(self.finals)

    def mean(self, label: str) -> float:
        """Over all seeds; NaN if it diverged in one."""
        return float(self.finals[label].mean())

    @property
    def best(self) -> tuple[str, ...]:
        """Methods with the best mean, several if they are equal; may be none."""
        top = self.labels[0]
        if not np.isfinite(self.mean(top)):
            return ()
        return tuple(k for k in self.labels if k == top or self.is_equal(top, k))

    def against(self, first: str, second: str) -> Certain:
        """One method against another, either way round."""
        if (first, second) in self.pairs:
            return self.pairs[first, second]
        known = self.pairs[second, first]
        c = known.found
        turned = replace(
            c, mean=-c.mean, low=-c.high, high=-c.low, verdict=_OTHER[c.verdict]
        )
        return Certain(turned, known.p)

    def is_equal(self, first: str, second: str) -> bool:
        """Whether two methods have the same value in every seed, up to rounding."""
        a, b = self.finals[first], self.finals[second]
        return bool((np.abs(a - b) <= EQUAL * np.abs(a)).all())

    def split(self, label: str) -> dict[Verdict, list[str]]:
        """The other methods by the verdict on one; those equal to it left out."""
        told: dict[Verdict, list[str]] = {"better": [], "worse": [], "undecided": []}
        for other in self.labels:
            if other != label and not self.is_equal(label, other):
                told[self.against(label, other).verdict].append(other)
        return told


def stand(results: Results, quantity: str) -> Standing:
    """Compare all methods of a run on a quantity, each by the model it is judged by."""
    sign = -1 if quantity in LARGER_IS_BETTER else 1
    found = {label: final_of(results, label, quantity) for label in results.labels}
    worth = {k: sign * float(v.mean()) for k, v in found.items()}
    order = sorted(found, key=lambda k: (not np.isfinite(worth[k]), worth[k]))
    finals = {label: found[label] for label in order}
    names = list(combinations(order, 2))
    seen = [compare_finals(finals[a], finals[b], quantity) for a, b in names]
    tested = [paired_p(finals[a], finals[b]) for a, b in names]
    # a method that diverged everywhere is behind without a test: not of the family
    sure = [c.seeds == 0 and c.verdict != "undecided" for c in seen]
    kept = iter(holm([p for p, s in zip(tested, sure, strict=True) if not s]).tolist())
    p = [0.0 if s else next(kept) for s in sure]
    rows = zip(names, seen, p, strict=True)
    return Standing(quantity, finals, {name: Certain(c, q) for name, c, q in rows})
