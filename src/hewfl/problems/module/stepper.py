"""The local branches of a module, all clients of all lanes in one step.

Clients are ordered by horizon, so that finished ones leave, and go in groups of at most
`client_chunk` models, so that memory is bounded. On a GPU the step of each number of
rows is captured once as a CUDA graph and replayed from then on.
"""

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
from jaxtyping import Float, Int64

from hewfl.core.checks import Array, Ints, invalid
from hewfl.core.round import LocalPlan, Roster
from hewfl.problems.module.backend import torch
from hewfl.problems.module.dropout import batch_keys
from hewfl.problems.module.stack import Form, Stack, advance, empty_stack, fill, form_of
from hewfl.problems.module.task import Task, measured_lanes

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
        roster: Roster,
        plans: Sequence[LocalPlan],
        samples: Int64[Ints, "steps s b"],
    ) -> tuple[Float[Array, "lanes s d"], Float[Array, "measured s d"]]:
        """Displacements Δ_i of every lane and client, on the host.

        Args:
            anchors: x of each lane.
            roster: of the round.
            plans: of each lane.
            samples: rows of the features for each step and client.

        Returns:
            Δ_i; and, under AdamW, the mean gradients of the lanes with corrections.
        """
        keys = batch_keys(samples, roster.batch_sizes)
        draws = np.concatenate([samples, keys[:, :, None]], axis=2)
        groups = list(self._groups(len(plans), roster, samples.shape[2]))
        parts = []
        with torch.cuda.device_of(anchors):
            for lanes, clients in groups:
                some = [plans[k] for k in lanes]
                parts.append(self._group(anchors[lanes], roster, some, draws, clients))
        if len(parts) == 1:
            return parts[0]
        measured = measured_lanes(self._task, plans)
        shape, kind = (len(roster.clients), anchors.shape[1]), parts[0][0].dtype
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
        self, lanes: int, roster: Roster, width: int
    ) -> Iterator[tuple[list[int], Int64[Ints, " g"]]]:
        """Lanes and clients to step together; clients by falling horizon."""
        order = np.argsort(-roster.horizons, kind="stable")
        chunk = chunk_size(self._task, width)
        size, deep = max(1, chunk // lanes), min(chunk, lanes)
        for lo in range(0, len(order), size):
            for at in range(0, lanes, deep):
                some = list(range(at, min(at + deep, lanes)))
                yield some, order[lo : lo + size]

    def _group(
        self,
        anchors: Float[Any, "lanes d"],
        roster: Roster,
        plans: Sequence[LocalPlan],
        draws: Int64[Ints, "steps s w"],
        clients: Int64[Ints, " g"],
    ) -> tuple[Float[Array, "lanes g d"], Float[Array, "measured g d"]]:
        """Whole branches of some clients, in their order in the roster."""
        form = form_of(self._task, plans, draws.shape[2] - 1, anchors.dtype)
        stack = self._room(form, clients)
        fill(stack, anchors, roster, plans, clients)
        horizons = roster.horizons[clients]
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
