"""What travels: numbers sent up, down and besides, in both conventions.

Broadcast counts once. `scalars` is what hewfl sends; `paper_scalars` is the paper's
count, in which corrected methods also upload Δc_i (erratum E-17). A round in which
nobody is contacted costs nothing (E-06).
"""

from dataclasses import dataclass
from typing import final

from hewfl.core.round import Traffic


@final
@dataclass(frozen=True, slots=True)
class Charge:
    """One round of one method.

    Attributes:
        down: numbers broadcast.
        up: numbers sent by the clients together.
        extra: scalars besides, both ways.
        paper_up: `up` in the paper's count.
        up_per_client: numbers each active client sends, extras included.
    """

    down: int = 0
    up: int = 0
    extra: int = 0
    paper_up: int = 0
    up_per_client: int = 0

    @property
    def scalars(self) -> int:
        """All numbers sent."""
        return self.down + self.up + self.extra

    @property
    def paper_scalars(self) -> int:
        """All numbers as the paper counts them."""
        return self.down + self.paper_up + self.extra


def charge(traffic: Traffic, active: int, d: int) -> Charge:
    """The cost of a round with `active` clients and d parameters."""
    if active == 0:
        return Charge()
    extra = active * (traffic.down_scalars + traffic.up_scalars)
    return Charge(
        down=traffic.down * d,
        up=traffic.up * d * active,
        extra=extra + traffic.common_scalars,
        paper_up=traffic.paper_up * d * active,
        up_per_client=traffic.up * d + traffic.up_scalars,
    )
