"""The collectives of a round, each with a time limit, and the bytes this rank sends."""

import weakref
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch._C import _distributed_c10d as c10d

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array, invalid
from hewfl.torch.rank_errors import RankError


@final
class Wire:
    """A process group as the exchange sees it; counts what it sends.

    The group is the job's: it is not kept alive here, so that destroy_process_group
    ends its threads. Every collective is given its own limit. One that only the waiting
    gives up goes on in gloo's threads, and the process could not end until the missing
    rank wakes.

    Attributes:
        rank: of this process in it.
        ranks: n.
        device: where tensors of a round are.
        timeout: the shorter of the job's and the group's.
        bytes_sent: by this rank since construction, as a ring or direct sends count.
    """

    def __init__(self, group: Any, device: torch.device, timeout: timedelta) -> None:
        self._group = weakref.ref(group)
        self.rank: int = group.rank()
        self.ranks: int = group.size()
        self.bytes_sent = 0
        self.device = device
        backend = group._get_backend(torch.device(device.type))
        self.timeout: timedelta = min(timeout, backend.options._timeout)
        self._how: dict[Any, Any] = {}

    @property
    def group(self) -> Any:
        """The process group.

        Raises:
            RankError: it has been destroyed.
        """
        group = self._group()
        if group is None:
            raise RankError("the process group has been destroyed")
        return group

    @property
    def keeps_time(self) -> bool:
        """Whether waiting has a limit: on a device the stream waits, not the host."""
        return bool(self.device.type == "cpu")

    def wait(self, works: list[Any]) -> None:
        """Until sent and received; on the host with a limit, on a device in order."""
        for work in works:
            if self.keeps_time:
                work.wait(self.timeout)
            else:
                work.wait()

    def gathering(self, row: NDArray[Any]) -> tuple[torch.Tensor, Any]:
        """One row of numbers from each rank, once it has been waited for."""
        mine = torch.from_numpy(row).to(self.device)
        rows = mine.new_empty((self.ranks, *mine.shape))
        self._count((self.ranks - 1) * mine.nbytes)
        how = self._options(c10d.AllgatherOptions)
        return rows, self.group.allgather([list(rows)], [mine], how)

    def table(self, row: NDArray[Any]) -> NDArray[Any]:
        """One row of numbers from each rank, in the order of ranks."""
        rows, work = self.gathering(row)
        self.wait([work])
        table: NDArray[Any] = rows.cpu().numpy()
        return table

    def summed(self, values: Float64[Array, " k"]) -> Float64[Array, " k"]:
        """Numbers added over ranks in float64, the same bits on all of them."""
        total = torch.from_numpy(values.copy()).to(self.device)
        self.wait([self.adding(total)])
        sums: Array = total.cpu().numpy()
        return sums

    def adding(self, tensor: torch.Tensor) -> Any:
        """Start to put the sum over ranks in place of each rank's own; to wait for."""
        self._count(ring_bytes(tensor.nbytes, self.ranks))
        return self.group.allreduce([tensor], self._options(c10d.AllreduceOptions))

    def copied(self, tensor: torch.Tensor) -> None:
        """What rank 0 of the group has in place of each rank's own."""
        if self.rank == 0:
            self._count((self.ranks - 1) * tensor.nbytes)
        how = self._options(c10d.BroadcastOptions)
        how.rootRank, how.rootTensor = 0, 0
        self.wait([self.group.broadcast([tensor], how)])

    def exchanged(self, sent: torch.Tensor, received: torch.Tensor) -> Any:
        """Shard j to rank j: row i of `received` is this rank's shard from rank i."""
        self._count(sent.nbytes // self.ranks * (self.ranks - 1))
        how = self._options(c10d.AllToAllOptions)
        return self.group.alltoall_base(received.view(-1), sent, [], [], how)

    def sent_to_all(self, shard: torch.Tensor, whole: torch.Tensor) -> list[Any]:
        """Every rank's shard to all, in the order of ranks."""
        self._count((self.ranks - 1) * shard.nbytes)
        if self.device.type != "cpu":
            how = self._options(c10d.AllgatherOptions)
            return [self.group._allgather_base(whole, shard, how)]
        parts, works = whole.view(self.ranks, -1), []
        parts[self.rank].copy_(shard)
        for k in range(1, self.ranks):  # gloo's all-gather takes three times as long
            to, fro = (self.rank + k) % self.ranks, (self.rank - k) % self.ranks
            works.append(self.group.send([shard], to, 0))
            works.append(self.group.recv([parts[fro]], fro, 0))
        return works

    def _options(self, kind: Any) -> Any:
        if kind not in self._how:
            self._how[kind] = kind()
            self._how[kind].timeout = self.timeout
        return self._how[kind]

    def _count(self, sent: int) -> None:
        self.bytes_sent += sent


def group_of(given: Any) -> Any:
    """The process group that is meant: all ranks, or one of torch or torchft.

    Those of torchft wrap a plain one, another for each quorum. Here it is the present
    quorum's: after the next one a round is a `RankError` of a group destroyed.
    """
    group = dist.group.WORLD if given is None else given
    return getattr(group, "parent", group)


def check_group(group: Any, device: torch.device) -> None:
    """That this rank is in the group, and that it can exchange tensors on the device.

    Raises:
        InvalidInputError: there is none, the rank is not in it, it has no backend for
            the device, or gloo for another than the host: that lacks collectives.
    """
    if group is None:
        raise invalid("process_group", "there: call init_process_group first", None)
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise invalid("process_group", "one that this rank is in", "one of others")
    rule = f"one with a backend for parameters on {device.type}"
    try:
        name = str(group._get_backend(torch.device(device.type)).name())
    except RuntimeError as error:
        raise invalid("process_group", rule, dist.get_backend(group)) from error
    if name == "gloo" and device.type != "cpu":
        raise invalid("process_group", rule + " that exchanges shards, as nccl", name)


def ring_bytes(size: int, ranks: int) -> int:
    """What a ring all-reduce of `size` bytes sends from each rank: 2 (n − 1)/n."""
    return 2 * (ranks - 1) * size // ranks
