"""Write what today's code produces: `python -m tests.recorded.record [scenario ...]`.

Without names everything is recorded anew, the runs stopped half way included. With
names only those scenarios: for one whose behaviour changes on purpose.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.recorded.files import Files, Scenario
from tests.recorded.flower_runs import FLOWER, FLOWER_RESUMED
from tests.recorded.machine import probe
from tests.recorded.scenarios import WORLDS, interrupted
from tests.recorded.torch_runs import Ranks, torch_scenarios
from tests.torch.pool import Pool

HERE = Path(__file__).parent
EXPECTED, HALF_WAY = HERE / "expected", HERE / "half_way"
RESUMED: dict[str, Callable[[Path, int], Files]] = {
    "simulation": interrupted,
    **FLOWER_RESUMED,
}
"""Runs to a number of rounds, from an empty folder or from one stopped half way."""
HALF, WHOLE = 3, 6


def uninterrupted(name: str) -> Scenario:
    return lambda folder: RESUMED[name](folder, WHOLE)


@contextmanager
def ranks() -> Iterator[Ranks]:
    """Two processes, started when they are first needed."""
    started: list[Pool] = []

    def two() -> Pool:
        if not started:
            started.append(Pool(2))
        return started[0]

    try:
        yield two
    finally:
        for pool in started:
            pool.__exit__()


def scenarios(two: Ranks) -> dict[str, Scenario]:
    whole = {name: uninterrupted(name) for name in RESUMED}
    return {**WORLDS, **whole, **FLOWER, **torch_scenarios(two)}


def recorded(name: str) -> Files:
    """What a scenario left when it was recorded."""
    files = sorted((EXPECTED / name).iterdir())
    return {path.name: path.read_bytes() for path in files}


def record(name: str, scenario: Scenario) -> None:
    folder = EXPECTED / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        for file, data in scenario(Path(scratch)).items():
            (folder / file).write_bytes(data)


def stop_half_way(name: str) -> None:
    """Keep what a killed run would have left: neither constants nor a summary."""
    folder = HALF_WAY / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    RESUMED[name](folder, HALF)
    for late in ("constants.json", "summary.json", "times.json"):
        for path in folder.rglob(late):
            path.unlink()


def main(names: list[str]) -> None:
    with ranks() as two:
        known = scenarios(two)
        for name in names or known:
            record(name, known[name])
    if not names:
        for name in RESUMED:
            stop_half_way(name)
        text = json.dumps(probe(), indent=1) + "\n"
        (EXPECTED / "machine.json").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
