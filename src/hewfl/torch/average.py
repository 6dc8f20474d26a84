"""The averaged model of a job, in the place of the one in training for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from hewfl.core.checks import invalid
from hewfl.torch.model import SharedModel


@contextmanager
def averaged_model(model: SharedModel) -> Iterator[None]:
    """Let this rank's parameters hold the averaged model inside the block.

    Every rank holds the whole average, so that no other has to come along. At the end
    the parameters are what they were, steps since the last round included.

    Args:
        model: of a job whose outer step keeps an average.

    Raises:
        InvalidInputError: the job keeps none.
    """
    if not model.average:
        rule = 'one that keeps an average, such as Outer(average="ema")'
        raise invalid("options.outer", rule, repr(model.outer))
    held = [y.detach().clone() for y in model.parameters]
    model.give(model.average)
    try:
        yield
    finally:
        for y, own in zip(model.parameters, held, strict=True):
            y.detach().copy_(own)
