"""Parts of ByzFL without its benchmarks, which import torchvision and seaborn.

ByzFL's own `__init__` imports all of it. Here an empty package takes its place in
`sys.modules`, so whoever needs a part of ByzFL must ask for it here.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


def load_byzfl(part: str = "aggregators") -> Any:
    """A package of ByzFL, such as `byzfl.attacks`; None if ByzFL is not installed."""
    if "byzfl" not in sys.modules:
        spec = importlib.util.find_spec("byzfl")
        if spec is None or spec.submodule_search_locations is None:
            return None
        package = ModuleType("byzfl")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["byzfl"] = package
    return importlib.import_module(f"byzfl.{part}")
