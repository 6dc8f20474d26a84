"""Rules on inner products alone, for data that no one holds in one place.

A rule that looks at displacements through inner products cannot tell them from other
vectors with the same ones. Where the displacements are spread over machines, each forms
the products of its part, which add up to those of the whole, and the rule is given
`isometric_copy`: as many vectors, in about as many dimensions.
"""

from typing import Any

import numpy as np
from jaxtyping import Float64

from hewfl.aggregate.gram import _nearer_origin, _products
from hewfl.aggregate.rows import as_rows
from hewfl.core.checks import Array
from hewfl.core.displacements import RoundProducts

_UNSCALED = (1.0, 1.0)
"""Sizes that ask for no scaling: float32 cannot overflow the products of float64."""


def vector_products(vectors: Any, origin: int) -> RoundProducts:
    """Inner products of some vectors, or of one part of their entries, in one pass.

        gram_ij = ⟨v_i − v_o, v_j − v_o⟩,   linear_i = ⟨v_i − v_o, v_o⟩,
        offset = ⟨v_o, v_o⟩

    A vector that is not finite spoils its own row and column only, unless it is v_o.

    Args:
        vectors: shape (m, d), or a sequence of m vectors; any array library.
        origin: o, best one of the shortest.
    """
    data = as_rows("vectors", vectors)
    with np.errstate(all="ignore"):
        return _products(data, data.row(origin), 0.0, origin, _UNSCALED)


def nearer_origin(products: RoundProducts, origin: int) -> int | None:
    """A better origin where this one lies far outside the others, None where not."""
    return _nearer_origin(products.gram, origin)


def isometric_copy(products: RoundProducts) -> Float64[Array, "m k"]:
    """Vectors with the inner products given, in k = m + 1 dimensions.

    With K the Gram matrix of v_1 − v_o, …, v_m − v_o, v_o, brought to unit diagonal so
    that long vectors take no digits from short ones, K = QΛQᵀ: the rows of QΛ^½.
    The products of the copy differ from those given by rounding.

    >>> v = np.array([[3.0, 0.0, 1.0], [0.0, 4.0, 1.0]])
    >>> copy = isometric_copy(vector_products(v, origin=0))
    >>> bool(np.allclose(copy @ copy.T, v @ v.T))
    True
    """
    m = len(products.linear)
    K = np.empty((m + 1, m + 1))
    K[:m, :m], K[m, m] = products.gram, products.offset
    K[:m, m] = K[m, :m] = products.linear
    size = np.sqrt(np.maximum(np.diagonal(K), 0.0))
    unit = np.where(size > 0, size, 1.0)
    values, Q = np.linalg.eigh(K / unit / unit[:, None])
    rows = size[:, None] * (Q * np.sqrt(np.maximum(values, 0.0)))
    copy: Array = rows[:m] + rows[m]
    return copy


def variate_weights(
    travelled: Float64[Array, " s"], population: int
) -> tuple[float, Float64[Array, " s"]]:
    """The server's control variate after a round, as a sum over what was sent.

        c⁺ = c + (1/n) Σ_S (−c − Δ_i/(η_iH_i)) = (1 − S/n) c + Σ_S u_iΔ_i

    The same as `hewfl.aggregate.variates.updated`, for displacements in many places.

    Args:
        travelled: η_iH_i of those who took part.
        population: n.

    Returns:
        1 − S/n, and u_i = −1/(n η_iH_i).
    """
    return 1 - len(travelled) / population, -1 / (population * travelled)
