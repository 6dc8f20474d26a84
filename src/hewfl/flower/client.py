"""The client of strategies that order its work: H steps of size η from the model sent.

    y ← y − η (g − correction + μ (y − x)),     H times, from y = x

or along what an optimiser of the client's own makes of the bracket. Then the endpoint
does not show the gradients, and a corrected client sends their mean besides.

    app = client_app(lambda context: Local(gradient, examples=1000, batch_size=32))

The lines of `hewfl.sim.branches_reference`; a test ties the two. A node may offer how
many steps it does, `local-steps` of its node_config, where the server has no law.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from hewfl.core.checks import invalid, whole
from hewfl.flower import protocol as say
from hewfl.flower.layout import flat, layout_of, record_of


@final
@dataclass(frozen=True, slots=True)
class Moment:
    """Where a gradient is asked for, so that draws can follow from it.

    Attributes:
        round: rounds done before this one; `protocol.START` for the gradient at the
            start.
        step: local steps done before this one.
    """

    round: int
    step: int


Gradient = Callable[[Any, Moment], Any]
"""From a model, as a vector, to a stochastic gradient there."""
Direction = Callable[[Any], Any]
"""From a corrected gradient to the direction of a step; may remember earlier ones."""


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
        optimiser: makes the `Direction` of a new branch, Adam's for one, whose vectors
            are those of `gradient`; None for plain SGD. All clients of a federation
            with control variates have one, or none has.
    """

    gradient: Gradient
    examples: int
    batch_size: int = 1
    lift: Callable[[NDArray[Any]], Any] = _same
    lower: Callable[[Any], NDArray[Any]] = _same
    finish: Callable[[Any], Any] = _same
    optimiser: Callable[[], Direction] | None = None

    def __post_init__(self) -> None:
        """Check that sizes are in range."""
        whole("examples", self.examples, least=1)
        whole("batch_size", self.batch_size, least=1)


def client_app(build: Callable[[Context], Local]) -> ClientApp:
    """A ClientApp for strategies that order its work; add `@app.evaluate()` at will.

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
    """The answer to one message of an `AlgorithmStrategy`.

    Raises:
        InvalidInputError: the node has no partition id, or the message is not ours.
    """
    kind, sent = message.metadata.message_type, message.content
    metrics = MetricRecord({say.EXAMPLES: local.examples})
    content = RecordDict({say.METRICS: metrics})
    if kind == say.INTRODUCE:
        offer = whole(
            f"node_config[{say.STEPS!r}]", context.node_config.get(say.STEPS, 1)
        )
        metrics.update({say.PARTITION: _partition(context), say.STEPS: max(offer, 1)})
        metrics[say.BATCH] = local.batch_size
        return Message(content, reply_to=message)
    arrays = next(r for k, r in sent.array_records.items() if k != say.CORRECTION)
    layout = layout_of(arrays)
    x = flat(layout, arrays)
    if kind == say.GRADIENT:  # the endpoint of one step of size one
        y = x - local.lower(local.gradient(local.lift(x), Moment(say.START, 0)))
    else:
        order = next(iter(sent.config_records.values()))
        shift = sent.get(say.CORRECTION)
        shift = None if shift is None else local.lift(flat(layout, shift))
        summed = Summed(local.gradient)
        direction = None if local.optimiser is None else local.optimiser()
        y = run_branch(summed, local.lift(x), order, shift, direction)
        y = local.lower(local.finish(y))
        if shift is not None and direction is not None:
            content[say.MEAN] = record_of(layout, local.lower(summed.mean), arrays)
    content[say.ARRAYS] = record_of(layout, y, arrays)
    return Message(content, reply_to=message)


@final
class Summed:
    """A gradient function that remembers the mean of what it gave."""

    def __init__(self, gradient: Gradient) -> None:
        self._gradient, self._count, self._total = gradient, 0, 0.0

    def __call__(self, model: Any, moment: Moment) -> Any:
        """The gradient itself."""
        g = self._gradient(model, moment)
        self._count, self._total = self._count + 1, self._total + g
        return g

    @property
    def mean(self) -> Any:
        """Of all gradients so far."""
        return self._total / self._count


def _partition(context: Context) -> int:
    found = context.node_config.get(say.PARTITION)
    if not isinstance(found, int) or found < 0:
        rule = (
            f"given as a whole number from 0: start the SuperNode with "
            f'--node-config "{say.PARTITION}=0"'
        )
        raise invalid(f"node_config[{say.PARTITION!r}]", rule, repr(found))
    return found


def run_branch(
    gradient: Gradient,
    anchor: Any,
    order: Mapping[str, Any],
    correction: Any | None = None,
    direction: Direction | None = None,
) -> Any:
    """The endpoint of a local branch, in the library of the anchor.

    Args:
        gradient: of the client's own objective.
        anchor: x, a vector of NumPy or torch.
        order: what the server sent: round, steps, step size, proximal term, hold.
        correction: subtracted from every gradient, in the precision of the anchor.
        direction: of the client's own optimiser; the gradient itself by default.

    Raises:
        InvalidInputError: the order does not come from an `AlgorithmStrategy`.
    """
    try:
        t, steps, eta = order[say.ROUND] - 1, order[say.STEPS], order[say.STEP_SIZE]
        mu, hold = order[say.PROXIMAL], order[say.HOLD]
    except KeyError as error:
        rule = "an order of an AlgorithmStrategy of hewfl.flower"
        raise invalid("message", rule, f"a config without {error}") from error
    y = anchor
    for step in range(steps):
        g = gradient(anchor if hold else y, Moment(t, step))
        if correction is not None:
            g = g - correction
        if mu > 0:
            g = g + mu * (y - anchor)
        y = y - eta * (g if direction is None else direction(g))
    return y
