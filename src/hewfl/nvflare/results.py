"""A result of an NVFLARE client, read and checked."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

from numpy.typing import NDArray
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from hewfl.core.validation import invalid
from hewfl.displacements.backend import to_host
from hewfl.server.array_layout import ArrayLayout

_STEPS = FLMetaKey.NUM_STEPS_CURRENT_ROUND
MAX_COUNT = 2**53
"""Largest number of iterations that a client may report."""


class ClientResult(NamedTuple):
    """Δ_i of what is judged, y_i of the rest, local iterations, finite metrics."""

    row: NDArray[Any]
    buffers: NDArray[Any]
    size: float
    metrics: Mapping[str, float]


def host_arrays(params: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Arrays by name; tensors that NVFLARE has put on the disk are read."""
    return {
        str(name): to_host(v.materialize() if hasattr(v, "materialize") else v)
        for name, v in params.items()
    }


def read_result(
    model: FLModel,
    sent: Mapping[str, Any],
    judged: ArrayLayout,
    other: ArrayLayout,
    *,
    needs_steps: bool,
) -> ClientResult:
    """Read a whole model, or the difference to the one that was sent.

    Raises:
        Exception: something is missing, or is not what it should be.
    """
    given, is_whole = host_arrays(model.params), model.params_type == ParamsType.FULL
    if is_whole and given.keys() != sent.keys():
        raise invalid("the result", "of the arrays sent", f"{list(given)}"[:80])
    size = model.meta.get(_STEPS, None if needs_steps else 1)
    if not isinstance(size, int | float) or not 0 < size <= MAX_COUNT:
        raise invalid(f'meta["{_STEPS}"]', "a number above 0", repr(size))
    if needs_steps and size % 1:
        raise invalid(f'meta["{_STEPS}"]', "a whole number", repr(size))
    row, buffers = judged.vector(given), other.vector(given)
    if is_whole:
        row -= judged.vector(sent)
    else:
        buffers += other.vector(sent)
    metrics = {
        str(name): float(value)
        for name, value in (model.metrics or {}).items()
        if isinstance(value, int | float) and isfinite(value)
    }
    return ClientResult(row, buffers, float(size), metrics)
