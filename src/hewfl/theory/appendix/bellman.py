"""The Bellman kernel over a set of controls, its infimum, and controls that attain it.

Each control u moves the scalar state by G(s, u) = R_{α(u)}(s) + β(u)s + δ(u). A finite
set is searched outright; a box is cut into cells, on which isotone coefficients bound
the infimum from below, so that the answer comes with its own ε.

States s ≥ 0 have shape (*c), controls α, β and δ shape (*c, k) after broadcasting, and
parameters of φ, if arrays, shape (*c, 1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float64, Int64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Ints,
    as_float64,
    invalid,
    nonnegatives,
)
from hewfl.theory.appendix.generators import Generator
from hewfl.theory.appendix.master import Terms, noisy_drift
from hewfl.theory.statement import Hypothesis, at_most

_MOST_CELLS = 2**20


@final
@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """A control for each state, and how good it is known to be.

    B(s) + ε bounds E[s_{t+1} | past] under it (thm:adaptive).
    """

    index: Int64[Ints, "*c"]  # which control
    value: Float64[Array, "*c"]  # G(s, u) at it
    infimum: Float64[Array, "*c"]  # B(s)
    bound: Float64[Array, "*c"]  # B(s) + ε


@broadcasting
def bellman_kernel(
    generator: Generator, state: ArrayLike, controls: Terms
) -> Float64[Array, "*c k"]:
    """G(s, u) = R_{α(u)}(s) + β(u)s + δ(u) for every control (def:Bellman)."""
    s = nonnegatives("state", state)[..., None]
    return noisy_drift(generator, controls, s)


@broadcasting
def bellman_operator(
    generator: Generator, state: ArrayLike, controls: Terms
) -> Float64[Array, "*c"]:
    """B(s) = min over u of G(s, u)  (def:Bellman)."""
    return np.asarray(bellman_kernel(generator, state, controls).min(axis=-1))


@broadcasting
def epsilon_selection(
    generator: Generator, state: ArrayLike, controls: Terms, epsilon: ArrayLike
) -> Selection:
    """First control in order within ε of the infimum (prop:eps, thm:adaptive).

        π(s) = u_N,     N = min{k : G(s, u_k) ≤ B(s) + ε}

    ε = 0 gives the first minimiser.
    """
    G = bellman_kernel(generator, state, controls)
    least = G.min(axis=-1)
    bound = np.asarray(least + nonnegatives("epsilon", epsilon))
    G = np.broadcast_to(G, (*bound.shape, G.shape[-1]))
    index = np.argmax(bound[..., None] >= G, axis=-1)
    value = np.take_along_axis(G, index[..., None], axis=-1)[..., 0]
    infimum = np.broadcast_to(least, bound.shape)
    return Selection(np.asarray(index), np.asarray(value), infimum, bound)


@final
@dataclass(frozen=True, slots=True, eq=False)
class BoxSelection:
    """A control out of a box for each state.

    The lower bound rests on α, β, δ being isotone: the hypotheses say that they do not
    fall from a cell's low corner to its high one.
    """

    control: Float64[Array, "*c k"]  # u
    value: Float64[Array, "*c"]  # G(s, u) at it
    infimum: Float64[Array, "*c"]  # lower bound of B(s); value − infimum is the ε
    hypotheses: tuple[Hypothesis, ...]


@broadcasting
def box_selection(
    generator: Generator,
    state: ArrayLike,
    law: Callable[..., Any],
    box: tuple[ArrayLike, ArrayLike],
    *,
    cells: int = 256,
) -> BoxSelection:
    """Best corner of a box cut into cells, with a lower bound on the infimum.

    On a cell from l to h, isotone α, β, δ give

        G(s, u) ≥ R_{α(h)}(s) + β(l)s + δ(l).

    `law` maps controls of shape (N, k) to their N `Terms`; `box` has low and high ends
    of k entries each. The attained ε shrinks in proportion to 1/cells, which counts
    per axis.
    """
    s = nonnegatives("state", state)
    corners, low, high = _cells(box, cells)
    at: Terms = law(corners)
    G = bellman_kernel(generator, s, at)
    best = np.argmin(G, axis=-1)
    alpha, beta, delta = at.a, at.b, at.d
    optimist = Terms(alpha[..., high], beta[..., low], delta[..., low])
    falls = (np.max(x[..., low] - x[..., high], axis=-1) for x in (alpha, beta, delta))
    names = ("α(l) − α(h) ≤ 0", "β(l) − β(h) ≤ 0", "δ(l) − δ(h) ≤ 0")
    return BoxSelection(
        corners[best],
        np.asarray(G.min(axis=-1)),
        bellman_operator(generator, s, optimist),
        tuple(at_most(name, x, 0.0) for name, x in zip(names, falls, strict=True)),
    )


def _cells(
    box: tuple[ArrayLike, ArrayLike], cells: int
) -> tuple[Float64[Array, "N k"], Int64[Ints, " M"], Int64[Ints, " M"]]:
    """All corners, and the places of each cell's low and high corner among them."""
    low, high = (np.atleast_1d(as_float64("box", end)) for end in box)
    if low.ndim != 1 or low.shape != high.shape or not (low <= high).all():
        raise invalid("box", "two vectors of one length, low ≤ high", box)
    k = len(low)
    if cells < 1 or (cells + 1) ** k > _MOST_CELLS:
        rule = f"at least 1, and (cells + 1)^{k} at most {_MOST_CELLS}"
        raise invalid("cells", rule, cells)
    axes = [np.linspace(lo, hi, cells + 1) for lo, hi in zip(low, high, strict=True)]
    corners = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, k)
    places = np.arange(len(corners)).reshape((cells + 1,) * k)
    first = places[(slice(None, -1),) * k].ravel()
    last = places[(slice(1, None),) * k].ravel()
    return corners, first, last
