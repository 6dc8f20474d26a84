"""State dicts of a job: what all ranks share, and what belongs to one rank.

A state has no pickled objects: tensors, numbers and text, nested in dicts with text
keys, as `torch.save` and `torch.distributed.checkpoint` expect. What belongs to one
rank has a key with its name, so that ranks that write one checkpoint together do not
overwrite each other. Tensors are copies, so training may continue. Vectors are whole,
one for each precision, whatever the buckets. A state is checked completely before
anything is loaded.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from hewfl.errors import DataError
from hewfl.server.checkpoint import flatten, unflatten
from hewfl.torch.job import Job
from hewfl.torch.rendezvous import RankWork
from hewfl.torch.sync import apply_pending, drop_pending

FORMAT = 8
Parts = dict[str, list[torch.Tensor]]
"""Parts of vectors, in order, by name and precision."""
_log = logging.getLogger("hewfl.torch")


def job_state(job: Job, work: RankWork) -> dict[str, Any]:
    """All that this rank carries from round to round besides model and optimiser.

    The parameters y as well: construction overwrites them, so a model that was loaded
    before would be lost.
    """

    def join(parts: Parts) -> dict[str, torch.Tensor]:
        return {k: torch.cat(tensors, dim=-1) for k, tensors in parts.items()}

    apply_pending(job)
    algorithm = {k: torch.from_numpy(v.copy()) for k, v in flatten(job.state).items()}
    local = {"rounds": job.rounds, "algorithm": algorithm, "work": asdict(work)}
    return {
        "format": FORMAT,
        "job": _identity(job),
        "aggregator": repr(job.algorithm),
        "rounds": job.rounds,
        "variates_initialised": job.variates is None or job.variates.is_initialised,
        _common_key(job): join(_common_parts(job)),
        _rank_key(job): local | {"vectors": join(_rank_parts(job))},
    }


def load_job_state(job: Job, state: Mapping[str, Any]) -> RankWork:
    """Restore a job from `job_state`; the local work at that time.

    Where the state has no part for this rank among as many ranks, or is of another
    aggregator, the rank joins: it takes the common model, the server step's memory and
    the average, its control variate starts at the server's, and local steps since the
    last round are discarded. So a job continues with more or fewer ranks, from any
    rank's state. A damaged state, or one of another format, model or server step, is a
    `DataError` before anything is written.
    """
    _require_identity(job, state)
    local, common, shared = (
        _own_part(job, state),
        _common_parts(job),
        state[_common_key(job)],
    )
    has_server = any(name.startswith("server") for name in shared)
    if local is None and not has_server:  # without control variates
        common = {k: v for k, v in common.items() if not k.startswith("server")}
    sources = [(common, shared)]
    algorithm, work = job.initial_state(), RankWork()
    if local is not None:
        sources.append((_rank_parts(job), local["vectors"]))
        arrays = {k: v.cpu().numpy().copy() for k, v in local["algorithm"].items()}
        algorithm, work = unflatten(algorithm, arrays), RankWork(**local["work"])
    _copy_parts(sources)
    drop_pending(job)
    job.rounds, job.state = int(state["rounds"]), algorithm
    if local is None:
        job.model.set_parameters()
    if job.variates is not None and has_server:
        job.variates.is_initialised = bool(state["variates_initialised"])
        if local is None:
            job.variates.reset_to_server()
    if job.trace is not None:
        job.trace.resume(job.rounds)
    return work


def _own_part(job: Job, state: Mapping[str, Any]) -> Any:
    """The part of this rank in a state; None where the rank joins."""
    local = state.get(_rank_key(job), {})
    if state["aggregator"] != repr(job.algorithm):
        if job.is_first:
            text = "the state is of %s: what all ranks share is loaded, no local steps"
            _log.warning(text, state["aggregator"])
        return None
    # A part of other rounds is of an older checkpoint, in which this rank took part.
    return local if local.get("rounds") == state["rounds"] else None


def _copy_parts(sources: list[tuple[Parts, Any]]) -> None:
    """Copy vectors of a state into parts of vectors, all or none."""
    for parts, loaded in sources:  # before anything is written
        for name, tensors in parts.items():
            size = sum(tensor.shape[-1] for tensor in tensors)
            is_there = name in loaded
            if not is_there or loaded[name].shape != (*tensors[0].shape[:-1], size):
                text = (
                    f"the state is damaged: its {name} is missing or of another shape"
                )
                raise DataError(text)
    for parts, loaded in sources:
        for name, tensors in parts.items():
            wholes = loaded[name].split([part.shape[-1] for part in tensors], dim=-1)
            for part, whole in zip(tensors, wholes, strict=True):
                part.copy_(whole)


def _require_identity(job: Job, state: Mapping[str, Any]) -> None:
    """Require a state of this format, model and server step."""
    if state.get("format") != FORMAT:
        text = f"the state has format {state.get('format')}; this reads {FORMAT}"
        raise DataError(text)
    for name, value in _identity(job).items():
        loaded = state["job"].get(name)
        if loaded != value:
            text = f"the state is of another job: its {name} is {loaded}, not {value}"
            raise DataError(text)
    if _common_key(job) not in state:
        text = f"the state is of a job with other shards: it has no {_common_key(job)}"
        raise DataError(text)


def _common_parts(job: Job) -> Parts:
    """Vectors that are the same on all ranks."""
    model, variates = job.model, job.variates
    server = [] if variates is None else variates.server
    return _by_precision(
        anchor=model.anchor, memory=model.memory, average=model.average, server=server
    )


def _rank_parts(job: Job) -> Parts:
    """Vectors that belong to this rank."""
    variates, buckets = job.variates, range(len(job.model.layout.buckets))
    return _by_precision(
        parameters=[part for b in buckets for part in job.model.pieces(b)],
        variate=[] if variates is None else variates.client,
    )


def _by_precision(**lists: list[torch.Tensor]) -> Parts:
    """Parts of vectors by name and precision; empty lists are left out."""
    parts: Parts = {}
    for name, tensors in lists.items():
        for tensor in tensors:
            key = f"{name} {str(tensor.dtype).removeprefix('torch.')}"
            parts.setdefault(key, []).append(tensor)
    return parts


def _common_key(job: Job) -> str:
    return f"common{job.shards.name}"


def _rank_key(job: Job) -> str:
    return f"rank {job.comm.rank} of {job.comm.ranks}{job.shards.name}"


def _identity(job: Job) -> dict[str, Any]:
    form, server_step = job.model.layout.form, job.options.server_step
    return {"model": form, "server_step": repr(server_step)}
