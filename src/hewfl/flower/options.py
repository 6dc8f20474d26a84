"""How a strategy conducts a federation; the method itself is an algorithm of hewfl."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from hewfl.core.algorithm import Algorithm
from hewfl.core.checks import invalid, positive
from hewfl.errors import InvalidInputError
from hewfl.server.checkpoint import flatten
from hewfl.server.federation import (
    EpochHorizons,
    FullParticipation,
    Horizons,
    Law,
    PastParticipation,
)
from hewfl.server.outer import Outer

Holder = Literal["server", "node"]


@final
@dataclass(frozen=True, slots=True)
class Options:
    """Everything about a run that is not the method.

    Attributes:
        population: n, clients in all. Nodes then introduce themselves and are known by
            their partition id, 0 to n − 1. None: any Flower node takes part, nameless;
            enough for methods that remember nothing of single clients.
        horizons: law of the local steps; None leaves them to the nodes.
        participation: law of who is asked; drawn from the seed, the round, and whom it
            asked before.
        seed: of both laws, for training and for evaluation.
        outer: what the server does with the aggregated step.
        variates: who keeps the control variates: `server` sends each node its
            correction; `node` sends all the same vector, and a node's own variate only
            to nodes that have lost it.
        min_replies: with fewer usable replies a round is rejected.
        wait_for: nodes to wait for before the first round; the population by default,
            two without one.
        wait_seconds: no longer; the round then goes on with those who are there.
        fraction_evaluate: share of the connected nodes asked to evaluate each round.
        folder: where to keep the run; one found there goes on.
        name: of the run, for reports.
    """

    population: int | None = None
    horizons: Horizons | None = None
    participation: Law = field(default_factory=FullParticipation)
    seed: int = 0
    outer: Outer = field(default_factory=Outer)
    variates: Holder = "server"
    min_replies: int = 1
    wait_for: int | None = None
    wait_seconds: float = 600.0
    fraction_evaluate: float = 1.0
    folder: Path | None = None
    name: str = "flower"

    def __post_init__(self) -> None:
        """Check that counts, shares and times are in range."""
        for name in ("population", "wait_for", "min_replies"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise invalid(name, "at least 1", value)
        if self.variates not in ("server", "node"):
            raise invalid("variates", "one of server, node", repr(self.variates))
        if not 0 <= self.fraction_evaluate <= 1:
            raise invalid("fraction_evaluate", "from 0 to 1", self.fraction_evaluate)
        positive("wait_seconds", self.wait_seconds)

    @property
    def first_nodes(self) -> int:
        """Nodes to wait for before the first round."""
        return self.wait_for or self.population or 2


def check_method(algorithm: Algorithm[Any], options: Options) -> None:
    """Require a method that can run on Flower, with the options it needs.

    Raises:
        InvalidInputError: it asks for what clients do not send, or for a population.
    """
    demands = algorithm.demands
    if demands.losses or demands.oracle:
        rule = "a method that needs neither losses nor the true state"
        raise invalid("algorithm", rule, algorithm.name)
    if options.population is not None:
        _probed(algorithm, options.population)
        return
    if _names_clients(algorithm):
        rule = (
            f"given for {algorithm.name}: what it knows of clients belongs to "
            "partition ids 0 to population − 1"
        )
        raise invalid("population", rule, None)
    if isinstance(options.participation, PastParticipation):
        rule = "given for a law that looks at the past: nameless nodes have none"
        raise invalid("population", rule, None)
    if isinstance(options.horizons, EpochHorizons):
        rule = "given for EpochHorizons: nodes tell their examples in introductions"
        raise invalid("population", rule, None)


def _names_clients(algorithm: Algorithm[Any]) -> bool:
    """Whether it knows something of clients by name.

    Its state then grows with their number, or it takes another number of them ill.
    """
    try:
        return _probed(algorithm, 2) != _probed(algorithm, 3)
    except InvalidInputError:
        return True


def _probed(algorithm: Algorithm[Any], n: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the first state for n clients of one parameter."""
    given = np.zeros((n, 1)) if algorithm.demands.gradients else None
    state = flatten(algorithm.init(n, 1, given))
    return {name: array.shape for name, array in state.items()}
