"""The server, as Flower's template has it, with another strategy."""

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flower_stock.task import Net, accuracy, datasets
from hewfl.flower import HewStrategy  # from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]  # checked without flwr
def main(grid: Grid, context: Context) -> None:
    """Run the strategy, and print the accuracy after each round."""
    config = context.run_config
    strategy = HewStrategy(fraction_train=config["fraction-train"])  # FedAvg
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["lr"]}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=global_evaluate,
    )
    for t, metrics in result.evaluate_metrics_serverapp.items():
        print(f"round {t}: accuracy {metrics['accuracy']:.3f}")


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy on the test set."""
    del server_round
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(net, datasets(5, 0.3)[1])})
