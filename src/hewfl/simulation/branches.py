"""The local branches of all entries and clients in lockstep.

Clients are ordered by horizon, so that finished branches leave the batch, and go block
by block, so that their models stay in cache; at each step the minibatch is gathered
once and used by all entries. A problem with a kernel of its own is asked first.
"""

from collections.abc import Sequence

import numpy as np

from hewfl.core.array_types import Float, Int64
from hewfl.core.round import Cohort, LocalPlan
from hewfl.core.validation import Array, Ints
from hewfl.problems.problem import Branching, LinearProblem, Problem
from hewfl.simulation.draws import Draws
from hewfl.simulation.linear_branches import run_linear_branches

BLOCK = 2**19
"""Numbers of stacked models stepped together: they stay in cache from step to step."""
LINEAR_LANES = 8
"""From this many entries on, linear models run in sample space; see benchmarks."""


def run_branches(
    problem: Problem,
    anchors: Float[Array, "entries d"],
    cohort: Cohort,
    plans: Sequence[LocalPlan],
    draws: Draws,
) -> Float[Array, "entries s d"]:
    """Displacements of every entry and client: `branches_reference`, all at once.

    Args:
        problem: gives minibatch gradients for stacked models.
        anchors: x_t of each entry.
        cohort: the clients, common to all entries.
        plans: what each entry tells them.
        draws: minibatches, common to all entries.
    """
    if isinstance(problem, Branching):
        found = problem.branches(anchors, cohort, plans, draws.samples)
        if found is not None:
            return found
    if isinstance(problem, LinearProblem) and (
        len(plans) >= LINEAR_LANES or not isinstance(problem.features, np.ndarray)
    ):  # on another device the models would travel at every step
        return run_linear_branches(problem, anchors, cohort, plans, draws)
    order = np.argsort(-cohort.horizons, kind="stable")
    displacements = np.empty((len(plans), len(order), problem.d), dtype=anchors.dtype)
    size = max(1, BLOCK // (len(plans) * problem.d))
    for lo in range(0, len(order), size):
        some = order[lo : lo + size]
        displacements[:, some] = _lockstep(problem, anchors, cohort, plans, draws, some)
    return displacements


def _lockstep(
    problem: Problem,
    anchors: Float[Array, "entries d"],
    cohort: Cohort,
    plans: Sequence[LocalPlan],
    draws: Draws,
    clients: Int64[Ints, " g"],
) -> Float[Array, "entries g d"]:
    """Some clients, longest horizon first, step by step."""
    horizons, counts = cohort.horizons[clients], draws.counts[clients]
    kind = anchors.dtype
    eta = np.stack([p.step_sizes[clients] for p in plans]).astype(kind)[:, :, None]
    x = anchors[:, None, :]
    moved = np.zeros((len(plans), len(clients), anchors.shape[1]), dtype=kind)  # y − x
    corrected = [k for k, plan in enumerate(plans) if plan.correction is not None]
    corrections = [_correction(plans[k])[clients].astype(kind) for k in corrected]
    pulled = [k for k, plan in enumerate(plans) if plan.proximal > 0]
    held = np.array([plan.hold for plan in plans])[:, None, None]
    for step in range(int(horizons[0])):
        busy = int(np.searchsorted(-horizons, -step))  # those with H_i > step
        y = moved[:, :busy]
        points = x + (np.where(held, 0.0, y).astype(kind) if held.any() else y)
        batch = draws.samples[step, clients[:busy]]
        g = problem.minibatch_gradients(points, batch, counts[:busy])
        for k, correction in zip(corrected, corrections, strict=True):
            g[k] -= correction[:busy]
        for k in pulled:
            g[k] += kind.type(plans[k].proximal) * y[k]
        g *= eta[:, :busy]
        y -= g
    return moved


def _correction(plan: LocalPlan) -> Float[Array, "s d"]:
    assert plan.correction is not None
    return plan.correction
