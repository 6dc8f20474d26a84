"""Every rule in every transport: one decision, wherever the displacements lie.

The simulator's matrix is the measure. The replies of a federation are
`ChunkedDisplacements`; the ranks of a torch job are real processes over gloo.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.conformance.median import Median
from tests.conformance.rounds import root_of, step_of
from tests.conformance.test_algorithms import ALGORITHMS, Case
from tests.torch.pool import Pool, RankFailureError
from tests.torch.scenarios import TRUSTED, Plan, play, quadratic
from tests.torch.test_sync import branch

from hewfl import Cohort, Entry, InvalidInputError, LocalPlan, Round, ServerStep
from hewfl.displacements.chunked import ChunkedDisplacements
from hewfl.displacements.dense import matrix_round
from hewfl.server.checkpoint import flatten
from hewfl.torch.job import choose_method

CASES = [*ALGORITHMS, Case("median", Median(), averages=False)]
REFUSED = (
    *("FedProx", "MinibatchSGD", "qfedavg", "qfedavg-half", "hew-control", "oracle"),
)
"""In a torch job: losses and local steps of another kind are not to be had there."""
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


def in_pieces(rows: Any) -> ChunkedDisplacements:
    """Vectors in two parts each, as replies of a federation have them."""
    parts = np.split(rows, [5], axis=1)
    return ChunkedDisplacements(
        tuple(tuple(np.ascontiguousarray(r) for r in part) for part in parts)
    )


@every_case
def test_replies_give_what_the_matrix_gives(
    case: Case, rng: np.random.Generator
) -> None:
    algorithm, n, d = case.algorithm, 6, 17
    given = rng.standard_normal((n, d)) if algorithm.demands.gradients else None
    states = [algorithm.init(n, d, given) for _ in range(2)]
    ones, x = np.ones(4, dtype=np.int64), rng.standard_normal(d)
    for _ in range(3):
        cohort = Cohort(np.array([0, 1, 3, 5]), rng.integers(1, 9, 4), ones, ones, n)
        rows = -0.1 - 0.1 * rng.standard_normal((4, d))
        plan = algorithm.plan(cohort, states[0])
        losses = np.arange(1.0, 5.0) if "losses" in algorithm.demands.needs else None
        root = root_of(rows) if "root" in algorithm.demands.needs else None
        known = replace(matrix_round(x, rows, cohort, plan, losses), root=root)
        round_ = Round(x, in_pieces(rows), cohort, plan, losses, root=root)
        expected, states[0] = algorithm.decide(known, states[0])
        results, states[1] = algorithm.decide(round_, states[1])
        assert results.weights == pytest.approx(expected.weights, abs=1e-8)
        assert step_of(results, rows) == pytest.approx(
            step_of(expected, rows), abs=1e-8
        )
        for name, array in flatten(states[0]).items():
            assert flatten(states[1])[name] == pytest.approx(array, abs=1e-8), name


@pytest.mark.torch
@every_case
def test_ranks_give_what_the_matrix_gives(case: Case, pool: Pool) -> None:
    algorithm, n = case.algorithm, 3
    if case.id.startswith(REFUSED):
        with pytest.raises(InvalidInputError, match="`aggregator` must be one that "):
            choose_method(algorithm, None)
        return
    entry = Entry(algorithm, ServerStep())  # without the method's server step
    if case.id == "momentum-sketch":  # no rank has all entries
        plan = Plan(entry, rounds=1, dtypes=(torch.float64,), tokens=(2, 3, 5, 0))
        with pytest.raises(RankFailureError, match='use memory="whole"'):
            pool.run(play, n, plan)
        return
    plan = Plan(entry, rounds=3, dtypes=(torch.float64,), tokens=(2, 3, 5, 0))
    history = pool.run(play, n, plan)
    H, eta = np.array(plan.steps[:n]), np.array(plan.rates[:n])
    sizes, x = np.array(plan.tokens[:n]), history[0][0].start
    cohort = Cohort(np.arange(n), H, np.ones_like(H), sizes, n)
    first = np.stack([A.T @ (A @ x - b) for A, b in map(quadratic, range(n))])
    state = algorithm.init(n, len(x), first if algorithm.demands.gradients else None)
    for t in range(plan.rounds):
        shift = algorithm.plan(cohort, state).correction
        k = np.zeros((n, len(x))) if shift is None else shift
        ends = [branch(i, x, H[i], eta[i], k[i]) for i in range(n)]
        rows = np.stack(ends) - x
        A, b = quadratic(TRUSTED)
        root = A.T @ (A @ x - b)
        known = matrix_round(x, rows, cohort, LocalPlan(eta, shift))
        round_ = replace(known, root=root)
        decision, state = algorithm.decide(round_, state)
        x = x + step_of(decision, rows)
        got = history[0][t]
        assert got.report.weights == pytest.approx(decision.weights, abs=1e-7)
        assert got.after == pytest.approx(x, rel=1e-8, abs=1e-8)
        assert all(rank[t].after.tobytes() == got.after.tobytes() for rank in history)
