"""Rounds inside torchft: ranks join and leave, and no process is started again."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from hewfl.torch.collectives import RankError
from hewfl.torch.local_sgd import HewLocalSGD

_log = logging.getLogger("hewfl.torch")


@final
class QuorumLocalSGD:
    """`HewLocalSGD` among the ranks of torchft's present quorum.

    >>> local = QuorumLocalSGD(manager, pg, model, optimizer)  # doctest: +SKIP
    >>> while local.rounds < 1000:  # doctest: +SKIP
    ...     with local.round():
    ...         for batch in islice(batches, 8):
    ...             loss_of(model, batch).backward()
    ...             optimizer.step()

    Where a rank is lost within a round, the others discard their steps of that round. A
    rank that joins gets the common model, the server step's memory and average, and the
    number of rounds from a rank that has them; its control variate starts at the
    server's. An aggregator with a memory of each rank resets it with a new quorum.

    Attributes:
        local: the job of the present quorum, None before the first.
    """

    def __init__(
        self, manager: Any, process_group: Any, *arguments: Any, **keywords: Any
    ) -> None:
        """Register with a manager.

        Args:
            manager: of torchft, made with `use_async_quorum=False`.
            process_group: of torchft, the same that the manager has.
            arguments: model and optimiser of `HewLocalSGD`.
            keywords: its other arguments.
        """
        self._manager, self._group = manager, process_group
        self._arguments, self._keywords = arguments, keywords
        self._quorum: Any = None
        self._received: Mapping[str, Any] | None = None
        self.local: HewLocalSGD | None = None
        manager.register_state_dict_fn("hewfl", self._load_state, self._state)

    @property
    def rounds(self) -> int:
        """Rounds done, by all quorums together."""
        return 0 if self.local is None else self.local.rounds

    @contextmanager
    def round(self) -> Iterator[HewLocalSGD]:
        """Form a quorum, count the optimiser's steps inside the block, aggregate.

        Yields:
            The job of the quorum. Where a rank is lost, the model is the one before.
        """
        self._manager.start_quorum()
        local = self._job_of_quorum()
        try:
            yield local
            local.sync()
        except RankError as error:
            _log.warning("the round is discarded: %s", error)
            self._manager.report_error(error)
        if not self._manager.should_commit():
            local.discard_local_steps()

    def _job_of_quorum(self) -> HewLocalSGD:
        """The job of the present quorum, a new one after a change."""
        group = self._group.parent
        if self.local is not None and group is self._quorum:
            return self.local
        state = self._received
        if self.local is not None:
            state = self.local.state_dict() if state is None else state
            self.local.detach()
        keywords = {"sync_every": 2**62, "process_group": group} | self._keywords
        self.local = HewLocalSGD(*self._arguments, **keywords)
        if state is not None:
            self.local.load_state_dict(state)
        self.local.__enter__()
        self._quorum, self._received = group, None
        return self.local

    def _state(self) -> dict[str, Any]:
        return {} if self.local is None else self.local.state_dict()

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self._received = state or None
