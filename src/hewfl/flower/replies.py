"""What came back from a round, sifted: usable answers in client order, and the rest.

A reply is left out, and the reason kept, when it is

    error        the node says so, or the SuperLink says it for a node that is gone
    missing      asked, but not heard in time; or drawn, but not connected
    unknown      from nobody who was asked
    malformed    arrays that cannot be read, or of other names, shapes or kinds; numbers
                 missing or out of range; a second answer
    not-finite   NaN or infinite entries
    implausible  a displacement far longer than those of the others
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, isfinite, isnan
from typing import Any, final

import numpy as np
from flwr.app import ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from hewfl.aggregate.sums import against_sum
from hewfl.core.checks import invalid
from hewfl.core.layout import Layout
from hewfl.errors import InvalidInputError
from hewfl.flower.layout import flat, views
from hewfl.flower.protocol import DONE, MEAN, PARTITION
from hewfl.server.answered import pieces

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
    """One usable reply (`hewfl.server.answered.Answered`).

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
        return [float(square) for square in against_sum(held)]


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
