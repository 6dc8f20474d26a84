"""State dicts: what all ranks share, and what is this rank's own.

A state has no pickled objects: tensors, numbers and text, nested in dicts whose keys
are text, as `torch.save` and `torch.distributed.checkpoint` want them. What is a rank's
own lies under a key with its name, so that ranks that write one checkpoint together do
not overwrite each other's. Tensors are copies: training may go on, and nothing is
written into the job before all of a state has been checked.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

import torch

from hewfl.aggregate.variates import mapped
from hewfl.errors import DataError
from hewfl.server.checkpoint import flatten, unflatten
from hewfl.torch.by_sums import finish
from hewfl.torch.replica import Replica
from hewfl.torch.variates import SpreadVariates
from hewfl.torch.work import Work

FORMAT = 4
Tensors = list[torch.Tensor]


def replica_state(replica: Replica, work: Work) -> dict[str, Any]:
    """All that this rank carries from round to round besides model and optimiser.

    The parameters y as well: construction overwrites them, so that a model which was
    loaded before would be lost.
    """
    finish(replica)  # a sum under way is applied
    started = replica.variates is None or replica.variates.started
    summed = 0 if replica.variates is None else replica.variates.steps
    own = {k: _copied(tensors) for k, tensors in _own(replica).items()}
    rule = {k: torch.from_numpy(v.copy()) for k, v in flatten(_plain(replica)).items()}
    return {
        "format": FORMAT,
        "job": _job(replica),
        "rounds": replica.rounds,
        "started": started,
        "scale": replica.scale,
        "common": {k: _copied(tensors) for k, tensors in _common(replica).items()},
        _name(replica): own | {"rule": rule, "work": asdict(work), "gradients": summed},
    }


def load_replica_state(replica: Replica, state: Mapping[str, Any]) -> Work:
    """Put a replica where `replica_state` found it; the work then under way.

    Where the state has no part of this rank of as many ranks, the rank joins: it takes
    the common model, its outer step's memory and average, its control variate starts
    at the server's, and steps under way are dropped. So a job goes on with more or
    fewer ranks, from any rank's state.

    Raises:
        DataError: the state is damaged, or of another format, model or rule.
    """
    _require_job(replica, state)
    mine = state.get(_name(replica))
    parts = [(_common(replica), state["common"])]
    rule, work = replica.first_state(), Work()
    if mine is not None:
        parts.append((_own(replica), mine))
        rule, work = _loaded_rule(replica, mine.get("rule", {})), Work(**mine["work"])
    for own, given in parts:  # before anything is written
        for what, tensors in own.items():
            _check(what, tensors, given.get(what, {}))
    for own, given in parts:
        for what, tensors in own.items():
            for k, tensor in enumerate(tensors):
                tensor.copy_(given[what][str(k)])
    replica.rounds, replica.state = int(state["rounds"]), rule
    replica.scale = float(state["scale"])
    replica.model.forget_reach()
    if mine is None:
        replica.model.give()
    if replica.variates is not None:
        replica.variates.started = bool(state["started"])
        if mine is None:
            replica.variates.join()
        else:
            replica.variates.steps = int(mine["gradients"])
    if replica.trace is not None:
        replica.trace.resume(replica.rounds)
    return work


def _require_job(replica: Replica, state: Mapping[str, Any]) -> None:
    """That a state is of this format, model, rule and outer step.

    Raises:
        DataError: it is not.
    """
    if state.get("format") != FORMAT:
        text = f"the state has format {state.get('format')}; this reads {FORMAT}"
        raise DataError(text)
    for what, value in _job(replica).items():
        found = state["job"].get(what)
        if found != value:
            text = (
                f"the state belongs to another job: its {what} is {found}, not {value}"
            )
            raise DataError(text)


def _common(replica: Replica) -> dict[str, Tensors]:
    """Tensors that are the same on all ranks."""
    model, variates = replica.model, replica.variates
    server = [] if variates is None else variates.server
    held = {"anchor": model.anchor, "memory": model.memory, "average": model.average}
    return {k: list(v) for k, v in (held | {"server": server}).items() if v}


def _own(replica: Replica) -> dict[str, Tensors]:
    """Tensors that only this rank has."""
    held = {"parameters": [y.detach() for y in replica.model.parameters]}
    if replica.sums.narrow is not None:
        held["residual"] = list(replica.sums.narrow.residuals)
    if replica.variates is not None:
        held["variate"] = list(replica.variates.own)
        if not replica.variates.is_plain:
            held["totals"] = list(replica.variates.totals)
    return held


def _copied(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {str(k): tensor.detach().clone() for k, tensor in enumerate(tensors)}


def _check(what: str, tensors: Tensors, given: Mapping[str, torch.Tensor]) -> None:
    expected = {str(k): tensor.shape for k, tensor in enumerate(tensors)}
    if expected != {k: tensor.shape for k, tensor in given.items()}:
        text = f"the state is damaged: tensors of its {what} are of other shapes"
        raise DataError(text)


@final
@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """Stands for control variates, which are kept beside the rule's state."""


def _plain(replica: Replica) -> Any:
    """The rule's state without its control variates."""
    return mapped(
        replica.state,
        lambda part: _Elsewhere() if isinstance(part, SpreadVariates) else part,
    )


def _loaded_rule(replica: Replica, arrays: Mapping[str, torch.Tensor]) -> Any:
    own = {name: tensor.cpu().numpy().copy() for name, tensor in arrays.items()}
    held = replica.server

    def put_back(part: Any) -> Any:
        if held is not None and isinstance(part, _Elsewhere):
            return SpreadVariates(held)
        return part

    return mapped(unflatten(_plain(replica), own), put_back)


def _name(replica: Replica) -> str:
    return f"rank {replica.wire.rank} of {replica.wire.ranks}"


def _job(replica: Replica) -> dict[str, Any]:
    return {
        "layout": replica.model.layout.signature,
        "rule": repr(replica.rule),
        "outer": repr(replica.options.outer),
    }
