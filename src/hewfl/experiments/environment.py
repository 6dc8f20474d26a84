"""How long a run took, and with what: the part of it that no seed fixes."""

import os
import platform
import time
from importlib import metadata
from typing import Any, final

from hewfl.experiments.spec import Spec
from hewfl.version import __version__


@final
class Stopwatch:
    """Seconds of each stage, and of all together, since it was made."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """Note that a stage is over."""
        now = time.perf_counter()
        self._laps[stage] = round(now - self._last, 1)
        self._last = now

    @property
    def seconds(self) -> dict[str, Any]:
        """What `times.json` says of time."""
        total = round(self._last - self._began, 1)
        return {"seconds": total, "stages": dict(self._laps)}


def environment(spec: Spec) -> dict[str, Any]:
    """Versions of the packages that a run depends on, and the machine."""
    names = ["numpy", "scipy"]
    if spec.device != "numpy" or spec.problem.is_module:
        names.append("torch")
    return {
        "device": spec.device,
        "hewfl": __version__,
        **{name: metadata.version(name) for name in names},
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
    }
