"""One round at the server, from the roster to the next state: hewfl's rules, no others.

A round is rejected, and model and state stay as they were, when fewer than
`min_replies` replies are usable, when the rule fails, or when what it gives is not
finite in the precision of the model.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from hewfl.aggregate.variates import kept
from hewfl.core.algorithm import Algorithm
from hewfl.core.checks import Array, Ints
from hewfl.core.round import LocalPlan, Roster, Round
from hewfl.flower.contacts import Registry
from hewfl.flower.layout import Layout, is_sendable
from hewfl.flower.options import Options
from hewfl.flower.replies import Exclusion, Heard
from hewfl.server.conclude import Outcome, conclude
from hewfl.server.first import first_state
from hewfl.server.ledger import charge
from hewfl.server.participation import (
    SampledParticipation,
    drawn,
)
from hewfl.server.state import Lane, ServerState


def draw_roster(
    registry: Registry, options: Options, t: int
) -> tuple[Roster, list[Exclusion]]:
    """Who is asked in round t, and who was drawn but is not there."""
    present = registry.present()
    everybody = np.arange(options.population or 0)
    if options.population is None:
        everybody = np.array(list(present), dtype=np.int64)
    chosen = everybody[_places(options, t, len(everybody))]
    absent = [
        Exclusion(int(i), "missing", "not connected")
        for i in chosen
        if i not in present
    ]
    clients = np.array([i for i in chosen if i in present], dtype=np.int64)
    steps = _steps(registry, options, t)
    sizes = np.array([present[int(i)].examples for i in clients], dtype=np.int64)
    batches = np.array([present[int(i)].batch_size for i in clients], dtype=np.int64)
    n = options.population or len(registry.contacts)
    return Roster(clients, steps[clients], batches, sizes, n, t), absent


def _places(options: Options, t: int, n: int) -> Int64[Ints, " s"]:
    law = options.participation
    if options.population is None and isinstance(law, SampledParticipation):
        law = SampledParticipation(max(1, min(law.count, n)))  # as many as there are
    if not n:
        return np.zeros(0, dtype=np.int64)
    return drawn(law, options.seed, t, n)


def _steps(registry: Registry, options: Options, t: int) -> Int64[Ints, " n"]:
    """H_i of all clients: by the server's law, or as nodes offer, or one."""
    n = options.population or len(registry.contacts)
    steps, sizes, batches = (np.ones(n, dtype=np.int64) for _ in range(3))
    for i, contact in registry.contacts.items():
        steps[i] = contact.steps or 1
        sizes[i], batches[i] = contact.examples, contact.batch_size
    if options.horizons is None:
        return steps
    return options.horizons.draw(options.seed, t, sizes, batches)


def concluded(
    algorithm: Algorithm[Any],
    options: Options,
    layout: Layout,
    state: ServerState,
    heard: Heard,
    t: int,
) -> Outcome:
    """Decide and step; the state as it was where the round is rejected.

    Otherwise the state passed in is used up: control variates change in their place.
    """
    count = len(heard.clients)
    if count < options.min_replies or heard.displacements is None:
        text = f"rejected: {count} usable replies, {options.min_replies} needed"
        return Outcome(state, text)
    n = options.population or int(heard.clients.max()) + 1
    roster = Roster(heard.clients, heard.steps, heard.batch_sizes, heard.sizes, n, t)
    plan = LocalPlan(heard.step_sizes)  # the work that was done, not what was asked for
    round_ = Round(state.anchor, heard.displacements, roster, plan)
    came = conclude(
        Lane(algorithm, options.outer),
        state,
        round_,
        fits=lambda anchor: is_sendable(layout, anchor),
        with_terms=True,
        whole_state=True,
    )
    if came.decision is None:
        return replace(came, status=f"rejected: {came.status}")
    return came


def charged(
    state: ServerState, algorithm: Algorithm[Any], options: Options, active: int
) -> ServerState:
    """The state with the numbers of a round on the account.

    Corrections that the server keeps travel to each client by itself instead of as one
    broadcast vector.
    """
    d, traffic = len(state.anchor), algorithm.demands.traffic
    sent_here = traffic
    if algorithm.demands.variates and options.variates == "server":
        sent_here = replace(traffic, down=1, down_scalars=traffic.down_scalars + d)
    return state.charged(charge(sent_here, active, d), charge(traffic, active, d))


def started(
    algorithm: Algorithm[Any],
    options: Options,
    anchor: Float64[Array, " d"],
    gradients: Mapping[int, Float64[Array, " d"]],
) -> ServerState:
    """The state before the first round, whose control variates change in place.

    Args:
        algorithm: the method.
        options: the population.
        anchor: x_0.
        gradients: by client, for methods that start at them.

    Raises:
        DataError: gradients are demanded and no client sent one.
    """
    n, given = options.population or 1, None
    if algorithm.demands.gradients:
        given = np.full((n, len(anchor)), np.nan)
        for client, gradient in gradients.items():
            given[client] = gradient
    first = first_state(algorithm, anchor, n, given, outer=options.outer)
    return replace(first, algorithm=kept(first.algorithm))
