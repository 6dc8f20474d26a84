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
from math import inf, isfinite, isnan
from typing import Any, final

import numpy as np
from flwr.app import ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from hewfl.core.checks import invalid
from hewfl.errors import InvalidInputError
from hewfl.flower.layout import Layout, flat, views
from hewfl.flower.protocol import DONE, MEAN, PARTITION

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
        client: number of the client; None for a node that was never heard.
        steps: H_i as ordered; None where the client does what it likes.
        step_size: η_i as ordered, one where nobody asks for it.
        batch_size: b_i, as the node told.
    """

    metadata: Metadata
    client: int | None = None
    steps: int | None = None
    step_size: float = 1.0
    batch_size: int = 1

    @property
    def node(self) -> int:
        """Flower's id of the node."""
        return int(self.metadata.dst_node_id)


@final
@dataclass(frozen=True, slots=True)
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


@final
@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One usable reply.

    Attributes:
        question: what it answers.
        content: all of it.
        metrics: its one MetricRecord.
        size: m_i, as told.
        steps: H_i, as ordered, else as told, else one.
        rows: the arrays of the endpoint y_i.
        sq_norm: ‖Δ_i‖².
        means: the arrays of the mean gradient, where it was sent.
    """

    question: Asked
    content: RecordDict
    metrics: MetricRecord
    size: float
    steps: int
    rows: list[NDArray[Any]]
    sq_norm: float = 0.0
    means: list[NDArray[Any]] | None = None

    @property
    def place(self) -> tuple[float, float, int]:
        """Answers are taken in this order, whatever the order of arrival."""
        known, told = self.question.client, self.metrics.get(PARTITION)
        told = float(told) if isinstance(told, int | float) else inf
        first = inf if known is None else float(known)
        return first, inf if isnan(told) else told, self.question.node


def sift(
    opened: Opened, replies: Iterable[Message], key: str, *, steps: bool = False
) -> tuple[list[Answer], list[Exclusion]]:
    """Read the replies to a round; their arrays stay where they are.

    Args:
        opened: the round.
        replies: in whatever order they came.
        key: of the number that weighs a client.
        steps: whether clients must tell their local steps.

    Returns:
        Usable answers in client order, and why the others are not.
    """
    by_message = {q.metadata.message_id: q for q in opened.asked}
    by_node = {q.node: q for q in opened.asked}
    found: dict[int, list[Message]] = {}
    answers: list[Answer] = []
    excluded: list[Exclusion] = []
    x = flat(opened.layout, opened.arrays)
    for reply in replies:
        told = reply.metadata
        question = by_node.get(told.src_node_id)
        if told.reply_to_message_id:  # the SuperLink answers for nodes that are gone
            question = by_message.get(told.reply_to_message_id, question)
        if question is None:
            text = "it was not asked"
            excluded.append(Exclusion(int(told.src_node_id), "unknown", text))
        else:
            found.setdefault(question.node, []).append(reply)
    for question in opened.asked:
        copies = found.get(question.node, [])
        kind, reason = "missing", "no answer in time"
        if len(copies) > 1:
            kind, reason = "malformed", f"{len(copies)} answers"
        elif copies and copies[0].has_error():
            error = copies[0].error
            kind, reason = "error", f"code {error.code}: {error.reason}"
        elif copies:
            try:
                answer = _read(question, copies[0].content, opened, key, steps)
                square = _sq_norm(answer.rows, x)
                bad = 0  # finite entries may have squares that are not
                if not isfinite(square):
                    bad = _not_finite(answer.rows)
                bad += _not_finite(answer.means or ())
                if not bad:
                    answers.append(replace(answer, sq_norm=square))
                    continue
                kind, reason = "not-finite", f"{bad} entries are not finite"
            except InvalidInputError as problem:
                kind, reason = "malformed", str(problem)
        excluded.append(Exclusion(question.node, kind, reason))
    return sorted(answers, key=lambda answer: answer.place), excluded


def _not_finite(rows: Iterable[Any]) -> int:
    """How many entries are infinite or NaN."""
    return sum(int((~np.isfinite(row)).sum()) for row in rows)


def _read(
    question: Asked, content: RecordDict, opened: Opened, key: str, steps: bool
) -> Answer:
    """The numbers and arrays of a reply.

    Raises:
        InvalidInputError: something is missing, or not what it should be.
    """
    metrics, size = weighed(content, key)
    records = [r for k, r in content.array_records.items() if k != MEAN]
    if len(records) != 1:
        raise invalid("the reply", "with one ArrayRecord", f"{len(records)} of them")
    done = question.steps or (whole(metrics, DONE) if steps else 1)
    model = dict(records[0].items())
    if model.keys() != opened.arrays.keys():
        raise invalid("the reply", "of the arrays sent", f"{list(model)}"[:80])
    rows, means = views(opened.layout, model), None
    if MEAN in content.array_records:
        means = views(opened.layout, dict(content.array_records[MEAN].items()))
    return Answer(question, content, metrics, size, done, rows, means=means)


def weighed(content: RecordDict, key: str) -> tuple[MetricRecord, float]:
    """The one MetricRecord of a reply, and the number in it that weighs the client.

    Raises:
        InvalidInputError: there is no such record or number.
    """
    records = list(content.metric_records.values())
    if len(records) != 1:
        raise invalid("the reply", "with one MetricRecord", f"{len(records)} of them")
    size = records[0].get(key)
    if not isinstance(size, int | float) or not 0 < size <= MOST:
        raise invalid(f'"{key}"', "a positive number up to 2^53", repr(size))
    return records[0], float(size)


def whole(
    metrics: Mapping[str, Any], key: str, *, least: int = 1, most: int = MOST
) -> int:
    """A whole number out of a record.

    Raises:
        InvalidInputError: it is missing, not whole, too small or too large.
    """
    value: Any = metrics.get(key)
    number = isinstance(value, int | float) and least <= value <= most
    if not number or value != int(value):
        rule = f"a whole number from {least} to {most}"
        raise invalid(f'"{key}"', rule, repr(value))
    return int(value)


_BLOCK = 2**16
"""Entries that are subtracted at a time: they stay in cache."""


def _sq_norm(rows: Sequence[NDArray[Any]], x: NDArray[Any]) -> float:
    """‖y − x‖² for the arrays of an endpoint; infinite where it is beyond numbers."""
    total, begin = 0.0, 0
    with np.errstate(all="ignore"):
        for row in rows:
            for lo in range(0, len(row), _BLOCK):
                part = row[lo : lo + _BLOCK]
                part = part - x[begin + lo : begin + lo + len(part)]
                total += float(part @ part)
            begin += len(row)
    return inf if isnan(total) else total
