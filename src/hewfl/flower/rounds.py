"""One round at the server, from the roster to the next state: hewfl's rules, no others.

A round is rejected, and model and state stay as they were, when fewer than
`min_replies` replies are usable, when the rule fails, or when what it gives is not
finite in the precision of the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from jaxtyping import Float64, Int64

from hewfl.aggregate.pieces import Pieces
from hewfl.core.algorithm import Algorithm
from hewfl.core.checks import Array, Ints
from hewfl.core.round import (
    Decision,
    LocalPlan,
    PiecewiseRound,
    Roster,
    Round,
    Streaming,
)
from hewfl.errors import HewError
from hewfl.flower.contacts import Book
from hewfl.flower.layout import Layout, is_sendable
from hewfl.flower.options import Options
from hewfl.flower.replies import Exclusion, Heard
from hewfl.flower.step import stepped
from hewfl.server.checkpoint import flatten
from hewfl.server.federation import SampledParticipation
from hewfl.server.ledger import charge
from hewfl.server.state import ServerState


@final
@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What came of a round.

    Attributes:
        state: of the next one.
        status: one sentence.
        decision: the rule's; None where the round is rejected.
        observed: terms of the certificate.
    """

    state: ServerState
    status: str
    decision: Decision | None = None
    observed: Mapping[str, float] = field(default_factory=dict)


def draw_roster(book: Book, options: Options, t: int) -> tuple[Roster, list[Exclusion]]:
    """Who is asked in round t, and who was drawn but is not there."""
    present = book.present()
    everybody = np.arange(options.population or 0)
    if options.population is None:
        everybody = np.array(list(present), dtype=np.int64)
    drawn = everybody[_places(options, t, len(everybody))]
    absent = [
        Exclusion(int(i), "missing", "not connected") for i in drawn if i not in present
    ]
    clients = np.array([i for i in drawn if i in present], dtype=np.int64)
    steps = _steps(book, options, t)
    sizes = np.array([present[int(i)].examples for i in clients], dtype=np.int64)
    batches = np.array([present[int(i)].batch_size for i in clients], dtype=np.int64)
    n = options.population or len(book.contacts)
    return Roster(clients, steps[clients], batches, sizes, n), absent


def _places(options: Options, t: int, n: int) -> Int64[Ints, " s"]:
    law = options.participation
    if options.population is None and isinstance(law, SampledParticipation):
        law = SampledParticipation(max(1, min(law.count, n)))  # as many as there are
    return law.draw(options.seed, t, n) if n else np.zeros(0, dtype=np.int64)


def _steps(book: Book, options: Options, t: int) -> Int64[Ints, " n"]:
    """H_i of all clients: by the server's law, or as nodes offer, or one."""
    n = options.population or len(book.contacts)
    steps, sizes, batches = (np.ones(n, dtype=np.int64) for _ in range(3))
    for i, contact in book.contacts.items():
        steps[i] = contact.steps or 1
        sizes[i], batches[i] = contact.examples, contact.batch_size
    if options.horizons is None:
        return steps
    return options.horizons.draw(options.seed, t, sizes, batches)


def conclude(
    algorithm: Algorithm[Any],
    options: Options,
    layout: Layout,
    state: ServerState,
    heard: Heard,
) -> Outcome:
    """Decide and step; the state as it was where the round is rejected.

    Otherwise the state passed in is used up: control variates change in their place.
    """
    count = len(heard.clients)
    if count < options.min_replies or heard.displacements is None:
        text = f"rejected: {count} usable replies, {options.min_replies} needed"
        return Outcome(state, text)
    round_ = _round(state, heard, heard.displacements, options)
    with np.errstate(all="ignore"):  # what is not finite is rejected
        try:
            decision, following = _decided(algorithm, round_, layout, state)
            moved = stepped(algorithm, options.outer, round_, state, decision)
            if not is_sendable(layout, moved.anchor) or not _is_finite(following):
                text = "rejected: the new model would not be finite"
                return Outcome(state, text)
            if isinstance(algorithm, Streaming):
                following = algorithm.follow(round_, state.algorithm, owned=True)
        except HewError as error:
            return Outcome(state, f"rejected: {error}")
    new = replace(state, anchor=moved.anchor, memory=moved.memory, algorithm=following)
    return Outcome(new, decision.status, decision, moved.terms)


def _round(
    state: ServerState, heard: Heard, displacements: Pieces, options: Options
) -> PiecewiseRound:
    """What the rule may look at: the work that was done, not what was asked for."""
    clients = heard.clients
    n = options.population or int(clients.max()) + 1
    roster = Roster(clients, heard.steps, heard.batch_sizes, heard.sizes, n)
    return PiecewiseRound(
        state.anchor, displacements, roster, LocalPlan(heard.step_sizes)
    )


def _decided(
    algorithm: Algorithm[Any],
    round_: PiecewiseRound,
    layout: Layout,
    state: ServerState,
) -> tuple[Decision, Any]:
    """The decision, and the next state of methods that need all rows in one matrix."""
    if isinstance(algorithm, Streaming):
        return algorithm.weigh(round_, state.algorithm), None
    matrix = round_.displacements.astype(layout.dtype)
    whole = Round(round_.anchor, matrix, round_.roster, round_.plan)
    return algorithm.decide(whole, state.algorithm)


def _is_finite(state: Any) -> bool:
    return all(np.isfinite(array).all() for array in flatten(state).values())


def charged(
    state: ServerState, algorithm: Algorithm[Any], options: Options, active: int
) -> ServerState:
    """The state with the numbers of a round on the account.

    Corrections that the server keeps travel to each client by itself instead of as one
    broadcast vector.
    """
    d, traffic = len(state.anchor), algorithm.traffic
    sent_here = traffic
    if traffic.down > 1 and options.variates == "server":
        sent_here = replace(traffic, down=1, down_scalars=traffic.down_scalars + d)
    bill, paper = charge(sent_here, active, d), charge(traffic, active, d)
    return replace(
        state,
        scalars=state.scalars + bill.scalars,
        paper_scalars=state.paper_scalars + paper.paper_scalars,
    )


def first_state(
    algorithm: Algorithm[Any],
    options: Options,
    anchor: Float64[Array, " d"],
    gradients: Mapping[int, Float64[Array, " d"]],
) -> ServerState:
    """The state before the first round.

    Args:
        algorithm: the method.
        options: the population.
        anchor: x_0.
        gradients: by client, for methods that start at them. A client not heard starts
            at the mean of the others, which leaves its first branch uncorrected.
    """
    n, d = options.population or 1, len(anchor)
    given = None
    if algorithm.needs_gradients:
        known = np.stack(list(gradients.values()))
        given = np.tile(known.mean(axis=0), (n, 1))
        given[list(gradients)] = known
    sent_up = len(gradients) * d
    return ServerState(
        anchor,
        np.zeros(d),
        algorithm.init(n, d, given),
        sent_up,
        sent_up,
        diverged=False,
    )
