"""What came back from a round, sifted: usable answers in client order, and the rest.

A reply is left out, and the reason kept, when it is

    error        the node says so, or the SuperLink says it for a node that is gone
    missing      asked, but not heard in time; or drawn, but not connected
    late         an answer to another round
    unknown      from nobody who was asked
    duplicate    several answers of one client that differ; equal ones count once
    malformed    arrays that cannot be read, or of other names, shapes or kinds; numbers
                 missing or out of range
    not-finite   NaN or infinite entries
    implausible  a displacement far longer than those of the others
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan
from typing import Any, final

import numpy as np
from flwr.app import ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from numpy.typing import NDArray

from hewfl.core.checks import invalid
from hewfl.errors import InvalidInputError
from hewfl.flower.layout import Layout, flat, views
from hewfl.flower.protocol import DONE, PARTITION

KINDS = (
    *("error", "missing", "late", "unknown", "duplicate"),
    *("malformed", "not-finite", "implausible"),
)
MOST = 2**53
"""Of counts: beyond, floating-point numbers are not whole for certain."""


@final
@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a node is not part of a round; of a client that is not connected, −1."""

    node: int
    kind: str
    reason: str
    client: int = -1


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

    @property
    def ground(self) -> float:
        """η_iH_i where the server ordered them; else one."""
        return 1.0 if self.steps is None else self.steps * self.step_size


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
        rows: the arrays of the endpoint y_i, or of what else was asked for.
        sq_norm: ‖Δ_i‖².
    """

    question: Asked
    content: RecordDict
    metrics: MetricRecord
    size: float
    steps: int
    rows: list[NDArray[Any]]
    sq_norm: float = 0.0

    @property
    def place(self) -> tuple[float, float, int]:
        """Answers are taken in this order, whatever the order of arrival."""
        known, told = self.question.client, self.metrics.get(PARTITION)
        first = inf if known is None else float(known)
        told = float(told) if isinstance(told, int | float) else inf
        return first, told if isfinite(told) else inf, self.question.node


@final
@dataclass(frozen=True, slots=True)
class Expected:
    """What a round's answers must be like.

    Attributes:
        arrays: the model that was sent; displacements are measured from it.
        layout: of the answers.
        weighted_by: key of the number that weighs a client.
        steps: whether the rule asks for the local steps.
    """

    arrays: ArrayRecord
    layout: Layout
    weighted_by: str
    steps: bool = False


def sift(
    asked: Sequence[Asked], replies: Iterable[Message], expected: Expected
) -> tuple[list[Answer], list[Exclusion]]:
    """Read the replies to a round; their arrays stay where they are.

    Args:
        asked: the questions.
        replies: in whatever order they came.
        expected: what an answer must be like.

    Returns:
        Usable answers in client order, and why the others are not.
    """
    answers, excluded = [], []
    x = flat(expected.layout, expected.arrays)
    for question, contents in _by_node(asked, replies, excluded):
        try:
            if any(other != contents[0] for other in contents[1:]):
                text = f"{len(contents)} answers that differ"
                excluded.append(Exclusion(question.node, "duplicate", text))
                continue
            answer = _read(question, contents[0], expected)
        except InvalidInputError as error:
            excluded.append(Exclusion(question.node, "malformed", str(error)))
            continue
        square = _sq_norm(answer.rows, x)
        bad = 0
        if not isfinite(square):  # finite entries may have squares that are not
            bad = sum(int((~np.isfinite(row)).sum()) for row in answer.rows)
        if bad:
            text = f"{bad} of {expected.layout.d} entries are not finite"
            excluded.append(Exclusion(question.node, "not-finite", text))
        else:
            answers.append(replace(answer, sq_norm=square))
    return sorted(answers, key=lambda answer: answer.place), excluded


def _by_node(
    asked: Sequence[Asked], replies: Iterable[Message], excluded: list[Exclusion]
) -> list[tuple[Asked, list[RecordDict]]]:
    """Replies with content by question; the others are excluded."""
    by_message = {q.metadata.message_id: q for q in asked if q.metadata.message_id}
    by_node = {q.node: q for q in asked}
    found: dict[int, list[RecordDict]] = {}
    spoken = set()
    for reply in replies:
        told = reply.metadata
        question = by_message.get(told.reply_to_message_id)
        question = question or by_node.get(told.src_node_id)
        if question is None:
            text = "it was not asked"
            excluded.append(Exclusion(told.src_node_id, "unknown", text))
        elif reply.has_error():
            spoken.add(question.node)
            text = f"code {reply.error.code}: {reply.error.reason}"
            excluded.append(Exclusion(question.node, "error", text))
        elif told.group_id != question.metadata.group_id:
            text = f"an answer to round {told.group_id or '?'}"
            excluded.append(Exclusion(question.node, "late", text))
        else:
            spoken.add(question.node)
            found.setdefault(question.node, []).append(reply.content)
    for node in by_node.keys() - spoken:
        excluded.append(Exclusion(node, "missing", "no answer in time"))
    return [(q, found[q.node]) for q in asked if q.node in found]


def _read(question: Asked, content: RecordDict, expected: Expected) -> Answer:
    """The numbers and arrays of a reply.

    Raises:
        InvalidInputError: something is missing, or not what it should be.
    """
    metrics, size = weighed(content, expected.weighted_by)
    records = content.array_records
    if len(records) != 1:
        rule = "with one ArrayRecord"
        raise invalid("the reply", rule, f"{len(records)} of them")
    steps = question.steps or 1
    if question.steps is None and expected.steps:
        steps = whole(metrics, DONE)
    model = dict(next(iter(records.values())).items())
    if model.keys() != expected.arrays.keys():
        raise invalid("the reply", "of the arrays sent", f"{list(model)}"[:80])
    rows = views(expected.layout, model)
    return Answer(question, content, metrics, size, steps, rows)


def weighed(content: RecordDict, key: str) -> tuple[MetricRecord, float]:
    """The one MetricRecord of a reply, and the number in it that weighs the client.

    Raises:
        InvalidInputError: there is no such record or number.
    """
    records = content.metric_records
    if len(records) != 1:
        raise invalid("the reply", "with one MetricRecord", f"{len(records)} of them")
    metrics = next(iter(records.values()))
    size = metrics.get(key)
    if not isinstance(size, int | float) or not 0 < size <= MOST:
        raise invalid(f'"{key}"', "a positive number up to 2^53", repr(size))
    return metrics, float(size)


def whole(metrics: Mapping[str, Any], key: str, *, least: int = 1) -> int:
    """A whole number out of a record.

    Raises:
        InvalidInputError: it is missing, not whole, too small or too large.
    """
    value = metrics.get(key)
    number = isinstance(value, int | float) and least <= value <= MOST
    if not number or value != int(value):
        rule = f"a whole number of at least {least}"
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
