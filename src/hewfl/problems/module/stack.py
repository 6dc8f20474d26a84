"""One local step of many models at once.

Models are rows of one matrix, client by client and within a client lane by lane, and a
step is one `vmap` of one gradient. Clients lie by falling horizon, so that those still
busy are the first rows. All tensors stay in place, so that a step can be captured in a
CUDA graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float, Int64

from hewfl.core.checks import Ints
from hewfl.core.round import LocalPlan, Roster
from hewfl.problems.module.adam import adapted
from hewfl.problems.module.backend import torch
from hewfl.problems.module.task import Task, stacked_gradients


@final
@dataclass(frozen=True, slots=True)
class Form:
    """What two stacks must share to take each other's numbers.

    Attributes:
        lanes: how many.
        width: samples of the largest minibatch.
        corrected: some lane has corrections.
        pulled: some lane has a proximal term.
        held: some lane holds its gradients at the anchor.
        adaptive: steps follow Adam's direction.
        dtype: of the models.
    """

    lanes: int
    width: int
    corrected: bool
    pulled: bool
    held: bool
    adaptive: bool
    dtype: Any


@final
@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """The models of a group of clients and what their steps need.

    Attributes:
        anchors: x, (lanes, d).
        moved: y − x, (rows, lanes, d).
        step_sizes: η, (rows, lanes, 1).
        corrections: (rows, lanes, d), or None.
        proximal: μ, (lanes, 1), or None.
        moving: 0 where gradients are held at the anchor, else 1, (lanes, 1), or None.
        shares: 1/b_i on a client's first b_i samples, else 0, (rows, width).
        left: steps to go, (rows,).
        batch: sample indices, in the last column the dropout key, (rows, width + 1).
        moments: Adam's m and v, (2, rows, lanes, d), or None.
        totals: sums of the gradients so far, for control variates under Adam,
            (rows, lanes, d), or None.
        done: steps of the round so far, for Adam, ().
    """

    anchors: Any
    moved: Any
    step_sizes: Any
    corrections: Any
    proximal: Any
    moving: Any
    shares: Any
    left: Any
    batch: Any
    moments: Any
    totals: Any
    done: Any

    @property
    def rows(self) -> int:
        """Clients it has room for."""
        return int(self.left.shape[0])

    @property
    def changing(self) -> list[Any]:
        """What a step changes."""
        some = [part for part in (self.moments, self.totals) if part is not None]
        return [self.moved, self.left, self.done, *some]


def form_of(task: Task, plans: Sequence[LocalPlan], width: int, dtype: Any) -> Form:
    """The form of a stack that these plans need, with minibatches of this width."""
    adaptive = task.training.optimiser == "adamw"
    corrected = any(plan.correction is not None for plan in plans)
    pulled = any(plan.proximal > 0 for plan in plans)
    held = any(plan.hold for plan in plans)
    return Form(len(plans), width, corrected, pulled, held, adaptive, dtype)


def empty_stack(form: Form, rows: int, d: int, device: Any) -> Stack:
    """A stack of zeros with room for so many clients and parameters.

    What no plan needs (corrections, Adam's moments) is left out: each is as large as
    all models together.
    """

    def reals(*shape: int) -> Any:
        return torch.zeros(shape, dtype=form.dtype, device=device)

    def integers(*shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    return Stack(
        anchors=reals(form.lanes, d),
        moved=reals(rows, form.lanes, d),
        step_sizes=reals(rows, form.lanes, 1),
        corrections=reals(rows, form.lanes, d) if form.corrected else None,
        proximal=reals(form.lanes, 1) if form.pulled else None,
        moving=reals(form.lanes, 1) if form.held else None,
        shares=reals(rows, form.width),
        left=integers(rows),
        batch=integers(rows, form.width + 1),
        moments=reals(2, rows, form.lanes, d) if form.adaptive else None,
        totals=reals(rows, form.lanes, d) if form.adaptive and form.corrected else None,
        done=reals(),
    )


def fill(
    stack: Stack,
    anchors: Float[Any, "lanes d"],
    roster: Roster,
    plans: Sequence[LocalPlan],
    clients: Int64[Ints, " g"],
) -> None:
    """Set a stack to the start of a round, in place; rows past the clients stay idle.

    Args:
        stack: of the form that the plans need.
        anchors: x of each lane.
        roster: of the round.
        plans: of each lane.
        clients: positions in the roster, by falling horizon.
    """
    g, width = len(clients), stack.shares.shape[1]
    eta = np.stack([plan.step_sizes[clients] for plan in plans], axis=1)
    b = roster.batch_sizes[clients][:, None]
    shares = (np.arange(width) < b) / b
    for array in (*stack.changing, stack.shares, stack.batch):
        array.zero_()
    stack.anchors.copy_(anchors)
    stack.step_sizes[:g].copy_(torch.from_numpy(eta)[:, :, None])
    stack.shares[:g].copy_(torch.from_numpy(shares))
    stack.left[:g].copy_(torch.from_numpy(roster.horizons[clients]))
    for lane, plan in enumerate(plans):
        if stack.corrections is not None:
            stack.corrections[:, lane].zero_()
        if plan.correction is not None:
            given = torch.from_numpy(plan.correction[clients])
            stack.corrections[:g, lane].copy_(given)
        if stack.proximal is not None:
            stack.proximal[lane] = plan.proximal
        if stack.moving is not None:
            stack.moving[lane] = 0.0 if plan.hold else 1.0


def advance(task: Task, stack: Stack, rows: int) -> None:
    """One step of the first clients, in place; those with no steps to go stay.

    Their step is computed and thrown away: a CUDA graph cannot branch on the data.
    """
    x, y = stack.anchors, stack.moved[:rows]
    lanes, d = x.shape
    points = x + (y if stack.moving is None else stack.moving * y)
    samples, keys = stack.batch[:rows, :-1], stack.batch[:rows, -1]
    batch = task.inputs(samples, x.dtype), task.labels[samples]
    inputs, labels, shares, keys = (
        _for_each(lanes, array) for array in (*batch, stack.shares[:rows], keys)
    )
    models = points.reshape(-1, d)
    g = stacked_gradients(task, models, (inputs, labels), shares, keys)
    g = g.reshape(y.shape)
    busy = (stack.left[:rows] > 0)[:, None, None]
    if stack.totals is not None:
        total = stack.totals[:rows]
        total.copy_(torch.where(busy, total + g, total))
    if stack.corrections is not None:
        g = g - stack.corrections[:rows]
    if stack.proximal is not None:
        g = g + stack.proximal * y
    stack.done.add_(1)
    if stack.moments is not None:
        m, v = stack.moments[:, :rows]
        g = adapted(g, m, v, stack.done)
    if task.training.weight_decay > 0:
        g = g + task.training.weight_decay * points
    y.copy_(torch.where(busy, y - stack.step_sizes[:rows] * g, y))
    stack.left[:rows] -= 1


def _for_each(lanes: int, array: Any) -> Any:
    """Every client's entry once for each lane."""
    spread = array[:, None].expand(-1, lanes, *array.shape[1:])
    return spread.reshape(-1, *array.shape[1:])
