"""Settings of local training, common to all clients and methods."""

from dataclasses import dataclass
from typing import Literal, final, get_args

import numpy as np

from hewfl.core.checks import invalid, nonnegative, positive, shown

Optimiser = Literal["sgd", "adamw"]
Route = Literal["auto", "graph", "stacked", "loop"]


@final
@dataclass(frozen=True, slots=True)
class Training:
    """Settings of local training, common to all clients and methods.

    Attributes:
        weight_decay: λ ≥ 0, on all trainable parameters; also (λ/2)‖x‖² in F_i.
        clip: c > 0, or None for no clipping.
        optimiser: of local steps: `sgd`, or `adamw` with moments that start anew in
            every round.
        precision: `full`, that of the models; or `bfloat16`, by autocast, for local
            steps alone: models, gradients' sums and evaluations stay as they are.
        route: `loop` steps client by client; `stacked` steps all of a round at once;
            `graph` does so in a CUDA graph; `auto` chooses, see docs/torch_module.md.
        client_chunk: most models, clients × methods, that are stepped at once; `auto`
            for as many as 0.4 of the device's memory holds.

    Raises:
        InvalidInputError: a setting breaks its rule.
    """

    weight_decay: float = 0.0
    clip: float | None = None
    optimiser: Optimiser = "sgd"
    precision: Literal["full", "bfloat16"] = "full"
    route: Route = "auto"
    client_chunk: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        """Refuse negative decay, clipping at zero, and words that are not known."""
        nonnegative("weight_decay", self.weight_decay)
        if self.clip is not None:
            positive("clip", self.clip)
        for name, words in (("optimiser", Optimiser), ("route", Route)):
            if getattr(self, name) not in get_args(words):
                rule = f"one of {', '.join(get_args(words))}"
                raise invalid(name, rule, repr(getattr(self, name)))
        if self.precision not in ("full", "bfloat16"):
            raise invalid("precision", '"full" or "bfloat16"', repr(self.precision))
        chunk = self.client_chunk
        counts = isinstance(chunk, int | np.integer) and not isinstance(chunk, bool)
        if chunk != "auto" and not (counts and int(chunk) >= 1):
            raise invalid("client_chunk", '"auto" or at least 1', shown(chunk))
