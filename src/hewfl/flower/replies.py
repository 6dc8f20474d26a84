"""What came back from a round, sifted: usable answers in client order, and the rest.

A reply is left out, and the reason kept, when it is

    error       the node says so, or the SuperLink says it for a node that is gone
    missing     asked, but not heard in time; or drawn, but not connected
    late        an answer to another round
    unknown     from nobody who was asked
    duplicate   several answers of one client that differ; equal ones count once
    malformed   arrays that cannot be read, or of other names, shapes or kinds; numbers
                missing or out of range: a partition id of someone else, more steps
                than ordered
    not-finite  NaN or infinite entries
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from flwr.app import ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from jaxtyping import Float, Float64, Int64
from numpy.typing import NDArray

from hewfl.aggregate.pieces import Pieces
from hewfl.core.checks import Array, Ints, invalid
from hewfl.errors import InvalidInputError
from hewfl.flower.contacts import LARGEST, whole
from hewfl.flower.layout import Layout, bad_entries, lendable, part, vector_of
from hewfl.flower.protocol import (
    DISPLACEMENT,
    DONE,
    EXAMPLES,
    METRICS,
    OFFER,
    PARTITION,
    STEP_SIZE,
)

KINDS = (
    "error",
    "missing",
    "late",
    "unknown",
    "duplicate",
    "malformed",
    "not-finite",
)
MOST_CLIENTS = 2**20
"""Partition ids that nameless nodes tell are below: reports have a place for each."""
STEP_SIZES = (1e-30, 1e30)
"""Of a client: with others the rules would leave floating point for all clients."""


@final
@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a client, or an unknown sender (−1), is not part of a round."""

    client: int
    kind: str
    reason: str


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """A question that is out.

    Attributes:
        client: partition id, or number in order of appearance.
        node: Flower's id of the node.
        metadata: of the message; Flower fills in its id when it is sent.
        step_size: η_i, as sent.
        batch_size: b_i, as the node told.
        rate: step size that a stock client was sent as `lr`, if it was.
        most_steps: H_i where it is the server's law or what the node offered to do;
            None where nobody said anything, and a client does what it likes.
    """

    client: int
    node: int
    metadata: Metadata
    step_size: float
    batch_size: int = 1
    rate: float | None = None
    most_steps: int | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """The usable answers of a round, in client order.

    Attributes:
        clients: who.
        displacements: Δ_i = y_i − x, where the replies have them; None of nobody.
        steps: H_i, done.
        step_sizes: η_i, used.
        sizes: m_i.
        batch_sizes: b_i.
        offers: steps that nodes offer for the next round, by client.
        metrics: what they measured.
        excluded: the rest.
    """

    clients: Int64[Ints, " s"]
    displacements: Pieces | None
    steps: Int64[Ints, " s"]
    step_sizes: Float64[Array, " s"]
    sizes: Int64[Ints, " s"]
    batch_sizes: Int64[Ints, " s"]
    offers: Mapping[int, int]
    metrics: Sequence[MetricRecord]
    excluded: Sequence[Exclusion]


@final
@dataclass(frozen=True, slots=True)
class _Answer:
    """One reply and its numbers, checked; the arrays are not read yet."""

    question: Asked
    content: RecordDict
    metrics: MetricRecord
    steps: int
    step_size: float
    size: int
    told: int | None
    offer: int | None


def sift(  # noqa: PLR0913 - what is known of the round, and three questions
    asked: Sequence[Asked],
    replies: Iterable[Message],
    layout: Layout,
    begin: Float[Array, " d"],
    *,
    named: bool = True,
    insist: bool = False,
    finite: bool = True,
) -> Heard:
    """Read the replies to a round; their arrays stay where they are.

    Args:
        asked: whom we asked, in client order.
        replies: in whatever order they came.
        layout: of the model.
        begin: x as it was sent.
        named: whether clients are known by partition id.
        insist: whether replies none of which reports local steps are an error, as in
            the first round, when it is the app that lacks them and not a node.
        finite: whether to look for entries that are not; costs a pass over the data.

    Raises:
        InvalidInputError: likewise.
    """
    excluded: list[Exclusion] = []
    answers = _read_all(asked, replies, excluded, named=named)
    if insist and not answers:
        _require_steps(excluded)
    clients = _numbers(answers, named=named)
    kept: list[int] = []
    rows: list[_Rows] = []
    with np.errstate(all="ignore"):  # what is not finite is excluded
        for k in map(int, np.argsort(clients, kind="stable")):
            client, content = answers[k].question.client, answers[k].content
            try:
                rows.append(_rows(content, layout, finite=finite))
                kept.append(k)
            except _NotFiniteError as error:
                excluded.append(Exclusion(client, "not-finite", str(error)))
            except InvalidInputError as error:
                excluded.append(Exclusion(client, "malformed", str(error)))
        displacements = _pieces(rows, begin) if rows else None
    best = [answers[k] for k in kept]
    return Heard(
        clients[kept],
        displacements,
        np.array([a.steps for a in best], dtype=np.int64),
        np.array([a.step_size for a in best], dtype=np.float64),
        np.array([a.size for a in best], dtype=np.int64),
        np.array([a.question.batch_size for a in best], dtype=np.int64),
        {a.question.client: a.offer for a in best if a.offer is not None},
        [a.metrics for a in best],
        tuple(sorted(excluded, key=lambda e: (e.client, e.kind, e.reason))),
    )


def _read_all(
    asked: Sequence[Asked],
    replies: Iterable[Message],
    excluded: list[Exclusion],
    *,
    named: bool,
) -> list[_Answer]:
    """The replies whose numbers are usable, in the order of the questions."""
    answers = []
    found = _by_client(asked, replies, excluded)
    for question in asked:
        copies = [message.content for message in found.get(question.client, [])]
        if not copies:
            continue
        if any(other != copies[0] for other in copies[1:]):
            text = f"{len(copies)} answers that differ"
            excluded.append(Exclusion(question.client, "duplicate", text))
            continue
        try:
            answers.append(_read(question, copies[0], named=named))
        except InvalidInputError as error:
            excluded.append(Exclusion(question.client, "malformed", str(error)))
    return answers


def _require_steps(excluded: Sequence[Exclusion]) -> None:
    silent = [e.reason for e in excluded if f'"{DONE}"' in e.reason]
    if silent:
        text = (
            f'no reply reports its local steps: add `"{DONE}": <optimiser steps taken>`'
            f" to the MetricRecord of the ClientApp's train reply, beside "
            f'"{EXAMPLES}" ({silent[0]})'
        )
        raise InvalidInputError(text)


def _numbers(answers: Sequence[_Answer], *, named: bool) -> Int64[Ints, " s"]:
    """Clients by partition id: the one known, or the one that nameless nodes told."""
    told = [a.told for a in answers]
    if not named and None not in told and len(set(told)) == len(told):
        return np.array(told, dtype=np.int64)
    return np.array([a.question.client for a in answers], dtype=np.int64)


def _by_client(
    asked: Sequence[Asked], replies: Iterable[Message], excluded: list[Exclusion]
) -> dict[int, list[Message]]:
    """Replies with content by client; the others are excluded."""
    by_message = {q.metadata.message_id: q for q in asked if q.metadata.message_id}
    by_node = {q.node: q for q in asked}
    found: dict[int, list[Message]] = {}
    spoken = set()
    for reply in replies:
        told = reply.metadata
        question = by_message.get(told.reply_to_message_id)
        question = question or by_node.get(told.src_node_id)
        if question is None:
            text = f"node {told.src_node_id} was not asked"
            excluded.append(Exclusion(-1, "unknown", text))
        elif reply.has_error():
            spoken.add(question.client)
            text = f"code {reply.error.code}: {reply.error.reason}"
            excluded.append(Exclusion(question.client, "error", text))
        elif told.group_id != question.metadata.group_id:
            text = f"an answer to round {told.group_id or '?'}"
            excluded.append(Exclusion(question.client, "late", text))
        else:
            spoken.add(question.client)
            found.setdefault(question.client, []).append(reply)
    for q in asked:
        if q.client not in spoken:
            text = f"no answer of node {q.node} in time"
            excluded.append(Exclusion(q.client, "missing", text))
    return found


# ------------------------------------------------------------------ one answer


class _NotFiniteError(Exception):
    """Numbers that would poison the model."""


def _read(question: Asked, content: RecordDict, *, named: bool) -> _Answer:
    """The numbers of a reply."""
    metrics = metrics_of(content)
    told, top = None, LARGEST if named else MOST_CLIENTS - 1
    if PARTITION in metrics:
        told = whole(metrics, PARTITION, least=0, most=top)
    if named and told not in (None, question.client):
        raise invalid(f'"{PARTITION}"', f"{question.client}, who was asked", told)
    step_size = question.step_size
    if not isinstance(content.get(DISPLACEMENT), ArrayRecord):
        step_size = question.rate or step_size  # a stock client, which takes no orders
    if STEP_SIZE in metrics:
        step_size = _step_size(metrics)
    offer = whole(metrics, OFFER) if OFFER in metrics else None
    steps, size = whole(metrics, DONE), whole(metrics, EXAMPLES)
    if question.most_steps is not None and steps > question.most_steps:
        raise invalid(f'"{DONE}"', f"at most the {question.most_steps} ordered", steps)
    return _Answer(question, content, metrics, steps, step_size, size, told, offer)


def metrics_of(content: RecordDict) -> MetricRecord:
    """The one MetricRecord of a reply.

    Raises:
        InvalidInputError: there is none, or several without the usual name.
    """
    records = {k: r for k, r in content.items() if isinstance(r, MetricRecord)}
    if METRICS not in records and len(records) != 1:
        raise invalid("the reply", "with one MetricRecord", f"{len(records)} of them")
    return records[METRICS] if METRICS in records else next(iter(records.values()))


def _step_size(metrics: MetricRecord) -> float:
    value, (least, most) = metrics[STEP_SIZE], STEP_SIZES
    if not isinstance(value, int | float) or not least <= value <= most:
        rule = f"a number from {least:g} to {most:g}"
        raise invalid(f'"{STEP_SIZE}"', rule, repr(value))
    return float(value)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The arrays of one reply: Δ_i in one, or those of an endpoint y_i."""

    views: list[NDArray[Any]]
    is_endpoint: bool


def _rows(content: RecordDict, layout: Layout, *, finite: bool) -> _Rows:
    """Δ_i as sent, or the endpoint that a stock client sends."""
    records = {k: r for k, r in content.items() if isinstance(r, ArrayRecord)}
    is_endpoint = DISPLACEMENT not in records
    if not is_endpoint:
        views = [lendable(vector_of(records[DISPLACEMENT], layout.d))]
    else:
        if len(records) != 1:
            rule = "with one ArrayRecord"
            raise invalid("the reply", rule, f"{len(records)} of them")
        model = dict(next(iter(records.values())).items())
        parts = [part(model, name, shape) for name, shape, _ in layout.parts()]
        views = [lendable(array) for array in parts if array.size]
    bad = sum(bad_entries(view) for view in views) if finite else 0
    if bad:
        raise _NotFiniteError(f"{bad} of {layout.d} entries are not finite")
    return _Rows(views, is_endpoint)


def _pieces(rows: Sequence[_Rows], begin: Float[Array, " d"]) -> Pieces:
    """All rows; endpoints are subtracted from only where others sent displacements.

    In float64: a difference of float32 numbers may be beyond them.
    """
    x = lendable(begin)
    if all(row.is_endpoint for row in rows):
        return Pieces(tuple(zip(*(row.views for row in rows), strict=True)), x)
    vectors = [
        np.concatenate(row.views, dtype=np.float64) - x
        if row.is_endpoint
        else row.views[0]
        for row in rows
    ]
    return Pieces((tuple(vectors),))


def clear_arrays(replies: Iterable[Message]) -> None:
    """Free the arrays of replies whose round is over: they are most of the memory.

    The messages themselves are emptied, whoever else holds them: their ArrayRecords
    have no arrays afterwards. Metrics stay.
    """
    for message in replies:
        if message.has_content():
            for record in message.content.values():
                if isinstance(record, ArrayRecord):
                    record.clear()
