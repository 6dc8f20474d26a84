"""`QuorumLocalSGD` with a manager of our own, and so without torchft."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, final

import pytest
import torch
import torch.distributed as dist
from tests.torch.pool import Pool
from tests.torch.scenarios import Quadratic, descend, flat, log_texts

from hewfl.torch import QuorumLocalSGD, RankError

pytestmark = pytest.mark.torch


@final
@dataclass
class Manager:
    """Gives the next group at each quorum; votes for what had no error."""

    groups: list[Any]
    parent: Any = None  # as the process group of torchft
    error: Exception | None = None
    fails: int | None = None  # the quorum whose group cannot be made
    votes: list[bool] = field(default_factory=list)

    def register_state_dict_fn(self, *_: Any) -> None:
        """A joining rank is none of this."""

    def start_quorum(self) -> None:
        self.parent, self.error = self.groups[len(self.votes)], None
        if len(self.votes) == self.fails:
            self.parent, self.error = None, RuntimeError("no such store")

    def errored(self) -> Exception | None:
        return self.error

    def report_error(self, error: Exception) -> None:
        self.error = error

    def should_commit(self) -> bool:
        self.votes.append(self.error is None)
        return self.votes[-1]


def lost_before_the_block(rank: int, _: int) -> Any:
    """Rank 2 is in a quorum and does not come; later the group itself fails."""
    limit = timedelta(seconds=1.5)
    lists = [[0, 1, 2], [0, 1, 2], [0, 1], [0, 1], [0, 1]]
    groups = [dist.new_group(ranks, timeout=limit) for ranks in lists]
    groups[4] = groups[3]  # the last quorum is as the one before
    if rank == 2:
        groups = groups[:1]
    manager = Manager(groups, fails=3 if rank < 2 else None)
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    local = QuorumLocalSGD(manager, manager, module, optimizer)
    starts, ends = [], []
    with log_texts() as texts:
        for _ in range(1 if rank == 2 else 3):
            with local.round():
                starts.append(flat(module).tobytes())
                descend(module, optimizer, 2)
            ends.append(flat(module).tobytes())
    return starts, ends, manager.votes, texts, local.rounds


def test_a_rank_lost_before_the_block_drops_its_quorum(pool: Pool) -> None:
    """The next quorum has a job, and goes on from the model of the last round."""
    (starts, ends, votes, texts, rounds), other, left = pool.run(
        lost_before_the_block, 3
    )
    assert votes == other[2] == [True, False, True, False, True]
    assert rounds == other[4] == 3
    assert starts == other[0]
    assert ends == other[1]
    assert starts[1:] == ends[:-1]
    assert left[1] == ends[:1]
    assert len(texts) == 1
    assert texts[0].startswith("the quorum has lost a rank: rank 0 broke off")


def disagreeing(rank: int, _: int) -> None:
    """Rank 1 has another aggregator: no further quorum would mend that."""
    manager = Manager([dist.group.WORLD] * 9)
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    rule = "mean" if rank else "agreement"
    local = QuorumLocalSGD(manager, manager, module, optimizer, aggregator=rule)
    with local.round():
        pass


def test_ranks_that_disagree_are_an_error(pool: Pool) -> None:
    for fine, (kind, text, _) in pool.outcomes(disagreeing, 2):
        assert not fine
        assert kind == RankError.__name__
        assert text.startswith("all ranks must have the same aggregator")
