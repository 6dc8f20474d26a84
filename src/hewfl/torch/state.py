"""State dicts of one rank: tensors, numbers and text, one file per rank."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

import torch

from hewfl.aggregate.variates import mapped
from hewfl.errors import DataError
from hewfl.server.checkpoint import flatten, unflatten
from hewfl.torch.replica import Replica
from hewfl.torch.variates import SpreadVariates
from hewfl.torch.work import Work

FORMAT = 3
"""1 had no parameters; 2 had torch's SGD for the outer step, and is still read."""


def replica_state(replica: Replica, work: Work) -> dict[str, Any]:
    """All that this rank carries from round to round besides model and optimiser.

    The parameters y as well: construction overwrites them, so that a model which was
    loaded before would be lost.

    Tensors are the replica's own, as in `torch.optim.Optimizer.state_dict`: save or
    copy them before training goes on.
    """
    variates = replica.variates
    state: dict[str, Any] = {
        "format": FORMAT,
        "identity": _identity(replica),
        "rounds": replica.rounds,
        "work": asdict(work),
        "parameters": [y.detach() for y in replica.model.parameters],
        "anchor": list(replica.model.anchor),
        "masters": list(replica.model.masters),
        "memory": list(replica.model.memory),
        "rule": {k: torch.from_numpy(v) for k, v in flatten(_own(replica)).items()},
    }
    if replica.model.average:
        state["average"] = list(replica.model.average)
    if variates is not None:
        state["variates"] = {"own": list(variates.own), "server": list(variates.server)}
        state["started"] = variates.started
    return state


def load_replica_state(replica: Replica, state: Mapping[str, Any]) -> Work:
    """Put a replica where `replica_state` found it; the work then under way.

    Raises:
        DataError: the state is of another format, rank, model, rule or number of ranks.
    """
    if state.get("format") not in (2, FORMAT):
        text = f"the state has format {state.get('format')}; this reads 2 and {FORMAT}"
        raise DataError(text)
    for what, value in _identity(replica).items():
        found = state["identity"].get(what)
        if found != value:
            text = (
                f"the state belongs to another job: its {what} is {found}, not {value}"
            )
            raise DataError(text)
    memory = _memory(replica, state)
    pairs = [
        (replica.model.parameters, state["parameters"]),
        (replica.model.anchor, state["anchor"]),
        (replica.model.masters, state["masters"]),
        (replica.model.memory, memory),
        (replica.model.average, state.get("average", [])),
    ]
    for own, given in pairs:  # before anything is written
        if [t.shape for t in own] != [t.shape for t in given]:
            raise DataError("the state is damaged: its tensors are of other shapes")
    replica.rounds = int(state["rounds"])
    _fill([y.detach() for y in replica.model.parameters], state["parameters"])
    _fill(replica.model.anchor, state["anchor"])
    _fill(replica.model.masters, state["masters"])
    _fill(replica.model.memory, memory)
    _fill(replica.model.average, state.get("average", []))
    _load_rule(replica, state.get("rule", {}))
    if replica.variates is not None:
        _fill(replica.variates.own, state["variates"]["own"])
        _fill(replica.variates.server, state["variates"]["server"])
        replica.variates.started = bool(state["started"])
    if replica.trace is not None:
        replica.trace.resume(replica.rounds)
    return Work(**state["work"])


def _memory(replica: Replica, state: Mapping[str, Any]) -> list[torch.Tensor]:
    """The memory of the outer step.

    Format 2 has torch's SGD for it, whose gradient was minus the step: its momentum has
    the other sign, and is absent before the first round.
    """
    if "memory" in state:
        return list(state["memory"])
    kept = state["outer"]["state"]
    return [
        -kept[k]["momentum_buffer"] if k in kept else torch.zeros_like(own)
        for k, own in enumerate(replica.model.memory)
    ]


@final
@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """Stands for control variates, which are kept beside the rule's state."""


def _own(replica: Replica) -> Any:
    """The rule's state without its control variates."""
    return mapped(
        replica.state,
        lambda part: _Elsewhere() if isinstance(part, SpreadVariates) else part,
    )


def _load_rule(replica: Replica, arrays: Mapping[str, torch.Tensor]) -> None:
    own = {name: tensor.cpu().numpy().copy() for name, tensor in arrays.items()}
    held = replica.server

    def put_back(part: Any) -> Any:
        if held is not None and isinstance(part, _Elsewhere):
            return SpreadVariates(held)
        return part

    replica.state = mapped(unflatten(_own(replica), own), put_back)


def _identity(replica: Replica) -> dict[str, Any]:
    return {
        "rank": replica.wire.rank,
        "number of ranks": replica.wire.ranks,
        "layout": replica.model.layout.signature,
        "rule": repr(replica.rule),
        "outer": repr(replica.options.outer),
    }


def _fill(tensors: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
