"""Rules of hewfl in a Flower federation.

Server: `HewStrategy()` in place of `FedAvg()`, for any stock app; `AlgorithmStrategy`
for methods that know their clients by name, with `client_app` on the nodes. `sketched`
makes a client of two phases of a stock one. docs/flower.md tells the rest.
"""

from hewfl.errors import MissingExtraError

try:
    import flwr  # noqa: F401 - asked for first, so that the text below is what is seen
except ImportError as error:
    text = "Flower strategies need flwr: install hewfl's extra flower"
    raise MissingExtraError(text) from error

from hewfl.core.local_branch import ClientObjective, StepContext
from hewfl.flower.algorithm_strategy import AlgorithmStrategy
from hewfl.flower.client import client_app, respond
from hewfl.flower.saved_run import load_model
from hewfl.flower.sketched_client import sketched
from hewfl.flower.strategy import HewStrategy

__all__ = [
    "AlgorithmStrategy",
    "ClientObjective",
    "HewStrategy",
    "StepContext",
    "client_app",
]
__all__ += ["load_model", "respond", "sketched"]
