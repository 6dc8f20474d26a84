"""The server: one line says how updates are weighed."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from flower_app.dataset import federated
from flower_app.model import build
from flower_app.strategy import strategy_of
from flower_app.utils import evaluation

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]  # checked without flwr
def main(grid: Grid, context: Context) -> None:
    """Run the strategy, and print the last metrics."""
    config, problem = context.run_config, federated(context.run_config)
    strategy = strategy_of(config, problem.smoothness_estimate())
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(build(problem).state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["round-seconds"]),
        evaluate_fn=evaluation(problem),
    )
    last = result.evaluate_metrics_serverapp[int(config["num-server-rounds"])]
    metrics = ", ".join(f"{name} {value:.5f}" for name, value in last.items())
    print(f"{config['strategy']}: {metrics}")
