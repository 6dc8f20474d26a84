"""A federation inside one process: a Grid that runs the client app itself."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from hewfl.core.round import Cohort
from hewfl.flower import ClientObjective, StepContext, client_app
from hewfl.problems.problem import Problem
from hewfl.simulation.draws import draw

Tamper = Callable[[Message, Message], list[Message]]
"""From a question and its honest answer to what arrives."""

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:  # before 1.38 messages need no identity
    pass
else:
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1


def honest(question: Message, answer: Message) -> list[Message]:
    """What a reliable network does."""
    del question
    return [answer]


class StubGrid(Grid):  # type: ignore[misc]  # checked without flwr
    """Nodes with random ids and their own memory; answers come in random order."""

    def __init__(
        self,
        app: ClientApp,
        n: int,
        *,
        seed: int = 0,
        tamper: Tamper = honest,
        config: Callable[[int], dict[str, Any]] | None = None,
    ) -> None:
        self.app, self.tamper = app, tamper
        self.rng = np.random.default_rng(seed)
        self.nodes: dict[int, Context] = {}
        self.sent: list[Message] = []
        self.waiting: dict[str, Message] = {}
        for i in range(n):
            self.connect(i, **({} if config is None else config(i)))

    def connect(self, partition: int, **config: Any) -> int:
        """A node comes up, with an id of Flower's kind."""
        node = int(self.rng.integers(2**62))
        told = {"partition-id": partition, **config}
        self.nodes[node] = Context(1, node, told, RecordDict(), {})
        return node

    def disconnect(self, partition: int) -> None:
        """A node goes, and its memory with it."""
        self.nodes.pop(self.node_of(partition))

    def node_of(self, partition: int) -> int:
        return next(
            node
            for node, context in self.nodes.items()
            if context.node_config["partition-id"] == partition
        )

    def partition_of(self, message: Message) -> int:
        node = message.metadata.dst_node_id
        return int(self.nodes[node].node_config["partition-id"])

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        del timeout
        replies = []
        for k, message in enumerate(messages):
            number = f"{len(self.sent)}-{k}"
            message.metadata.__dict__["_message_id"] = number
            self.sent.append(message)
            replies += self.tamper(message, self._answer(message))
        return [replies[i] for i in self.rng.permutation(len(replies))]

    def _answer(self, message: Message) -> Message:
        context = self.nodes[message.metadata.dst_node_id]
        own = {  # mods take keys out of what, on a wire, is theirs
            k: ConfigRecord(dict(r)) if isinstance(r, ConfigRecord) else r
            for k, r in message.content.items()
        }
        message.content = RecordDict(own)
        try:
            answer: Message = self.app(message, context)
        except Exception as error:  # as the runtime does
            answer = Message(Error(2, f"{type(error)}:<{error}>"), reply_to=message)
        return answer

    # what strategies do not use

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    # one after the other, as a server does that holds few replies

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        out = list(messages)
        numbers = [f"{len(self.sent)}-{k}" for k in range(len(out))]
        self.waiting.update(zip(numbers, out, strict=True))
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies: list[Message] = []
        for number in message_ids:
            message = self.waiting.pop(number, None)
            if message is not None:
                message.metadata.__dict__["_message_id"] = number
                self.sent.append(message)
                answers = self.tamper(message, self._answer(message))
                for answer in answers:
                    answer.metadata.__dict__["_reply_to_message_id"] = number
                replies += answers
        return replies


def local_of(problem: Problem, seed: int, i: int, batch: int) -> ClientObjective:
    """Client i of a problem of the engine, on the engine's own draws."""
    sizes = problem.data_sizes
    one = np.ones(1, dtype=np.int64)
    cohort = Cohort(one * i, one, one * batch, sizes[i : i + 1], problem.n)

    def gradient(x: Any, moment: StepContext) -> Any:
        longer = replace(cohort, horizons=one * (moment.step + 1))
        drawn = draw(seed, moment.round, longer, problem.offsets)
        samples = drawn.samples[moment.step]
        found = problem.minibatch_gradients(x[None, None], samples, drawn.counts)
        return found[0, 0]

    return ClientObjective(gradient, int(sizes[i]), batch)


def app_of(problem: Problem, seed: int = 0, batch: int = 4) -> ClientApp:
    """The client app of a problem: partition i is client i."""

    def build(context: Context) -> ClientObjective:
        return local_of(problem, seed, int(context.node_config["partition-id"]), batch)

    return client_app(build)
