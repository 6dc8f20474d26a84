"""Communication: numbers sent down, up and besides, in both conventions.

Broadcast counts once. `scalars` is what hewfl sends; `paper_scalars` is the paper's
count, in which corrected methods also upload Δc_i (erratum E-17). A round without
clients costs nothing (E-06).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from hewfl.core.algorithm import Traffic
from hewfl.core.array_types import Int64
from hewfl.core.validation import Ints


@final
@dataclass(frozen=True, slots=True)
class RoundCommunication:
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


def add_mean_gradients(traffic: Traffic) -> Traffic:
    """What a method with control variates sends under an adaptive local optimiser.

    Each active client sends the mean gradient of its branch beside its displacement.
    The paper, which sends Δc_i along, counts that vector anyway.

    >>> add_mean_gradients(Traffic(down=2, up=1, paper_up=2))  # doctest: +ELLIPSIS
    Traffic(down=2, up=2, paper_up=2, ..., samples=0)
    """
    up = traffic.up + 1
    return replace(traffic, up=up, paper_up=max(up, traffic.paper_up))


def round_communication(traffic: Traffic, active: int, d: int) -> RoundCommunication:
    """The cost of a round with `active` clients and d parameters."""
    if active == 0:
        return RoundCommunication()
    extra = active * (traffic.down_scalars + traffic.up_scalars)
    return RoundCommunication(
        down=traffic.down * d,
        up=traffic.up * d * active,
        extra=extra + traffic.common_scalars,
        paper_up=traffic.paper_up * d * active,
        up_per_client=traffic.up * d + traffic.up_scalars,
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class RunCommunication:
    """What one method sent in a whole run, in total and per client.

    Attributes:
        total: the sum over rounds; `up_per_client` is the largest of a round.
        sent: numbers each client sent.
        paper_sent: numbers each client sent, in the paper's count.
        received: numbers each client received, broadcasts included.
        samples: on which each client measured losses, beside its local steps.
    """

    total: RoundCommunication
    sent: Int64[Ints, " n"]
    paper_sent: Int64[Ints, " n"]
    received: Int64[Ints, " n"]
    samples: Int64[Ints, " n"]


def run_communication(
    traffic: Traffic,
    contacted: Iterable[Sequence[int]],
    n: int,
    d: int,
    *,
    at_start: int = 0,
) -> RunCommunication:
    """The communication of a run.

    Args:
        traffic: what the method sends in a round.
        contacted: the clients of each round, excluded ones too.
        n: number of clients.
        d: number of parameters.
        at_start: numbers each client sent before the first round (E-29).
    """
    rounds = np.zeros(n, dtype=np.int64)
    costs = [RoundCommunication(up=n * at_start, paper_up=n * at_start)]
    for clients in contacted:
        rounds[list(clients)] += 1
        costs.append(round_communication(traffic, len(clients), d))
    total = RoundCommunication(
        down=sum(cost.down for cost in costs),
        up=sum(cost.up for cost in costs),
        extra=sum(cost.extra for cost in costs),
        paper_up=sum(cost.paper_up for cost in costs),
        up_per_client=max(cost.up_per_client for cost in costs),
    )
    received = traffic.down * d + traffic.down_scalars + traffic.common_scalars
    return RunCommunication(
        total,
        at_start + rounds * (traffic.up * d + traffic.up_scalars),
        at_start + rounds * (traffic.paper_up * d + traffic.up_scalars),
        rounds * received,
        rounds * traffic.samples,
    )
