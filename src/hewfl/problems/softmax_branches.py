"""Whole branches of softmax regression by a compiled kernel, where there is one.

The kernel reads samples where they lie and keeps a client's model in cache for all its
steps; it does what `hewfl.sim.branches_reference` does, to rounding.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from hewfl.core import native
from hewfl.core.checks import Array, Ints
from hewfl.core.round import LocalPlan, Roster

_LIBRARY = native.load("hewfl.problems._softmax")


def is_compiled(features: Any, labels: Any, dtype: np.dtype[Any]) -> bool:
    """Whether the kernel takes these data: on the host, in one float type, in order."""
    return (
        _LIBRARY is not None
        and native.is_enabled()
        and isinstance(features, np.ndarray)
        and isinstance(labels, np.ndarray)
        and features.dtype == dtype
        and features.flags.c_contiguous
        and labels.dtype == np.int64
        and labels.flags.c_contiguous
    )


def compiled_branches(
    data: tuple[Float[Array, "m p"], Int64[Ints, " m"], int, float],
    anchors: Float[Array, "lanes d"],
    roster: Roster,
    plans: Sequence[LocalPlan],
    samples: Int64[Ints, "steps s b"],
) -> Float[Array, "lanes s d"]:
    """Displacements of every lane and client; `data` are features, labels, c and λ."""
    assert _LIBRARY is not None
    features, labels, classes, l2 = data
    kind, lanes, d = anchors.dtype, len(plans), anchors.shape[1]
    moved = np.empty((lanes, len(roster.clients), d), dtype=kind)
    steps = int(roster.horizons.max())
    corrections = [
        None if p.correction is None else np.ascontiguousarray(p.correction, kind)
        for p in plans
    ]
    _LIBRARY.branches(
        kind.itemsize,
        *features.shape,
        classes,
        l2,
        features,
        labels,
        np.ascontiguousarray(samples[:steps]),
        np.ascontiguousarray(roster.batch_sizes, np.int64),
        np.ascontiguousarray(roster.horizons, np.int64),
        np.ascontiguousarray(anchors),
        np.stack([p.step_sizes for p in plans]).astype(np.float64, copy=False),
        np.array([p.proximal for p in plans], dtype=np.float64),
        np.array([p.hold for p in plans], dtype=np.int64),
        moved,
        corrections,
    )
    return moved
