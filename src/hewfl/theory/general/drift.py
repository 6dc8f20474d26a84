"""One step of the master recursion S ← R_a(S) + bS + d + ε."""

from dataclasses import dataclass
from typing import final

import numpy as np

from hewfl.core.checks import ArrayLike, Reals, broadcast, invalid, nonnegatives
from hewfl.core.fields import Converted, Nonnegatives
from hewfl.core.shapes import broadcasting
from hewfl.theory.general.generator import Generator


@final
@dataclass(frozen=True, slots=True, eq=False)
class Terms(Converted):
    """Terms of S ← R_a(S) + bS + d + ε, nonnegative and broadcast together.

    Those of a comparator, rounds first, or those of all controls, the control last.

    Attributes:
        time: a_t, how long the flow runs.
        growth: b_t.
        offset: d_t.
        slack: ε_t, what the controls miss the infimum by.

    Raises:
        InvalidInputError: a parameter is out of its range.
    """

    time: Nonnegatives
    growth: Nonnegatives = 0.0
    offset: Nonnegatives = 0.0
    slack: Nonnegatives = 0.0

    def __post_init__(self) -> None:
        """Refuse negative numbers and no terms at all; store arrays of one shape."""
        Converted.__post_init__(self)
        names = ("time", "growth", "offset", "slack")
        values = {name: np.asarray(getattr(self, name)) for name in names}
        for name, value in broadcast(values).items():
            if not value.size:
                raise invalid(", ".join(names), "nonempty", f"shape {value.shape}")
            object.__setattr__(self, name, value)

    @property
    def a(self) -> Reals:
        """a_t."""
        return np.asarray(self.time)

    @property
    def b(self) -> Reals:
        """b_t."""
        return np.asarray(self.growth)

    @property
    def d(self) -> Reals:
        """d_t + ε_t, which the recursion never tells apart."""
        return np.asarray(np.asarray(self.offset) + np.asarray(self.slack))


@broadcasting
def noisy_drift(generator: Generator, terms: Terms, state: ArrayLike) -> Reals:
    """One step of the recursion (def:noisy_drift).

    g(s) = R_a(s) + bs + d + ε
    """
    s = nonnegatives("state", state)
    return np.asarray(generator.flow(terms.a, s) + terms.b * s + terms.d)
