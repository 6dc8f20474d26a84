"""A stock client, as Flower's templates write it, whose updates are known."""

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

N, D = 6, 6
MOVES = 1.0 + np.random.default_rng(8).standard_normal((N, D)) / 3
SIZES = (30, 10, 20, 15, 25, 40)
STEPS = (1, 2, 4, 8, 8, 3)


def train(message: Message, context: Context) -> Message:
    """The model comes back, moved, with its size."""
    i = int(context.node_config["partition-id"])
    model = message.content["arrays"].to_numpy_ndarrays()
    move = MOVES[i].astype(np.float32)
    ends = [model[0] + move[:4].reshape(2, 2), model[1] + move[4:]]
    told = {"num-examples": SIZES[i], "train_loss": float(i), "num-steps": STEPS[i]}
    told["partition-id"] = i
    content = {"model": ArrayRecord(ends), "numbers": MetricRecord(told)}
    return Message(RecordDict(content), reply_to=message)


def evaluate(message: Message, context: Context) -> Message:
    """An accuracy; that of client 1 is NaN, and client 2 measures something else."""
    i = int(context.node_config["partition-id"])
    told = {"num-examples": i + 1, "accuracy": np.nan if i == 1 else i / 10}
    told |= {"other": 1.0} if i == 2 else {}
    content = {"metrics": MetricRecord(told)}
    return Message(RecordDict(content), reply_to=message)


def stock_app(mods: Any = None) -> ClientApp:
    """The two functions as an app."""
    app = ClientApp(mods=mods)
    app.train()(train)
    app.evaluate()(evaluate)
    return app


def model() -> ArrayRecord:
    """Two arrays, one of them a matrix."""
    return ArrayRecord([np.ones((2, 2), np.float32), np.ones(2, np.float32)])


def vector(record: ArrayRecord) -> Any:
    """All entries of a model."""
    return np.concatenate([array.ravel() for array in record.to_numpy_ndarrays()])
