"""The parameters that ranks share, and their layout in buckets.

Which parameters require gradients is fixed at construction. Parameters of one precision
are laid end to end, in the order of their memory, and cut into buckets, which are
exchanged one by one. The layout does not depend on the number of ranks: three ranks can
read a state that four have saved.
"""

import hashlib
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from hewfl.core.validation import invalid

BUCKET_SHARE, MIN_BUCKET_BYTES = 8, 2**22
"""A bucket is this part of the model (one eighth), but at least so many bytes: the next
bucket is prepared while one is sent, and a small model is sent at once."""
_PLAIN = (torch.nn.Parameter, torch.Tensor)


@final
class SharedParameters:
    """The parameters of a model at construction: `trainable` by name, and `frozen`."""

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        by_name = dict(named)
        self.trainable = {name: p for name, p in by_name.items() if p.requires_grad}
        frozen = [local_part(p) for p in by_name.values() if not p.requires_grad]
        self.frozen = [p for p in frozen if p.numel()]
        self._tensors = list(self.trainable.values())
        self._forms = [form_of(p) for p in self._tensors]

    def check(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Require the parameters of construction, in the same form."""
        named = list(named)
        tensors = [p for _, p in named if p.requires_grad]
        are_same = len(tensors) == len(self._tensors) and all(
            map(operator.is_, tensors, self._tensors)
        )
        if are_same and [form_of(p) for p in tensors] == self._forms:
            return  # hundreds of tensors: names are looked up for an error only
        now = {name: p for name, p in named if p.requires_grad}
        rule = "those that required gradients at construction (else make a new one)"
        for name in [*self.trainable, *now]:
            was, present = self.trainable.get(name), now.get(name)
            if was is not present:
                change = "did not" if was is None else "is another tensor now"
                change = "no longer requires gradients" if present is None else change
                raise invalid("parameters", rule, f"{name}, which {change}")
        for (name, p), form in zip(self.trainable.items(), self._forms, strict=True):
            if form_of(p) != form:
                got = f"{form_of(p)} for {name}, not {form}"
                raise invalid("parameters", "of the form they had at construction", got)

    def check_optimizers(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Require that the optimisers update all trainable parameters and no others."""
        updated = {
            id(p): f"parameter {k} of its group {g}"
            for optimizer in optimizers
            for g, group in enumerate(optimizer.param_groups)
            for k, p in enumerate(group["params"])
            if p.requires_grad
        }
        for name, p in self.trainable.items():
            if updated.pop(id(p), None) is None:
                rule = "one of all parameters that require gradients (freeze the others"
                rule += " with `requires_grad_(False)`)"
                raise invalid("optimizer", rule, f"one without {name}")
        for place in updated.values():
            raise invalid("optimizer", "one of the model's parameters", place)


def form_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Precision, shape and order in memory; of a DTensor also where its shard is."""
    form = tensor.dtype, tensor.shape, tensor.stride()
    return (*form, local_part(tensor).data_ptr()) if is_dtensor(tensor) else form


def is_dtensor(parameter: torch.Tensor) -> bool:
    """Whether a tensor is distributed over ranks; its module is loaded only if used."""
    if type(parameter) in _PLAIN:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(parameter, module.DTensor)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor: its shard of a DTensor, in the same memory."""
    if not is_dtensor(tensor):
        return tensor
    shard: torch.Tensor = tensor.detach().to_local()
    return shard


def shard_group(named: Mapping[str, torch.Tensor]) -> Any:
    """The ranks over which all parameters are sharded, None where all are whole."""
    meshes = {id(p.device_mesh): p.device_mesh for p in named.values() if is_dtensor(p)}
    if not meshes:
        return None
    mesh = next(iter(meshes.values()))
    rule = "all whole, or all sharded over one dimension of a mesh (`fully_shard(model,"
    rule += ' mesh=mesh["shard"])`)'
    for name, p in named.items():
        if not is_dtensor(p):
            raise invalid("parameters", rule, f"{name}, which is whole")
        is_sharded = len(p.placements) == 1 and p.placements[0].is_shard()
        if not is_sharded or p.device_mesh != mesh:
            got = f"{name}, {p.placements} on {p.device_mesh}"
            raise invalid("parameters", rule, got)
    return mesh.get_group()


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """Where a contiguous part of a parameter lies in a bucket."""

    parameter: int  # its index
    start: int  # its first entry, in the order of the parameter's memory
    at: int  # its first entry in the bucket
    size: int


@final
@dataclass(frozen=True, slots=True)
class Bucket:
    """A part of the model that is exchanged at once."""

    dtype: torch.dtype  # of its parameters, and of what is sent
    pieces: tuple[Piece, ...]  # end to end
    begin: int  # place of its first entry in the whole model

    @property
    def size(self) -> int:
        """Entries."""
        return self.pieces[-1].at + self.pieces[-1].size

    @property
    def wide(self) -> torch.dtype:
        """The precision of sums: at least float32."""
        return torch.promote_types(self.dtype, torch.float32)

    def split(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """A vector of this bucket, piece by piece."""
        return list(whole.split([piece.size for piece in self.pieces]))

    def views(
        self, tensors: Sequence[torch.Tensor] | Mapping[int, torch.Tensor]
    ) -> list[torch.Tensor]:
        """Views of the pieces in parameters, or in tensors of the same form."""
        views = []
        for piece in self.pieces:
            tensor = tensors[piece.parameter].detach()
            begin = tensor.storage_offset() + piece.start
            views.append(tensor.as_strided((piece.size,), (1,), begin))
        return views


@final
@dataclass(frozen=True, slots=True)
class BucketLayout:
    """The buckets of a model, the same on all ranks."""

    buckets: tuple[Bucket, ...]
    parameters: int  # d
    form: int  # a number that differs where models differ
    signature: int  # a number that differs where layouts differ


def plan_layout(parameters: Sequence[torch.Tensor], bucket_bytes: int) -> BucketLayout:
    """Cut a model, or this rank's shard of it, into buckets of at most `bucket_bytes`.

    Parameters must be dense, floating, and on one device.
    """
    described = [(str(p.dtype), tuple(p.shape), p.stride()) for p in parameters]
    parameters = [local_part(p) for p in parameters]
    if not any(p.numel() for p in parameters):
        raise invalid("parameters", "at least one that requires a gradient", "none")
    devices = sorted({str(p.device) for p in parameters})
    if len(devices) > 1:
        raise invalid("parameters", "on one device", devices)
    for k, parameter in enumerate(parameters):
        _check(k, parameter)
    share = sum(p.nbytes for p in parameters) // BUCKET_SHARE
    bucket_bytes = min(bucket_bytes, max(share, MIN_BUCKET_BYTES))
    buckets, begin = [], 0  # type: tuple[list[Bucket], int]
    for dtype in sorted({p.dtype for p in parameters}, key=str):
        indices = [k for k, p in enumerate(parameters) if p.dtype == dtype]
        sizes = [parameters[k].numel() for k in indices]
        for pieces in _cut(indices, sizes, max(1, bucket_bytes // dtype.itemsize)):
            buckets.append(Bucket(dtype, tuple(pieces), begin))
            begin += buckets[-1].size
    form, signature = digest(described), digest(described, begin, bucket_bytes)
    return BucketLayout(tuple(buckets), begin, form, signature)


def digest(*values: Any) -> int:
    """A number of 48 bits, exact in float64, that differs where values differ."""
    return int(hashlib.sha256(repr(values).encode()).hexdigest()[:12], 16)


def _check(k: int, parameter: torch.Tensor) -> None:
    if not parameter.dtype.is_floating_point:
        raise invalid("parameters", "floating", f"{parameter.dtype} for number {k}")
    expected = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size > 1 and stride != expected:
            got = f"strides {parameter.stride()} for number {k}"
            raise invalid("parameters", "without gaps in memory", got)
        expected *= size


def _cut(indices: list[int], sizes: list[int], length: int) -> list[list[Piece]]:
    """Pieces of all parameters, bucket by bucket."""
    buckets: dict[int, list[Piece]] = {}
    begin = 0
    for k, size in zip(indices, sizes, strict=True):
        start = 0
        while start < size:
            b, at = divmod(begin + start, length)
            taken = min(length - at, size - start)
            buckets.setdefault(b, []).append(Piece(k, start, at, taken))
            start += taken
        begin += size
    return list(buckets.values())
