"""The client of strategies that order its work: H steps of size η from the model sent.

    app = client_app(lambda context: Local(gradient, examples=1000, batch_size=32))

The branch itself is `hewfl.core.branch`. A client with an optimiser of its own sends
the mean of its gradients besides, where branches are corrected. A node may offer how
many steps it does, `local-steps` of its node_config, where the server has no law.
"""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hewfl.core.branch import Local, Moment, Order, run_branch
from hewfl.core.checks import invalid, whole
from hewfl.flower import protocol as say
from hewfl.flower.layout import flat, layout_of, record_of


def client_app(build: Callable[[Context], Local]) -> ClientApp:
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


def respond(message: Message, context: Context, local: Local) -> Message:
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
    metrics = MetricRecord({say.EXAMPLES: local.examples})
    content = RecordDict({say.METRICS: metrics})
    if kind == say.INTRODUCE:
        metrics.update({**_introduction(context), say.BATCH: local.batch_size})
        return Message(content, reply_to=message)
    arrays = next(r for k, r in sent.array_records.items() if k != say.CORRECTION)
    layout = layout_of(arrays)
    x, shift = flat(layout, arrays), sent.get(say.CORRECTION)
    if kind == say.GRADIENT:  # the endpoint of one step of size one
        y = x - local.lower(local.gradient(local.lift(x), Moment(say.START, 0)))
    else:
        shift = None if shift is None else local.lift(flat(layout, shift))
        told = _order(next(iter(sent.config_records.values())))
        end, mean = run_branch(local, local.lift(x), told, shift)
        y = local.lower(local.finish(end))
        if shift is not None and mean is not None:
            content[say.MEAN] = record_of(layout, local.lower(mean), arrays)
    content[say.ARRAYS] = record_of(layout, y, arrays)
    return Message(content, reply_to=message)


def _order(config: Mapping[str, Any]) -> Order:
    """What the server ordered."""
    keys = (say.ROUND, say.STEPS, say.STEP_SIZE, say.PROXIMAL, say.HOLD)
    try:
        t, *plan = (config[key] for key in keys)
    except KeyError as error:
        rule = "an order of an AlgorithmStrategy of hewfl.flower"
        raise invalid("message", rule, f"a config without {error}") from error
    return Order(t - 1, *plan)


def _introduction(context: Context) -> dict[str, int]:
    """Which client a node stands for, and how many steps it offers."""
    config = context.node_config
    offer = whole(f"node_config[{say.STEPS!r}]", config.get(say.STEPS, 1))
    own = config.get(say.PARTITION)
    if not isinstance(own, int) or own < 0:
        rule = (
            f"given as a whole number from 0: start the SuperNode with "
            f'--node-config "{say.PARTITION}=0"'
        )
        raise invalid(f"node_config[{say.PARTITION!r}]", rule, repr(own))
    return {say.PARTITION: own, say.STEPS: max(offer, 1)}
