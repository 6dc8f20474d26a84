"""The example app is laid out as Flower's baselines are, and learns."""

import sys
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAvg

from tests.flower.federation import StubGrid

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_app"
STOCK = EXAMPLE.parent / "flower_stock"
STRATEGIES = ("hew", "hew-corrected", "fednova", "scaffold", "fedavg")


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of the app, as its own process would import them."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    names = ("client_app", "dataset", "model", "strategy", "utils")
    yield {name: pytest.importorskip(f"flower_app.{name}") for name in names}
    for name in [name for name in sys.modules if name.startswith("flower_app")]:
        del sys.modules[name]


def config() -> dict[str, Any]:
    table = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    found: dict[str, Any] = table["tool"]["flwr"]["app"]["config"]
    return found


def test_layout_of_a_flower_baseline() -> None:
    for name in ("README.md", "LICENSE", "pyproject.toml"):
        assert (EXAMPLE / name).exists()
    parts = ("client_app", "dataset", "model", "server_app", "strategy", "utils")
    for name in parts:
        assert (EXAMPLE / EXAMPLE.name / f"{name}.py").exists()


@pytest.mark.torch
@pytest.mark.parametrize("kind", STRATEGIES)
def test_every_strategy_learns(app: Any, kind: str) -> None:
    told = config() | {"strategy": kind, "clients": 4, "amplitude": 4.0}
    told |= {"step-scale": 1.6}
    problem = app["dataset"].federated(told)
    grid = StubGrid(app["client_app"].app, 4)
    for context in grid.nodes.values():
        context.run_config.update(told)
    strategy = app["strategy"].strategy_of(told, problem.smoothness_estimate())
    begin = ArrayRecord(app["model"].build(problem).state_dict())
    evaluate = app["utils"].evaluation(problem)
    result = strategy.start(grid, begin, 3, evaluate_fn=evaluate)
    curve = [m["objective"] for m in result.evaluate_metrics_serverapp.values()]
    assert curve[-1] < 0.7 * curve[0]


# ------------------------------------------------------------------ a stock app


def last_accuracy(
    server: Any,
    client: Any,
    capsys: pytest.CaptureFixture[str],
    factors: Mapping[int, float] | None = None,
) -> Any:
    """Of the stock example, run by its own ServerApp; some nodes may attack."""
    attack = {i: {"attack-factor": factor} for i, factor in (factors or {}).items()}
    torch.manual_seed(0)
    told = tomllib.loads((STOCK / "pyproject.toml").read_text())
    config = told["tool"]["flwr"]["app"]["config"]
    grid = StubGrid(
        client.app, 5, config=lambda i: {"num-partitions": 5} | attack.get(i, {})
    )
    for context in grid.nodes.values():
        context.run_config.update(config)
    server.main(grid, Context(1, 1, {}, RecordDict(), config))
    return float(capsys.readouterr().out.split()[-1])


@pytest.mark.torch
def test_a_stock_app_does_not_lose_by_the_swap(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(STOCK))
    server = pytest.importorskip("flower_stock.server_app")
    client = pytest.importorskip("flower_stock.client_app")
    ours = last_accuracy(server, client, capsys)
    monkeypatch.setattr(server, "HewStrategy", FedAvg)  # the swap undone
    theirs = last_accuracy(server, client, capsys)
    assert theirs > 0.8
    assert ours > theirs - 0.03
    for name in [name for name in sys.modules if name.startswith("flower_stock")]:
        del sys.modules[name]


@pytest.mark.torch
def test_an_attacking_client_ruins_an_average_and_not_a_median(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(STOCK))
    server = pytest.importorskip("flower_stock.server_app")
    attacker = pytest.importorskip("flower_stock.attacker_app")
    strategy = partial(server.HewStrategy, aggregator="geometric-median")
    monkeypatch.setattr(server, "HewStrategy", strategy)
    honest = last_accuracy(server, attacker, capsys)
    median = last_accuracy(server, attacker, capsys, {0: -10.0})
    monkeypatch.setattr(server, "HewStrategy", FedAvg)
    mean = last_accuracy(server, attacker, capsys, {0: -10.0})
    assert honest > 0.8
    assert median > 0.7
    assert mean < 0.4
    for name in [name for name in sys.modules if name.startswith("flower_stock")]:
        del sys.modules[name]
