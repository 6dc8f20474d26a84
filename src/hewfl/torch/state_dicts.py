"""State dicts of a job: what all ranks share, and what belongs to one rank.

A state has no pickled objects: tensors, numbers and text, nested in dicts with text
keys, as `torch.save` and `torch.distributed.checkpoint` expect. What belongs to one
rank has a key with its name, so that ranks that write one checkpoint together do not
overwrite each other. Tensors are copies, so training may continue. Vectors are whole,
one for each precision, whatever the buckets. A state is checked completely before
anything is loaded.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import torch

from hewfl.errors import DataError, HewError
from hewfl.server.checkpoint import flatten, unflatten
from hewfl.torch.job import Job
from hewfl.torch.rendezvous import RankWork
from hewfl.torch.shared_model import is_finite
from hewfl.torch.sync import apply_pending, drop_pending

FORMAT = 9
Parts = dict[str, list[torch.Tensor]]
"""Parts of vectors, in order, by name and precision."""
_DAMAGED = "the state is damaged: its"
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
    try:
        _require_identity(job, state)
        rounds = _checked("rounds", state["rounds"], 0)
        local, shared = _own_part(job, state), state[_common_key(job)]
        has_server = any(name.startswith("server") for name in shared)
        common = _common_parts(job)
        if local is None and not has_server:  # without control variates
            common = {k: v for k, v in common.items() if not k.startswith("server")}
        _check_vectors(common, shared, finite=True)
        started = _checked("variates_initialised", state["variates_initialised"], False)
        sources, algorithm, work = [(common, shared)], job.initial_state(), RankWork()
        if local is not None:
            sources.append((_rank_parts(job), local["vectors"]))
            _check_vectors(*sources[1], finite=False)
            algorithm = _algorithm_state(algorithm, local["algorithm"])
            given = {f.name: (local["work"][f.name], f.default) for f in fields(work)}
            work = RankWork(**{k: _checked(k, *pair) for k, pair in given.items()})
    except HewError:
        raise
    except Exception as error:  # whatever a damaged part of it causes
        text = f"the state is damaged: {type(error).__name__} ({error}) in reading it"
        raise DataError(text) from error
    drop_pending(job)
    for parts, vectors in sources:
        for name, tensors in parts.items():
            wholes = vectors[name].split([part.shape[-1] for part in tensors], dim=-1)
            for part, whole in zip(tensors, wholes, strict=True):
                part.copy_(whole)
    job.rounds, job.state, job.weights_digest = rounds, algorithm, 0
    if local is None:
        job.model.set_parameters()
    if job.variates is not None and has_server:
        job.variates.is_initialised = started
        if local is None:
            job.variates.reset_to_server()
    if job.trace is not None:
        job.trace.resume(job.rounds)
    return work


def _algorithm_state(like: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The state of an algorithm from its tensors, of the shapes of the first one."""
    arrays = {k: v.cpu().numpy().copy() for k, v in tensors.items()}
    shapes = {k: v.shape for k, v in flatten(like).items()}
    if {k: v.shape for k, v in arrays.items()} != shapes:
        raise DataError(f"{_DAMAGED} memory of the aggregator has another shape")
    return unflatten(like, arrays)


def _checked(name: str, value: Any, like: Any) -> Any:
    """A number of a state, of the type of another one, finite and not negative."""
    if type(value) is not type(like) or not 0 <= value < math.inf:
        raise DataError(f"{_DAMAGED} {name} is {value!r}")
    return value


def _check_vectors(parts: Parts, given: Any, *, finite: bool) -> None:
    """Require whole vectors for parts of them, of their precision."""
    for name, tensors in parts.items():
        size = sum(tensor.shape[-1] for tensor in tensors)
        form = (*tensors[0].shape[:-1], size), tensors[0].dtype
        whole = given.get(name)
        is_there = isinstance(whole, torch.Tensor)
        if not is_there or (whole.shape, whole.dtype) != form:
            raise DataError(f"{_DAMAGED} {name} is missing or of another shape")
        if finite and not is_finite(whole):  # no round can have left it so
            raise DataError(f"{_DAMAGED} {name} is not finite")


def _own_part(job: Job, state: Mapping[str, Any]) -> Any:
    """The part of this rank in a state; None where the rank joins."""
    if not isinstance(state["aggregator"], str):
        raise DataError(f"{_DAMAGED} aggregator is {state['aggregator']!r}")
    if state["aggregator"] != repr(job.algorithm):
        if job.is_first:
            text = "the state is of %s: what all ranks share is loaded, no local steps"
            _log.warning(text, state["aggregator"])
        return None
    if _rank_key(job) not in state:
        return None
    # A part of other rounds is of an older checkpoint, in which this rank took part.
    local = state[_rank_key(job)]
    is_current = _checked("rounds", local["rounds"], 0) == state["rounds"]
    return local if is_current else None


def _require_identity(job: Job, state: Mapping[str, Any]) -> None:
    """Require a state of this format, model and server step."""
    written = state.get("format")
    if type(written) is not int or written != FORMAT:
        text = f"the state has format {written}; this reads {FORMAT}"
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
