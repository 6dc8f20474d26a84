"""The replies of a round: read, checked, and made into a `Round`.

A reply is left out, and the reason kept, when it is

    error        the node reports one, or the SuperLink does for a node that is gone
    missing      requested, but not received in time; or drawn, but not connected
    unknown      from a node that was not asked
    malformed    arrays that cannot be read, or of other names, shapes or kinds; numbers
                 missing or out of range; a second reply
    not-finite   NaN or infinite entries
    implausible  a displacement far longer than those of the others
    idle         the model that was sent, unchanged, while other clients moved; or a
                 weight of zero
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, isfinite, isnan, sqrt
from typing import Any, final

import numpy as np
from flwr.app import ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from hewfl.core.array_types import Float64, Int64
from hewfl.core.round import Cohort, LocalPlan, Round
from hewfl.core.validation import Array, Ints, invalid
from hewfl.displacements.chunked import ChunkedDisplacements
from hewfl.displacements.weighted_sum import inner_with_sum
from hewfl.errors import InvalidInputError
from hewfl.flower.arrays import flat_views, to_vector
from hewfl.flower.messages import (
    MEAN_GRADIENT,
    PARTITION,
    STEPS_DONE,
    metrics_and_size,
    read_count,
)
from hewfl.server.array_layout import NO_ARRAYS, ArrayLayout
from hewfl.server.plausibility import (
    MAX_COUNT,
    cap_shares,
    implausible_lengths,
    whole_sizes,
)

EXCLUSION_KINDS = (
    *("error", "missing", "unknown", "malformed", "not-finite", "implausible"),
    "idle",
)
_MIN_SQ_NORM = 1e-100
"""Squared lengths within this and its inverse; others are left to the Gram matrix."""


@final
@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a node is not part of a round; −1 stands for an unknown node or client."""

    node: int
    kind: str
    reason: str
    client: int = -1

    def __str__(self) -> str:
        """A sentence for the log."""
        who = f"client {self.client}" if self.client >= 0 else "a sender"
        where = f" (node {self.node})" if self.node >= 0 else ""
        return f"{who}{where} is left out, {self.kind}: {self.reason}"


@final
@dataclass(frozen=True, slots=True)
class Request:
    """A message to a node whose reply is awaited.

    Attributes:
        metadata: of the message; Flower fills in its id when it is sent.
        steps: H_i as ordered; None where the client chooses.
        step_size: η_i as ordered, one where it does not matter.
        batch_size: b_i, as the node reported.
    """

    metadata: Metadata
    steps: int | None = None
    step_size: float = 1.0
    batch_size: int = 1

    @property
    def node(self) -> int:
        """Flower's id of the node."""
        return int(self.metadata.dst_node_id)


@final
@dataclass(frozen=True)
class OpenRound:
    """A round whose replies are awaited.

    Attributes:
        t: its number, from 1.
        arrays: the model that was sent; displacements are measured from it.
        layout: of the arrays that aggregators see.
        grid: for the requests of a second phase.
        requests: what was sent.
        absent: clients that were drawn and are not connected.
        buffers: of the arrays that take the median of the clients.
    """

    t: int
    arrays: ArrayRecord
    layout: ArrayLayout
    grid: Grid
    requests: Sequence[Request]
    absent: Sequence[Exclusion] = ()
    buffers: ArrayLayout = NO_ARRAYS

    @cached_property
    def x(self) -> NDArray[Any]:
        """The model as one vector, in the precision of local branches."""
        return to_vector(self.layout, self.arrays)


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClientUpdate:
    """One usable reply.

    Attributes:
        request: what it replies to.
        content: all of it.
        metrics: its one MetricRecord.
        size: m_i, as reported.
        steps: H_i, as ordered, else as reported, else one.
        rows: the arrays of the endpoint y_i, each as a vector.
        mean_gradient: the arrays of the mean gradient, where it was sent.
        sq_norm: ‖Δ_i‖².
        buffers: the arrays that are not judged, each as a vector.
    """

    request: Request
    content: RecordDict
    metrics: MetricRecord
    size: float
    steps: int
    rows: list[NDArray[Any]]
    mean_gradient: list[NDArray[Any]] | None
    sq_norm: float = inf
    buffers: Sequence[NDArray[Any]] = ()

    @property
    def node(self) -> int:
        """Flower's id of the node."""
        return self.request.node

    @property
    def partition(self) -> int | None:
        """The partition that the node reports, None without one."""
        value = self.metrics.get(PARTITION)
        is_whole = isinstance(value, int | float) and value == value // 1
        return int(value) if is_whole and 0 <= value <= MAX_COUNT else None

    def sort_key(self, clients: Mapping[int, int]) -> tuple[float, float, int]:
        """Updates are taken in this order, whatever the order of arrival."""
        partition = inf if self.partition is None else float(self.partition)
        return float(clients.get(self.node, inf)), partition, self.node


def read_replies(
    opened: OpenRound,
    replies: Iterable[Message],
    clients: Mapping[int, int],
    *,
    size_key: str,
    needs_steps: bool,
) -> tuple[list[ClientUpdate], list[Exclusion]]:
    """Read the replies to a round; their arrays are not copied.

    Args:
        opened: the round.
        replies: in any order.
        clients: client numbers by node id.
        size_key: key of the number that weighs a client.
        needs_steps: whether clients must report their steps.

    Returns:
        Usable updates in client order, and why the other replies are not.
    """
    by_message = {r.metadata.message_id: r.node for r in opened.requests}
    by_message.pop("", None)  # messages that were not sent by a grid
    received: dict[int, list[Message]] = {r.node: [] for r in opened.requests}
    excluded: list[Exclusion] = []
    for reply in replies:
        about = reply.metadata  # the SuperLink replies for nodes that are gone
        node = by_message.get(about.reply_to_message_id, int(about.src_node_id))
        if node in received:
            received[node].append(reply)
        else:
            excluded.append(Exclusion(node, "unknown", "it was not asked"))
    wanted = (size_key, needs_steps)
    results = [_read(r, received[r.node], opened, wanted) for r in opened.requests]
    excluded += [result for result in results if isinstance(result, Exclusion)]
    readable = [result for result in results if isinstance(result, ClientUpdate)]
    updates = []
    for update, square in zip(readable, _sq_norms(readable, opened.x), strict=True):
        suspects = [] if isfinite(square) else list(update.rows)
        suspects += [*(update.mean_gradient or []), *update.buffers]
        bad = sum(int((~np.isfinite(row)).sum()) for row in suspects)
        if bad:
            reason = f"{bad} entries are not finite"
            excluded.append(Exclusion(update.node, "not-finite", reason))
        else:
            updates.append(replace(update, sq_norm=inf if isnan(square) else square))
    return sorted(updates, key=lambda update: update.sort_key(clients)), excluded


def _sq_norms(updates: list[ClientUpdate], x: NDArray[Any]) -> list[float]:
    """‖y_i − x‖² of all updates, in one pass; x is read once for all of them."""
    if not updates:
        return []
    displacements = _stack_rows([update.rows for update in updates], x)
    with np.errstate(all="ignore"):  # finite entries may have squares that are not
        return [float(square) for square in inner_with_sum(displacements)]


def _read(
    request: Request,
    copies: Sequence[Message],
    opened: OpenRound,
    wanted: tuple[str, bool],
) -> ClientUpdate | Exclusion:
    """The numbers and arrays of a reply, or why it is left out."""
    exclude = partial(Exclusion, request.node)
    if not copies:
        return exclude("missing", "no answer in time")
    if copies[0].has_error():
        error = copies[0].error
        return exclude("error", f"code {error.code}: {error.reason}")
    content, means, (size_key, needs_steps) = copies[0].content, None, wanted
    try:
        if len(copies) > 1:
            raise invalid("the reply", "one", f"{len(copies)} answers")
        metrics, size = metrics_and_size(content, size_key)
        if size == 0:
            return exclude("idle", f'its "{size_key}" is 0')
        records = [r for k, r in content.array_records.items() if k != MEAN_GRADIENT]
        if len(records) != 1:
            raise invalid("the reply", "with one ArrayRecord", len(records))
        steps = request.steps or (read_count(metrics, STEPS_DONE) if needs_steps else 1)
        if records[0].keys() != opened.arrays.keys():
            raise invalid("the reply", "of the arrays sent", f"{list(records[0])}"[:80])
        rows = flat_views(opened.layout, records[0])
        buffers = flat_views(opened.buffers, records[0])
        if MEAN_GRADIENT in content.array_records:
            means = flat_views(opened.layout, content.array_records[MEAN_GRADIENT])
    except InvalidInputError as problem:
        return exclude("malformed", str(problem))
    update = ClientUpdate(request, content, metrics, size, steps, rows, means)
    return replace(update, buffers=buffers)


def implausible_updates(
    updates: Sequence[ClientUpdate], max_norm_ratio: float, *, uses_steps: bool
) -> dict[int, str]:
    """The updates that are far longer than the others, and the reason.

    Args:
        updates: of the round.
        max_norm_ratio: largest length over the median, per unit of the ordered η_iH_i.
        uses_steps: whether the aggregator uses the steps that clients report.
    """
    requests = [update.request for update in updates]
    ordered = np.array([(r.steps or 1.0) * r.step_size for r in requests])
    lengths = np.array([sqrt(update.sq_norm) for update in updates]) / ordered
    steps = np.array([update.steps for update in updates]) if uses_steps else None
    return implausible_lengths(lengths, max_norm_ratio, steps)


def idle_updates(updates: Sequence[ClientUpdate]) -> dict[int, str]:
    """The updates that are zero while others moved, where clients choose their work."""
    if not any(update.sq_norm > 0 for update in updates):
        return {}
    return {
        k: "it returned the model that was sent"
        for k, update in enumerate(updates)
        if update.sq_norm == 0 and update.request.steps is None
    }


def weighting_sizes(
    updates: Sequence[ClientUpdate], max_share: float | None
) -> Int64[Ints, " s"]:
    """What the clients count as: their capped data sizes, or one each.

    Args:
        updates: of the round.
        max_share: largest share of a client in the sum; None where all count alike.
    """
    if max_share is None:
        return np.ones(len(updates), dtype=np.int64)
    sizes = np.array([update.size for update in updates], dtype=np.float64)
    return whole_sizes(cap_shares(sizes, max_share))


def build_cohort(
    updates: Sequence[ClientUpdate],
    clients: Sequence[int],
    n: int,
    t: int,
    sizes: Int64[Ints, " s"],
) -> Cohort:
    """The clients whose updates are used, of n clients, after t rounds."""
    batches = np.array([u.request.batch_size for u in updates], dtype=np.int64)
    steps = np.array([u.steps for u in updates], dtype=np.int64)
    return Cohort(np.array(clients, dtype=np.int64), steps, batches, sizes, n, t)


def build_round(
    anchor: Float64[Array, " d"],
    updates: Sequence[ClientUpdate],
    cohort: Cohort,
    base: Any,
    *,
    variates: bool,
) -> Round:
    """The round, as aggregators see it; arrays are not copied.

    Args:
        anchor: x in float64.
        updates: at least one.
        cohort: their clients, in the same order.
        base: x in the precision it was sent in; displacements are measured from it.
        variates: whether the method keeps control variates.
    """
    sent = [u.mean_gradient for u in updates if variates and u.mean_gradient]
    if 0 < len(sent) < len(updates):
        rule = "sent by all clients of a federation with control variates, or none"
        raise invalid(MEAN_GRADIENT, rule, f"{len(sent)} of {len(updates)}")
    plan = LocalPlan(np.array([u.request.step_size for u in updates]))
    squares = np.array([u.sq_norm for u in updates])
    moved = squares[squares > 0]  # inverse lengths of these can be multiplied
    is_safe = bool((moved > _MIN_SQ_NORM).all() and (moved < 1 / _MIN_SQ_NORM).all())
    rows = [u.rows for u in updates]
    displacements = _stack_rows(rows, base, squares if is_safe else None)
    gradients = _stack_rows(sent) if sent else None
    return Round(anchor, displacements, cohort, plan, gradients=gradients)


def _stack_rows(
    vectors: Sequence[Sequence[Any]], base: Any = None, squares: Any = None
) -> ChunkedDisplacements:
    """The arrays of several clients as displacements from a base, without a copy."""
    parts = zip(*vectors, strict=True)
    chunks = tuple(rows for rows in parts if len(rows[0]))
    return ChunkedDisplacements(chunks, base, squares)
