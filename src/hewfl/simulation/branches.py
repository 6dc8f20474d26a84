"""The local branches of all entries and clients: in lockstep, and the plain twin.

`run_branches` orders clients by horizon, so that finished branches leave the batch, and
runs them block by block, so that their models stay in cache. At each step the minibatch
is gathered once and used by all entries. A problem with its own kernel (`Branching`:
compiled C, torch) runs that instead.

`run_branches_plain` is the pseudo-code of the paper, one client and one step at a time,
by the function that Flower clients run (`hewfl.core.local_branch`). Tests compare the
two, and every kernel of a problem, with it.
"""

from collections.abc import Sequence
from typing import Any

import array_api_compat as compat
import numpy as np

from hewfl.core.array_types import Float, Int64
from hewfl.core.local_branch import BranchPlan, ClientObjective, StepContext, run_branch
from hewfl.core.round import Cohort, LocalPlan
from hewfl.core.validation import Array, Ints
from hewfl.displacements.backend import to_host
from hewfl.problems.array_operations import conform
from hewfl.problems.problem import Branching, Problem
from hewfl.simulation.draws import Draws

BLOCK = 2**19
"""Numbers of stacked models stepped together: they stay in cache from step to step."""


def run_branches_plain(
    problem: Problem,
    anchor: Float[Array, " d"],
    cohort: Cohort,
    plan: LocalPlan,
    draws: Draws,
) -> Float[Array, "s d"]:
    """Displacements Δ_i = y_i^(H_i) − x of one entry."""
    displacements = np.zeros((len(cohort.clients), len(anchor)), dtype=anchor.dtype)
    for i in range(
        len(cohort.clients)
    ):  # Alg. 1, l. 4, 13, Alg. 2, l. 2, 11, Alg. 3, l. 1, 8
        batches, count = draws.samples[:, i : i + 1], draws.counts[i : i + 1]

        def gradient(
            point: Float[Array, " d"],
            at: StepContext,
            batches: Int64[Ints, "steps 1 b"] = batches,
            count: Int64[Ints, " 1"] = count,
        ) -> Float[Array, " d"]:  # Alg. 1, l. 7, Alg. 2, l. 5, Alg. 3, l. 4
            models, batch = point[None, None], batches[at.step]
            g = problem.minibatch_gradients(models, batch, count)[0, 0]
            return np.asarray(g)

        correction = None if plan.correction is None else plan.correction[i]
        if correction is not None:
            correction = correction.astype(anchor.dtype)
        task = BranchPlan(
            cohort.round,
            int(cohort.horizons[i]),
            float(plan.step_sizes[i]),
            plan.proximal,
            plan.hold,
        )
        y, _ = run_branch(ClientObjective(gradient, 1), anchor, task, correction)
        displacements[i] = y - anchor  # Alg. 1, l. 10, Alg. 2, l. 8, Alg. 3, l. 7
    return displacements


def run_branches(
    problem: Problem,
    anchors: Float[Array, "entries d"],
    cohort: Cohort,
    plans: Sequence[LocalPlan],
    draws: Draws,
) -> Float[Array, "entries s d"]:
    """Displacements of every entry and client: `run_branches_plain`, all at once.

    Args:
        problem: gives minibatch gradients for stacked models.
        anchors: x_t of each entry.
        cohort: the clients, common to all entries.
        plans: one for each entry.
        draws: minibatches, common to all entries.
    """
    if isinstance(problem, Branching):
        displacements = problem.branches(anchors, cohort, plans, draws.samples)
        if displacements is not None:
            return displacements
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
    """Some clients, longest horizon first, step by step, on the device of the data."""
    data, kind = getattr(problem, "features", None), anchors.dtype
    like = data if compat.is_torch_array(data) else anchors

    def on_device(values: Any) -> Any:
        return conform(np.ascontiguousarray(values, dtype=kind), like)

    horizons, counts = cohort.horizons[clients], draws.counts[clients]
    eta = on_device(np.stack([p.step_sizes[clients] for p in plans])[:, :, None])
    x = on_device(anchors[:, None, :])
    shape = (len(plans), len(clients), anchors.shape[1])
    moved = on_device(np.zeros(shape, dtype=kind))  # y − x
    corrections = {
        k: on_device(plan.correction[clients])
        for k, plan in enumerate(plans)
        if plan.correction is not None
    }
    proximal = {k: p.proximal for k, p in enumerate(plans) if p.proximal > 0}
    held = [plan.hold for plan in plans]
    free = on_device(np.where(held, 0.0, 1.0)[:, None, None])
    for step in range(int(horizons[0])):
        busy = int(np.searchsorted(-horizons, -step))  # those with H_i > step
        y = moved[:, :busy]
        points = x + (free * y if any(held) else y)
        batch = draws.samples[step, clients[:busy]]
        g = problem.minibatch_gradients(points, batch, counts[:busy])
        for k, correction in corrections.items():
            g[k] -= correction[:busy]
        for k, mu in proximal.items():
            g[k] += mu * y[k]
        g *= eta[:, :busy]
        y -= g
    return np.asarray(to_host(moved))
