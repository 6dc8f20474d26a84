"""What server and clients say to each other: names of records and keys.

An order travels as `arrays` (the model), `config` (numbers) and, for corrected
branches, `correction`, shaped like the model. The answer is the model after local
training and `metrics`, as any Flower client sends them, under any names; from corrected
branches that are not plain SGD `mean-gradient` besides, shaped like the model.
"""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hewfl.core.local_branch import BranchPlan, ClientObjective, StepContext, run_branch
from hewfl.core.validation import invalid, whole
from hewfl.flower.arrays import flat, layout_of, record_of

INTRODUCE, GRADIENT, TRAIN = "query.introduce", "train.gradient", "train"
SKETCH, CERTIFY = "train.sketch", "query.certify"
"""Message types: who are you, one gradient at the start, a local branch; and in rounds
of two phases a sketch of the update, and its product with a vector."""

ARRAYS, CONFIG, METRICS, CORRECTION = "arrays", "config", "metrics", "correction"
MEAN = "mean-gradient"
"""Names of records."""

ROUND, STEPS, STEP_SIZE = "server-round", "local-steps", "step-size"
PROXIMAL, HOLD = "proximal-mu", "hold"
"""Keys of an order; Flower's FedProx has the first and the fourth too."""

EXAMPLES, DONE, PARTITION = "num-examples", "num-steps", "partition-id"
BATCH, RATE = "batch-size", "lr"
"""Keys of an answer or an introduction, and the name under which stock apps are sent
their step size."""

SEED, WIDTH, WEIGHT = "sketch-seed", "sketch-width", "hew-weight"
LARGEST, PRODUCT = "largest-entry", "product"
"""Keys of a round of two phases."""

START = 2**31
"""The round whose draws give the gradients at the start, as in the engine."""


# ------------------ The client of strategies that order its work: H steps of size η

# app = client_app(lambda context: ClientObjective(gradient, examples=1000, batch_size=32))
#
# The branch itself is `hewfl.core.local_branch`. A client with an optimiser of its own sends
# the mean of its gradients besides, where branches are corrected. A node may offer how
# many steps it does, `local-steps` of its node_config, where the server has no law.


def client_app(build: Callable[[Context], ClientObjective]) -> ClientApp:
    """A ClientApp for strategies that order its work; add `@app.evaluate()` at will.

    Args:
        build: the node's objective; called for every message, introductions included.

    Returns:
        The app, for `flwr run` and SuperNodes.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return respond(message, context, build(context))

    for route in (app.query("introduce"), app.train("gradient"), app.train()):
        route(answer)
    return app


def respond(message: Message, context: Context, local: ClientObjective) -> Message:
    """The answer to one message of an `AlgorithmStrategy`.

    Args:
        message: from the server.
        context: of the node.
        local: what this client holds and how it trains.

    Returns:
        The reply.

    Examples:
        >>> @app.train()  # doctest: +SKIP
        ... def train(message, context):
        ...     return respond(message, context, local)

    Raises:
        InvalidInputError: the node has no partition id, or the message is not ours.
    """
    kind, sent = message.metadata.message_type, message.content
    metrics = MetricRecord({EXAMPLES: local.examples})
    content = RecordDict({METRICS: metrics})
    if kind == INTRODUCE:
        metrics.update({**_introduction(context), BATCH: local.batch_size})
        return Message(content, reply_to=message)
    arrays = next(r for k, r in sent.array_records.items() if k != CORRECTION)
    layout = layout_of(arrays)
    x, shift = flat(layout, arrays), sent.get(CORRECTION)
    if kind == GRADIENT:  # the endpoint of one step of size one
        y = x - local.lower(local.gradient(local.lift(x), StepContext(START, 0)))
    else:
        shift = None if shift is None else local.lift(flat(layout, shift))
        told = _order(next(iter(sent.config_records.values())))
        end, mean = run_branch(local, local.lift(x), told, shift)
        y = local.lower(local.finish(end))
        if shift is not None and mean is not None:
            content[MEAN] = record_of(layout, local.lower(mean), arrays)
    content[ARRAYS] = record_of(layout, y, arrays)
    return Message(content, reply_to=message)


def _order(config: Mapping[str, Any]) -> BranchPlan:
    """What the server ordered."""
    keys = (ROUND, STEPS, STEP_SIZE, PROXIMAL, HOLD)
    try:
        t, *plan = (config[key] for key in keys)
    except KeyError as error:
        rule = "an order of an AlgorithmStrategy of hewfl.flower"
        raise invalid("message", rule, f"a config without {error}") from error
    return BranchPlan(t - 1, *plan)


def _introduction(context: Context) -> dict[str, int]:
    """Which client a node stands for, and how many steps it offers."""
    config = context.node_config
    offer = whole(f"node_config[{STEPS!r}]", config.get(STEPS, 1))
    own = config.get(PARTITION)
    if not isinstance(own, int) or own < 0:
        rule = (
            f"given as a whole number from 0: start the SuperNode with "
            f'--node-config "{PARTITION}=0"'
        )
        raise invalid(f"node_config[{PARTITION!r}]", rule, repr(own))
    return {PARTITION: own, STEPS: max(offer, 1)}
