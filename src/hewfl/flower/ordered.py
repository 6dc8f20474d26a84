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
from jaxtyping import Float64

from hewfl.aggregate.variates import kept
from hewfl.core.algorithm import Algorithm, Traffic
from hewfl.core.checks import Array, invalid, positive, whole
from hewfl.core.round import Roster
from hewfl.flower import protocol as say
from hewfl.flower import report
from hewfl.flower.contacts import Registry
from hewfl.flower.layout import flat, layout_of, record_of
from hewfl.flower.replies import Answer, Asked, Exclusion, Expected, sift
from hewfl.flower.strategy import HewStrategy, Opened, log
from hewfl.server.federation import FullParticipation, Horizons, Law
from hewfl.server.first import first_state
from hewfl.server.participation import drawn
from hewfl.server.state import ServerState, check_algorithm


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
        horizons: Horizons | None = None,
        participation: Law | None = None,
        wait_seconds: float = 600.0,
        **plain: Any,
    ) -> None:
        self.population = whole("population", population, least=1)
        self.wait_seconds = positive("wait_seconds", wait_seconds)
        self.horizons = horizons
        self.participation = participation or FullParticipation()
        plain.setdefault("min_available_nodes", self.population)
        super().__init__(rule=algorithm, **plain)

    def _accepted(self, rule: str | Algorithm[Any]) -> Algorithm[Any]:
        check_algorithm("algorithm", rule)
        assert not isinstance(rule, str), "`check_algorithm` refuses names"
        if rule.demands.losses or rule.demands.oracle:
            text = "a method that needs neither losses nor the true state"
            raise invalid("algorithm", text, rule.name)
        given = np.zeros((self.population, 1)) if rule.demands.gradients else None
        rule.init(self.population, 1, given)  # takes another number of clients ill
        return rule

    def _asks(self) -> tuple[bool, bool, bool]:
        return False, False, True

    def _forget(self) -> None:
        super()._forget()
        self._registry = Registry(self.population)

    def _identity(self) -> dict[str, Any]:
        laws = {"participation": self.participation, "horizons": self.horizons}
        return {"population": self.population, **laws}

    def _facts(self) -> dict[str, Any]:
        batches = [c.batch_size for c in self._registry.present().values()]
        return {
            "n": self.population,
            "batch_size": max(batches, default=1),
            "horizons": 1,
        }

    def _sizes(self) -> Sequence[int]:
        held = self._registry.claims
        return [held[i][0].examples if i in held else 0 for i in range(self.population)]

    # -------------------------------------------------------------- the start

    def _blank(self, arrays: ArrayRecord) -> ServerState:
        return self._started(arrays, np.zeros((self.population, layout_of(arrays).d)))

    def _started(
        self, arrays: ArrayRecord, gradients: Float64[Array, "n d"]
    ) -> ServerState:
        """The state before the first round, whose control variates change in place."""
        algorithm, outer = self.lane.algorithm, self.lane.outer
        anchor = flat(layout_of(arrays), arrays).astype(np.float64)
        given = gradients if algorithm.demands.gradients else None
        first = first_state(algorithm, anchor, self.population, given, outer=outer)
        return replace(first, algorithm=kept(first.algorithm))

    def _meet(self, grid: Grid) -> None:
        limit = min(self.wait_seconds, self._timeout)
        self._registry.meet(grid, self.min_available_nodes, limit)

    def _first(self, grid: Grid, arrays: ArrayRecord) -> ServerState:
        """One minibatch gradient of every client at x_0, where they are demanded."""
        layout = layout_of(arrays)
        if not self.lane.algorithm.demands.gradients:
            return self._blank(arrays)
        gradients = np.full((self.population, layout.d), np.nan)
        content = RecordDict({self.arrayrecord_key: arrays})
        messages, asked = [], []
        for i, contact in self._registry.present().items():
            messages.append(Message(content, contact.node, say.GRADIENT, group_id="0"))
            asked.append(Asked(messages[-1].metadata, i, 1))
        replies = grid.send_and_receive(messages, timeout=self._timeout)
        wanted = Expected(arrays, layout, self.weighted_by_key)
        answers, excluded = sift(asked, replies, wanted)
        answers, more = self._plausible(answers)
        x = flat(layout, arrays)
        for a in answers:  # of one step of size one, y = x − g
            gradients[a.question.client] = x - np.concatenate(a.rows, dtype=np.float64)
        self._clients = {q.node: q.client for q in asked if q.client is not None}
        for exclusion in (*excluded, *more):
            log.warning("start: %s", report.sentence(self._named(exclusion)))
        return self._started(arrays, gradients)

    # -------------------------------------------------------------- one round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One order for each client of the round."""
        self._begin(grid, arrays)
        t, layout = server_round + self._offset, layout_of(arrays)
        self._registry.meet(grid, self.min_replies, self.wait_seconds)
        roster, absent = self._drawn(t - 1)
        messages, asked = [], []
        if len(roster.clients) > 0:
            plan = self.lane.algorithm.plan(roster, self.state.algorithm)
            present = self._registry.present()
            for k, client in enumerate(map(int, roster.clients)):
                steps, eta = int(roster.horizons[k]), float(plan.step_sizes[k])
                order = {
                    say.ROUND: t,
                    say.STEPS: steps,
                    say.STEP_SIZE: eta,
                    say.HOLD: plan.hold,
                }
                order |= {say.PROXIMAL: plan.proximal}
                told = ConfigRecord({**config, **order})
                content = RecordDict(
                    {self.arrayrecord_key: arrays, self.configrecord_key: told}
                )
                if plan.correction is not None:
                    content[say.CORRECTION] = record_of(layout, plan.correction[k])
                node = present[client].node
                messages.append(Message(content, node, say.TRAIN, group_id=str(t)))
                told_batch = int(roster.batch_sizes[k])
                metadata = messages[-1].metadata
                asked.append(Asked(metadata, client, steps, eta, told_batch))
        self._clients = {q.node: q.client for q in asked if q.client is not None}
        self._opened = Opened(t, arrays, layout, asked, grid, absent)
        log.info("round %d: %d clients asked", t, len(asked))
        return messages

    def _drawn(self, t: int) -> tuple[Roster, list[Exclusion]]:
        """Who is asked after t rounds, and who was drawn but is not there."""
        n, there = self.population, self._registry.present()
        chosen = drawn(self.participation, self.seed, t, n)
        gone = [int(i) for i in chosen if i not in there]
        absent = [Exclusion(-1, "missing", "not connected", i) for i in gone]
        steps, sizes, batches = (np.ones(n, dtype=np.int64) for _ in range(3))
        for i, contact in there.items():
            steps[i], sizes[i] = contact.steps, contact.examples
            batches[i] = contact.batch_size
        if self.horizons is not None:
            steps = self.horizons.draw(self.seed, t, sizes, batches)
        who = np.array([i for i in chosen if i in there], dtype=np.int64)
        return Roster(who, steps[who], batches[who], sizes[who], n, t), absent

    def _heard(self, opened: Opened, answers: Sequence[Answer]) -> None:
        heard = {answer.question.node for answer in answers}
        for question in opened.asked:
            if question.node not in heard:
                self._registry.failed(question.node)

    def _population(self) -> int:
        return self.population

    def _traffic(self, d: int) -> Traffic:
        """Corrections travel to each client by itself, not as one broadcast vector."""
        traffic = self.lane.algorithm.demands.traffic
        if not self.lane.algorithm.demands.variates:
            return traffic
        return replace(traffic, down=1, down_scalars=traffic.down_scalars + d)
