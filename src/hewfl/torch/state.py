"""State dicts of one rank: tensors, numbers and text, one file per rank."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

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
    replica.rounds = int(state["rounds"])
    _fill([y.detach() for y in replica.model.parameters], state["parameters"])
    _fill(replica.model.anchor, state["anchor"])
    _fill(replica.model.masters, state["masters"])
    _fill(replica.model.memory, _memory(state))
    _load_rule(replica, state.get("rule", {}))
    if replica.variates is not None:
        _fill(replica.variates.own, state["variates"]["own"])
        _fill(replica.variates.server, state["variates"]["server"])
        replica.variates.started = bool(state["started"])
    if replica.trace is not None:
        replica.trace.resume(replica.rounds)
    return Work(**state["work"])


def _memory(state: Mapping[str, Any]) -> list[torch.Tensor]:
    """The memory of the outer step; in format 2 as torch's SGD kept it."""
    if "memory" in state:
        return list(state["memory"])
    kept = state["outer"]["state"]
    return [kept[k]["momentum_buffer"] for k in sorted(kept)]


def _own(replica: Replica) -> Any:
    """The rule's state; () stands for control variates, which are kept beside it."""
    return mapped(
        replica.state, lambda part: () if isinstance(part, SpreadVariates) else part
    )


def _is_gap(part: Any) -> bool:
    return isinstance(part, tuple) and not part


def _load_rule(replica: Replica, arrays: Mapping[str, torch.Tensor]) -> None:
    own = {name: tensor.cpu().numpy().copy() for name, tensor in arrays.items()}
    server = [] if replica.variates is None else replica.variates.server
    replica.state = mapped(
        unflatten(_own(replica), own),
        lambda part: SpreadVariates(server) if _is_gap(part) else part,
    )


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
