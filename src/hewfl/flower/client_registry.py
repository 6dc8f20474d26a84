"""The clients of a federation, and the nodes that stand for them.

Flower gives every node a random id, a new one when it is restarted. Clients are
identified by partition id, which a node states in its introduction. Several nodes may
claim one partition: the first connected one is asked. A node that did not reply when it
was last asked comes after the others, later ones included. So a restarted node takes
its place again in the next round, and a stranger cannot take the place of a node that
replies.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

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

_NODES, _PARTITIONS, _COUNT = "clients:nodes", "clients:partitions", "clients:count"
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


@final
class ClientNumbers:
    """Numbers of the clients of stock apps, for aggregators that remember clients.

    A client is its `partition-id` where its replies have one, else its node. A node
    that reports the partition of a node that is no longer asked takes its number: it
    was restarted. While both are asked, the earlier one keeps the number, so that a lie
    displaces no node that is there. Who is who in an absence is for Flower's node
    authentication.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, int] = {}
        self.partitions: dict[int, int] = {}
        self.count = 0

    def register(
        self, asked: Sequence[int], replied: Iterable[tuple[int, int | None]]
    ) -> None:
        """Number the nodes of a round: those that replied first, in their order.

        Args:
            asked: nodes.
            replied: nodes and the partitions that they report.
        """
        present = set(asked)
        for node, partition in replied:
            if node not in self.nodes:
                self.nodes[node] = self._number(partition, present)
            if (
                partition is not None
                and self.nodes[node] not in self.partitions.values()
            ):
                self.partitions.setdefault(partition, self.nodes[node])
        for node in sorted(present - self.nodes.keys()):
            self.nodes[node] = self._new()

    def _number(self, partition: int | None, present: set[int]) -> int:
        """The number of a node that is new."""
        number = None if partition is None else self.partitions.get(partition)
        if number is None:
            return self._new()
        before = [node for node, i in self.nodes.items() if i == number]
        if present.intersection(before):
            log.warning(
                "two nodes report partition %d; the earlier keeps it", partition
            )
            return self._new()
        for node in before:
            del self.nodes[node]
        return number

    def _new(self) -> int:
        self.count += 1
        return self.count - 1

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The numbers as arrays, for a checkpoint."""
        nodes = np.array([*self.nodes.items()], dtype=np.uint64).reshape(-1, 2)
        pairs = np.array([*self.partitions.items()], dtype=np.int64).reshape(-1, 2)
        return {_NODES: nodes, _PARTITIONS: pairs, _COUNT: np.array(self.count)}

    def restore(self, arrays: Mapping[str, Any]) -> None:
        """Take over the numbers of a checkpoint."""
        self.nodes = {int(node): int(i) for node, i in np.array(arrays[_NODES])}
        pairs = np.array(arrays[_PARTITIONS])
        self.partitions = {int(partition): int(i) for partition, i in pairs}
        self.count = int(arrays[_COUNT])


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
