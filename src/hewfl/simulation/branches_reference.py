"""The local branches as the paper writes them: one client, one step at a time.

The plain twin of `branches`; a test ties the two.
"""

import numpy as np

from hewfl.core.array_types import Float
from hewfl.core.round import Cohort, LocalPlan
from hewfl.core.validation import Array
from hewfl.problems.problem import Problem
from hewfl.simulation.draws import Draws


def run_branches_plain(
    problem: Problem,
    anchor: Float[Array, " d"],
    cohort: Cohort,
    plan: LocalPlan,
    draws: Draws,
) -> Float[Array, "s d"]:
    """Displacements Δ_i = y_i^(H_i) − x of one method."""
    displacements = np.zeros((len(cohort.clients), len(anchor)), dtype=anchor.dtype)
    for i in range(len(cohort.clients)):  # Alg. 1, l. 4, 13, Alg. 2, l. 2, 11
        y = anchor  # Alg. 3, l. 1, 8
        eta = plan.step_sizes[i]
        for step in range(int(cohort.horizons[i])):  # Alg. 1, l. 6, 9, Alg. 2, l. 4, 7
            point = anchor if plan.hold else y
            batch = draws.samples[step, i : i + 1]  # Alg. 1, l. 7, Alg. 2, l. 5
            count = draws.counts[i : i + 1]  # Alg. 3, l. 3-6
            g = problem.minibatch_gradients(point[None, None], batch, count)[0, 0]
            if plan.correction is not None:
                g = g - plan.correction[i].astype(anchor.dtype)
            if plan.proximal > 0:
                g = g + plan.proximal * (y - anchor)
            y = y - eta.astype(anchor.dtype) * g  # Alg. 1, l. 8, Alg. 2, l. 6
        displacements[i] = y - anchor  # Alg. 1, l. 10, Alg. 2, l. 8, Alg. 3, l. 7
    return displacements
