"""The clients of a federation, and the nodes that stand for them.

Flower gives every node a random id, a new one when it is restarted. Clients are
identified by partition id, which a node states in its introduction. Several nodes may
claim one partition: the first connected one is asked. A node that did not reply when it
was last asked comes after the others, later ones included. So a restarted node takes
its place again in the next round, and a stranger cannot take the place of a node that
replies.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from hewfl.core.validation import invalid
from hewfl.errors import InvalidInputError
from hewfl.flower.messages import (
    BATCH,
    EXAMPLES,
    INTRODUCE,
    PARTITION,
    STEPS,
    log,
    metrics_and_size,
    read_count,
)

SECOND_CHANCE = 5.0
"""Seconds for nodes that did not introduce themselves in the full time; Flower looks
for replies every three."""


@final
@dataclass(frozen=True, slots=True)
class RegisteredNode:
    """A node that stands for a client.

    Attributes:
        node: Flower's id.
        examples: m_i.
        batch_size: b_i.
        steps: what the node offers to do in a round; one by default.
    """

    node: int
    examples: int
    batch_size: int
    steps: int


@final
class ClientRegistry:
    """All clients that introduced themselves, by partition id.

    Args:
        population: n; partition ids are below.
    """

    def __init__(self, population: int) -> None:
        self.population = population
        self.claims: dict[int, list[RegisteredNode]] = {}
        self._connected: frozenset[int] = frozenset()
        self._silent, self._failing = set[int](), set[int]()

    def connected_clients(self) -> dict[int, RegisteredNode]:
        """The clients that can be asked now, in client order."""
        return {
            i: min(here, key=lambda one: one.node in self._failing)
            for i, claims in sorted(self.claims.items())
            if (here := [c for c in claims if c.node in self._connected])
        }

    def record_replies(self, asked: Iterable[int], replied: Iterable[int]) -> None:
        """Note which nodes failed to reply: others of their partition come first."""
        self._failing = (self._failing | set(asked)) - set(replied)

    def refresh(self, grid: Grid, needed: int, seconds: float) -> None:
        """List the connected nodes, and let new ones introduce themselves.

        Args:
            grid: the federation.
            needed: nodes to wait for.
            seconds: how long, for them and then for introductions of new nodes; nodes
                that were once silent get `SECOND_CHANCE` at most.
        """
        self._connected = frozenset(_wait_for_nodes(grid, needed, seconds))
        new, failed = self._connected - self._registered() - self._silent, False
        late = self._connected & self._silent
        for nodes, limit in ((new, seconds), (late, min(seconds, SECOND_CHANCE))):
            asked = [Message(RecordDict(), node, INTRODUCE) for node in sorted(nodes)]
            replies = list(grid.send_and_receive(asked, timeout=limit)) if asked else []
            for reply in sorted(replies, key=lambda r: int(r.metadata.src_node_id)):
                failed |= reply.has_error()
                self._introduce(reply)
        self._silent = set(self._connected - self._registered())
        if failed and not self.claims:
            rule = (
                "supported by its nodes: build the ClientApp with "
                "hewfl.flower.client_app, or call hewfl.flower.respond in "
                '@app.query("introduce"), @app.train("gradient") and @app.train()'
            )
            raise invalid("AlgorithmStrategy", rule, "nodes without the protocol")

    def _registered(self) -> set[int]:
        return {one.node for claims in self.claims.values() for one in claims}

    def _introduce(self, reply: Message) -> None:
        node = int(reply.metadata.src_node_id)
        try:
            if reply.has_error():
                raise invalid("the node", "one that replies", reply.error)
            metrics, _ = metrics_and_size(reply.content, EXAMPLES)
            client = read_count(metrics, PARTITION, least=0, most=self.population - 1)
            sizes = (
                read_count(metrics, EXAMPLES),
                read_count(metrics, BATCH),
                read_count(metrics, STEPS),
            )
        except InvalidInputError as error:
            log.warning("node %d did not introduce itself: %s", node, error)
            return
        others = self.claims.setdefault(client, [])
        if any(other.node in self._connected for other in others):
            text = "node %d claims partition %d as well; the earlier node is asked"
            log.warning(text, node, client)
        others.append(RegisteredNode(node, *sizes))


def _wait_for_nodes(grid: Grid, needed: int, seconds: float) -> list[int]:
    """The connected nodes, once there are enough or the time is up."""
    end, logged = time.monotonic() + seconds, -1
    while len(nodes := list(grid.get_node_ids())) < needed:
        left = end - time.monotonic()
        if left <= 0:
            log.warning("%d of %d nodes connected in %g s", len(nodes), needed, seconds)
            break
        if len(nodes) != logged:
            log.info("waiting for nodes: %d of %d connected", len(nodes), needed)
        logged = len(nodes)
        time.sleep(min(1.0, left))
    return nodes
