"""The client, as Flower's template has it."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_stock.task import Net, accuracy, datasets
from flower_stock.task import train as train_fn

app = ClientApp()


def partition_id(context: Context) -> int:
    """Which part of the data the node holds."""
    return int(context.node_config["partition-id"])


@app.train()  # type: ignore[untyped-decorator]  # checked without flwr
def train(message: Message, context: Context) -> Message:
    """Train the model that was sent on the node's data."""
    run_config, config = context.run_config, message.content["config"]
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    n = int(context.node_config["num-partitions"])
    data = datasets(n, float(run_config["alpha"]))[0][partition_id(context)]
    epochs, batch = int(run_config["local-epochs"]), int(run_config["batch-size"])
    loss = train_fn(net, data, epochs, config["lr"], batch)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()  # type: ignore[untyped-decorator]  # checked without flwr
def evaluate(message: Message, context: Context) -> Message:
    """The accuracy of the model that was sent on the node's data."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    n = int(context.node_config["num-partitions"])
    data = datasets(n, float(context.run_config["alpha"]))[0][partition_id(context)]
    metrics = MetricRecord({"acc": accuracy(net, data), "num-examples": len(data)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
