"""The averaged model of a job, in the place of the one in training for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hewfl.core.checks import invalid
from hewfl.torch.replica import Replica
from hewfl.torch.work import Meeting, Work


@contextmanager
def averaged_model(replica: Replica) -> Iterator[None]:
    """Let this rank's parameters hold the averaged model inside the block.

    A collective call: shards of the average are sent to all ranks. At the end the
    parameters are what they were, steps since the last round included.

    Args:
        replica: of a job whose outer step keeps an average.

    Raises:
        InvalidInputError: the job keeps none.
        RankError: ranks are missing or disagree.
    """
    model, wire = replica.model, replica.wire
    if not model.average:
        rule = 'one that keeps an average, such as Outer(average="ema")'
        raise invalid("options.outer", rule, repr(model.outer))
    with replica.met(Meeting.AVERAGE, Work()):
        wholes = [torch.empty_like(anchor) for anchor in model.anchor]
        shards = [
            average.to(whole.dtype)
            for average, whole in zip(model.average, wholes, strict=True)
        ]
        for shard, whole in zip(shards, wholes, strict=True):
            wire.wait(wire.sent_to_all(shard, whole))
    held = [y.detach().clone() for y in model.parameters]
    model.give(wholes)
    try:
        yield
    finally:
        for y, own in zip(model.parameters, held, strict=True):
            y.detach().copy_(own)
