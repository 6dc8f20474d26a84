"""Rounds inside torchft: ranks come and go, and no process is started again."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from hewfl.torch.local_sgd import HewLocalSGD
from hewfl.torch.rank_errors import RankError

_log = logging.getLogger("hewfl.torch")


@final
class QuorumLocalSGD:
    """Local SGD with exact weights, among the ranks of torchft's present quorum.

    >>> local = QuorumLocalSGD(manager, pg, model, optimizer)  # doctest: +SKIP
    >>> while local.rounds < 1000:  # doctest: +SKIP
    ...     with local.round():
    ...         for batch in islice(batches, 8):
    ...             loss_of(model, batch).backward()
    ...             optimizer.step()

    A rank that is lost within a round costs the others the steps of that round. One
    that joins is given the common model, the server step's memory and average, and the
    number of rounds by a rank that has them; its control variate starts at the
    server's. Rules with a memory of each rank begin it anew with a new quorum.

    Attributes:
        local: the job of the present quorum, None before the first.
    """

    def __init__(
        self, manager: Any, process_group: Any, *arguments: Any, **named: Any
    ) -> None:
        """Register with a manager.

        Args:
            manager: of torchft, made with `use_async_quorum=False`.
            process_group: of torchft, the one that the manager was given.
            arguments: model and optimiser of `HewLocalSGD`.
            named: its rule and options.
        """
        self._manager, self._group = manager, process_group
        self._arguments, self._named = arguments, named
        self._quorum: Any = None
        self._given: Mapping[str, Any] | None = None
        self.local: HewLocalSGD | None = None
        manager.register_state_dict_fn("hewfl", self._take, self._tell)

    @property
    def rounds(self) -> int:
        """Rounds done, by whoever was there."""
        return 0 if self.local is None else self.local.rounds

    @contextmanager
    def round(self) -> Iterator[HewLocalSGD]:
        """Find a quorum, follow the optimiser's steps inside the block, aggregate.

        Where a rank is lost the model is the one before the block.

        Returns:
            A context whose value is the job of the quorum.
        """
        self._manager.start_quorum()
        local = self._present()
        try:
            yield local
            local.sync()
        except RankError as error:
            _log.warning("the round is dropped: %s", error)
            self._manager.report_error(error)
        if not self._manager.should_commit():
            local.drop()

    def _present(self) -> HewLocalSGD:
        """The job of the quorum that has just been found."""
        group = self._group.parent
        if self.local is not None and group is self._quorum:
            return self.local
        state = self._given
        if self.local is not None:
            state = self.local.state_dict() if state is None else state
            self.local.abandon()
        named = {"sync_every": 2**62, "process_group": group} | self._named
        self.local = HewLocalSGD(*self._arguments, **named)
        if state is not None:
            self.local.load_state_dict(state)
        self.local.__enter__()
        self._quorum, self._given = group, None
        return self.local

    def _tell(self) -> dict[str, Any]:
        return {} if self.local is None else self.local.state_dict()

    def _take(self, state: Mapping[str, Any]) -> None:
        self._given = state or None
