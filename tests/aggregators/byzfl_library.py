"""The aggregators of ByzFL, without its benchmarks, which import torchvision."""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


def load_byzfl() -> Any:
    """`byzfl.aggregators`; None where byzfl is not installed."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None or spec.submodule_search_locations is None:
        return None
    if "byzfl" not in sys.modules:  # its own __init__ would import all of it
        package = ModuleType("byzfl")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["byzfl"] = package
    return importlib.import_module("byzfl.aggregators")
