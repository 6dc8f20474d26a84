"""The client side: answers to what a strategy of hewfl asks.

    app = client_app(lambda context: Local(gradient, examples=1000, batch_size=32))

How many steps a node does is the server's decision. Where the server has no law of its
own it takes what the node offers: `local-steps` of its node_config, or as many as fit
into `time-budget` seconds at the speed measured in the last round (one step in the
first). A branch stops when the budget is spent and reports the steps it did.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from jaxtyping import Float, Float64
from numpy.typing import NDArray

from hewfl.aggregate.rows import matrix_round
from hewfl.aggregate.variates import ControlVariates, correction
from hewfl.core.checks import Array, invalid, positive
from hewfl.core.round import LocalPlan, Roster
from hewfl.errors import DataError
from hewfl.flower.branch import Branch, Gradient, Moment, run_branch
from hewfl.flower.layout import flat, layout_of, vector_of, vector_record
from hewfl.flower.protocol import (
    ARRAYS,
    BATCH,
    BUDGET,
    CONFIG,
    CORRECTION,
    DISPLACEMENT,
    DONE,
    EXAMPLES,
    GRADIENT,
    HELD,
    INTRODUCE,
    METRICS,
    OFFER,
    OWN_VARIATE,
    PARTITION,
    SERVER_VARIATE,
    START,
    STEPS,
    Order,
    order_of,
)

_KEPT = "hewfl-variate"
"""Record of a node's own memory: its control variate, where nodes hold them."""


def _same(vector: Any) -> Any:
    return vector


@final
@dataclass(frozen=True, slots=True)
class Local:
    """A client's own objective.

    Attributes:
        gradient: from a model and a `Moment` to a stochastic gradient, both vectors.
        examples: samples held, m_i ≥ 1.
        batch_size: samples of one gradient, b_i ≥ 1.
        lift: from the vector received to what `gradient` takes; itself by default.
        lower: back to a NumPy vector; itself by default.
        finish: what the server is to have of an endpoint; itself by default.
    """

    gradient: Gradient
    examples: int
    batch_size: int = 1
    lift: Callable[[NDArray[Any]], Any] = _same
    lower: Callable[[Any], NDArray[Any]] = _same
    finish: Callable[[Any], Any] = _same

    def __post_init__(self) -> None:
        """Check that sizes are in range."""
        for name in ("examples", "batch_size"):
            if getattr(self, name) < 1:
                raise invalid(name, "at least 1", getattr(self, name))


def client_app(build: Callable[[Context], Local]) -> ClientApp:
    """A ClientApp for the strategies of hewfl; add `@app.evaluate()` at will.

    Args:
        build: the node's objective; called for every message, introductions included.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return respond(message, context, build(context))

    app.query("introduce")(answer)
    app.train("gradient")(answer)
    app.train()(answer)
    return app


def respond(message: Message, context: Context, local: Local) -> Message:
    """The answer to one message of a strategy.

    Raises:
        InvalidInputError: the node has no partition id, or the message is not ours.
        DataError: the node was thought to hold a control variate that it does not.
    """
    kind = message.metadata.message_type
    metrics = MetricRecord({PARTITION: _partition(context), EXAMPLES: local.examples})
    content = RecordDict({METRICS: metrics})
    if kind == INTRODUCE:
        metrics[BATCH] = local.batch_size
        metrics.update(_offer(context.node_config, None))
        return Message(content, reply_to=message)
    anchor = flat(layout_of(message.content[ARRAYS]), message.content[ARRAYS])
    if kind == GRADIENT:
        g = local.gradient(local.lift(anchor), Moment(START, 0))
        content[DISPLACEMENT] = vector_record(local.lower(g).astype(anchor.dtype))
        metrics[DONE] = 1
        return Message(content, reply_to=message)
    order = order_of(message.content[CONFIG])
    variates = _variates(message.content, context, len(anchor))
    shift = _correction(message.content, variates, anchor)
    lifted = None if shift is None else local.lift(shift)
    budget = _budget(context.node_config)
    branch = run_branch(local.gradient, local.lift(anchor), order, lifted, budget)
    displacement = local.lower(local.finish(branch.endpoint)) - anchor
    if variates is not None:
        _keep(context, order, variates, displacement, branch.steps)
    content[DISPLACEMENT] = vector_record(displacement)
    metrics[DONE] = branch.steps
    metrics.update(_offer(context.node_config, branch))
    return Message(content, reply_to=message)


def _partition(context: Context) -> int:
    found = context.node_config.get(PARTITION)
    if not isinstance(found, int) or found < 0:
        rule = (
            f"given as a whole number from 0: start the SuperNode with "
            f'--node-config "{PARTITION}=0"'
        )
        raise invalid(f"node_config[{PARTITION!r}]", rule, repr(found))
    return found


# ------------------------------------------------------------------ steps on offer


def _budget(node: Mapping[str, Any]) -> float | None:
    found = node.get(BUDGET)
    return None if found is None else positive(f"node_config[{BUDGET!r}]", float(found))


def _offer(node: Mapping[str, Any], last: Branch | None) -> dict[str, int]:
    """The steps a node wants to do next, if it has a say."""
    if STEPS in node:
        if int(node[STEPS]) < 1:
            raise invalid(f"node_config[{STEPS!r}]", "at least 1", node[STEPS])
        return {OFFER: int(node[STEPS])}
    budget = _budget(node)
    if budget is None:
        return {}
    if last is None:
        return {OFFER: 1}
    return {OFFER: max(1, int(budget * last.steps / max(last.seconds, 1e-9)))}


# ------------------------------------------------------------------ control variates


def _correction(
    content: RecordDict, variates: ControlVariates | None, anchor: Float[Array, " d"]
) -> Float[Array, " d"] | None:
    """c_i − c, as sent or from what the node holds, in the precision of the branch."""
    if variates is not None:
        found: Any = correction(variates, _alone(1))[0]
    elif CORRECTION in content:
        found = vector_of(content[CORRECTION], len(anchor))
    else:
        return None
    return np.asarray(found.astype(anchor.dtype))


def _variates(content: RecordDict, context: Context, d: int) -> ControlVariates | None:
    """Server variate c and the node's own c_i, where nodes hold them."""
    if SERVER_VARIATE not in content:
        return None
    server = vector_of(content[SERVER_VARIATE], d).copy()
    if OWN_VARIATE in content:
        own = vector_of(content[OWN_VARIATE], d)
    else:
        own = _remembered(context, int(content[CONFIG][HELD]), d)
    return ControlVariates(server, own[None].copy())


def _remembered(context: Context, asked: int, d: int) -> Float64[Array, " d"]:
    if _KEPT in context.state:
        held = int(context.state[f"{_KEPT}-round"]["round"])
        if held == asked:
            return vector_of(context.state[_KEPT], d)
    text = f"the control variate of round {asked} is not here: the node was restarted"
    raise DataError(text)


def _keep(
    context: Context,
    order: Order,
    variates: ControlVariates,
    displacement: Float[Array, " d"],
    steps: int,
) -> None:
    """c_i of the next round, by the server's own rule and so to the same bits."""
    plan = LocalPlan(np.array([order.step_size]))
    anchor = np.zeros(len(displacement))  # the rule does not look at it
    round_ = matrix_round(anchor, displacement[None], _alone(steps), plan)
    own = variates.after(round_).clients[0]
    context.state[_KEPT] = vector_record(own)
    context.state[f"{_KEPT}-round"] = ConfigRecord({"round": order.round + 1})


def _alone(steps: int) -> Roster:
    one = np.ones(1, dtype=np.int64)
    return Roster(np.zeros(1, dtype=np.int64), one * steps, one, one, 1)
