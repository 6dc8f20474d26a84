"""A whole algorithm on Flower: the server orders the clients' local work.

Control variates, memories of clients, laws of local steps and of participation: the
server sends each client the number and the size of its steps, and uses exactly these
numbers. Clients are built by `hewfl.flower.client_app`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from hewfl import federation as fleet
from hewfl.core.algorithm import Algorithm
from hewfl.core.round import Cohort
from hewfl.core.validation import positive, whole
from hewfl.displacements.control_variates import in_place
from hewfl.flower import messages as keys
from hewfl.flower.arrays import layout_of, to_float64, to_record
from hewfl.flower.client_registry import ClientRegistry
from hewfl.flower.messages import log
from hewfl.flower.replies import ClientUpdate, Exclusion, OpenRound, Request
from hewfl.flower.strategy import HewStrategy
from hewfl.methods.registry import require_available
from hewfl.server.state import ServerState, check_algorithm, initial_state


class AlgorithmStrategy(HewStrategy):
    """Any algorithm of hewfl that needs no losses, for clients with a partition id.

    Args:
        algorithm: such as `hewfl.HewHet(smoothness=1.0, amplitude=0.5)`.
        population: n, clients in all; partition ids are 0 to n − 1.
        local_steps: sampler of the local steps; None takes what a node's config offers
            as `local-steps`, else one.
        participation: law of participation; drawn from the seed and the round.
        wait_seconds: how long to wait for nodes; a round then goes on without them.
        **plain: as of `HewStrategy`. Before the first round the strategy waits for
            `min_available_nodes`, by default the whole population; `max_share` is 1, so
            that sizes count as in a simulation.

    Raises:
        InvalidInputError: the method cannot run on Flower.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        *,
        population: int,
        local_steps: fleet.LocalSteps | None = None,
        participation: fleet.AnyParticipation | None = None,
        wait_seconds: float = 600.0,
        **plain: Any,
    ) -> None:
        self.population = whole("population", population, least=1)
        self.wait_seconds = positive("wait_seconds", wait_seconds)
        self.local_steps = local_steps
        self.participation = participation or fleet.FullParticipation()
        plain.setdefault("min_available_nodes", self.population)
        plain.setdefault("max_share", 1.0)
        plain["judge"] = "*"
        check_algorithm("algorithm", algorithm)
        super().__init__(aggregator=algorithm, **plain)

    def _check_algorithm(self) -> None:
        algorithm = self.entry.algorithm
        demands = algorithm.demands
        require_available(algorithm, "algorithm")
        gradients = np.zeros((self.population, 1)) if demands.gradients else None
        algorithm.init(self.population, 1, gradients)  # raises for another number
        self._needs = frozenset({"entries"})  # steps and their sizes are ordered

    def _reset(self) -> None:
        super()._reset()
        self._registry = ClientRegistry(self.population)

    def _identity(self) -> dict[str, Any]:
        laws = {"participation": self.participation, "local_steps": self.local_steps}
        return super()._identity() | {"population": self.population, **laws}

    def _population(self) -> int:
        return self.population

    # -------------------------------------------------------------- the start

    def _empty_state(
        self, arrays: ArrayRecord, gradients: Any = None, *, n: int = 1
    ) -> ServerState:
        """The state before the first round, whose control variates change in place."""
        del n  # the population is given
        rule, n = self.entry.algorithm, self.population
        anchor = to_float64(arrays)
        given = np.zeros((n, len(anchor))) if gradients is None else gradients
        given = given if rule.demands.gradients else None
        first = initial_state(rule, anchor, n, given, server_step=self.server_step)
        return replace(first, algorithm=in_place(first.algorithm))

    def _initial_state(self, grid: Grid, arrays: ArrayRecord) -> ServerState:
        """The state from one minibatch gradient of every client, if it needs them."""
        limit = min(self.wait_seconds, self._timeout)
        self._registry.refresh(grid, self.min_available_nodes, limit)
        if not self.entry.algorithm.demands.gradients:
            return self._empty_state(arrays)
        content = RecordDict({self.arrayrecord_key: arrays})
        clients = self._registry.connected_clients()
        messages = [Message(content, c.node, keys.GRADIENT) for c in clients.values()]
        requests = [Request(message.metadata, 1) for message in messages]
        opened = OpenRound(0, arrays, layout_of(arrays), grid, requests)
        replies = grid.send_and_receive(messages, timeout=self._timeout)
        self._clients = {c.node: i for i, c in clients.items()}
        updates, excluded = self._read(opened, replies)
        updates, more = self._drop(updates)
        for exclusion in (*excluded, *more):
            log.warning("start: %s", exclusion)
        gradients = np.full((self.population, len(opened.x)), np.nan)
        for update in updates:  # the endpoint of one step of size one is y = x − g
            endpoint = np.concatenate(update.rows, dtype=np.float64)
            gradients[self._clients[update.node]] = opened.x - endpoint
        return self._empty_state(arrays, gradients)

    # -------------------------------------------------------------- one round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One order for each client of the round."""
        self._ensure_started(grid, arrays)
        t, layout = server_round + self._offset, layout_of(arrays)
        self._registry.refresh(grid, self.min_replies, self.wait_seconds)
        cohort, absent = self._draw_cohort(t - 1)
        messages, requests = [], []
        connected = self._registry.connected_clients()
        for k, client in enumerate(map(int, cohort.clients)):
            if k == 0:  # an algorithm may have no plan for an empty cohort
                plan = self.entry.algorithm.plan(cohort, self.state.algorithm)
            steps, eta = int(cohort.horizons[k]), float(plan.step_sizes[k])
            order = {keys.ROUND: t, keys.STEPS: steps, keys.STEP_SIZE: eta}
            order |= {keys.PROXIMAL: plan.proximal, keys.HOLD: plan.hold}
            record = ConfigRecord({**config, **order})
            content = {self.arrayrecord_key: arrays, self.configrecord_key: record}
            if plan.correction is not None:
                content[keys.CORRECTION] = to_record(layout, plan.correction[k])
            node, batch = connected[client].node, int(cohort.batch_sizes[k])
            messages.append(Message(RecordDict(content), node, keys.TRAIN))
            requests.append(Request(messages[-1].metadata, steps, eta, batch))
        self._clients = {connected[int(i)].node: int(i) for i in cohort.clients}
        self._opened = OpenRound(t, arrays, layout, grid, requests, absent)
        log.info("round %d: %d clients asked", t, len(requests))
        return messages

    def _draw_cohort(self, t: int) -> tuple[Cohort, list[Exclusion]]:
        """The clients of the round after t rounds; those drawn but not connected."""
        n, connected = self.population, self._registry.connected_clients()
        sizes, batches, offers = np.ones((3, n), dtype=np.int64)
        for i, c in connected.items():
            sizes[i], batches[i], offers[i] = c.examples, c.batch_size, c.steps
        law = self.local_steps or fleet.FixedSteps(offers.tolist())
        laws = fleet.Federation(law, batches.tolist(), self.participation)
        cohort = laws.cohort(self.seed, t, sizes)
        here = np.array([int(i) in connected for i in cohort.clients], dtype=np.bool_)
        lost = [(-1, "missing", "not connected", int(i)) for i in cohort.clients[~here]]
        absent = [Exclusion(*one) for one in lost]
        return cohort.only(np.flatnonzero(here)), absent

    def _register_replies(
        self, opened: OpenRound, updates: Sequence[ClientUpdate]
    ) -> None:
        """Nodes that did not reply come after others of their partition."""
        asked = [request.node for request in opened.requests]
        self._registry.record_replies(asked, [update.node for update in updates])
