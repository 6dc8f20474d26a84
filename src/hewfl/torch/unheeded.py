"""Ranks that work and are given no weight, named once it is no accident."""

import logging
from dataclasses import replace
from typing import final

import numpy as np
from jaxtyping import Int64

from hewfl.core.checks import Ints
from hewfl.core.round import Decision
from hewfl.torch.faults import ranks_named

PATIENCE = 8
"""Rounds in a row after which a rank without weight is named."""
_log = logging.getLogger("hewfl.torch")


@final
class Unheeded:
    """Counts the rounds in a row in which each rank was heard and weighed nothing.

    A rank that did no step or whose model was not finite is reported as such; its count
    stays as it is.

    Args:
        ranks: n.
        logs: whether this rank writes the log of the job.
    """

    def __init__(self, ranks: int, *, logs: bool) -> None:
        self._rounds = np.zeros(ranks, dtype=np.int64)
        self._logs = logs

    def noted(
        self, decision: Decision, heard: Int64[Ints, " s"], round_: int
    ) -> Decision:
        """The decision, whose status names ranks that now have waited long enough.

        Args:
            decision: the rule's.
            heard: the ranks that it is about.
            round_: rounds done, this one included.
        """
        weightless = heard[decision.weights == 0]
        counts = self._rounds[weightless] + 1
        self._rounds[heard] = 0
        self._rounds[weightless] = counts
        named = weightless[counts == PATIENCE].tolist()
        if not named:
            return decision
        text = f"weight zero for {PATIENCE} rounds in a row: {ranks_named(named)}"
        if self._logs:
            hint = "its work is lost: look at its data, or choose another rule"
            _log.warning("round %d: %s (%s)", round_, text, hint)
        return replace(decision, status=f"{decision.status}; {text}")
