"""What both soaks share: fates from (seed, round, client), and memory by round."""

import argparse
import json
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FIRST = 500
"""Rounds before memory is compared: caches fill, and allocators settle."""
PART = 300
"""Rounds whose median stands for the beginning or the end of the rest."""
GROWTH = 8.0
"""MB from which a soak fails; 2.6 were measured, 1.9 kB a round of Flower's metrics."""


def fate(seed: int, t: int, who: int, chances: dict[str, float]) -> str:
    """What befalls a client in a round: one of the names, or "none"."""
    draw = float(np.random.default_rng((seed, t, who)).random())
    for name, chance in chances.items():
        if draw < chance:
            return name
        draw -= chance
    return "none"


def memory() -> float:
    """Resident memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def growth(sizes: Sequence[float]) -> float:
    """MB by which the last rounds are above those after FIRST rounds."""
    rest = sizes[min(FIRST, len(sizes) // 4) :]
    part = min(PART, len(rest) // 4)
    return float(np.median(rest[-part:]) - np.median(rest[:part]))


def kill_rounds(seed: int, rounds: int, kills: int) -> list[int]:
    """Rounds after which a process is killed, at a random moment."""
    rng = np.random.default_rng((seed, 77))
    count = min(kills, rounds - 1)
    return sorted(map(int, rng.choice(np.arange(1, rounds), count, replace=False)))


def options_of(doc: str | None) -> argparse.ArgumentParser:
    """The command line of a soak."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def conclude(folder: Path, report: Mapping[str, Any], differ: Sequence[Any]) -> None:
    """Print and write the report.

    Raises:
        SystemExit: something differs after the kills, or memory grew.
    """
    text = json.dumps(report, indent=1)
    print(text)
    (folder / "report.json").write_text(text + "\n")
    if differ or np.max(report["growth, MB"]) > GROWTH:
        raise SystemExit("the soak failed: see report.json")
