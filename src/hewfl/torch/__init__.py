"""Aggregation weights for local SGD in a torch.distributed job.

- `HewLocalSGD`: a context manager around an existing training loop;
- `QuorumLocalSGD`: `HewLocalSGD` inside torchft, where ranks join and leave;
- `SyncOptions`, `SyncReport`: options of a job, report of a round;
- `RankError`: ranks are missing or disagree, raised on every rank.

Installed by the extra `torch`.
"""

from hewfl.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401 - a clear error if it is missing
except ImportError as error:
    text = "hewfl.torch needs PyTorch: install hewfl's extra torch"
    raise MissingExtraError(text) from error

# Functions of this module have the default process group as a default argument, if
# there is one when they are first imported, as the first optimiser does. Then the group
# survives destroy_process_group, and its threads may abort the process (docs/torch.md).
import torch.distributed.nn as _early  # noqa: F401 - for the time of the import

from hewfl.torch.collectives import RankError
from hewfl.torch.local_sgd import HewLocalSGD, QuorumLocalSGD
from hewfl.torch.sync_options import SyncOptions, SyncReport

__all__ = [
    "HewLocalSGD",
    "QuorumLocalSGD",
    "RankError",
    "SyncOptions",
    "SyncReport",
]
