"""Control variates: what corrected branches subtract, and how the server keeps it."""

from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array, invalid
from hewfl.core.round import Roster, Round

Start = Literal["zero", "gradient"]


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


def updated(variates: ControlVariates, round_: Round) -> ControlVariates:
    """The variates after a round, from what was sent anyway.

        Δc_i = −c − Δ_i/(η_i H_i),     c_i ← c_i + Δc_i,     c ← c + (1/n) Σ_S Δc_i

    It equals c_i − c + (x − y_i)/(η_i H_i), so Δ_i alone travels up (erratum E-17).
    Inactive clients keep theirs.
    """
    roster, eta = round_.roster, round_.plan.step_sizes
    clients, total = variates.clients.copy(), np.zeros_like(variates.server)
    for k, i in enumerate(roster.clients):  # one by one: all at once are n×d numbers
        per_gradient = round_.displacements[k] / (eta[k] * roster.horizons[k])
        increment = -variates.server - per_gradient
        clients[i] += increment  # Alg. 1, l. 11, 14-16, Alg. 2, l. 9, 12-14
        total += increment
    mean = total / roster.population
    server = variates.server + mean  # Alg. 1, l. 18, Alg. 2, l. 18
    return replace(variates, server=server, clients=clients)
