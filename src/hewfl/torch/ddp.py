"""DistributedDataParallel modules inside a block of local steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def spanning(model: torch.nn.Module, group: Any) -> list[Any]:
    """DDP modules anywhere in the model that average over just the ranks of a group."""
    ranks = dist.get_process_group_ranks
    return [
        module
        for module in model.modules()
        if isinstance(module, DistributedDataParallel)
        and set(ranks(module.process_group)) == set(ranks(group))
    ]


@contextmanager
def on_its_own(module: Any) -> Iterator[None]:
    """No collective in forward and backward.

    `no_sync` leaves one broadcast of buffers to the first forward, which would wait
    for a rank that does no step: the flag that orders it is cleared as well, as torch
    itself does from the second forward on.
    """
    pending = module.require_forward_param_sync
    with module.no_sync():
        module.require_forward_param_sync = False
        try:
            yield
        finally:
            module.require_forward_param_sync = pending
