"""One round at the server, from the roster to the next state: hewfl's rules, no others.

A round is rejected, and model and state stay as they were, when fewer than
`min_replies` replies are usable, when the rule fails, or when what it gives is not
finite in the precision of the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from jaxtyping import Float, Float64, Int64

from hewfl.controllers.het import HewHet
from hewfl.controllers.hom import HewHom
from hewfl.core.checks import Array, Ints
from hewfl.core.post_local import combine
from hewfl.core.round import Algorithm, Decision, LocalPlan, Roster, Round
from hewfl.errors import HewError
from hewfl.flower.contacts import Book
from hewfl.flower.layout import Layout, bad_entries, sent
from hewfl.flower.options import Options
from hewfl.flower.replies import Exclusion, Heard
from hewfl.sim.checkpoint import flatten
from hewfl.sim.federation import SampledParticipation
from hewfl.sim.lanes import LaneState
from hewfl.sim.ledger import charge
from hewfl.sim.outer import outer_step


@final
@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What came of a round.

    Attributes:
        state: of the next one.
        status: one sentence.
        decision: the rule's; None where the round is rejected.
        model: the new one, as it is sent; None likewise.
        observed: terms of the certificate.
    """

    state: LaneState
    status: str
    decision: Decision | None = None
    model: Float[Array, " d"] | None = None
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
    state: LaneState,
    heard: Heard,
) -> Outcome:
    """Decide and step; the state as it was where the round is rejected."""
    count = len(heard.clients)
    if count < options.min_replies:
        text = f"rejected: {count} usable replies, {options.min_replies} needed"
        return Outcome(state, text)
    round_ = _round(state, heard, options)
    with np.errstate(all="ignore"):  # what is not finite is rejected below
        try:
            decision, following = algorithm.decide(round_, state.algorithm)
        except HewError as error:
            return Outcome(state, f"rejected: {error}")
        step = _step(decision, heard)
        move, memory = outer_step(options.outer, step, state.memory)
        del step  # vectors of a large model are let go as soon as may be
        terms = certificate_terms(algorithm, round_, state.algorithm, move)
        anchor = state.anchor + move
        model = sent(layout, anchor)
    if bad_entries(model) or not _is_finite(following):
        return Outcome(state, "rejected: the new model would not be finite")
    new = replace(state, anchor=anchor, memory=memory, algorithm=following)
    return Outcome(new, decision.status, decision, model, terms)


def _step(decision: Decision, heard: Heard) -> Float64[Array, " d"]:
    step = decision.step
    if step is None:
        step = combine(heard.displacements, decision.weights)
    return np.asarray(step, dtype=np.float64)


def _round(state: LaneState, heard: Heard, options: Options) -> Round:
    """What the rule may look at: the work that was done, not what was asked for."""
    clients = heard.clients
    n = options.population or int(clients.max()) + 1
    roster = Roster(clients, heard.steps, heard.batch_sizes, heard.sizes, n)
    plan = LocalPlan(heard.step_sizes)
    return Round(state.anchor, heard.displacements, roster, plan)


def _is_finite(state: Any) -> bool:
    return all(np.isfinite(array).all() for array in flatten(state).values())


def certificate_terms(
    algorithm: Algorithm[Any], round_: Round, state: Any, move: Float64[Array, " d"]
) -> dict[str, float]:
    """The terms of the bound that exact weights minimise, for the step really taken.

        F(x + d) ≤ F(x) + ⟨g, d⟩ + (Λ/2)‖d‖² + ‖∇F(x) − g‖² / (2(Λ − L))

    The last, which nobody can measure here, is not among them; nor is F(x).
    """
    if isinstance(algorithm, HewHet):
        g = state.server
    elif isinstance(algorithm, HewHom):
        ground = round_.plan.step_sizes * round_.roster.horizons
        g = combine(round_.displacements, -1 / (len(ground) * ground))
    else:
        return {}
    slope = float(np.dot(np.asarray(g, dtype=np.float64), move))
    curvature = algorithm.curvature_ratio * algorithm.smoothness
    bend = 0.5 * curvature * float(np.dot(move, move))
    return {
        "certificate_slope": slope,
        "certificate_curvature": bend,
        "certificate_change": slope + bend,
    }


def charged(
    state: LaneState, algorithm: Algorithm[Any], options: Options, active: int
) -> LaneState:
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
) -> LaneState:
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
    return LaneState(
        anchor,
        np.zeros(d),
        algorithm.init(n, d, given),
        sent_up,
        sent_up,
        diverged=False,
    )
