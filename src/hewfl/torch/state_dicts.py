"""State dicts of a job: what all ranks share, and what belongs to one rank.

A state has no pickled objects: tensors, numbers and text, nested in dicts with text
keys, as `torch.save` and `torch.distributed.checkpoint` expect. What belongs to one
rank has a key with its name, so that ranks that write one checkpoint together do not
overwrite each other. Tensors are copies, so training may continue. A state is checked
completely before anything is loaded.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from hewfl.errors import DataError
from hewfl.server.checkpoint import flatten, unflatten
from hewfl.torch.job import Job
from hewfl.torch.rendezvous import RankWork
from hewfl.torch.sync import apply_pending

FORMAT = 6
Tensors = dict[str, torch.Tensor]


def job_state(job: Job, work: RankWork) -> dict[str, Any]:
    """All that this rank carries from round to round besides model and optimiser.

    The parameters y as well: construction overwrites them, so a model that was loaded
    before would be lost.
    """
    apply_pending(job)
    variates = job.variates
    algorithm = {k: torch.from_numpy(v.copy()) for k, v in flatten(job.state).items()}
    local = {
        "rounds": job.rounds,
        "algorithm": algorithm,
        "work": asdict(work),
        "gradients": 0 if variates is None else variates.steps,
    }
    return {
        "format": FORMAT,
        "job": _identity(job),
        "rounds": job.rounds,
        "variates_initialised": variates is None or variates.is_initialised,
        "scale": job.scale,
        "common": {k: _clone(tensors) for k, tensors in _common_tensors(job).items()},
        _rank_key(job): local | {k: _clone(v) for k, v in _rank_tensors(job).items()},
    }


def load_job_state(job: Job, state: Mapping[str, Any]) -> RankWork:
    """Restore a job from `job_state`; the local work at that time.

    Where the state has no part for this rank among as many ranks, the rank joins: it
    takes the common model, the server step's memory and the average, its control
    variate starts at the server's, and local steps since the last round are discarded.
    So a job continues with more or fewer ranks, from any rank's state.

    Raises:
        DataError: the state is damaged, or of another format, model or aggregator.
    """
    _require_identity(job, state)
    local = state.get(_rank_key(job))
    if local is not None and local.get("rounds") != state["rounds"]:
        local = None  # of an older checkpoint, in which this rank took part
    parts = [(_common_tensors(job), state["common"])]
    algorithm, work = job.initial_state(), RankWork()
    if local is not None:
        parts.append((_rank_tensors(job), local))
        arrays = {k: v.cpu().numpy().copy() for k, v in local["algorithm"].items()}
        algorithm, work = unflatten(algorithm, arrays), RankWork(**local["work"])
    pairs = [
        (tensors, source.get(name, {}), name)
        for targets, source in parts
        for name, tensors in targets.items()
    ]
    for tensors, loaded, name in pairs:  # before anything is written
        shapes = {k: tensor.shape for k, tensor in loaded.items()}
        if shapes != {k: tensor.shape for k, tensor in tensors.items()}:
            text = f"the state is damaged: tensors of its {name} have other shapes"
            raise DataError(text)
    for tensors, loaded, _ in pairs:
        for k, tensor in tensors.items():
            tensor.copy_(loaded[k])
    job.rounds, job.state = int(state["rounds"]), algorithm
    job.scale = float(state["scale"])
    if local is None:
        job.model.set_parameters()
    if job.variates is not None:
        job.variates.is_initialised = bool(state["variates_initialised"])
        if local is None:
            job.variates.reset_to_server()
        else:
            job.variates.steps = int(local["gradients"])
    if job.trace is not None:
        job.trace.resume(job.rounds)
    return work


def _require_identity(job: Job, state: Mapping[str, Any]) -> None:
    """Require a state of this format, model, aggregator and server step.

    Raises:
        DataError: it is another.
    """
    if state.get("format") != FORMAT:
        text = f"the state has format {state.get('format')}; this reads {FORMAT}"
        raise DataError(text)
    for name, value in _identity(job).items():
        loaded = state["job"].get(name)
        if loaded != value:
            text = f"the state is of another job: its {name} is {loaded}, not {value}"
            raise DataError(text)


def _common_tensors(job: Job) -> dict[str, Tensors]:
    """Tensors that are the same on all ranks."""
    model, variates = job.model, job.variates
    lists = {"anchor": model.anchor, "memory": model.memory, "average": model.average}
    lists["server"] = [] if variates is None else variates.server
    return _by_index(lists)


def _rank_tensors(job: Job) -> dict[str, Tensors]:
    """Tensors that belong to this rank."""
    compressed, variates = job.exchange.compressed, job.variates
    lists = {"parameters": [y.detach() for y in job.model.parameters]}
    lists["residual"] = [] if compressed is None else compressed.residuals
    if variates is not None:
        lists |= {"variate": variates.client, "totals": variates.totals}
    return _by_index(lists)


def _by_index(lists: Mapping[str, list[torch.Tensor]]) -> dict[str, Tensors]:
    """Lists of tensors by their index, as text; empty lists are left out."""
    return {
        name: {str(k): tensor for k, tensor in enumerate(tensors)}
        for name, tensors in lists.items()
        if tensors
    }


def _clone(tensors: Tensors) -> Tensors:
    return {k: tensor.detach().clone() for k, tensor in tensors.items()}


def _rank_key(job: Job) -> str:
    return f"rank {job.comm.rank} of {job.comm.ranks}"


def _identity(job: Job) -> dict[str, Any]:
    return {
        "layout": job.model.layout.signature,
        "aggregator": repr(job.algorithm),
        "server_step": repr(job.options.server_step),
    }
