"""A round of clients that train by themselves, whose updates are at hand as vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hewfl.aggregators.aggregator import grow_state
from hewfl.core.array_types import Float, Float64, Int64
from hewfl.core.round import Cohort, LocalPlan, Round
from hewfl.core.validation import Array, Ints, invalid
from hewfl.displacements.chunked import ChunkedDisplacements
from hewfl.server.array_layout import ArrayLayout
from hewfl.server.finish_round import Outcome, finish_round
from hewfl.server.plausibility import finite_numbers, whole_sizes
from hewfl.server.state import Entry, ServerState, initial_state


class ClientResult(NamedTuple):
    """Δ_i of what is judged, y_i of the rest, local iterations, finite metrics."""

    row: Float[Array, " d"]
    buffers: Float[Array, " k"]
    size: float
    metrics: Mapping[str, float]


def read_result(
    given: Mapping[str, Any],
    sent: Mapping[str, Any],
    layouts: Sequence[ArrayLayout],
    size: float,
    metrics: Mapping[str, Any] | None = None,
    *,
    is_whole: bool,
) -> ClientResult:
    """Read a whole model, or the difference to the one that was sent.

    Args:
        given: the client's arrays by name.
        sent: those of the model it was sent.
        layouts: of what is judged, and of the rest.
        size: local iterations, as reported.
        metrics: as reported; those that are no finite numbers are dropped.
        is_whole: whether `given` is a model, not a difference.

    Raises:
        InvalidInputError: names, shapes or kinds are not those of the model.
    """
    if is_whole and given.keys() != sent.keys():
        raise invalid("the result", "of the arrays sent", f"{list(given)}"[:80])
    judged, other = layouts
    row, buffers = judged.vector(given), other.vector(given)
    if is_whole:
        row -= judged.vector(sent)
    else:
        buffers += other.vector(sent)
    return ClientResult(row, buffers, float(size), finite_numbers(metrics))


def reported_cohort(
    results: Sequence[ClientResult],
    clients: Int64[Ints, " s"],
    sizes: Float64[Array, " s"],
    population: int,
    t: int,
) -> Cohort:
    """The clients of a round, with the steps that they report.

    Args:
        results: at least one.
        clients: their numbers, in the same order.
        sizes: what they count as.
        population: number of all clients.
        t: rounds before this one.
    """
    steps = np.array([max(1, int(result.size)) for result in results], dtype=np.int64)
    ones, counts = np.ones(len(results), dtype=np.int64), whole_sizes(sizes)
    return Cohort(clients, steps, ones, counts, population, t)


def aggregate_updates(  # noqa: PLR0913, PLR0917 - a round has as many parts
    entry: Entry,
    state: ServerState | None,
    model: tuple[ArrayLayout, Float64[Array, " d"]],
    updates: Any,
    cohort: Cohort,
    step_size: float,
    root: Any = None,
) -> Outcome:
    """Decide and step; the state is unchanged if the round is rejected.

    Args:
        entry: an algorithm that leaves local steps to the clients.
        state: after the round before; None in the first.
        model: its layout, and x: what the clients were sent.
        updates: Δ_i, at least one vector of float32 or float64.
        cohort: their clients, in the same order.
        step_size: of their local work.
        root: a gradient at x that the server trusts, for rules that need one.
    """
    (layout, anchor), rule, n = model, entry.algorithm, cohort.population
    if state is None:
        state = initial_state(rule, anchor, n, server_step=entry.server_step)
    state = replace(state, anchor=anchor)
    if "clients" in rule.demands.needs:  # clients that are new have no memory yet
        fresh = rule.init(n, layout.d, None)
        state = replace(state, algorithm=grow_state(state.algorithm, fresh))
    if root is not None and not np.isfinite(root).all():
        return Outcome(state, "refused", "the root gradient is not finite")
    rows = ChunkedDisplacements((tuple(updates),))
    plan = LocalPlan(np.full(len(cohort.clients), step_size))
    round_ = Round(anchor, rows, cohort, plan, root=root)
    return finish_round(entry, state, round_, fits=layout.fits, whole_state=True)
