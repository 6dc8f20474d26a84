"""The client: a torch model on this node's share of the data."""

from flwr.app import Context

from flower_app.dataset import federated
from flower_app.model import build, minibatch_loss
from hewfl.flower import ClientObjective, client_app
from hewfl.flower.torch_client import torch_objective


def local(context: Context) -> ClientObjective:
    """What this node optimises."""
    config, problem = context.run_config, federated(context.run_config)
    client = int(context.node_config["partition-id"])
    batch, seed = int(config["batch-size"]), int(config["seed"])
    return torch_objective(
        build(problem),
        minibatch_loss(problem, client, batch, seed),
        examples=int(problem.data_sizes[client]),
        batch_size=batch,
    )


app = client_app(local)
