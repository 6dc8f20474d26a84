"""The client of strategies that order its work: H steps of size η from the model sent.

    app = client_app(lambda context: ClientObjective(gradient, 1000, batch_size=32))

The branch itself is `hewfl.core.local_branch`. A client with an optimiser of its own
also sends the mean of its gradients, where branches are corrected. A node may offer a
number of steps, `local-steps` of its node_config, where the server has no law.
"""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hewfl.core.local_branch import BranchPlan, ClientObjective, StepContext, run_branch
from hewfl.core.validation import invalid, whole
from hewfl.flower.arrays import layout_of, to_record, to_vector
from hewfl.flower.messages import (
    ARRAYS,
    BATCH,
    CORRECTION,
    EXAMPLES,
    GRADIENT,
    GRADIENT_ROUND,
    HOLD,
    INTRODUCE,
    MEAN_GRADIENT,
    METRICS,
    PARTITION,
    PROXIMAL,
    ROUND,
    STEP_SIZE,
    STEPS,
)


def client_app(build: Callable[[Context], ClientObjective]) -> ClientApp:
    """A ClientApp for strategies that order its work; `@app.evaluate()` may be added.

    Args:
        build: the node's objective; called for every message, introductions included.

    Returns:
        The app, for `flwr run` and SuperNodes.
    """
    app = ClientApp()

    def reply(message: Message, context: Context) -> Message:
        return respond(message, context, build(context))

    for route in (app.query("introduce"), app.train("gradient"), app.train()):
        route(reply)
    return app


def respond(message: Message, context: Context, local: ClientObjective) -> Message:
    """The reply to one message of an `AlgorithmStrategy`.

    Args:
        message: from the server.
        context: of the node.
        local: the client's data and how it trains.

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
    x, shift = to_vector(layout, arrays), sent.get(CORRECTION)
    if kind == GRADIENT:  # the endpoint of one step of size one
        y = x - local.lower(
            local.gradient(local.lift(x), StepContext(GRADIENT_ROUND, 0))
        )
    else:
        shift = None if shift is None else local.lift(to_vector(layout, shift))
        plan = _plan(next(iter(sent.config_records.values())))
        end, mean = run_branch(local, local.lift(x), plan, shift)
        y = local.lower(local.finish(end))
        if shift is not None and mean is not None:
            content[MEAN_GRADIENT] = to_record(layout, local.lower(mean), arrays)
    content[ARRAYS] = to_record(layout, y, arrays)
    return Message(content, reply_to=message)


def _plan(config: Mapping[str, Any]) -> BranchPlan:
    """The plan in a config."""
    keys = (ROUND, STEPS, STEP_SIZE, PROXIMAL, HOLD)
    try:
        t, *plan = (config[key] for key in keys)
    except KeyError as error:
        rule = "an order of an AlgorithmStrategy of hewfl.flower"
        raise invalid("message", rule, f"a config without {error}") from error
    return BranchPlan(t - 1, *plan)


def _introduction(context: Context) -> dict[str, int]:
    """The partition of a node, and how many steps it offers."""
    config = context.node_config
    offer = whole(f"node_config[{STEPS!r}]", config.get(STEPS, 1))
    partition = config.get(PARTITION)
    if not isinstance(partition, int) or partition < 0:
        rule = (
            f"given as a whole number from 0: start the SuperNode with "
            f'--node-config "{PARTITION}=0"'
        )
        raise invalid(f"node_config[{PARTITION!r}]", rule, repr(partition))
    return {PARTITION: partition, STEPS: max(offer, 1)}
