"""Methods that know their clients by name, and order their work.

Control variates, memories of clients, laws of local steps and of participation: the
server tells each client how many steps to take and how long they are, and uses exactly
that. Clients answer by `hewfl.flower.client_app`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from hewfl.core.algorithm import Algorithm
from hewfl.core.round import Cohort
from hewfl.core.validation import invalid, positive, whole
from hewfl.displacements.control_variates import in_place
from hewfl.federation import federation as scenario
from hewfl.flower import client as say
from hewfl.flower.arrays import layout_of, record_of, wide
from hewfl.flower.client_registry import Registry
from hewfl.flower.replies import Answer, Asked, Exclusion, Opened, log, sift
from hewfl.flower.strategy import HewStrategy
from hewfl.server.state import ServerState, check_algorithm, initial_state


class AlgorithmStrategy(HewStrategy):
    """Any method of hewfl that needs no losses, for clients known by partition id.

    Args:
        algorithm: the method, such as `hewfl.HewHet(smoothness=1.0, amplitude=0.5)`.
        population: n, clients in all; partition ids are 0 to n − 1.
        horizons: law of the local steps; None takes what a node's config offers as
            `local-steps`, else one.
        participation: law of who is asked; drawn from the seed and the round.
        wait_seconds: how long to wait for nodes; a round then goes on without them.
        **plain: as of `HewStrategy`. Before the first round `min_available_nodes` are
            waited for, the whole population if it is not given.

    Raises:
        InvalidInputError: the method cannot run on Flower.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        *,
        population: int,
        horizons: scenario.LocalSteps | None = None,
        participation: scenario.Law | None = None,
        wait_seconds: float = 600.0,
        **plain: Any,
    ) -> None:
        self.population = whole("population", population, least=1)
        self.wait_seconds = positive("wait_seconds", wait_seconds)
        self.horizons = horizons
        self.participation = participation or scenario.FullParticipation()
        plain.setdefault("min_available_nodes", self.population)
        super().__init__(rule=algorithm, **plain)

    def _taken(self, rule: Any) -> tuple[Algorithm[Any], tuple[bool, bool, bool]]:
        check_algorithm("algorithm", rule)
        if "losses" in rule.demands.needs or rule.demands.oracle:
            text = "a method that needs neither losses nor the true state"
            raise invalid("algorithm", text, rule.name)
        given = np.zeros((self.population, 1)) if rule.demands.gradients else None
        rule.init(self.population, 1, given)  # takes another number of clients ill
        return rule, (False, False, True)

    def _forget(self) -> None:
        super()._forget()
        self._registry = Registry(self.population)

    def _identity(self) -> dict[str, Any]:
        laws = {"participation": self.participation, "horizons": self.horizons}
        return super()._identity() | {"population": self.population, **laws}

    def _population(self) -> int:
        return self.population

    # -------------------------------------------------------------- the start

    def _blank(self, arrays: ArrayRecord, gradients: Any = None) -> ServerState:
        """The state before the first round, whose control variates change in place."""
        rule, n = self.entry.algorithm, self.population
        anchor = wide(arrays)
        given = np.zeros((n, len(anchor))) if gradients is None else gradients
        given = given if rule.demands.gradients else None
        first = initial_state(rule, anchor, n, given, server_step=self.server_step)
        return replace(first, algorithm=in_place(first.algorithm))

    def _first(self, grid: Grid, arrays: ArrayRecord) -> ServerState:
        """One minibatch gradient of every client at x_0, where they are demanded."""
        limit = min(self.wait_seconds, self._timeout)
        self._registry.meet(grid, self.min_available_nodes, limit)
        if not self.entry.algorithm.demands.gradients:
            return self._blank(arrays)
        content = RecordDict({self.arrayrecord_key: arrays})
        clients = self._registry.present()
        messages = [Message(content, c.node, say.GRADIENT) for c in clients.values()]
        asked = [Asked(message.metadata, 1) for message in messages]
        opened = Opened(0, arrays, layout_of(arrays), grid, asked)
        replies = grid.send_and_receive(messages, timeout=self._timeout)
        known = {contact.node: i for i, contact in clients.items()}
        answers, excluded = sift(opened, replies, (self.weighted_by_key, False), known)
        answers, more = self._plausible(answers)
        for exclusion in (*excluded, *more):
            log.warning("start: %s", exclusion)
        gradients = np.full((self.population, len(opened.x)), np.nan)
        for a in answers:  # the endpoint of one step of size one is y = x − g
            own = np.concatenate(a.rows, dtype=np.float64)
            gradients[known[a.question.node]] = opened.x - own
        return self._blank(arrays, gradients)

    # -------------------------------------------------------------- one round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One order for each client of the round."""
        self._begin(grid, arrays)
        t, layout = server_round + self._offset, layout_of(arrays)
        self._registry.meet(grid, self.min_replies, self.wait_seconds)
        cohort, absent = self._drawn(t - 1)
        messages, asked, present = [], [], self._registry.present()
        for k, client in enumerate(map(int, cohort.clients)):
            if k == 0:  # a method may have no plan for nobody
                plan = self.entry.algorithm.plan(cohort, self.state.algorithm)
            steps, eta = int(cohort.horizons[k]), float(plan.step_sizes[k])
            order = {say.ROUND: t, say.STEPS: steps, say.STEP_SIZE: eta}
            order |= {say.PROXIMAL: plan.proximal, say.HOLD: plan.hold}
            told = ConfigRecord({**config, **order})
            content = {self.arrayrecord_key: arrays, self.configrecord_key: told}
            if plan.correction is not None:
                content[say.CORRECTION] = record_of(layout, plan.correction[k])
            node, batch = present[client].node, int(cohort.batch_sizes[k])
            messages.append(Message(RecordDict(content), node, say.TRAIN))
            asked.append(Asked(messages[-1].metadata, steps, eta, batch))
        self._clients = {present[int(i)].node: int(i) for i in cohort.clients}
        self._opened = Opened(t, arrays, layout, grid, asked, absent)
        log.info("round %d: %d clients asked", t, len(asked))
        return messages

    def _drawn(self, t: int) -> tuple[Cohort, list[Exclusion]]:
        """Who is asked after t rounds, and who was drawn but is not there."""
        n, there = self.population, self._registry.present()
        sizes, batches, offers = np.ones((3, n), dtype=np.int64)
        for i, c in there.items():
            sizes[i], batches[i], offers[i] = c.examples, c.batch_size, c.steps
        law = self.horizons or scenario.FixedSteps(offers.tolist())
        laws = scenario.Federation(law, batches.tolist(), self.participation)
        cohort = laws.cohort(self.seed, t, sizes)
        here = np.array([int(i) in there for i in cohort.clients], dtype=np.bool_)
        lost = [(-1, "missing", "not connected", int(i)) for i in cohort.clients[~here]]
        absent = [Exclusion(*one) for one in lost]
        return cohort.only(np.flatnonzero(here)), absent

    def _heard(self, opened: Opened, answers: Sequence[Answer]) -> None:
        """Nodes that did not answer stand back behind others of their partition."""
        heard = [answer.question.node for answer in answers]
        self._registry.asked([question.node for question in opened.asked], heard)
