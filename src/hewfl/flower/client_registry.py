"""Who is there: nodes of the federation, and the clients they stand for.

Flower gives every node a random id, a new one when it is restarted. Clients are known
by partition id, which a node tells in its introduction. Several nodes may claim one
partition: the first of them that is connected is asked, and one that did not answer
when it was last asked stands behind the others, those that come later included. So a
restarted node takes its own place again in the next round, and a stranger cannot take
the place of a node that answers.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from hewfl.core.validation import invalid
from hewfl.errors import InvalidInputError
from hewfl.flower.client import BATCH, EXAMPLES, INTRODUCE, PARTITION, STEPS
from hewfl.flower.replies import log, weighed, whole

BRIEF = 5.0
"""Seconds for nodes that have not introduced themselves when they had the whole time;
Flower looks for answers every three."""


@final
@dataclass(frozen=True, slots=True)
class Contact:
    """A node that stands for a client.

    Attributes:
        node: Flower's id.
        examples: m_i.
        batch_size: b_i.
        steps: what the node offers to do in a round; one if it has no say.
    """

    node: int
    examples: int
    batch_size: int
    steps: int


@final
class Registry:
    """All clients ever met, by partition id.

    Args:
        population: n; partition ids are below.
    """

    def __init__(self, population: int) -> None:
        self.population = population
        self.claims: dict[int, list[Contact]] = {}
        self._connected: frozenset[int] = frozenset()
        self._silent, self._failing = set[int](), set[int]()

    def present(self) -> dict[int, Contact]:
        """The clients that can be asked now, in client order."""
        return {
            i: min(here, key=lambda contact: contact.node in self._failing)
            for i, claims in sorted(self.claims.items())
            if (here := [c for c in claims if c.node in self._connected])
        }

    def asked(self, nodes: Iterable[int], heard: Iterable[int]) -> None:
        """Remember who did not answer: others of its partition come first now."""
        self._failing = (self._failing | set(nodes)) - set(heard)

    def meet(self, grid: Grid, needed: int, seconds: float) -> None:
        """Look who is there, and let newcomers introduce themselves.

        Args:
            grid: the federation.
            needed: nodes to wait for.
            seconds: how long, for them and then for introductions of nodes not asked
                before; those that have once kept silent get `BRIEF` at most.
        """
        self._connected = frozenset(_waited(grid, needed, seconds))
        new, failed = self._connected - self._known() - self._silent, False
        late = self._connected & self._silent
        for nodes, limit in ((new, seconds), (late, min(seconds, BRIEF))):
            asked = [Message(RecordDict(), node, INTRODUCE) for node in sorted(nodes)]
            replies = list(grid.send_and_receive(asked, timeout=limit)) if asked else []
            for reply in sorted(replies, key=lambda r: int(r.metadata.src_node_id)):
                failed |= reply.has_error()
                self._introduce(reply)
        self._silent = set(self._connected - self._known())
        if failed and not self.claims:
            rule = (
                "known to its nodes: build the ClientApp with hewfl.flower.client_app, "
                "or let it answer by hewfl.flower.respond to "
                '@app.query("introduce"), @app.train("gradient") and @app.train()'
            )
            raise invalid("AlgorithmStrategy", rule, "nodes that know it not")

    def _known(self) -> set[int]:
        return {contact.node for claims in self.claims.values() for contact in claims}

    def _introduce(self, reply: Message) -> None:
        node = int(reply.metadata.src_node_id)
        try:
            if reply.has_error():
                raise invalid("the node", "one that answers", reply.error)
            metrics, examples = weighed(reply.content, EXAMPLES)
            client = whole(metrics, PARTITION, least=0, most=self.population - 1)
            sizes = int(examples), whole(metrics, BATCH), whole(metrics, STEPS)
        except InvalidInputError as error:
            log.warning("node %d did not introduce itself: %s", node, error)
            return
        others = self.claims.setdefault(client, [])
        if any(contact.node in self._connected for contact in others):
            text = "node %d claims partition %d as well; the node known before is asked"
            log.warning(text, node, client)
        others.append(Contact(node, *sizes))


def _waited(grid: Grid, needed: int, seconds: float) -> list[int]:
    """The connected nodes, once there are enough or the time is up."""
    end, said = time.monotonic() + seconds, -1
    while len(nodes := list(grid.get_node_ids())) < needed:
        left = end - time.monotonic()
        if left <= 0:
            log.warning("%d nodes of %d came in %g s", len(nodes), needed, seconds)
            break
        if len(nodes) != said:
            log.info("waiting for nodes: %d of %d connected", len(nodes), needed)
        said = len(nodes)
        time.sleep(min(1.0, left))
    return nodes
