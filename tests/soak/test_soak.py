"""The parts of the soaks; `make soak` runs the whole."""

import gc
import sys
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from hewfl.flower import HewStrategy
from tests.soak.federation import CHANCES, bytes_of, serve
from tests.soak.measures import fate, growth, kill_rounds


def test_rounds_in_parts_leave_the_same_bytes(tmp_path: Path) -> None:
    """The same check as after a kill, without one."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder, rounds in ((whole, 9), (parts, 4), (parts, 9)):
        folder.mkdir(exist_ok=True)
        serve(folder, rounds, 0)
    found = bytes_of(whole)
    assert any(name.endswith("trace.jsonl") for name in found)
    assert bytes_of(parts) == found


CODE = (FunctionType, MethodType, ModuleType, type)


def bytes_reached(root: Any) -> int:
    """Memory of an object and of all that it refers to, without code."""
    seen: dict[int, Any] = {}
    rest = [root]
    while rest:
        part = rest.pop()
        if id(part) not in seen and not isinstance(part, CODE):
            seen[id(part)] = part
            rest += gc.get_referents(part)
    return sum(map(sys.getsizeof, seen.values()))


def test_a_strategy_keeps_nothing_of_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State, numbers of clients, trace: a node with a new id costs its number only."""
    aggregate, sizes = HewStrategy.aggregate_train, []

    def measured(strategy: Any, *args: Any) -> Any:
        result = aggregate(strategy, *args)
        sizes.append(bytes_reached(vars(strategy)))
        return result

    monkeypatch.setattr(HewStrategy, "aggregate_train", measured)
    serve(tmp_path, 40, 0)
    assert sizes[0] > 5000  # the model alone has 2.6 kB, and its momentum twice that
    assert max(sizes) - min(sizes) < 3000  # one round's metrics are 2 kB


def test_growth_is_seen() -> None:
    rng = np.random.default_rng(0)
    flat = 90 + 0.1 * rng.random(2000)
    flat[:300] -= 5  # what happens at the start does not count
    assert abs(growth(flat.tolist())) < 0.05
    assert growth((flat + np.arange(2000) / 500).tolist()) > 2


def test_fates_and_kills_follow_from_the_seed() -> None:
    fates = [fate(0, t, i, CHANCES) for t in range(500) for i in range(20)]
    assert set(fates) == {*CHANCES, "none"}
    for name, chance in CHANCES.items():
        assert abs(fates.count(name) / len(fates) - chance) < 0.005
    kills = kill_rounds(0, 2000, 20)
    assert kills == kill_rounds(0, 2000, 20) == sorted(set(kills))
    assert len(kills) == 20
