"""Exact weights in a Flower federation.

Server: `HewStrategy`, `FedNovaStrategy`, `ScaffoldStrategy`, or any other method by
`AlgorithmStrategy`, each under `Options`. Client: `client_app`, or `respond` in an app
of your own, with a `Local` objective; `hewfl.flower.torch_local` makes one of a torch
model. docs/flower.md tells the rest.
"""

from hewfl.errors import MissingExtraError

try:
    import flwr  # noqa: F401 - asked for first, so that the text below is what is seen
except ImportError as error:
    text = "Flower strategies need `pip install hewfl[flower]`"
    raise MissingExtraError(text) from error

from hewfl.flower.branch import Moment
from hewfl.flower.client import Local, client_app, respond
from hewfl.flower.options import Options
from hewfl.flower.strategies import FedNovaStrategy, HewStrategy, ScaffoldStrategy
from hewfl.flower.strategy import AlgorithmStrategy

__all__ = [
    "AlgorithmStrategy",
    "FedNovaStrategy",
    "HewStrategy",
    "Local",
    "Moment",
    "Options",
    "ScaffoldStrategy",
    "client_app",
    "respond",
]
