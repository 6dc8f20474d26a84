"""Array types with a precision and a shape: `Float64[Array, "n d"]`.

Type checkers and tests see jaxtyping's types, and tests check shapes by them. A program
that has not imported jaxtyping does not load it: a type is then the array class alone.
"""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import (
        Bool,
        Float,
        Float32,
        Float64,
        Int,
        Int32,
        Int64,
        Num,
        UInt8,
        UInt16,
    )
else:

    class _ArrayOnly:
        """A type that drops the shape: `Float64[Array, "n d"]` is `Array`."""

        def __class_getitem__(cls, item):
            array, _ = item
            return array

    Bool = Float = Float32 = Float64 = Int = Int32 = Int64 = Num = _ArrayOnly
    UInt8 = UInt16 = _ArrayOnly

__all__ = [
    "Bool", "Float", "Float32", "Float64", "Int", "Int32", "Int64", "Num", "UInt8",
    "UInt16",
]  # fmt: skip
