"""Control variates: what corrected branches subtract, and how the server keeps it.

A client's control variate is the mean ḡ_i of the stochastic gradients along its last
branch (lem:avg),

    c_i ← ḡ_i,     c ← c + (1/n) Σ_S (ḡ_i − c_i)

Under plain SGD it follows from what was sent anyway,

    Δc_i = −c − Δ_i/(η_i H_i),     c_i ← c_i + Δc_i,
    c ← c + (1/n) Σ_S Δc_i = (1 − S/n) c − (1/n) Σ_S Δ_i/(η_i H_i)

as ḡ_i = c_i − c + (x − y_i)/(η_i H_i), so Δ_i alone travels up (erratum E-17). Under an
adaptive local optimiser the displacement is a sum of scaled directions and does not
show ḡ_i: clients then send it beside Δ_i (`Round.gradients`). Clients that took no part
keep theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, Protocol, TypeVar, final, runtime_checkable

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.displacements import Displacements
from hewfl.core.native import PASSES, library
from hewfl.core.round import Cohort, Round
from hewfl.core.validation import Array, invalid
from hewfl.displacements.backend import Readable, to_host
from hewfl.displacements.chunked import Pieces
from hewfl.displacements.dense import Rows
from hewfl.displacements.post_local import combine

Start = Literal["zero", "gradient"]
T = TypeVar("T")
LARGE = 1e290
"""Terms below this stay finite in any sum that there is time for."""


@runtime_checkable
class Variates(Protocol):
    """Control variates as a rule sees them, whoever keeps them."""

    @property
    def server(self) -> Any:
        """c_t, a vector of the round's space."""

    def after(self, round_: Round) -> "Variates":
        """The control variates of the next round."""


@final
@dataclass(frozen=True, slots=True)
class ControlVariates:
    """c_t and (c_i,t) as values: a round makes new ones.

    Attributes:
        server: c_t; the mean of the clients' at the start, and so ever after.
        clients: c_i,t, one row per client of the population.
    """

    server: Float64[Array, " d"]
    clients: Float64[Array, "n d"]

    def after(self, round_: Round) -> "ControlVariates":
        """The control variates after a round, in arrays of their own."""
        next_ = ControlVariates(self.server.copy(), self.clients.copy())
        _advance(next_, round_)
        return next_


@final
@dataclass(frozen=True, slots=True)
class KeptVariates:
    """c_t and (c_i,t) in arrays that their keeper alone holds, changed in place.

    For servers that cannot hold the variates of all clients twice. `after` only notes
    the round; `settle` changes the arrays, once the round is accepted.

    Attributes:
        server: c_t.
        clients: c_i,t, one row per client of the population.
        round: the round that is not in the arrays yet.
    """

    server: Float64[Array, " d"]
    clients: Float64[Array, "n d"]
    round: Round | None = None

    def after(self, round_: Round) -> "KeptVariates":
        """The control variates after a round, which `settle` brings about."""
        return replace(self, round=round_)

    def settle(self) -> "KeptVariates":
        """The control variates with the round in them, in the arrays at hand.

        Raises:
            InvalidInputError: a term is so large that a sum might not be finite;
                nothing has been written then.
        """
        if self.round is None:
            return self
        _check_sizes(self, self.round)
        _advance(self, self.round)
        return replace(self, round=None)


def kept(state: T) -> T:
    """A method's state whose control variates are changed in place from now on."""

    def keep(part: Any) -> Any:
        if isinstance(part, ControlVariates):
            return KeptVariates(part.server, part.clients)
        return part

    found: T = mapped(state, keep)
    return found


def settled(state: T) -> T:
    """A method's state after an accepted round: what it has put off is done.

    Raises:
        InvalidInputError: as `KeptVariates.settle`.
    """
    found: T = mapped(
        state, lambda part: part.settle() if isinstance(part, KeptVariates) else part
    )
    return found


def mapped(state: Any, change: Any) -> Any:
    """A state in which a function has been applied to every record in it.

    Args:
        state: of a method: records, tuples, arrays, numbers.
        change: gives another value for the records that it is about.
    """
    changed = change(state)
    if changed is not state or isinstance(state, KeptVariates):
        return changed
    if isinstance(state, tuple):
        return tuple(mapped(part, change) for part in state)
    if not is_dataclass(state) or isinstance(state, type):
        return state
    own = {f.name: getattr(state, f.name) for f in fields(state)}
    return replace(state, **{k: mapped(part, change) for k, part in own.items()})


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


def correction(variates: Variates, cohort: Cohort) -> Float64[Array, "s d"]:
    """c_i − c: what client i subtracts from each stochastic gradient.

    Args:
        variates: of a server that holds those of all clients.
        cohort: who takes part.
    """
    assert isinstance(variates, ControlVariates | KeptVariates), "a server plans"
    difference: Array = variates.clients[cohort.clients] - variates.server
    return difference


Held = ControlVariates | KeptVariates


def _check_sizes(variates: Held, round_: Round) -> None:
    sent, name = round_.gradients, "mean gradients and c"
    with np.errstate(over="ignore"):
        if sent is not None:
            rate = _readable(sent).largest()
        else:
            name = "Δ_i/(η_i H_i) and c"
            rate = _readable(round_.displacements).largest() / round_.total_step.min()
        top = max(variates.server.max(), -variates.server.min(), rate)
    if not top < LARGE:
        raise invalid(name, f"below {LARGE:g} in size", top)


def _readable(data: Displacements) -> Rows | Pieces:
    assert isinstance(data, Rows | Pieces), "a server holds what clients send"
    return data


def _advance(variates: Held, round_: Round) -> None:
    if round_.gradients is not None:
        _take(variates, round_.cohort, _readable(round_.gradients))
        return
    cohort, data = round_.cohort, _readable(round_.displacements)
    rate = 1 / round_.total_step
    own = [variates.clients[i] for i in cohort.clients]
    _advance_clients(own, variates.server, data, rate)
    share, u = len(rate) / cohort.population, -rate / cohort.population
    for here, part in data.column_chunks():
        c = variates.server[here]  # Alg. 1, l. 18, Alg. 2, l. 18
        c *= 1 - share
        c += to_host(combine(part, u, wide=True))


def _take(variates: Held, cohort: Cohort, gradients: Rows | Pieces) -> None:
    """c_i ← ḡ_i of those who took part, c by the mean over all clients."""
    for k, i in enumerate(cohort.clients):  # one by one: all at once are n×d numbers
        mean = np.asarray(to_host(gradients.row(k)), dtype=np.float64)
        variates.server[:] += (mean - variates.clients[i]) / cohort.population
        variates.clients[i] = mean


def _advance_clients(
    own: Sequence[Float64[Array, " d"]],
    server: Float64[Array, " d"],
    data: Readable,
    rate: Float64[Array, " s"],
) -> None:
    native = library(PASSES)
    spans = None if native is None else data.spans()
    if native is None or spans is None:
        for k, c_i in enumerate(own):  # one by one: all at once are n×d numbers
            increment = -server - to_host(data.row(k)) * rate[k]
            c_i[:] += increment  # Alg. 1, l. 11, 14-16, Alg. 2, l. 9, 12-14
        return
    for span in spans:
        here = slice(span.lo, span.hi)
        given = (span.rows, span.codes, span.hi - span.lo, rate, server[here])
        native.advance(*given, [c_i[here] for c_i in own], *span.lent_base)
