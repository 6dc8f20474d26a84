"""Calls of the compiled module `_softmax`: whole branches, and losses from scores.

Both are optional and equal, to rounding, to their twins in Python: branches to
`hewfl.simulation.branches`, losses to `passes.losses`. The kernel of branches
reads samples in place and keeps the model of a client in cache for all its steps.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hewfl.core import native
from hewfl.core.array_types import Bool, Float, Float64, Int, Int64
from hewfl.core.round import Cohort, LocalPlan
from hewfl.core.validation import Array, Ints

LIBRARY = native.load("hewfl.problems.softmax._softmax")
"""The compiled module, or None if it was not built or is switched off."""


def is_usable() -> bool:
    """Whether the compiled module is available and not switched off."""
    return LIBRARY is not None and native.is_enabled()


def takes_scores(scores: Any) -> bool:
    """Whether `compiled_losses` reads these scores: NumPy arrays of floats."""
    return (
        is_usable()
        and isinstance(scores, np.ndarray)
        and scores.dtype in (np.float32, np.float64)
    )


def compiled_losses(
    scores: Float[Array, "models c b"],
    labels: Int[Array, " b"],
    hits: Bool[Array, "models b"] | None = None,
) -> Float64[Array, "models b"]:
    """Cross-entropy of every model and sample; the twin of `passes.losses`.

    Args:
        scores: such that `takes_scores`.
        labels: from 0 to c − 1.
        hits: output, if given: whether the label is the first of the largest scores.

    Raises:
        ValueError: a label is out of range.
    """
    assert LIBRARY is not None
    models, c, b = scores.shape
    s, y = np.ascontiguousarray(scores), np.ascontiguousarray(labels, np.int64)
    losses = np.empty((models, b))
    hits_out = np.empty(0, dtype=bool) if hits is None else hits
    LIBRARY.losses(s.itemsize, c, s, y, losses, hits_out)
    return losses


def takes_features(features: Any) -> bool:
    """Whether compiled products read these features: NumPy's, row by row, no gaps."""
    return (
        is_usable()
        and isinstance(features, np.ndarray)
        and features.dtype in (np.float32, np.float64)
        and features.flags.c_contiguous
    )


def takes_samples(features: Any, labels: Any, dtype: np.dtype[Any]) -> bool:
    """Whether `compiled_branches` reads these samples.

    It needs contiguous NumPy arrays, features in the type of the models and labels in
    int64: it follows pointers and converts nothing.
    """
    return (
        takes_features(features)
        and isinstance(labels, np.ndarray)
        and features.dtype == dtype
        and labels.dtype == np.int64
        and labels.flags.c_contiguous
    )


def compiled_branches(
    data: tuple[Float[Array, "m p"], Int64[Ints, " m"], int, float],
    anchors: Float[Array, "models d"],
    cohort: Cohort,
    plans: Sequence[LocalPlan],
    samples: Int64[Ints, "steps s b"],
) -> Float[Array, "models s d"]:
    """Displacements Δ_i of every model and client.

    Args:
        data: features and labels such that `takes_samples`; c; λ.
        anchors: x, one model per row.
        cohort: the clients, common to all models.
        plans: local work for each model.
        samples: rows of the features for each step and client.

    Returns:
        A new array in the type of `anchors`.

    Raises:
        ValueError: a sample is out of range.
    """
    assert LIBRARY is not None
    features, labels, classes, l2 = data
    kind, models, d = anchors.dtype, len(plans), anchors.shape[1]
    moved = np.empty((models, len(cohort.clients), d), dtype=kind)
    steps = int(cohort.horizons.max())
    corrections = [
        None if p.correction is None else np.ascontiguousarray(p.correction, kind)
        for p in plans
    ]
    LIBRARY.branches(
        kind.itemsize,
        *features.shape,
        classes,
        l2,
        features,
        labels,
        np.ascontiguousarray(samples[:steps]),
        np.ascontiguousarray(cohort.batch_sizes, np.int64),
        np.ascontiguousarray(cohort.horizons, np.int64),
        np.ascontiguousarray(anchors),
        np.stack([p.step_sizes for p in plans]).astype(np.float64, copy=False),
        np.array([p.proximal for p in plans], dtype=np.float64),
        np.array([p.hold for p in plans], dtype=np.int64),
        moved,
        corrections,
    )
    return moved
