"""A measured step in a torch job: losses of all ranks along it, on fresh samples."""

from collections.abc import Callable, Sequence
from typing import SupportsFloat

import numpy as np
import torch

from hewfl.core.array_types import Float64, Int64
from hewfl.core.validation import Array, Ints
from hewfl.server.line_search import LineSearchResult, fit_line_search, trial_lengths
from hewfl.torch.collectives import Wire
from hewfl.torch.shared_model import SharedModel

Loss = Callable[[], SupportsFloat]
"""The loss of the model at its present parameters, on samples drawn before."""
Probe = Callable[[int], Loss]
"""Draws that many fresh samples of this rank, and gives the loss on them."""


def measured_step(
    model: SharedModel,
    wire: Wire,
    probe: Probe,
    steps: Sequence[torch.Tensor],
    voters: tuple[Int64[Ints, " s"], Float64[Array, " s"]],
) -> LineSearchResult:
    """Ask all ranks for their losses at x + a s: a collective call.

    Ranks that are not heard, or have no weight, answer too, and their answers do not
    count. The parameters are what they were when it ends.

    Args:
        model: x, and y, which is moved and put back.
        wire: the way to the other ranks.
        probe: of this rank.
        steps: s, bucket by bucket, the same bits on all ranks.
        voters: ranks heard, and the weights of their displacements.

    Returns:
        How far to go, and what was measured: the same on all ranks.
    """
    assert model.server_step.line_search_samples is not None
    heard, weights = voters
    loss, own = probe(model.server_step.line_search_samples), []
    with model.set_aside(), torch.no_grad():
        for a in trial_lengths(model.server_step):
            pairs = zip(model.anchor, steps, strict=True)
            model.give([x + a * s.to(x) for x, s in pairs])
            own.append(float(loss()))
    table = np.zeros((wire.ranks, len(own)))
    table[wire.rank] = own
    # A sum with zeros is exact, and keeps what is not finite in its own place.
    answers = wire.summed(table.reshape(-1)).reshape(table.shape)
    return fit_line_search(model.server_step, weights, answers[heard])
