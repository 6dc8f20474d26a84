"""Control variates: what corrected branches subtract, and how the server updates it.

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, Protocol, TypeVar, final, runtime_checkable

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.displacements import Displacements
from hewfl.core.round import Cohort, Round
from hewfl.core.validation import Array, invalid
from hewfl.displacements.backend import compiled_kernels, to_host
from hewfl.displacements.post_local import combine

Start = Literal["zero", "gradient"]
T = TypeVar("T")
LARGE = 1e290
"""Terms below this stay finite in any sum that there is time for."""


@runtime_checkable
class Variates(Protocol):
    """Control variates as a rule sees them."""

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
class InPlaceVariates:
    """c_t and (c_i,t) that are changed in place, in arrays of one owner.

    For servers that cannot hold the variates of all clients twice. `after` records the
    round; `commit` changes the arrays, once the round is accepted.

    Attributes:
        server: c_t.
        clients: c_i,t, one row per client of the population.
        round: the round that is not in the arrays yet.
    """

    server: Float64[Array, " d"]
    clients: Float64[Array, "n d"]
    round: Round | None = None

    def after(self, round_: Round) -> "InPlaceVariates":
        """The control variates after a round, pending until `commit`."""
        return replace(self, round=round_)

    def commit(self) -> "InPlaceVariates":
        """Apply the pending round to the arrays.

        Raises:
            InvalidInputError: a term is so large that a sum might not be finite;
                nothing has been written then.
        """
        if self.round is None:
            return self
        _check_sizes(self, self.round)
        _advance(self, self.round)
        return replace(self, round=None)


@final
@dataclass(frozen=True, slots=True)
class ReadOnlyVariates:
    """c_t and (c_i,t) that no round changes, for questions about a rule.

    Attributes:
        server: c_t.
        clients: c_i,t, one row per client of the population.
    """

    server: Float64[Array, " d"]
    clients: Float64[Array, "n d"]

    def after(self, round_: Round) -> "ReadOnlyVariates":
        """The same control variates."""
        del round_
        return self


HeldVariates = ControlVariates | InPlaceVariates
"""Control variates of all clients in one place."""


def in_place(state: T) -> T:
    """A method's state whose control variates are changed in place from now on."""

    def convert(part: Any) -> Any:
        if isinstance(part, ControlVariates):
            return InPlaceVariates(part.server, part.clients)
        return part

    converted: T = map_records(state, convert)
    return converted


def read_only(state: T) -> T:
    """A method's state whose control variates no round changes."""

    def convert(part: Any) -> Any:
        if isinstance(part, HeldVariates):
            return ReadOnlyVariates(part.server, part.clients)
        return part

    converted: T = map_records(state, convert)
    return converted


def commit(state: T) -> T:
    """Apply the pending in-place updates of a method's state, after a round.

    Raises:
        InvalidInputError: as `InPlaceVariates.commit`.
    """
    committed: T = map_records(
        state, lambda part: part.commit() if isinstance(part, InPlaceVariates) else part
    )
    return committed


def map_records(state: Any, change: Any) -> Any:
    """Apply a function to every record in a state.

    Args:
        state: of a method: records, tuples, arrays, numbers.
        change: returns a new value, or the record itself.
    """
    changed = change(state)
    if changed is not state or isinstance(state, InPlaceVariates):
        return changed
    if isinstance(state, tuple):
        return tuple(map_records(part, change) for part in state)
    if not is_dataclass(state) or isinstance(state, type):
        return state
    parts = {f.name: getattr(state, f.name) for f in fields(state)}
    return replace(state, **{k: map_records(part, change) for k, part in parts.items()})


def start_variates(
    n: int, d: int, start: Start, gradients: Float64[Array, "n d"] | None
) -> ControlVariates:
    """c_i,0 = 0, or a minibatch gradient at x_0; c_0 is their mean (ass:init, E-29).

    Raises:
        InvalidInputError: `start` is gradient and there are none.
    """
    if start == "zero":
        return ControlVariates(np.zeros(d), np.zeros((n, d)))
    if gradients is None:
        raise invalid("gradients", "given when `start` is gradient", gradients)
    return ControlVariates(gradients.mean(axis=0), gradients.copy())


def correction(variates: Variates, cohort: Cohort) -> Float64[Array, "s d"]:
    """c_i − c: what client i subtracts from each stochastic gradient.

    Args:
        variates: of a server that has those of all clients.
        cohort: the clients that take part.
    """
    assert isinstance(variates, HeldVariates), "a server plans"
    difference: Array = variates.clients[cohort.clients] - variates.server
    return difference


def _check_sizes(variates: HeldVariates, round_: Round) -> None:
    name, data, scale = (
        "Δ_i/(η_i H_i) and c",
        round_.displacements,
        round_.total_step.min(),
    )
    if round_.gradients is not None:
        name, data, scale = "mean gradients and c", round_.gradients, 1.0
    with np.errstate(over="ignore"):
        rate = _largest(data) / scale
        top = max(variates.server.max(), -variates.server.min(), rate)
    if not top < LARGE:
        raise invalid(name, f"below {LARGE:g} in size", top)


def _largest(data: Displacements) -> float:
    """A bound on all entries, without a pass over the data where it has one."""
    bound = getattr(data, "largest", None)
    return bound() if bound else max(float(np.abs(X).max()) for X in data.blocks())


def _advance(variates: HeldVariates, round_: Round) -> None:
    cohort, data = round_.cohort, round_.displacements
    # clients outside the cohort keep theirs: Alg. 1, l. 14-16, Alg. 2, l. 12-14
    clients = [variates.clients[i] for i in cohort.clients]
    if round_.gradients is not None:
        _replace(clients, variates.server, round_.gradients, cohort.population)
        return
    rate = 1 / round_.total_step
    _advance_clients(
        clients, variates.server, data, rate
    )  # Alg. 1, l. 11, Alg. 2, l. 9
    share, u = len(rate) / cohort.population, -rate / cohort.population
    for here, part in data.column_chunks():
        c = variates.server[here]  # Alg. 1, l. 18, Alg. 2, l. 18
        c *= 1 - share
        c += to_host(combine(part, u, wide=True))


def _replace(
    clients: Sequence[Float64[Array, " d"]],
    server: Float64[Array, " d"],
    gradients: Displacements,
    population: int,
) -> None:
    """c_i ← ḡ_i of the clients that took part, c by the mean over all clients."""
    for here, means in _host_blocks(gradients):
        for mean, c_i in zip(means, clients, strict=True):
            server[here] += (mean - c_i[here]) / population
            c_i[here] = mean


def _advance_clients(
    clients: Sequence[Float64[Array, " d"]],
    server: Float64[Array, " d"],
    data: Displacements,
    rate: Float64[Array, " s"],
) -> None:
    """c_i ← c_i + Δc_i with Δc_i = −c − Δ_i/(η_i H_i)."""
    compiled = compiled_kernels(data)
    if compiled is None:
        for here, rows in _host_blocks(data):
            for row, r, c_i in zip(rows, rate, clients, strict=True):
                c_i[here] += -server[here] - row * r
        return
    kernels, spans = compiled
    for span in spans:
        here = slice(span.lo, span.hi)
        given = (span.rows, span.codes, span.hi - span.lo, rate, server[here])
        kernels.advance(*given, [c_i[here] for c_i in clients], *span.lent_base)


def _host_blocks(data: Displacements) -> Iterator[tuple[slice, Float64[Array, "n k"]]]:
    """Blocks of columns in float64, each with its range."""
    lo = 0
    for block in data.blocks():
        yield slice(lo, lo + block.shape[1]), block
        lo += block.shape[1]
