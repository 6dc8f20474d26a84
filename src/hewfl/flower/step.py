"""The step of a round: from weights to the next model, with the terms of its bound."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float64

from hewfl.aggregate.pieces import Pieces
from hewfl.aggregate.post_local import combine
from hewfl.controllers.het import HewHet
from hewfl.controllers.hom import HewHom, mean_gradient
from hewfl.core.algorithm import Algorithm
from hewfl.core.checks import Array
from hewfl.core.displacements import OwnSum
from hewfl.core.round import Decision, PiecewiseRound
from hewfl.server.outer import Outer, outer_step
from hewfl.server.state import ServerState

RANGE = 2**16
"""Entries of a vector that are stepped at a time."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """Where a step leads: the next anchor and momentum, and terms of the bound."""

    anchor: Float64[Array, " d"]
    memory: Float64[Array, " d"]
    terms: Mapping[str, float]


def stepped(
    algorithm: Algorithm[Any],
    outer: Outer,
    round_: PiecewiseRound,
    state: ServerState,
    decision: Decision,
) -> Moved:
    """The step, a range of entries at a time: vectors of a large model are few.

    The terms are those of the bound that exact weights minimise, for the step really
    taken,

        F(x + d) ≤ F(x) + ⟨g, d⟩ + (Λ/2)‖d‖² + ‖∇F(x) − g‖² / (2(Λ − L)).

    The last, which nobody can measure here, is not among them; nor is F(x).
    """
    d, is_plain = len(state.anchor), outer == Outer()
    g = None if is_plain else _reference(algorithm, round_, state)
    anchor, memory = np.empty(d), state.memory
    if outer.momentum:
        memory = np.empty(d)
    slope = sq_norm = 0.0
    room = np.empty((1 + isinstance(g, OwnSum), min(d, RANGE)))
    for lo in range(0, d, RANGE):
        here = slice(lo, min(lo + RANGE, d))
        step, g_here = _sums(decision, g, round_.displacements, here, room)
        move, kept = step, memory[here]
        if not is_plain:
            move, kept = outer_step(outer, step, state.memory[here])
        np.add(state.anchor[here], move, out=anchor[here])
        if outer.momentum:
            memory[here] = kept
        sq_norm += float(np.dot(move, move))
        slope += 0.0 if g_here is None else float(np.dot(g_here, move))
    bend = 0.5 * _curvature(algorithm) * sq_norm
    if is_plain and decision.value is not None:
        slope = decision.value - bend  # the step is the one that was weighed
    return Moved(anchor, memory, _terms(algorithm, slope, bend))


def _sums(
    decision: Decision,
    g: Float64[Array, " d"] | OwnSum | None,
    displacements: Pieces,
    here: slice,
    room: Float64[Array, "k_ r"],
) -> tuple[Float64[Array, " k"], Float64[Array, " k"] | None]:
    """The rule's step and the reference g on a range, in one look at the data."""
    if decision.step is not None:
        return np.asarray(decision.step[here], dtype=np.float64), None
    data, w = displacements.columns(here.start, here.stop), decision.weights
    sums = np.stack([w, g.weights]) if isinstance(g, OwnSum) else w[None]
    out = room.ravel()[: len(sums) * data.d].reshape(len(sums), data.d)
    combine(data, sums, out=out)
    if isinstance(g, OwnSum):
        return out[0], out[1]
    return out[0], None if g is None else g[here]


def _reference(
    algorithm: Algorithm[Any], round_: PiecewiseRound, state: ServerState
) -> Float64[Array, " d"] | OwnSum | None:
    """G of the rule's quadratic model, where it has one."""
    if isinstance(algorithm, HewHet):
        return np.asarray(state.algorithm.server, dtype=np.float64)
    return mean_gradient(round_) if isinstance(algorithm, HewHom) else None


def _curvature(algorithm: Algorithm[Any]) -> float:
    """Λ of the same, zero for rules without one."""
    if not isinstance(algorithm, HewHet | HewHom):
        return 0.0
    return algorithm.curvature_ratio * algorithm.smoothness


def _terms(algorithm: Algorithm[Any], slope: float, bend: float) -> dict[str, float]:
    if not isinstance(algorithm, HewHet | HewHom):
        return {}
    return {
        "certificate_slope": slope,
        "certificate_curvature": bend,
        "certificate_change": slope + bend,
    }
