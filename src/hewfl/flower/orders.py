"""The messages of a round: what each client is sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from hewfl.aggregate.variates import KeptVariates
from hewfl.core.round import LocalPlan, Roster
from hewfl.flower.contacts import Contact
from hewfl.flower.layout import Layout, vector_record
from hewfl.flower.protocol import (
    ARRAYS,
    CONFIG,
    CORRECTION,
    GRADIENT,
    HELD,
    OWN_VARIATE,
    RATE,
    SERVER_VARIATE,
    TRAIN,
    Order,
)
from hewfl.flower.replies import Asked

Holders = Mapping[int, tuple[int, int]]
"""Which node holds a client's control variate, and as of which round."""


@final
@dataclass(frozen=True, slots=True)
class Draft:
    """A round to be sent out.

    Attributes:
        t: rounds done before.
        roster: who is asked.
        plan: what they are told.
        layout: of the model.
        arrays: the model.
        config: what the user sends along.
        variates: c and all c_i where nodes hold them, else None.
        holders: which nodes do.
        is_law: whether local steps are the server's law, and not what nodes offer.
    """

    t: int
    roster: Roster
    plan: LocalPlan
    layout: Layout
    arrays: ArrayRecord
    config: ConfigRecord
    variates: KeptVariates | None
    holders: Holders
    is_law: bool


Out = tuple[list[Message], list[Asked]]


def orders(draft: Draft, contacts: Mapping[int, Contact]) -> Out:
    """One message for each client of the roster, in client order."""
    shared = {ARRAYS: draft.arrays}
    if draft.variates is not None:
        shared[SERVER_VARIATE] = vector_record(draft.variates.server)
    messages, asked, rate = [], [], _rate(draft.config)
    for k, client in enumerate(map(int, draft.roster.clients)):
        node, offer = contacts[client].node, contacts[client].steps
        content = _content(draft, k, node, shared)
        message = Message(content, node, TRAIN, group_id=str(draft.t + 1))
        eta, batch = draft.plan.step_sizes[k], draft.roster.batch_sizes[k]
        is_bound = draft.is_law or offer is not None
        most = int(draft.roster.horizons[k]) if is_bound else None
        told = (float(eta), int(batch), rate, most)
        asked.append(Asked(client, node, message.metadata, *told))
        messages.append(message)
    return messages, asked


def _rate(config: ConfigRecord) -> float | None:
    """The step size that stock apps are sent."""
    value = config.get(RATE)
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _content(
    draft: Draft, k: int, node: int, shared: Mapping[str, ArrayRecord]
) -> RecordDict:
    """The order of the k-th client of the roster."""
    plan, client = draft.plan, int(draft.roster.clients[k])
    steps, eta = int(draft.roster.horizons[k]), float(plan.step_sizes[k])
    order = Order(draft.t, steps, eta, plan.proximal, plan.hold)
    config = ConfigRecord({**draft.config, **order.config()})
    content = RecordDict({**shared, CONFIG: config})
    if draft.variates is not None:
        holder, since = draft.holders.get(client, (None, 0))
        if holder == node:
            config[HELD] = since
        else:
            content[OWN_VARIATE] = vector_record(draft.variates.clients[client])
    elif plan.correction is not None:
        shift = plan.correction[k].astype(draft.layout.dtype)
        content[CORRECTION] = vector_record(shift)
    return content


def gradient_orders(arrays: ArrayRecord, contacts: Mapping[int, Contact]) -> Out:
    """The question for one minibatch gradient at x_0 (erratum E-29)."""
    messages, asked = [], []
    for client, contact in contacts.items():
        record = RecordDict({ARRAYS: arrays})
        message = Message(record, contact.node, GRADIENT, group_id="0")
        asked.append(Asked(client, contact.node, message.metadata, 1.0))
        messages.append(message)
    return messages, asked
