"""The parts of the soaks; `make soak` runs the whole."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

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
