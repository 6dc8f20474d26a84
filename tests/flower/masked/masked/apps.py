"""Known updates, weighed by sketches and summed under SecAgg+."""

import json
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.serverapp import Grid, ServerApp

from hewfl.flower import HewStrategy, sketch_client_app

D = 300
MOVES = 1 + np.random.default_rng(4).standard_normal((8, D)) / 2


def train(message: Message, context: Context) -> Message:
    """A stock train function."""
    i = int(context.node_config["partition-id"])
    (x,) = message.content["arrays"].to_numpy_ndarrays()
    metrics = MetricRecord({"num-examples": 1, "partition-id": i})
    arrays = ArrayRecord([x + MOVES[i].astype(np.float32)])
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    return Message(content, reply_to=message)


client = sketch_client_app(train, mods=[secaggplus_mod])
server = ServerApp()


@server.main()  # type: ignore[untyped-decorator]  # checked without flwr
def main(grid: Grid, context: Context) -> None:
    """One round; what came of it is left in a file."""
    config = context.run_config
    n = int(config["clients"])
    strategy = HewStrategy(
        aggregator="agreement",
        phases=2,
        secure=True,
        fraction_evaluate=0.0,
        min_train_nodes=n,
        min_available_nodes=n,
    )
    begin = ArrayRecord([np.zeros(D, np.float32)])
    result = strategy.start(grid, begin, 1, timeout=float(config["timeout"]))
    found = {
        "model": result.arrays.to_numpy_ndarrays()[0].tolist(),
        "weights": [m["weights"] for m in result.train_metrics_clientapp.values()],
    }
    Path(str(config["folder"])).write_text(json.dumps(found))
