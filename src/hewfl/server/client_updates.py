"""A round of clients that train by themselves, whose updates are at hand as vectors."""

from dataclasses import replace
from typing import Any

import numpy as np

from hewfl.aggregators.aggregator import grow_state
from hewfl.core.array_types import Float64
from hewfl.core.round import Cohort, LocalPlan, Round
from hewfl.core.validation import Array
from hewfl.displacements.chunked import ChunkedDisplacements
from hewfl.server.array_layout import ArrayLayout
from hewfl.server.finish_round import Outcome, finish_round
from hewfl.server.state import Entry, ServerState, initial_state


def aggregate_updates(  # noqa: PLR0913, PLR0917 - a round has as many parts
    entry: Entry,
    state: ServerState | None,
    model: tuple[ArrayLayout, Float64[Array, " d"]],
    updates: Any,
    cohort: Cohort,
    plan: LocalPlan,
    root: Any = None,
) -> Outcome:
    """Decide and step; the state is unchanged if the round is rejected.

    Args:
        entry: an algorithm that leaves local steps to the clients.
        state: after the round before; None in the first.
        model: its layout, and x: what the clients were sent.
        updates: Δ_i, at least one vector of float32 or float64.
        cohort: their clients, in the same order.
        plan: the step sizes of their local work.
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
    round_ = Round(anchor, rows, cohort, plan, root=root)
    return finish_round(entry, state, round_, fits=layout.fits, whole_state=True)
