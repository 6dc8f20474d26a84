"""Branches of linear models in the space of their samples: no model per client.

For losses of scores, gradients are combinations of samples, so with δ_ℓ = y_ℓ − x,
q = 1 − η(λ + μ) and Z_k = residuals/b of step k,

    δ_{ℓ+1} = q δ_ℓ − η (Z_ℓ A_ℓ + λx − correction),
    A_ℓ y_ℓ = (1 − ηλ g_ℓ) A_ℓ x + η g_ℓ A_ℓ correction
              − η Σ_{k<ℓ} q^{ℓ−1−k} (A_ℓ A_kᵀ) Z_k,

g_ℓ = Σ_{k<ℓ} q^k. The anchor's scores for all samples of a round come from one product,
later steps are corrected through the small Gram matrix of a client's own samples, and
the displacement is one product at the end. All entries stand side by side in each
product; no array of entries × clients × parameters is touched before the end. Exact: the
same numbers as `branches_reference` to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import array_api_compat as compat
import numpy as np

from hewfl.core.array_types import Float, Int64
from hewfl.core.round import Cohort, LocalPlan
from hewfl.core.validation import Array, Ints
from hewfl.displacements.backend import to_host
from hewfl.problems.arrays import conform, gather, shares
from hewfl.problems.problem import LinearProblem
from hewfl.simulation.draws import Draws

GROUP = 2**24
"""Numbers of gathered samples held at a time: 64 MiB in float32."""


def run_linear_branches(
    problem: LinearProblem,
    anchors: Float[Array, "entries d"],
    cohort: Cohort,
    plans: Sequence[LocalPlan],
    draws: Draws,
) -> Float[Array, "entries s d"]:
    """Displacements of every entry and client; same contract as `run_branches`."""
    displacements = np.empty(
        (len(plans), len(cohort.clients), problem.d), anchors.dtype
    )
    for horizon in np.unique(cohort.horizons):
        same = np.flatnonzero(cohort.horizons == horizon)
        rows = int(horizon) * draws.samples.shape[2] * problem.features.shape[1]
        size = max(1, GROUP // rows)
        for lo in range(0, len(same), size):
            some = same[lo : lo + size]
            steps = draws.samples[:horizon, some].swapaxes(0, 1)  # clients steps b
            group = _group(problem, anchors, plans, steps, draws.counts[some], some)
            displacements[:, some] = _displacements(group, int(horizon))
    return displacements


@final
@dataclass(frozen=True, slots=True)
class _Group:
    """Clients of one horizon, in the library and on the device of the data.

    Attributes:
        problem: gives residuals.
        A: samples of all steps, step by step, (clients, steps · b, p).
        samples: their indices, (clients, steps · b).
        share: 1/b_i for entries that count, (clients, steps · b).
        x: the anchors, (entries · c, p).
        eta: step sizes, (clients, entries, 1, 1).
        pull: μ, (1, entries, 1, 1).
        held: 1 where gradients stay at the anchor, else 0, (1, entries, 1, 1).
        correction: (clients, entries · c, p), or None.
    """

    problem: LinearProblem
    A: Any
    samples: Any
    share: Any
    x: Any
    eta: Any
    pull: Any
    held: Any
    correction: Any


def _group(
    problem: LinearProblem,
    anchors: Float[Array, "entries d"],
    plans: Sequence[LocalPlan],
    steps: Int64[Ints, "g steps b"],
    counts: Int64[Ints, " g"],
    clients: Int64[Ints, " g"],
) -> _Group:
    kind, entries = anchors.dtype, len(plans)
    c, like = problem.classes, problem.features[:1, :]

    def there(values: Any) -> Any:
        return conform(np.ascontiguousarray(values, dtype=kind), like)

    samples = np.ascontiguousarray(steps).reshape(len(clients), -1)
    wanted = compat.array_namespace(like).astype(like, there(kind.type(0)).dtype)
    share = shares(steps[:, 0], counts, wanted)
    given = [plan.correction for plan in plans]
    correction = None
    if any(part is not None for part in given):
        whole = np.zeros((len(clients), entries, c, problem.d // c), dtype=kind)
        for k, part in enumerate(given):
            if part is not None:
                whole[:, k] = part[clients].reshape(len(clients), c, -1)
        correction = there(whole.reshape(len(clients), entries * c, -1))
    column = (1, entries, 1, 1)
    return _Group(
        problem,
        gather(problem.features, samples, wanted.dtype),
        samples,
        share,
        there(anchors.reshape(entries * c, -1)),
        there(np.stack([p.step_sizes[clients] for p in plans], 1)[:, :, None, None]),
        there(np.array([plan.proximal for plan in plans]).reshape(column)),
        there(np.array([float(plan.hold) for plan in plans]).reshape(column)),
        correction,
    )


def _displacements(group: _Group, steps: int) -> Float[Array, "entries g d"]:
    """Walk the steps in sample space, then one product back to parameters."""
    problem, A, eta = group.problem, group.A, group.eta
    xp = compat.array_namespace(A)
    g, rows, p = A.shape
    b, entries, c = rows // steps, eta.shape[1], problem.classes
    tall = (g, entries, c, b)
    lam = problem.l2
    free = 1 - group.held  # a held branch sees neither its own drift nor its decay
    q = 1 - eta * (lam * free + group.pull)
    transposed = xp.matrix_transpose(A)
    anchored = xp.matmul(group.x[None, :, :], transposed)  # scores at x, all steps
    pushed = None
    if group.correction is not None:
        pushed = xp.matmul(group.correction, transposed)
    history = xp.zeros((g, entries, c, rows), dtype=A.dtype, device=compat.device(A))
    total = xp.zeros_like(q)  # g_ℓ
    for step in range(steps):
        at = slice(step * b, (step + 1) * b)
        scores = xp.reshape(anchored[:, :, at], tall)
        scores = scores * (1 - eta * lam * total * free)
        if pushed is not None:
            scores = scores + eta * total * free * xp.reshape(pushed[:, :, at], tall)
        if step > 0:
            own = xp.matmul(A[:, : step * b, :], transposed[:, :, at])
            past = xp.reshape(history[..., : step * b], (g, entries * c, step * b))
            scores = scores - eta * free * xp.reshape(xp.matmul(past, own), tall)
        R = problem.residuals(
            xp.permute_dims(scores, (1, 0, 2, 3)), group.samples[:, at]
        )
        history = history * q if step > 0 else history
        history[..., at] = (
            xp.permute_dims(R, (1, 0, 2, 3)) * group.share[:, None, None, :]
        )
        total = total * q + 1
    weights = xp.reshape(-eta * history, (g, entries * c, rows))
    moved = xp.reshape(xp.matmul(weights, A), (g, entries, c, p))
    drift = lam * group.x[None, :, :]
    if group.correction is not None:
        drift = drift - group.correction
    moved -= (eta * total) * xp.reshape(drift, (-1, entries, c, p))
    host = to_host(moved).reshape(g, entries, c * p)
    return host.swapaxes(0, 1)
