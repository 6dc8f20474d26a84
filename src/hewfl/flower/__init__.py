"""Aggregators of hewfl in a Flower federation.

Server: `HewStrategy()` in place of `FedAvg()`, for any stock app; `AlgorithmStrategy`
for algorithms that order the work of clients with a partition id, with `client_app` on
the nodes. `sketch_client_app` makes a client of two phases from a stock train function.
docs/flower.md is the guide.
"""

from hewfl.errors import MissingExtraError

try:
    import flwr  # noqa: F401 - imported first, so that users see the text below
except ImportError as error:
    text = "Flower strategies need flwr: install hewfl's extra flower"
    raise MissingExtraError(text) from error

from hewfl.core.local_branch import ClientObjective, StepContext
from hewfl.flower.algorithm_strategy import AlgorithmStrategy
from hewfl.flower.client import client_app, respond
from hewfl.flower.saved_run import load_model
from hewfl.flower.sketched_client import sketch_client_app
from hewfl.flower.strategy import HewStrategy

__all__ = [
    "AlgorithmStrategy",
    "ClientObjective",
    "HewStrategy",
    "StepContext",
    "client_app",
    "load_model",
    "respond",
    "sketch_client_app",
]
