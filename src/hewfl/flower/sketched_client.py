"""The client of a round of two phases, around any train function of a Flower app.

    app = sketched(train)                            # for `@app.train()`
    app = sketched(train, mods=[secaggplus_mod])     # under secure aggregation

First the client trains and answers with a sketch of its update D_i = y_i − x: k numbers
in place of d. The server answers with a weight, and the client sends w_iD_i, which is
only summed. A third question may ask for ⟨v, D_i⟩, one number.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.compat.common.recorddict_compat import fitres_to_recorddict

from hewfl.displacements.count_sketch import CountSketch
from hewfl.errors import DataError
from hewfl.flower import client as say
from hewfl.flower.arrays import flat, layout_of, record_of

_KEPT = "hewfl-update"
"""Record of a node's own memory: its update of the round."""


def sketched(
    train: Callable[[Message, Context], Message], mods: Sequence[Any] = ()
) -> ClientApp:
    """A ClientApp whose updates are weighed by sketches; add `@app.evaluate()` at will.

    Args:
        train: a stock train function: the model comes in as one ArrayRecord, and goes
            back so, with one MetricRecord.
        mods: of the second phase, such as `secaggplus_mod`.

    Returns:
        The app, which answers both phases.
    """
    app = ClientApp()

    @app.train("sketch")  # type: ignore[untyped-decorator]  # checked without flwr
    def first(message: Message, context: Context) -> Message:
        sent = next(iter(message.content.array_records.values()))
        layout, config = layout_of(sent), _config(message, say.SEED)
        x, reply = flat(layout, sent), train(message, context)
        name, trained = next(iter(reply.content.array_records.items()))
        update = flat(layout, trained) - x
        context.state[_KEPT] = record_of(layout, update)
        sketch = CountSketch(config[say.WIDTH], config[say.SEED]).of([update])
        reply.content[name] = ArrayRecord([sketch])
        metrics = next(iter(reply.content.metric_records.values()))
        metrics[say.LARGEST] = float(np.abs(update).max())
        return reply

    @app.train(mods=list(mods))  # type: ignore[untyped-decorator]  # checked without flwr
    def second(message: Message, context: Context) -> Message:
        weight, update = _config(message, say.WEIGHT)[say.WEIGHT], _update(context)
        held = {name: array.numpy() for name, array in update.items()}
        held = {name: a * a.dtype.type(weight) for name, a in held.items()}
        if mods:
            return Message(_as_fit_result([*held.values()]), reply_to=message)
        arrays = ArrayRecord({name: Array(a) for name, a in held.items()})
        content = {say.ARRAYS: arrays, say.METRICS: MetricRecord({say.EXAMPLES: 1})}
        return Message(RecordDict(content), reply_to=message)

    @app.query("certify")  # type: ignore[untyped-decorator]  # checked without flwr
    def third(message: Message, context: Context) -> Message:
        update = _update(context)
        layout = layout_of(update)
        vector = next(iter(message.content.array_records.values()))
        pair = (flat(layout, r).astype(np.float64) for r in (vector, update))
        metrics = MetricRecord({say.PRODUCT: float(np.dot(*pair))})
        return Message(RecordDict({say.METRICS: metrics}), reply_to=message)

    return app


def _config(message: Message, key: str) -> Any:
    """The ConfigRecord with a key; mods add some of their own."""
    for record in message.content.config_records.values():
        if key in record:
            return record
    raise DataError(f"the message has no {key}: it is none of a round of two phases")


def _update(context: Context) -> ArrayRecord:
    if _KEPT not in context.state:
        raise DataError("the update is not here any more: the node was restarted")
    return context.state[_KEPT]


def _as_fit_result(parts: list[Any]) -> RecordDict:
    """Arrays as Flower's secure aggregation takes them; every client counts alike."""
    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(parts), 1, {})
    return fitres_to_recorddict(result, keep_input=False)
