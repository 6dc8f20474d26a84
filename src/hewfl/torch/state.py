"""State dicts of one rank: tensors, numbers and text, one file per rank."""

import copy
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from hewfl.errors import DataError
from hewfl.torch.replica import Replica
from hewfl.torch.work import Work

FORMAT = 2
"""1 had no parameters."""


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
        "outer": replica.model.outer.state_dict(),
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
    if state.get("format") != FORMAT:
        text = f"the state has format {state.get('format')}; this reads {FORMAT}"
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
    # A copy: torch would take the state's own momentum and go on writing into it.
    replica.model.outer.load_state_dict(copy.deepcopy(state["outer"]))
    if replica.variates is not None:
        _fill(replica.variates.own, state["variates"]["own"])
        _fill(replica.variates.server, state["variates"]["server"])
        replica.variates.started = bool(state["started"])
    return Work(**state["work"])


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
