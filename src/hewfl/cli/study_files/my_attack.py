"""An attack of your own: what faulty clients send."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reverse:
    """Each faulty client sends its update backwards.

    Attributes:
        share: of the clients; the seed draws them.
        factor: length of what is sent, relative to the update.
    """

    share: float
    factor: float = 2.0

    def corrupt(self, displacements: Any, t: int, rng: Any, common: Any) -> Any:
        """The rows that a faulty client sends in round t, one for each method.

        `rng` is a generator of the client and the round, `common` one that all faulty
        clients share.
        """
        return -self.factor * displacements
