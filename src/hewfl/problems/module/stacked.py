"""Local branches of many models at once: stacked by `vmap`, on a GPU in CUDA graphs.

The local models of a round are rows of one matrix, client by client and within a client
model by model; a step is one `vmap` of one gradient. Clients are ordered by decreasing
horizon, so that active ones are the first rows and finished ones leave. Groups of at
most `client_chunk` local models bound the memory. All tensors stay in place: on a GPU
the step of each number of rows is captured once as a CUDA graph and replayed from then
on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float, Int, Int64
from hewfl.core.round import Cohort, LocalPlan
from hewfl.core.validation import Array, Ints, invalid
from hewfl.problems.module.network import batch_keys, torch
from hewfl.problems.module.training import (
    CLIP_GUARD,
    LocalTask,
    adam_direction,
    measured_models,
)

MEMORY_SHARE, HOST_MEMORY = 0.4, 2**30
"""Memory for `auto` chunks: a fraction of a GPU's, and bytes of the host's."""
MODEL_COPIES, MOMENT_COPIES, SAMPLE_COPIES = 10, 5, 4
"""Peak memory of a step: multiples of a model's parameters, further ones with Adam's
moments and the sum of gradients, and multiples of the numbers that the forward pass
stores for a sample."""
WARM_UPS = 2
"""Steps before a capture, in which libraries choose kernels and buffers."""


@final
@dataclass(frozen=True, slots=True)
class StackForm:
    """The form of a stack; stacks of one form are interchangeable.

    Attributes:
        models: how many for each client.
        width: samples of the largest minibatch.
        corrected: some plan has corrections.
        pulled: some plan has a proximal term.
        held: some plan takes gradients at the anchor.
        adaptive: steps follow Adam's direction.
        dtype: of the models.
    """

    models: int
    width: int
    corrected: bool
    pulled: bool
    held: bool
    adaptive: bool
    dtype: Any


@final
@dataclass(frozen=True, slots=True, eq=False)
class ModelStack:
    """The local models of a group of clients, with the data of their steps.

    Attributes:
        anchors: x, (models, d).
        moved: y − x, (rows, models, d).
        step_sizes: η, (rows, models, 1).
        corrections: (rows, models, d), or None.
        proximal: μ, (models, 1), or None.
        moving: 0 where gradients are taken at the anchor, else 1, (models, 1), or None.
        shares: 1/b_i on a client's first b_i samples, else 0, (rows, width).
        left: remaining steps, (rows,).
        batch: sample indices and, as last column, the dropout key, (rows, width + 1).
        moments: Adam's m and v, (2, rows, models, d), or None.
        totals: sums of the gradients so far, for control variates under Adam,
            (rows, models, d), or None.
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
        """Number of clients it can hold."""
        return int(self.left.shape[0])

    @property
    def changing(self) -> list[Any]:
        """The arrays that a step changes."""
        optional = [part for part in (self.moments, self.totals) if part is not None]
        return [self.moved, self.left, self.done, *optional]


def form_of(
    task: LocalTask, plans: Sequence[LocalPlan], width: int, dtype: Any
) -> StackForm:
    """The form of a stack that these plans need, with minibatches of this width."""
    adaptive = task.training.optimiser == "adamw"
    corrected = any(plan.correction is not None for plan in plans)
    pulled = any(plan.proximal > 0 for plan in plans)
    held = any(plan.hold for plan in plans)
    return StackForm(len(plans), width, corrected, pulled, held, adaptive, dtype)


def empty_stack(form: StackForm, rows: int, d: int, device: Any) -> ModelStack:
    """A stack of zeros for a number of clients and parameters.

    Arrays that no plan needs (corrections, Adam's moments) are left out: each is as
    large as all models together.
    """

    def reals(*shape: int) -> Any:
        return torch.zeros(shape, dtype=form.dtype, device=device)

    def integers(*shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    return ModelStack(
        anchors=reals(form.models, d),
        moved=reals(rows, form.models, d),
        step_sizes=reals(rows, form.models, 1),
        corrections=reals(rows, form.models, d) if form.corrected else None,
        proximal=reals(form.models, 1) if form.pulled else None,
        moving=reals(form.models, 1) if form.held else None,
        shares=reals(rows, form.width),
        left=integers(rows),
        batch=integers(rows, form.width + 1),
        moments=reals(2, rows, form.models, d) if form.adaptive else None,
        totals=reals(rows, form.models, d)
        if form.adaptive and form.corrected
        else None,
        done=reals(),
    )


def fill(
    stack: ModelStack,
    anchors: Float[Any, "models d"],
    cohort: Cohort,
    plans: Sequence[LocalPlan],
    clients: Int64[Ints, " g"],
) -> None:
    """Set a stack to the start of a round, in place; rows past the clients are idle.

    Args:
        stack: of the form that the plans need.
        anchors: x, one model per row.
        cohort: of the round.
        plans: local work for each model.
        clients: positions in the cohort, by decreasing horizon.
    """
    g, width = len(clients), stack.shares.shape[1]
    eta = np.stack([plan.step_sizes[clients] for plan in plans], axis=1)
    b = cohort.batch_sizes[clients][:, None]
    shares = (np.arange(width) < b) / b
    for array in (*stack.changing, stack.shares, stack.batch):
        array.zero_()
    stack.anchors.copy_(anchors)
    stack.step_sizes[:g].copy_(torch.from_numpy(eta)[:, :, None])
    stack.shares[:g].copy_(torch.from_numpy(shares))
    stack.left[:g].copy_(torch.from_numpy(cohort.horizons[clients]))
    for k, plan in enumerate(plans):
        if stack.corrections is not None:
            stack.corrections[:, k].zero_()
        if plan.correction is not None:
            given = torch.from_numpy(plan.correction[clients])
            stack.corrections[:g, k].copy_(given)
        if stack.proximal is not None:
            stack.proximal[k] = plan.proximal
        if stack.moving is not None:
            stack.moving[k] = 0.0 if plan.hold else 1.0


def advance(task: LocalTask, stack: ModelStack, rows: int) -> None:
    """One step of the first clients, in place.

    The step of a client without remaining steps is computed and discarded: a CUDA graph
    cannot branch on the data.
    """
    x, y = stack.anchors, stack.moved[:rows]
    models, d = x.shape
    points = x + (y if stack.moving is None else stack.moving * y)
    samples, keys = stack.batch[:rows, :-1], stack.batch[:rows, -1]
    batch = task.inputs(samples, x.dtype), task.labels[samples]
    inputs, labels, shares, keys = (
        _repeat(models, array) for array in (*batch, stack.shares[:rows], keys)
    )
    flat = points.reshape(-1, d)
    g = stacked_gradients(task, flat, (inputs, labels), shares, keys)
    g = g.reshape(y.shape)
    active = (stack.left[:rows] > 0)[:, None, None]
    if stack.totals is not None:
        total = stack.totals[:rows]
        total.copy_(torch.where(active, total + g, total))
    if stack.corrections is not None:
        g = g - stack.corrections[:rows]
    if stack.proximal is not None:
        g = g + stack.proximal * y
    stack.done.add_(1)
    if stack.moments is not None:
        m, v = stack.moments[:, :rows]
        g = adam_direction(g, m, v, stack.done)
    if task.training.weight_decay > 0:
        g = g + task.training.weight_decay * points
    y.copy_(torch.where(active, y - stack.step_sizes[:rows] * g, y))
    stack.left[:rows] -= 1


def stacked_gradients(
    task: LocalTask,
    points: Float[Any, "rows d"],
    batch: tuple[Any, Any],
    shares: Float[Any, "rows b"],
    keys: Int[Any, " rows"],
) -> Float[Any, "rows d"]:
    """The clipped gradients of many models at once, each on its own minibatch.

    Args:
        task: data and settings.
        points: y, one local model per row.
        batch: inputs (rows, b, …) and labels (rows, b, …).
        shares: 1/b_i on the first b_i samples of a minibatch, 0 on its padding.
        keys: of the dropout masks.

    Returns:
        min(1, c/(‖∇ℓ‖ + 10⁻⁶)) ∇ℓ of each row.
    """

    def mean_loss(x: Any, inputs: Any, labels: Any, share: Any, key: Any) -> Any:
        return (task.network.losses(x, inputs, labels, key) * share).sum()

    with task.autocast():
        g = torch.func.vmap(torch.func.grad(mean_loss))(points, *batch, shares, keys)
    clip = task.training.clip
    if clip is not None:
        norm = torch.linalg.vector_norm(g, dim=1, keepdim=True)
        g = g * (clip / (norm + CLIP_GUARD)).clamp(max=1.0)
    return g


def _repeat(models: int, array: Any) -> Any:
    """Every client's entry, once for each model."""
    spread = array[:, None].expand(-1, models, *array.shape[1:])
    return spread.reshape(-1, *array.shape[1:])


@final
class StackedBranches:
    """Branches of one task; holds its stack and the graphs captured on it."""

    def __init__(self, task: LocalTask, *, graphs: bool) -> None:
        self._task, self._uses_graphs = task, graphs
        self._form: StackForm | None = None
        self._stack: ModelStack | None = None
        self._graphs: dict[int, Any] = {}
        self._pool: Any = None

    def branches(
        self,
        anchors: Float[Any, "models d"],
        cohort: Cohort,
        plans: Sequence[LocalPlan],
        samples: Int64[Ints, "steps s b"],
    ) -> tuple[Float[Array, "models s d"], Float[Array, "measured s d"]]:
        """Displacements Δ_i of every model and client, on the host.

        Args:
            anchors: x, one model per row.
            cohort: of the round.
            plans: local work for each model.
            samples: rows of the features for each step and client.

        Returns:
            Δ_i; and, under AdamW, the mean gradients of the models with corrections.
        """
        keys = batch_keys(samples, cohort.batch_sizes)
        draws = np.concatenate([samples, keys[:, :, None]], axis=2)
        groups = list(self._groups(len(plans), cohort, samples.shape[2]))
        parts = []
        with torch.cuda.device_of(anchors):
            for chosen, clients in groups:
                some = [plans[k] for k in chosen]
                parts.append(self._group(anchors[chosen], cohort, some, draws, clients))
        if len(parts) == 1:
            return parts[0]
        measured = measured_models(self._task, plans)
        shape, kind = (len(cohort.clients), anchors.shape[1]), parts[0][0].dtype
        moved = np.empty((len(plans), *shape), dtype=kind)
        means = np.empty((len(measured), *shape), dtype=kind)
        for (chosen, clients), (part, mean) in zip(groups, parts, strict=True):
            at = np.sort(clients)
            moved[np.ix_(np.array(chosen), at)] = part
            rows = [measured.index(k) for k in chosen if k in measured]
            if rows:
                means[np.ix_(np.array(rows), at)] = mean
        return moved, means

    def _groups(
        self, models: int, cohort: Cohort, width: int
    ) -> Iterator[tuple[list[int], Int64[Ints, " g"]]]:
        """Models and clients to step together; clients by decreasing horizon."""
        order = np.argsort(-cohort.horizons, kind="stable")
        chunk = chunk_size(self._task, width)
        size, deep = max(1, chunk // models), min(chunk, models)
        for lo in range(0, len(order), size):
            for at in range(0, models, deep):
                some = list(range(at, min(at + deep, models)))
                yield some, order[lo : lo + size]

    def _group(
        self,
        anchors: Float[Any, "models d"],
        cohort: Cohort,
        plans: Sequence[LocalPlan],
        draws: Int64[Ints, "steps s w"],
        clients: Int64[Ints, " g"],
    ) -> tuple[Float[Array, "models g d"], Float[Array, "measured g d"]]:
        """Whole branches of some clients, in their order in the cohort."""
        form = form_of(self._task, plans, draws.shape[2] - 1, anchors.dtype)
        stack = self._stack_for(form, clients)
        fill(stack, anchors, cohort, plans, clients)
        horizons = cohort.horizons[clients]
        longest = int(horizons[0])
        batches = torch.from_numpy(draws[:longest, clients]).to(anchors.device)
        for step in range(longest):
            active = int(np.searchsorted(-horizons, -step))  # those with H_i > step
            stack.batch[:active].copy_(batches[step, :active])
            self._step(stack, active)
        order = torch.from_numpy(np.argsort(clients)).to(anchors.device)
        moved = on_host(stack.moved[order].transpose(0, 1))
        measured = measured_models(self._task, plans)
        if not measured:
            return moved, moved[:0]
        steps = torch.from_numpy(horizons).to(anchors)[:, None, None]
        means = stack.totals[: len(clients), measured] / steps
        return moved, on_host(means[order].transpose(0, 1))

    def _stack_for(self, form: StackForm, clients: Int64[Ints, " g"]) -> ModelStack:
        """The stack, replaced with its graphs if it is too small or of another form."""
        rows = bucket(len(clients))
        if self._stack is None or self._form != form or self._stack.rows < rows:
            self._stack, self._form, self._graphs = None, form, {}  # freed first
            network, device = self._task.network, self._task.features.device
            self._stack = empty_stack(form, rows, network.layout.d, device)
            self._pool = torch.cuda.graph_pool_handle() if self._uses_graphs else None
        return self._stack

    def _step(self, stack: ModelStack, active: int) -> None:
        if not self._uses_graphs:
            advance(self._task, stack, active)
            return
        rows = bucket(active)
        if rows not in self._graphs:
            self._graphs[rows] = self._capture(stack, rows)
        self._graphs[rows].replay()

    def _capture(self, stack: ModelStack, rows: int) -> Any:
        """A step of the first rows as a graph; the stack is restored."""
        # Warm-ups are real steps on the stack: their changes are undone at the end.
        saved = [array.clone() for array in stack.changing]
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                advance(self._task, stack, rows)
        here.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                advance(self._task, stack, rows)
        except RuntimeError as error:
            rule = '"stacked" or "loop" for a module no CUDA graph can hold'
            raise invalid("route", rule, f'"graph": {error}') from error
        for array, before in zip(stack.changing, saved, strict=True):
            array.copy_(before)
        return graph


def bucket(rows: int) -> int:
    """The next number of rows that steps are captured for: four in every octave.

    >>> [bucket(k) for k in (1, 8, 9, 10, 11, 17, 100)]
    [1, 8, 10, 10, 12, 20, 112]
    """
    coarse = max(1, (1 << (rows - 1).bit_length()) // 8)
    return -(-rows // coarse) * coarse


def chunk_size(task: LocalTask, width: int) -> int:
    """Most local models that are stepped at once."""
    given = task.training.client_chunk
    if given != "auto":
        return given
    layout, device = task.network.layout, task.features.device
    adaptive = task.training.optimiser == "adamw"
    copies = MODEL_COPIES + (MOMENT_COPIES if adaptive else 0)
    numbers = copies * layout.d + SAMPLE_COPIES * width * task.footprint
    memory = HOST_MEMORY
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        memory = int(MEMORY_SHARE * total)
    return max(1, memory // (numbers * int(task.network.dtype.itemsize)))


def on_host(tensor: Float[Any, "..."]) -> Float[Array, "..."]:
    """A tensor as a NumPy array; from a GPU through page-locked memory.

    A copy into pageable memory would go through a buffer of the driver first.
    """
    if tensor.device.type == "cpu":
        array: Array = tensor.contiguous().numpy()
        return array
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor.contiguous())
    result: Array = host.numpy()
    return result
