"""Collectives of a process group, with time limits and a count of the bytes sent."""

import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array, invalid
from hewfl.errors import HewError


@final
class RankError(HewError, RuntimeError):
    """Ranks are missing or disagree; the message names them.

    Examples:
        >>> issubclass(RankError, RuntimeError)
        True
    """


@final
class Communicator:
    """The collectives that a round uses; counts the bytes this rank sends.

    The process group is held by a weak reference, so that `destroy_process_group` ends
    its threads. Every collective gets its own time limit, `timeout`: the shorter of the
    job's and the group's. A limit on the wait alone would leave the collective running
    in gloo's threads, and the process could not end before the missing rank answers.
    """

    def __init__(self, group: Any, device: torch.device, timeout: timedelta) -> None:
        self._group = weakref.ref(group)
        self.rank, self.ranks = int(group.rank()), int(group.size())
        self.bytes_sent, self.device = 0, device
        backend = group._get_backend(torch.device(device.type))
        self.timeout: timedelta = min(timeout, backend.options._timeout)
        self._options_by_kind: dict[Any, Any] = {}

    @property
    def group(self) -> Any:
        """The process group; `RankError` if it has been destroyed."""
        group = self._group()
        if group is None:
            raise RankError("the process group has been destroyed")
        return group

    @property
    def has_time_limits(self) -> bool:
        """Whether the host waits with a limit; on a GPU the stream waits instead."""
        return bool(self.device.type == "cpu")

    def wait(self, handles: list[Any]) -> None:
        """Wait for collectives: on the host with a limit, on a GPU in stream order."""
        end, least = time.monotonic() + self.timeout.total_seconds(), 1e-3
        for handle in handles:
            left = timedelta(seconds=max(end - time.monotonic(), least))
            handle.wait(*((left,) if self.has_time_limits else ()))

    def gather(self, rows: torch.Tensor) -> None:
        """Send this rank's row of a matrix on the host to all, and receive theirs.

        On the host by messages to each: an all-gather of gloo makes copies, and waits
        for another thread. Their tag is no other's, so that a rank which alone left a
        round does not send a row where something shorter is expected.
        """
        sent = rows[self.rank]
        self.bytes_sent += (self.ranks - 1) * sent.nbytes
        if self.has_time_limits:
            self.wait(self._send_to_all(sent, rows, 1))
            return
        sent = sent.to(self.device)
        received = sent.new_empty(rows.shape)
        options = self._options(c10d.AllgatherOptions)
        self.wait([self.group.allgather([list(received)], [sent], options)])
        rows.copy_(received)

    def _send_to_all(self, sent: torch.Tensor, rows: torch.Tensor, tag: int) -> Any:
        """Start to send a vector to all ranks, and to receive theirs into rows."""
        group, n, handles = self.group, self.ranks, []
        for k in range(1, n):
            target, source = (self.rank + k) % n, (self.rank - k) % n
            handles.append(group.send([sent], target, tag))
            handles.append(group.recv([rows[source]], source, tag))
        return handles

    def sum(self, values: Float64[Array, " k"]) -> Float64[Array, " k"]:
        """Numbers summed over ranks in float64, the same bits on all of them."""
        total: Any = torch.from_numpy(values.copy()).to(self.device)
        self.wait([self.start_sum(total)])
        return np.asarray(total.cpu())

    def start_sum(self, tensor: torch.Tensor) -> Any:
        """Start to replace a tensor by its sum over ranks; a handle to wait for."""
        self.bytes_sent += ring_bytes(tensor.nbytes, self.ranks)
        return self.group.allreduce([tensor], self._options(c10d.AllreduceOptions))

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by that of rank 0."""
        if self.rank == 0:
            self.bytes_sent += (self.ranks - 1) * tensor.nbytes
        options = self._options(c10d.BroadcastOptions)
        options.rootRank, options.rootTensor = 0, 0
        self.wait([self.group.broadcast([tensor], options)])

    def start_all_to_all(self, sent: torch.Tensor, received: torch.Tensor) -> Any:
        """Start to send shard j to rank j: row i of `received` comes from rank i."""
        self.bytes_sent += sent.nbytes // self.ranks * (self.ranks - 1)
        options = self._options(c10d.AllToAllOptions)
        return self.group.alltoall_base(received.view(-1), sent, [], [], options)

    def start_all_gather(self, shard: torch.Tensor, whole: torch.Tensor) -> list[Any]:
        """Start to send every rank's shard to all, in the order of ranks."""
        self.bytes_sent += (self.ranks - 1) * shard.nbytes
        if self.device.type != "cpu":
            options = self._options(c10d.AllgatherOptions)
            return [self.group._allgather_base(whole, shard, options)]
        parts = whole.view(self.ranks, -1)
        parts[self.rank].copy_(shard)
        handles: list[Any] = self._send_to_all(shard, parts, 0)
        return handles

    def _options(self, kind: Any) -> Any:
        options = self._options_by_kind.setdefault(kind, kind())
        options.timeout = self.timeout
        return options


@final
class Shards:
    """The ranks over which each replica of the model is sharded.

    Numbers of all shards together, such as products, are sums over these ranks: the
    same on all of them, so that all shards of all replicas agree on a round. This
    rank's shard is number `index` of `count`; `begin` entries lie in those before it,
    `total` in all.
    """

    def __init__(
        self, group: Any, size: int, device: torch.device, timeout: timedelta
    ) -> None:
        """Count the entries of all shards; a collective call unless `group` is None."""
        self.count, self.index, self.begin, self.total = 1, 0, 0, size
        self._comm = None
        if group is not None:
            self._comm = Communicator(group, device, timeout)
            self.count, self.index = self._comm.ranks, self._comm.rank
            sizes = np.zeros(self.count)
            sizes[self.index] = size
            ends = self.sum(sizes).cumsum()
            self.begin, self.total = int(ends[self.index]) - size, int(ends[-1])

    @property
    def name(self) -> str:
        """Of this rank's shard, empty where there is one."""
        return "" if self._comm is None else f", shard {self.index} of {self.count}"

    def sum(self, values: Float64[Array, " k"]) -> Float64[Array, " k"]:
        """Numbers summed over the shards of this rank's replica."""
        if self._comm is None:
            return values
        try:
            return self._comm.sum(values)
        except RuntimeError as error:
            raise RankError(f"a rank of one replica is missing: {error}") from error


def plain_group(group: Any) -> Any:
    """The process group of torch: all ranks by default, or the one inside torchft's.

    torchft wraps a plain group, another one for each quorum. This is the group of the
    present quorum: after the next quorum a round on it raises `RankError`.
    """
    group = dist.group.WORLD if group is None else group
    return getattr(group, "parent", group)


def check_group(group: Any, device: torch.device) -> None:
    """Require a group with this rank that can exchange tensors on the device.

    gloo is refused on GPUs, where it lacks collectives.
    """
    if group is None:
        raise invalid("process_group", "initialised by init_process_group", None)
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise invalid("process_group", "one that contains this rank", "another")
    rule = f"one with a backend for parameters on {device.type}"
    try:
        name = str(group._get_backend(torch.device(device.type)).name())
    except RuntimeError as error:
        raise invalid("process_group", rule, dist.get_backend(group)) from error
    if name == "gloo" and device.type != "cpu":
        raise invalid("process_group", rule + " and all-to-all, such as nccl", name)


def ring_bytes(size: int, ranks: int) -> int:
    """What a ring all-reduce of `size` bytes sends from each rank: 2 (n − 1)/n."""
    return 2 * (ranks - 1) * size // ranks


def join_words(items: Sequence[object]) -> str:
    """Items in a sentence: «1, 2 and 5»."""
    texts = [str(item) for item in items]
    if len(texts) < 2:
        return "".join(texts)
    return ", ".join(texts[:-1]) + " and " + texts[-1]


def name_ranks(ranks: Sequence[object]) -> str:
    """Ranks in a sentence: «rank 2», «ranks 1, 2 and 5»."""
    return ("rank " if len(ranks) == 1 else "ranks ") + join_words(ranks)
