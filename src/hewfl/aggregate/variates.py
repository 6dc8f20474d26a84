"""Control variates: what corrected branches subtract, and how the server keeps it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float, Float64

from hewfl.aggregate.pieces import Pieces, as_vectors
from hewfl.aggregate.post_local import combine
from hewfl.core.checks import Array, invalid
from hewfl.core.displacements import Displacements
from hewfl.core.native import PASSES, library
from hewfl.core.round import PiecewiseRound, Roster, Round

Start = Literal["zero", "gradient"]
RANGE = 2**16
"""Entries of a vector that are summed at a time."""
LARGE = 1e290
"""Terms below this stay finite in any sum that there is time for."""


@final
@dataclass(frozen=True, slots=True)
class ControlVariates:
    """c_t and (c_i,t), held by the server.

    Attributes:
        server: c_t; the mean of the clients' at the start, and so ever after.
        clients: c_i,t, one row per client of the population.
    """

    server: Float64[Array, " d"]
    clients: Float64[Array, "n d"]


def start_variates(
    n: int, d: int, start: Start, gradients: Float64[Array, "n d"] | None
) -> ControlVariates:
    """c_i,0 = 0, or a minibatch gradient at x_0; c_0 is their mean (ass:init, E-29).

    Raises:
        InvalidInputError: gradients are asked for and not given.
    """
    if start == "zero":
        return ControlVariates(np.zeros(d), np.zeros((n, d)))
    if gradients is None:
        raise invalid("gradients", "given when `start` is gradient", gradients)
    return ControlVariates(gradients.mean(axis=0), gradients.copy())


def correction(variates: ControlVariates, roster: Roster) -> Float64[Array, "s d"]:
    """c_i − c: what client i subtracts from each stochastic gradient."""
    difference: Array = variates.clients[roster.clients] - variates.server
    return difference


def updated(
    variates: ControlVariates,
    round_: Round | PiecewiseRound,
    *,
    owned: bool = False,
) -> ControlVariates:
    """The variates after a round, from what was sent anyway.

        Δc_i = −c − Δ_i/(η_i H_i),     c_i ← c_i + Δc_i,
        c ← c + (1/n) Σ_S Δc_i = (1 − S/n) c − (1/n) Σ_S Δ_i/(η_i H_i)

    It equals c_i − c + (x − y_i)/(η_i H_i), so Δ_i alone travels up (erratum E-17).
    Inactive clients keep theirs.

    Args:
        variates: before the round.
        round_: what was sent.
        owned: change the arrays passed in, which the caller gives up; for servers that
            cannot hold the variates of all clients twice.

    Raises:
        InvalidInputError: arrays are `owned`, and a term is so large that a sum might
            not be finite; nothing has been written then.
    """
    own = variates
    if owned:
        _check_sizes(variates, round_)
    else:
        own = ControlVariates(variates.server.copy(), variates.clients.copy())
    _advance(own, round_)
    return own


def _check_sizes(variates: ControlVariates, round_: Round | PiecewiseRound) -> None:
    ground = round_.plan.step_sizes * round_.roster.horizons
    largest = as_vectors("displacements", round_.displacements).largest()
    with np.errstate(over="ignore"):
        top = max(variates.server.max(), -variates.server.min(), largest / ground.min())
    if not top < LARGE:
        raise invalid("Δ_i/(η_i H_i) and c", f"below {LARGE:g} in size", top)


def _advance(variates: ControlVariates, round_: Round | PiecewiseRound) -> None:
    roster, data = round_.roster, as_vectors("displacements", round_.displacements)
    rate = 1 / (round_.plan.step_sizes * roster.horizons)
    own = [variates.clients[i] for i in roster.clients]
    _advance_clients(own, variates.server, data, rate)
    share, u = len(rate) / roster.population, -rate / roster.population
    for here, part in _ranges(round_.displacements):
        c = variates.server[here]  # Alg. 1, l. 18, Alg. 2, l. 18
        c *= 1 - share
        c += combine(part, u, wide=True)


def _ranges(displacements: Float[Array, "s d"] | Pieces) -> Iterator[tuple[slice, Any]]:
    """Ranges of entries, few where vectors are not to be doubled."""
    if not isinstance(displacements, Pieces):
        yield slice(None), displacements
        return
    for lo in range(0, displacements.d, RANGE):
        here = slice(lo, min(lo + RANGE, displacements.d))
        yield here, displacements.columns(here.start, here.stop)


def _advance_clients(
    own: Sequence[Float64[Array, " d"]],
    server: Float64[Array, " d"],
    data: Displacements | Pieces,
    rate: Float64[Array, " s"],
) -> None:
    native = library(PASSES)
    spans = None if native is None else data.spans()
    if native is None or spans is None:
        for k, c_i in enumerate(own):  # one by one: all at once are n×d numbers
            increment = -server - data.row(k) * rate[k]
            c_i[:] += increment  # Alg. 1, l. 11, 14-16, Alg. 2, l. 9, 12-14
        return
    for span in spans:
        here = slice(span.lo, span.hi)
        given = (span.rows, span.codes, span.hi - span.lo, rate, server[here])
        native.advance(*given, [c_i[here] for c_i in own], *span.lent_base)
