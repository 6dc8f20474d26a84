"""Local branches of a module as the paper writes them: client by client.

The plain twin of `stacked`; a test compares the two. On a CPU it is also the faster
route for all but small modules.
"""

from collections.abc import Sequence
from typing import Any

from hewfl.core.array_types import Float, Int, Int64
from hewfl.core.round import Cohort, LocalPlan
from hewfl.core.validation import Ints
from hewfl.problems.module.network import batch_keys, torch, unflatten
from hewfl.problems.module.training import (
    CLIP_GUARD,
    LocalTask,
    adam_direction,
    measured_models,
)


def branches_in_loop(
    task: LocalTask,
    anchors: Float[Any, "models d"],
    cohort: Cohort,
    plans: Sequence[LocalPlan],
    samples: Int64[Ints, "steps s b"],
) -> tuple[Float[Any, "models s d"], Float[Any, "measured s d"]]:
    """Displacements Δ_i of every model and client, one step of one client at a time.

    Args:
        task: data and settings.
        anchors: x, one model per row.
        cohort: of the round.
        plans: local work for each model.
        samples: rows of the features for each step and client.

    Returns:
        Δ_i in the precision and on the device of the anchors; and, under AdamW, the
        mean gradients of the models with corrections.
    """
    models, d = anchors.shape
    moved = anchors.new_empty((models, len(cohort.clients), d))
    measured = measured_models(task, plans)
    means = anchors.new_empty((len(measured), len(cohort.clients), d))
    keys = torch.tensor(batch_keys(samples, cohort.batch_sizes), device=moved.device)
    rows = torch.tensor(samples, device=moved.device)
    for i in range(len(cohort.clients)):
        steps, b = int(cohort.horizons[i]), int(cohort.batch_sizes[i])
        draws = list(zip(rows[:steps, i, :b], keys[:steps, i], strict=True))
        for k, plan in enumerate(plans):
            given = task, anchors[k], plan, i, draws
            if task.training.optimiser == "sgd":
                moved[k, i] = _branch(*given)
                continue
            moved[k, i], mean = _adam_branch(*given)
            if k in measured:
                means[measured.index(k), i] = mean
    return moved, means


def _branch(
    task: LocalTask,
    x: Float[Any, " d"],
    plan: LocalPlan,
    i: int,
    draws: list[tuple[Int[Any, " b"], Int[Any, ""]]],
) -> Float[Any, " d"]:
    """Δ_i = y − x after y ← y − η (g + λy − correction + μ (y − x)) in turns.

    Δ_i is stored instead of y and loses no digits to a large x. Passes over vectors of
    d numbers are few: beside its products, they are the cost of a step of a large
    module on a CPU.
    """
    eta, decay = float(plan.step_sizes[i]), task.training.weight_decay
    moved, y = torch.zeros_like(x), x.clone()
    parts = unflatten(task.network.layout, moved).values()
    leaves = task.network.place(y)
    correction = None
    if plan.correction is not None:
        correction = torch.tensor(plan.correction[i]).to(x)
    for rows, key in draws:
        if not plan.hold:
            torch.add(x, moved, out=y)
        if plan.proximal > 0:
            moved.mul_(1 - eta * plan.proximal)
        gradients, scale = _gradients_and_clip_scale(task, leaves, rows, key)
        for part in parts:
            part.sub_(
                gradients.pop(0), alpha=eta * scale
            )  # freed at once: the next gradients reuse the memory
        if decay > 0:
            moved.sub_(y, alpha=eta * decay)
        if correction is not None:
            moved.add_(correction, alpha=eta)
    return moved


def _adam_branch(
    task: LocalTask,
    x: Float[Any, " d"],
    plan: LocalPlan,
    i: int,
    draws: list[tuple[Int[Any, " b"], Int[Any, ""]]],
) -> tuple[Float[Any, " d"], Float[Any, " d"]]:
    """Δ_i after y ← y − η (a + λy), a Adam's of g − correction + μ (y − x); mean g."""
    eta, decay = float(plan.step_sizes[i]), task.training.weight_decay
    moved, y = torch.zeros_like(x), x.clone()
    m, v, total = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    leaves = task.network.place(y)
    for step, (rows, key) in enumerate(draws, start=1):
        if not plan.hold:
            torch.add(x, moved, out=y)
        gradients, scale = _gradients_and_clip_scale(task, leaves, rows, key)
        u = scale * torch.cat([part.reshape(-1) for part in gradients])
        total += u
        if plan.correction is not None:
            u -= torch.tensor(plan.correction[i]).to(x)
        if plan.proximal > 0:
            u += plan.proximal * moved
        moved.sub_(adam_direction(u, m, v, step) + decay * y, alpha=eta)
    return moved, total / len(draws)


def clipped_gradient(
    task: LocalTask, y: Float[Any, " d"], rows: Int[Any, " b"], key: Int[Any, ""]
) -> Float[Any, " d"]:
    """The gradient of one model on one minibatch, clipped as `task` says.

    With λy under SGD; AdamW adds its decay after the moments.
    """
    gradients, scale = _gradients_and_clip_scale(
        task, task.network.place(y.clone()), rows, key
    )
    g = torch.cat([part.reshape(-1) for part in gradients])
    decay = task.training.weight_decay if task.training.optimiser == "sgd" else 0.0
    return scale * g + decay * y


def _gradients_and_clip_scale(
    task: LocalTask, leaves: list[Any], rows: Int[Any, " b"], key: Int[Any, ""]
) -> tuple[list[Any], float]:
    """∇ℓ by parameter, and the factor min(1, c/(‖∇ℓ‖ + 10⁻⁶)) that clips it."""
    network, clip = task.network, task.training.clip
    inputs, labels = task.inputs(rows, network.dtype), task.labels[rows]
    with task.autocast():
        loss = network.placed_losses(inputs, labels, key).mean()
        gradients = list(torch.autograd.grad(loss, leaves, materialize_grads=True))
    if clip is None:
        return gradients, 1.0
    norms = torch.stack([torch.linalg.vector_norm(g) for g in gradients])
    return gradients, min(1.0, clip / (float(norms.norm()) + CLIP_GUARD))
