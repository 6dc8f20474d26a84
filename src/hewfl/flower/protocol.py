"""What server and clients say to each other: names of records and keys.

An order travels as `arrays` (the model), `config` (numbers) and, for corrected
branches, one vector more. The answer is one vector, `displacement`, and `metrics`. A
stock Flower client answers with its model instead, under any name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from hewfl.core.checks import invalid

INTRODUCE, GRADIENT, TRAIN = "query.introduce", "train.gradient", "train"
"""Message types: who are you, one gradient at the start, a local branch."""

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
DISPLACEMENT, CORRECTION = "displacement", "correction"
SERVER_VARIATE, OWN_VARIATE = "server-variate", "own-variate"
"""Names of records."""

ROUND, STEPS, STEP_SIZE = "server-round", "local-steps", "step-size"
PROXIMAL, HOLD, HELD = "proximal-mu", "hold", "variate-round"
"""Keys of an order; Flower's FedProx has the first and the fourth too."""

EXAMPLES, DONE, PARTITION = "num-examples", "num-steps", "partition-id"
BATCH, OFFER, BUDGET, RATE = "batch-size", "next-steps", "time-budget", "lr"
"""Keys of an answer, of a node's config (`local-steps`, `time-budget`), and the name
under which stock apps send their step size."""
OWN = frozenset({DONE, PARTITION, BATCH, OFFER, STEP_SIZE})
"""Keys of an answer that are not measures to be averaged."""

START = 2**31
"""The round whose draws give the gradients at the start, as in the engine."""


@final
@dataclass(frozen=True, slots=True)
class Order:
    """What a client is told, besides the model.

    Attributes:
        round: rounds done before this one.
        steps: H_i ≥ 1.
        step_size: η_i > 0.
        proximal: μ ≥ 0.
        hold: whether all gradients are taken at the anchor.
    """

    round: int
    steps: int
    step_size: float
    proximal: float = 0.0
    hold: bool = False

    def config(self) -> dict[str, int | float | bool]:
        """The order as numbers for a ConfigRecord."""
        return {
            ROUND: self.round + 1,
            STEPS: self.steps,
            STEP_SIZE: self.step_size,
            PROXIMAL: self.proximal,
            HOLD: self.hold,
        }


def order_of(config: Mapping[str, Any]) -> Order:
    """The order in a ConfigRecord.

    Raises:
        InvalidInputError: it does not come from a strategy of hewfl.
    """
    try:
        return Order(
            int(config[ROUND]) - 1,
            int(config[STEPS]),
            float(config[STEP_SIZE]),
            float(config[PROXIMAL]),
            bool(config[HOLD]),
        )
    except KeyError as error:
        rule = "an order of a strategy of hewfl.flower"
        raise invalid("message", rule, f"a config without {error}") from error
