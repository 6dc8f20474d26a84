"""Who is there: nodes of the federation, and the clients they stand for.

Flower gives every node a random id, a new one when it is restarted. Clients are known
by partition id, which a node tells in its introduction; a node that comes back under a
new id is the same client, and of two that claim to be one the newer is believed.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from hewfl.core.checks import invalid
from hewfl.flower.protocol import BATCH, EXAMPLES, INTRODUCE, OFFER, PARTITION

log = logging.getLogger("flwr")
"""Flower's own, so that reasons are seen where its users look."""
BRIEF = 5.0
"""Seconds for nodes that have not introduced themselves when they had the whole time;
Flower looks for answers every three."""
LARGEST = 2**53
"""Of counts: beyond, floating-point numbers are not whole for certain."""


@final
@dataclass(frozen=True, slots=True)
class Contact:
    """A client and the node it is reached at.

    Attributes:
        node: Flower's id.
        examples: m_i; 1 where not told.
        batch_size: b_i; 1 where not told.
        steps: what the node offers to do in a round, if it has a say.
    """

    node: int
    examples: int = 1
    batch_size: int = 1
    steps: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Registry:
    """All clients ever met.

    Attributes:
        contacts: by client: the partition id, or a number in order of appearance.
        connected: ids of the nodes that are there now.
        replaced: nodes whose client is now reached at a newer one.
        awaited: nodes that once had the whole time to introduce themselves.
    """

    contacts: Mapping[int, Contact] = field(default_factory=dict)
    connected: frozenset[int] = frozenset()
    replaced: frozenset[int] = frozenset()
    awaited: frozenset[int] = frozenset()

    def present(self) -> dict[int, Contact]:
        """The clients that can be asked now, in client order."""
        found = sorted(self.contacts.items())
        return {i: c for i, c in found if c.node in self.connected}

    def offered(self, offers: Mapping[int, int]) -> "Registry":
        """The registry with new offers of steps."""
        fresh = {i: replace(self.contacts[i], steps=h) for i, h in offers.items()}
        return replace(self, contacts={**self.contacts, **fresh})


def meet(
    grid: Grid,
    registry: Registry,
    population: int | None,
    *,
    needed: int,
    seconds: float,
) -> Registry:
    """The registry with everybody who is there now, newcomers introduced.

    Args:
        grid: the federation.
        registry: whom we knew.
        population: n, if clients are to be known by name.
        needed: nodes to wait for.
        seconds: how long, for them and then for introductions of nodes not asked
            before; those that have once kept silent get `BRIEF` at most.

    Raises:
        InvalidInputError: names are needed and no node can give its own.
    """
    nodes = _waited(grid, needed, seconds)
    known = {contact.node for contact in registry.contacts.values()} | registry.replaced
    strangers = [node for node in nodes if node not in known]
    registry = replace(registry, connected=frozenset(nodes))
    if population is None:
        first = len(registry.contacts)
        named = {first + k: Contact(node) for k, node in enumerate(strangers)}
        return replace(registry, contacts={**registry.contacts, **named})
    if strangers:
        replies = _introductions(grid, registry, strangers, seconds)
        registry = _introduced(registry, replies, population)
        registry = replace(registry, awaited=registry.awaited.union(strangers))
        if not registry.contacts and any(reply.has_error() for reply in replies):
            rule = (
                "left out unless nodes can introduce themselves: build the ClientApp "
                "with hewfl.flower.client_app, or let it answer by "
                'hewfl.flower.respond to @app.query("introduce"), '
                '@app.train("gradient") and @app.train()'
            )
            raise invalid("population", rule, population)
    return registry


def _waited(grid: Grid, needed: int, seconds: float) -> list[int]:
    """The connected nodes, once there are enough or the time is up."""
    end = time.monotonic() + seconds
    while True:
        nodes = sorted(grid.get_node_ids())
        left = end - time.monotonic()
        if len(nodes) >= needed or left <= 0:
            break
        log.info("waiting for nodes: %d of %d connected", len(nodes), needed)
        time.sleep(min(1.0, left))
    if len(nodes) < needed:
        log.warning("%d nodes of %d came in %g s", len(nodes), needed, seconds)
    return nodes


def _introductions(
    grid: Grid, registry: Registry, strangers: Iterable[int], seconds: float
) -> list[Message]:
    """What strangers answer: the new ones in time, then the silent ones briefly."""
    replies: list[Message] = []
    new = [node for node in strangers if node not in registry.awaited]
    silent = [node for node in strangers if node in registry.awaited]
    for nodes, limit in ((new, seconds), (silent, min(seconds, BRIEF))):
        if nodes:
            asked = [Message(RecordDict(), node, INTRODUCE) for node in nodes]
            replies += grid.send_and_receive(asked, timeout=limit)
    return replies


def _introduced(registry: Registry, replies: Iterable[Message], n: int) -> Registry:
    contacts, replaced = dict(registry.contacts), set(registry.replaced)
    for reply in sorted(replies, key=lambda reply: int(reply.metadata.src_node_id)):
        node = int(reply.metadata.src_node_id)
        if reply.has_error():
            log.warning("node %d did not introduce itself: %s", node, reply.error)
            continue
        try:
            client, contact = _contact(node, reply.content, n)
        except (ValueError, TypeError) as error:
            log.warning("node %d introduced itself badly: %s", node, error)
            continue
        before = contacts.get(client)
        if before is not None:
            replaced.add(before.node)
        if before is not None and before.node in registry.connected:
            text = "nodes %d and %d both are partition %d; the newer is believed"
            log.warning(text, before.node, node, client)
        contacts[client] = contact
    return replace(registry, contacts=contacts, replaced=frozenset(replaced))


def _contact(node: int, content: RecordDict, n: int) -> tuple[int, Contact]:
    """Who a node says it is.

    Raises:
        InvalidInputError: a number is missing or out of range.
    """
    metrics = next(iter(content.metric_records.values()), MetricRecord())
    client = whole(metrics, PARTITION, least=0, most=n - 1)
    sizes = whole(metrics, EXAMPLES), whole(metrics, BATCH)
    steps = whole(metrics, OFFER) if OFFER in metrics else None
    return client, Contact(node, *sizes, steps)


def whole(
    metrics: MetricRecord, key: str, *, least: int = 1, most: int = LARGEST
) -> int:
    """A whole number out of a record.

    Raises:
        InvalidInputError: it is missing, not whole, too small or too large.
    """
    value = metrics.get(key)
    number = isinstance(value, int | float) and least <= value <= most
    if not number or value != int(value):
        limits = (
            f"of at least {least}" if most == LARGEST else f"from {least} to {most}"
        )
        raise invalid(f'"{key}"', f"a whole number {limits}", repr(value))
    return int(value)
