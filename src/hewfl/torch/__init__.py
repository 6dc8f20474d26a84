"""Exact-weight local SGD in a torch.distributed job.

- `HewLocalSGD`: a context manager over the training loop one has;
- `HewAverager`: the interface of `torch.distributed.algorithms.model_averaging`;
- `QuorumLocalSGD`: the first of them inside torchft, where ranks come and go;
- `SyncOptions`, `SyncReport`: what may be asked, what is reported;
- `RankError`: ranks are missing or disagree, said on every rank.

Installed by the extra `torch`.
"""

from hewfl.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401 - only to see that it is there
except ImportError as error:
    text = "hewfl.torch needs PyTorch: install hewfl's extra torch"
    raise MissingExtraError(text) from error

# Its functions keep the default process group in their defaults, if there is one when
# they are first imported, as the first optimiser does: then the group outlives
# destroy_process_group, and its threads may abort the process (docs/torch.md, Leaving).
import torch.distributed.nn as _early  # noqa: F401 - for its time, not its names

from hewfl.torch.averager import HewAverager
from hewfl.torch.local_sgd import HewLocalSGD
from hewfl.torch.options import SyncOptions, SyncReport
from hewfl.torch.rank_errors import RankError
from hewfl.torch.torchft_rounds import QuorumLocalSGD

__all__ = [
    "HewAverager",
    "HewLocalSGD",
    "QuorumLocalSGD",
    "RankError",
    "SyncOptions",
    "SyncReport",
]
