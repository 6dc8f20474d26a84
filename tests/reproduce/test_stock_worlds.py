"""The table of the default's worlds is that of the runs that are kept."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from reproduce import stock_worlds as worlds
from reproduce.stock_table import PAGE


def test_the_page_shows_the_runs_that_are_kept() -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = page.split(worlds.MARKS[0])[1].split(worlds.MARKS[1])[0]
    assert shown == worlds.section(worlds.known())


def test_gradients_are_those_of_the_loss(rng: np.random.Generator) -> None:
    app = worlds.App(worlds.digits, "sgd", 1.0, normalised=True)
    model = worlds.first_model(app, 6, 3, 0)
    model = {k: v.astype(np.float64) for k, v in model.items()}
    X, y = rng.standard_normal((8, 6)), rng.integers(3, size=8)

    def loss(key: str, place: int, by: float) -> float:
        moved = {k: v.copy() for k, v in model.items()}
        moved[key].flat[place] += by
        z = X @ moved["w1"] + moved["b1"]
        z = (z - z.mean(axis=0)) / np.sqrt(z.var(axis=0) + 1e-5)
        h = np.maximum(z * moved["bn.weight"] + moved["bn.bias"], 0)
        p = h @ moved["w2"] + moved["b2"]
        shift = p.max(axis=1, keepdims=True)
        logs = p - shift - np.log(np.exp(p - shift).sum(axis=1, keepdims=True))
        return float(-logs[np.arange(8), y].mean())

    found = worlds.gradients(app, dict(model), X, y)
    for key, gradient in found.items():
        for place in (0, gradient.size - 1):
            slope = (loss(key, place, 1e-5) - loss(key, place, -1e-5)) / 2e-5
            assert gradient.flat[place] == pytest.approx(slope, abs=1e-6)


def test_a_run_after_a_line_that_was_cut_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text('{"cell": ["digits", "cle')
    monkeypatch.setattr(worlds, "FILE", file)
    row = {"accuracy": [0.5], "seconds": 0.1}
    monkeypatch.setattr(worlds, "run", lambda cell: {"cell": list(cell), **row})
    monkeypatch.setattr("sys.argv", ["stock-worlds", "--seeds", "1"])
    worlds.main()
    cells = len(worlds.APPS) * len(worlds.WORLDS) * len(worlds.STRATEGIES)
    assert len(worlds.known()) == cells
