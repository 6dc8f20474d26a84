"""One local step of many models at once.

Models are rows of one matrix, client by client and within a client lane by lane, and a
step is one `vmap` of one gradient. Clients lie by falling horizon, so that those still
busy are the first rows. All tensors stay in place, so that a step can be captured in a
CUDA graph.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float, Int64
from hewfl.core.round import Cohort, LocalPlan
from hewfl.core.validation import Array, Ints, invalid
from hewfl.problems.module.network import batch_keys, torch
from hewfl.problems.module.training import (
    Task,
    adapted,
    measured_lanes,
    stacked_gradients,
)


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
    cohort: Cohort,
    plans: Sequence[LocalPlan],
    clients: Int64[Ints, " g"],
) -> None:
    """Set a stack to the start of a round, in place; rows past the clients stay idle.

    Args:
        stack: of the form that the plans need.
        anchors: x of each lane.
        cohort: of the round.
        plans: of each lane.
        clients: positions in the cohort, by falling horizon.
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


# ------------------ The local branches of a module, all clients of all lanes in one

# Clients are ordered by horizon, so that finished ones leave, and go in groups of at most
# `client_chunk` models, so that memory is bounded. On a GPU the step of each number of
# rows is captured once as a CUDA graph and replayed from then on.

MEMORY_SHARE, HOST_MEMORY = 0.4, 2**30
"""What `auto` chunks may fill: a share of a GPU's memory, and bytes of the host's."""
MODEL_COPIES, MOMENT_COPIES, SAMPLE_COPIES = 10, 5, 4
"""What a step holds at its peak: times a model's parameters, so many more with Adam's
moments and the sum of gradients, and times the numbers that the forward pass keeps of
a sample."""
WARM_UPS = 2
"""Steps before a capture: libraries choose their kernels and buffers in them."""


@final
class Stepper:
    """Branches of one task; keeps its stack, and the graphs captured on it."""

    def __init__(self, task: Task, *, graphs: bool) -> None:
        self._task, self._uses_graphs = task, graphs
        self._form: Form | None = None
        self._stack: Stack | None = None
        self._graphs: dict[int, Any] = {}
        self._pool: Any = None

    def branches(
        self,
        anchors: Float[Any, "lanes d"],
        cohort: Cohort,
        plans: Sequence[LocalPlan],
        samples: Int64[Ints, "steps s b"],
    ) -> tuple[Float[Array, "lanes s d"], Float[Array, "measured s d"]]:
        """Displacements Δ_i of every lane and client, on the host.

        Args:
            anchors: x of each lane.
            cohort: of the round.
            plans: of each lane.
            samples: rows of the features for each step and client.

        Returns:
            Δ_i; and, under AdamW, the mean gradients of the lanes with corrections.
        """
        keys = batch_keys(samples, cohort.batch_sizes)
        draws = np.concatenate([samples, keys[:, :, None]], axis=2)
        groups = list(self._groups(len(plans), cohort, samples.shape[2]))
        parts = []
        with torch.cuda.device_of(anchors):
            for lanes, clients in groups:
                some = [plans[k] for k in lanes]
                parts.append(self._group(anchors[lanes], cohort, some, draws, clients))
        if len(parts) == 1:
            return parts[0]
        measured = measured_lanes(self._task, plans)
        shape, kind = (len(cohort.clients), anchors.shape[1]), parts[0][0].dtype
        moved = np.empty((len(plans), *shape), dtype=kind)
        means = np.empty((len(measured), *shape), dtype=kind)
        for (lanes, clients), (part, mean) in zip(groups, parts, strict=True):
            at, own = (
                np.sort(clients),
                [measured.index(k) for k in lanes if k in measured],
            )
            moved[np.ix_(np.array(lanes), at)] = part
            if own:
                means[np.ix_(np.array(own), at)] = mean
        return moved, means

    def _groups(
        self, lanes: int, cohort: Cohort, width: int
    ) -> Iterator[tuple[list[int], Int64[Ints, " g"]]]:
        """Lanes and clients to step together; clients by falling horizon."""
        order = np.argsort(-cohort.horizons, kind="stable")
        chunk = chunk_size(self._task, width)
        size, deep = max(1, chunk // lanes), min(chunk, lanes)
        for lo in range(0, len(order), size):
            for at in range(0, lanes, deep):
                some = list(range(at, min(at + deep, lanes)))
                yield some, order[lo : lo + size]

    def _group(
        self,
        anchors: Float[Any, "lanes d"],
        cohort: Cohort,
        plans: Sequence[LocalPlan],
        draws: Int64[Ints, "steps s w"],
        clients: Int64[Ints, " g"],
    ) -> tuple[Float[Array, "lanes g d"], Float[Array, "measured g d"]]:
        """Whole branches of some clients, in their order in the cohort."""
        form = form_of(self._task, plans, draws.shape[2] - 1, anchors.dtype)
        stack = self._room(form, clients)
        fill(stack, anchors, cohort, plans, clients)
        horizons = cohort.horizons[clients]
        longest = int(horizons[0])
        batches = torch.from_numpy(draws[:longest, clients]).to(anchors.device)
        for step in range(longest):
            busy = int(np.searchsorted(-horizons, -step))  # those with H_i > step
            stack.batch[:busy].copy_(batches[step, :busy])
            self._step(stack, busy)
        order = torch.from_numpy(np.argsort(clients)).to(anchors.device)
        moved = on_host(stack.moved[order].transpose(0, 1))
        measured = measured_lanes(self._task, plans)
        if not measured:
            return moved, moved[:0]
        steps = torch.from_numpy(horizons).to(anchors)[:, None, None]
        means = stack.totals[: len(clients), measured] / steps
        return moved, on_host(means[order].transpose(0, 1))

    def _room(self, form: Form, clients: Int64[Ints, " g"]) -> Stack:
        """The stack, made anew where the last does not do; its graphs go with it."""
        rows = bucket(len(clients))
        if self._stack is None or self._form != form or self._stack.rows < rows:
            self._stack, self._form, self._graphs = None, form, {}  # freed first
            network, device = self._task.network, self._task.features.device
            self._stack = empty_stack(form, rows, network.layout.d, device)
            self._pool = torch.cuda.graph_pool_handle() if self._uses_graphs else None
        return self._stack

    def _step(self, stack: Stack, busy: int) -> None:
        if not self._uses_graphs:
            advance(self._task, stack, busy)
            return
        rows = bucket(busy)
        if rows not in self._graphs:
            self._graphs[rows] = self._captured(stack, rows)
        self._graphs[rows].replay()

    def _captured(self, stack: Stack, rows: int) -> Any:
        """A step of the first rows as a graph; the stack is left as it was."""
        # Warm-ups are real steps on the stack: what they change is put back at the end.
        kept = [array.clone() for array in stack.changing]
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
        for array, before in zip(stack.changing, kept, strict=True):
            array.copy_(before)
        return graph


def bucket(rows: int) -> int:
    """The next number of rows that steps are captured for: four in every octave.

    >>> [bucket(k) for k in (1, 8, 9, 10, 11, 17, 100)]
    [1, 8, 10, 10, 12, 20, 112]
    """
    coarse = max(1, (1 << (rows - 1).bit_length()) // 8)
    return -(-rows // coarse) * coarse


def chunk_size(task: Task, width: int) -> int:
    """Most models that are stepped at once."""
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
        found: Array = tensor.contiguous().numpy()
        return found
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor.contiguous())
    landed: Array = host.numpy()
    return landed
