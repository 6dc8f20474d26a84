"""What clients may claim: bounded by what the others of a round do.

A server cannot look into its clients, but it can compare them. With fewer than half of
them bad, the lower median of a round is at most the largest honest number, so bounds
around it hold against whatever the others send:

    ‖Δ_i‖ ≤ c · median_j ‖Δ_j‖            else the client is left out of the round
    ‖Δ_i‖/H_i ≤ 4 · median_j ‖Δ_j‖/H_j    likewise, where clients tell their steps
    m_i counts as at most 5 · median_j m_j

Every rule that averages then moves the model by at most c times the longest honest
displacement.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, isfinite, isnan, sqrt
from typing import Any, Protocol, final, runtime_checkable

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
from hewfl.flower.arrays import Layout, flat, views
from hewfl.flower.client import DONE, MEAN, PARTITION

PACE = 4.0
"""Of ‖Δ‖/H, over the median. Plain SGD with one step size moves by about a gradient in
each step; who claims fewer steps than it took is above its neighbours."""
LARGEST_SHARE = 5.0
"""Of a client's data size, over the median: it is a claim that nobody can check."""
_SCALE = 2**40
"""What the largest size counts where sizes are not whole numbers."""


def lower_median(values: Float64[Array, " s"]) -> float:
    """The lower median of the values that are not zero; zero if all are.

    Of two numbers it is the smaller: one bad client of two cannot make it large.
    Clients that stood still say nothing about how far the others may go.
    """
    moved = np.sort(values[values > 0])
    return float(moved[(len(moved) - 1) // 2]) if len(moved) else 0.0


def implausible(
    lengths: Float64[Array, " s"],
    longest: float,
    told_steps: Int64[Ints, " s"] | None = None,
) -> dict[int, str]:
    """Whose displacement is far longer than those of the others, and the reason.

    Args:
        lengths: ‖Δ_i‖, infinite where it left all bounds.
        longest: largest length over the median.
        told_steps: H_i, where clients tell them and the rule uses them.
    """
    found = {}
    cases = [(lengths, longest, "its displacement is")]
    if told_steps is not None:
        cases += [(lengths / told_steps, PACE, "per step told its displacement is")]
    for values, most, what in cases:
        middle = lower_median(values)
        top = min(most * middle, float(np.finfo(np.float64).max))
        for k in np.flatnonzero(~(values <= top)):
            found[int(k)] = f"{what} {values[k] / middle:.3g} times the median"
    return found


def counted_sizes(sizes: Float64[Array, " s"]) -> Int64[Ints, " s"]:
    """Data sizes as whole numbers that nobody inflates: at most 5 × the median.

    Args:
        sizes: positive, as clients tell them. Where some are not whole (any positive
            number may weigh a client) all are scaled.
    """
    m = np.minimum(sizes, LARGEST_SHARE * lower_median(sizes))
    if not (m == np.floor(m)).all() or m.max(initial=0) > _SCALE:
        m = np.maximum(np.rint(m / m.max() * _SCALE), 1)
    return m.astype(np.int64)


# ------------------ From the answers of a round's clients, whatever carried them,


@runtime_checkable
class Answered(Protocol):
    """One usable answer."""

    @property
    def size(self) -> float:
        """m_i, as told."""

    @property
    def steps(self) -> int:
        """H_i, as ordered, else as told, else one."""

    @property
    def ordered(self) -> tuple[int | None, float, int]:
        """H_i where the server ordered it, η_i and b_i; ones where nobody asks."""

    @property
    def rows(self) -> Sequence[Any]:
        """The arrays of the endpoint y_i, each as a vector."""

    @property
    def sq_norm(self) -> float:
        """‖Δ_i‖²."""

    @property
    def means(self) -> Sequence[Any] | None:
        """The arrays of the mean gradient, where it was sent."""


Answers = Sequence[Answered]
_SAFE = 1e-100
"""Squared lengths within this and its inverse; others are left to the Gram matrix."""


def too_long(answers: Answers, longest: float, *, told: bool) -> dict[int, str]:
    """Whose displacement is far longer than those of the others, and the reason.

    Args:
        answers: of the round.
        longest: largest length over the median, for the work that was ordered.
        told: whether the rule uses the steps that clients tell.
    """
    grounds = np.array([(H or 1.0) * eta for H, eta, _ in (a.ordered for a in answers)])
    lengths = np.array([sqrt(a.sq_norm) for a in answers]) / grounds
    steps = np.array([a.steps for a in answers]) if told else None
    return implausible(lengths, longest, steps)


def cohort_of(answers: Answers, clients: Sequence[int], n: int, t: int) -> Cohort:
    """Those who are heard, out of n clients, t rounds being done before."""
    batches = np.array([a.ordered[2] for a in answers], dtype=np.int64)
    steps = np.array([a.steps for a in answers], dtype=np.int64)
    sizes = counted_sizes(np.array([a.size for a in answers], dtype=np.float64))
    return Cohort(np.array(clients, dtype=np.int64), steps, batches, sizes, n, t)


def round_of(
    anchor: Float64[Array, " d"],
    answers: Answers,
    cohort: Cohort,
    base: Any,
    *,
    variates: bool,
) -> Round:
    """The round; arrays stay where they are.

    Args:
        anchor: x in float64.
        answers: of the round, at least one.
        cohort: those who are heard, in the same order.
        base: x in the precision it was sent in, which displacements are measured from.
        variates: whether the rule keeps control variates.
    """
    sent = [a.means for a in answers if variates and a.means is not None]
    if 0 < len(sent) < len(answers):
        rule = "sent by all clients of a federation with control variates, or none"
        raise invalid("mean-gradient", rule, f"{len(sent)} of {len(answers)}")
    plan = LocalPlan(np.array([a.ordered[1] for a in answers]))
    squares = np.array([a.sq_norm for a in answers])
    moved = squares[squares > 0]  # inverse lengths of these can be multiplied
    known = bool((moved > _SAFE).all() and (moved < 1 / _SAFE).all())
    held = pieces([a.rows for a in answers], base, squares if known else None)
    means = pieces(sent) if sent else None
    return Round(anchor, held, cohort, plan, gradients=means)


def pieces(
    vectors: Sequence[Sequence[Any]], base: Any = None, squares: Any = None
) -> ChunkedDisplacements:
    """The arrays of several clients as vectors, where they lie; less the base."""
    parts = zip(*vectors, strict=True)
    return ChunkedDisplacements(
        tuple(rows for rows in parts if len(rows[0])), base, squares
    )


# ------------------ What came back from a round, sifted: usable answers in client

# A reply is left out, and the reason kept, when it is
#
#     error        the node says so, or the SuperLink says it for a node that is gone
#     missing      asked, but not heard in time; or drawn, but not connected
#     unknown      from nobody who was asked
#     malformed    arrays that cannot be read, or of other names, shapes or kinds; numbers
#                  missing or out of range; a second answer
#     not-finite   NaN or infinite entries
#     implausible  a displacement far longer than those of the others

log = logging.getLogger("flwr")
"""Flower's own, so that reasons are seen where its users look."""
KINDS = ("error", "missing", "unknown", "malformed", "not-finite", "implausible")
MOST = 2**53
"""Of counts: beyond, floating-point numbers are not whole for certain."""


@final
@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a node is not part of a round; −1 stands for what is not known."""

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
class Asked:
    """A question that is out.

    Attributes:
        metadata: of the message; Flower fills in its id when it is sent.
        steps: H_i as ordered; None where the client does what it likes.
        step_size: η_i as ordered, one where nobody asks for it.
        batch_size: b_i, as the node told.
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
class Opened:
    """A round whose answers are awaited.

    Attributes:
        t: its number, from 1.
        arrays: the model that was sent; displacements are measured from it.
        layout: of the model.
        grid: where a second phase is asked.
        asked: the questions.
        absent: clients that were drawn and are not connected.
    """

    t: int
    arrays: ArrayRecord
    layout: Layout
    grid: Grid
    asked: Sequence[Asked]
    absent: Sequence[Exclusion] = ()

    @cached_property
    def x(self) -> NDArray[Any]:
        """The model as one vector, in the precision of local branches."""
        return flat(self.layout, self.arrays)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One usable reply (`hewfl.flower.replies.Answered`).

    Attributes:
        question: what it answers.
        content: all of it.
        metrics: its one MetricRecord.
        size: m_i, as told.
        steps: H_i, as ordered, else as told, else one.
        rows: the arrays of the endpoint y_i.
        means: the arrays of the mean gradient, where it was sent.
        sq_norm: ‖Δ_i‖².
    """

    question: Asked
    content: RecordDict
    metrics: MetricRecord
    size: float
    steps: int
    rows: list[NDArray[Any]]
    means: list[NDArray[Any]] | None
    sq_norm: float = inf

    @property
    def ordered(self) -> tuple[int | None, float, int]:
        """H_i where the server ordered it, η_i and b_i."""
        return self.question.steps, self.question.step_size, self.question.batch_size

    def place(self, clients: Mapping[int, int]) -> tuple[float, float, int]:
        """Answers are taken in this order, whatever the order of arrival."""
        node, told = self.question.node, self.metrics.get(PARTITION)
        told = told if isinstance(told, int | float) and not isnan(told) else inf
        return float(clients.get(node, inf)), float(told), node


Wanted = tuple[str, bool]
"""The key of the number that weighs a client; whether clients must tell their steps."""


def sift(
    opened: Opened,
    replies: Iterable[Message],
    wanted: Wanted,
    clients: Mapping[int, int],
) -> tuple[list[Answer], list[Exclusion]]:
    """Read the replies to a round; their arrays stay where they are.

    Returns:
        Usable answers in client order, and why the others are not.
    """
    by_message = {q.metadata.message_id: q.node for q in opened.asked}
    by_message.pop("", None)  # messages that were not sent by a grid
    found: dict[int, list[Message]] = {q.node: [] for q in opened.asked}
    excluded: list[Exclusion] = []
    for reply in replies:
        told = reply.metadata  # the SuperLink answers for nodes that are gone
        node = by_message.get(told.reply_to_message_id, int(told.src_node_id))
        if node in found:
            found[node].append(reply)
        else:
            excluded.append(Exclusion(node, "unknown", "it was not asked"))
    read = [_read(q, found[q.node], opened, wanted) for q in opened.asked]
    excluded += [one for one in read if isinstance(one, Exclusion)]
    readable, answers = [one for one in read if isinstance(one, Answer)], []
    for one, square in zip(readable, _squares(readable, opened.x), strict=True):
        suspects = [*([] if isfinite(square) else one.rows), *(one.means or [])]
        bad = sum(int((~np.isfinite(row)).sum()) for row in suspects)
        if bad:
            reason = f"{bad} entries are not finite"
            excluded.append(Exclusion(one.question.node, "not-finite", reason))
        else:
            answers.append(replace(one, sq_norm=inf if isnan(square) else square))
    return sorted(answers, key=lambda answer: answer.place(clients)), excluded


def _squares(answers: list[Answer], x: NDArray[Any]) -> list[float]:
    """‖y_i − x‖² of all answers, in one pass; x is read once for all of them."""
    if not answers:
        return []
    held = pieces([answer.rows for answer in answers], x)
    with np.errstate(all="ignore"):  # finite entries may have squares that are not
        return [float(square) for square in inner_with_sum(held)]


def _read(
    question: Asked, copies: Sequence[Message], opened: Opened, wanted: Wanted
) -> Answer | Exclusion:
    """The numbers and arrays of a reply, or why it is left out."""
    left = partial(Exclusion, question.node)
    if not copies:
        return left("missing", "no answer in time")
    if copies[0].has_error():
        error = copies[0].error
        return left("error", f"code {error.code}: {error.reason}")
    content, means, (key, steps) = copies[0].content, None, wanted
    try:
        if len(copies) > 1:
            raise invalid("the reply", "one", f"{len(copies)} answers")
        metrics, size = weighed(content, key)
        records = [r for k, r in content.array_records.items() if k != MEAN]
        if len(records) != 1:
            raise invalid("the reply", "with one ArrayRecord", len(records))
        done = question.steps or (whole(metrics, DONE) if steps else 1)
        if records[0].keys() != opened.arrays.keys():
            raise invalid("the reply", "of the arrays sent", f"{list(records[0])}"[:80])
        rows = views(opened.layout, records[0])
        if MEAN in content.array_records:
            means = views(opened.layout, content.array_records[MEAN])
    except InvalidInputError as problem:
        return left("malformed", str(problem))
    return Answer(question, content, metrics, size, done, rows, means)


def weighed(content: RecordDict, key: str) -> tuple[MetricRecord, float]:
    """The one MetricRecord of a reply, and the number in it that weighs the client."""
    records = list(content.metric_records.values())
    if len(records) != 1:
        raise invalid("the reply", "with one MetricRecord", len(records))
    size = records[0].get(key)
    if not isinstance(size, int | float) or not 0 < size <= MOST:
        raise invalid(f'"{key}"', "a positive number up to 2^53", repr(size))
    return records[0], float(size)


def whole(metrics: Any, key: str, *, least: int = 1, most: int = MOST) -> int:
    """A whole number out of a record."""
    value: Any = metrics.get(key)
    number = isinstance(value, int | float) and least <= value <= most
    if not number or value != int(value):
        rule = f"a whole number from {least} to {most}"
        raise invalid(f'"{key}"', rule, repr(value))
    return int(value)
