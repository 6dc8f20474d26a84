"""What the arrays of a softmax regression must be."""

from typing import Any

import array_api_compat as compat

from hewfl.core.checks import Ints, invalid


def check_samples(kind: str, features: Any, labels: Any, classes: int) -> None:
    """Features (m, p), real and finite; labels (m,) from 0 to classes − 1.

    Raises:
        InvalidInputError: naming `kind` features or `kind` labels.
    """
    names = f"{kind}features", f"{kind}labels"
    if features.ndim != 2 or 0 in features.shape:
        raise invalid(names[0], "of shape (m, p) with m, p ≥ 1", tuple(features.shape))
    if not str(features.dtype).endswith(("float32", "float64")):
        raise invalid(names[0], "float32 or float64", features.dtype)
    if tuple(labels.shape) != (features.shape[0],):
        rule = f"of shape ({features.shape[0]},), one per sample"
        raise invalid(names[1], rule, tuple(labels.shape))
    xp = compat.array_namespace(features)
    if compat.array_namespace(labels) is not xp:
        rule = f"of the array library of `{names[0]}`"
        raise invalid(names[1], rule, type(labels).__name__)
    if not xp.isdtype(labels.dtype, "integral"):
        raise invalid(names[1], "whole numbers", f"dtype {labels.dtype}")
    if not bool(xp.all(xp.isfinite(features))):
        raise invalid(names[0], "finite", "NaN or infinite entries")
    low, high = int(xp.min(labels)), int(xp.max(labels))
    if low < 0 or high >= classes:
        raise invalid(names[1], f"from 0 to {classes - 1}", low if low < 0 else high)


def check_ranges(offsets: Ints, data_sizes: Ints, m: int) -> None:
    """One nonempty range of rows within 0 to m for each client.

    Raises:
        InvalidInputError: otherwise.
    """
    names = "offsets, data_sizes"
    if len(offsets) != len(data_sizes) or len(offsets) == 0:
        got = f"lengths {len(offsets)}, {len(data_sizes)}"
        raise invalid(names, "vectors of one length n ≥ 1", got)
    if offsets.dtype.kind not in "iu" or data_sizes.dtype.kind not in "iu":
        got = f"dtypes {offsets.dtype}, {data_sizes.dtype}"
        raise invalid(names, "whole numbers", got)
    if (data_sizes < 1).any():
        raise invalid("data_sizes", "at least 1", data_sizes.min())
    low, high = int(offsets.min()), int((offsets + data_sizes).max())
    if low < 0 or high > m:
        raise invalid(names, f"rows from 0 to {m}", f"rows from {low} to {high}")
