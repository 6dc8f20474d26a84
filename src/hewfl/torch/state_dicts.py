"""State dicts: what all ranks share, and what is this rank's own.

A state has no pickled objects: tensors, numbers and text, nested in dicts whose keys
are text, as `torch.save` and `torch.distributed.checkpoint` want them. What is a rank's
own lies under a key with its name, so that ranks that write one checkpoint together do
not overwrite each other's. Tensors are copies: training may go on, and nothing is
written into the job before all of a state has been checked.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from hewfl.errors import DataError
from hewfl.server.checkpoint import flatten, unflatten
from hewfl.torch.aggregate_step import finish
from hewfl.torch.job import Replica
from hewfl.torch.rendezvous import Work

FORMAT = 5
Tensors = dict[str, torch.Tensor]


def replica_state(replica: Replica, work: Work) -> dict[str, Any]:
    """All that this rank carries from round to round besides model and optimiser.

    The parameters y as well: construction overwrites them, so that a model which was
    loaded before would be lost.
    """
    finish(replica)  # a sum under way is applied
    variates = replica.variates
    rule = {k: torch.from_numpy(v.copy()) for k, v in flatten(replica.state).items()}
    own = {"rounds": replica.rounds, "rule": rule, "work": asdict(work), "gradients": 0}
    if variates is not None:
        own["gradients"] = variates.steps
    return {
        "format": FORMAT,
        "job": _job(replica),
        "rounds": replica.rounds,
        "started": variates is None or variates.started,
        "scale": replica.scale,
        "common": {k: _copied(tensors) for k, tensors in _common(replica).items()},
        _name(replica): own | {k: _copied(v) for k, v in _own(replica).items()},
    }


def load_replica_state(replica: Replica, state: Mapping[str, Any]) -> Work:
    """Put a replica where `replica_state` found it; the work then under way.

    Where the state has no part of this rank of as many ranks, the rank joins: it takes
    the common model, its server step's memory and average, its control variate starts
    at the server's, and steps under way are dropped. So a job goes on with more or
    fewer ranks, from any rank's state.

    Raises:
        DataError: the state is damaged, or of another format, model or rule.
    """
    _require_job(replica, state)
    mine = state.get(_name(replica))
    if mine is not None and mine.get("rounds") != state["rounds"]:
        mine = None  # a checkpoint without this rank's part left the present one there
    parts = [(_common(replica), state["common"])]
    rule, work = replica.initial_state(), Work()
    if mine is not None:
        parts.append((_own(replica), mine))
        arrays = {k: v.cpu().numpy().copy() for k, v in mine.get("rule", {}).items()}
        rule, work = unflatten(rule, arrays), Work(**mine["work"])
    pairs = [
        (tensors, given.get(what, {}), what)
        for own, given in parts
        for what, tensors in own.items()
    ]
    for tensors, found, what in pairs:  # before anything is written
        shapes = {k: tensor.shape for k, tensor in found.items()}
        if shapes != {k: tensor.shape for k, tensor in tensors.items()}:
            text = f"the state is damaged: tensors of its {what} are of other shapes"
            raise DataError(text)
    for tensors, found, _ in pairs:
        for k, tensor in tensors.items():
            tensor.copy_(found[k])
    replica.rounds, replica.state = int(state["rounds"]), rule
    replica.scale = float(state["scale"])
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
    """That a state is of this format, model, rule and server step.

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
    held = {"anchor": model.anchor, "memory": model.memory, "average": model.average}
    held["server"] = [] if variates is None else variates.server
    return _numbered(held)


def _own(replica: Replica) -> dict[str, Tensors]:
    """Tensors that only this rank has."""
    narrow, variates = replica.exchange.narrow, replica.variates
    held = {"parameters": [y.detach() for y in replica.model.parameters]}
    held["residual"] = [] if narrow is None else narrow.residuals
    if variates is not None:
        held |= {"variate": variates.own, "totals": variates.totals}
    return _numbered(held)


def _numbered(held: Mapping[str, list[torch.Tensor]]) -> dict[str, Tensors]:
    """Lists of tensors by their places, as text; those with any."""
    return {
        what: {str(k): tensor for k, tensor in enumerate(tensors)}
        for what, tensors in held.items()
        if tensors
    }


def _copied(tensors: Tensors) -> Tensors:
    return {k: tensor.detach().clone() for k, tensor in tensors.items()}


def _name(replica: Replica) -> str:
    return f"rank {replica.wire.rank} of {replica.wire.ranks}"


def _job(replica: Replica) -> dict[str, Any]:
    return {
        "layout": replica.model.layout.signature,
        "rule": repr(replica.rule),
        "server_step": repr(replica.options.server_step),
    }
