"""Every scenario again: the bytes that were recorded, before a redesign and after it.

Where this machine's arithmetic is that of the recording, files must be equal byte by
byte; elsewhere their numbers must agree (`compare.CLOSE`). A scenario that changes on
purpose is named in `CHANGED`, or recorded anew (`record.py`).
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.recorded.compare import CLOSE, Closeness, difference
from tests.recorded.files import Scenario
from tests.recorded.machine import probe
from tests.recorded.record import (
    EXPECTED,
    HALF_WAY,
    RESUMED,
    WHOLE,
    ranks,
    recorded,
    scenarios,
)


@final
@dataclass(frozen=True)
class Change:
    """A scenario whose bytes differ on purpose.

    Attributes:
        reason: a sentence.
        tolerance: relative, within which numbers must still agree.
        apart: fields that are not compared at all.
        entries: the only ones that differ; all if None.
    """

    reason: str
    tolerance: float = CLOSE
    apart: tuple[str, ...] = ()
    entries: frozenset[int] | None = None


_OUTER = (
    "The server step of a torch job is that of every server, entry by entry; torch's "
    "own SGD rounded some products together. Weighted displacements are added up by an "
    "all-reduce in their own precision, weights solved for from sketches."
)
_TRACKING = (
    "Algorithm 1 was stopped half way with one tracking bound for all, which is "
    "no bound: it goes on with what the ball says, by nearly the same controls."
)
CHANGED: dict[str, Change] = {
    **{
        f"torch_{rule}": Change(_OUTER)
        for rule in ("equal", "steps", "tokens", "fednova")
    },
    "simulation": Change(_TRACKING, 1e-2, ("status", "weights"), frozenset({0})),
}
BY_PRODUCTS = ("q-FedAvg", "FedExP", "FedAdp", "FedMGDA+", "FedAWARE #2")
"""Rules that were rewritten over the products of displacements, so that they run in
every transport: their entries agree to rounding, all others byte by byte."""
Machine = tuple[dict[str, Any], dict[str, Any]]


def not_started() -> Any:
    raise AssertionError("names are asked for, nothing runs")


NAMES = [
    pytest.param(name, marks=pytest.mark.torch) if name.startswith("torch_") else name
    for name in scenarios(not_started)
]


@pytest.fixture(scope="module")
def known() -> Iterator[dict[str, Scenario]]:
    with ranks() as two:
        yield scenarios(two)


@pytest.fixture(scope="module")
def machine() -> Machine:
    """The probe as recorded, and now."""
    return json.loads((EXPECTED / "machine.json").read_text()), probe()


def asked(scenario: str, machine: Machine) -> Closeness:
    """Equal bytes, unless the machine or the scenario is another."""
    if scenario in CHANGED:
        change = CHANGED[scenario]
        entries = change.entries
        if entries is not None:
            entries |= _by_products(scenario)
        return Closeness(change.tolerance, change.apart, entries)
    old, new = machine
    parts = ["arithmetic", "kernels"] + ["tensors"] * scenario.startswith("torch_")
    if not all(old[part] == new[part] for part in parts):
        return Closeness(CLOSE)
    return Closeness(CLOSE, entries=_by_products(scenario))


def _by_products(scenario: str) -> frozenset[int]:
    """The entries that were rewritten over products."""
    lines = recorded(scenario).get("models.jsonl", b"").splitlines()
    entries = [json.loads(line) for line in lines]
    return frozenset(entry["entry"] for entry in entries if _is_by_products(entry))


def _is_by_products(entry: dict[str, Any]) -> bool:
    return str(entry.get("name", "")).startswith(BY_PRODUCTS)


@pytest.mark.parametrize("scenario", NAMES)
def test_the_scenario_is_as_recorded(
    scenario: str,
    known: dict[str, Scenario],
    machine: Machine,
    tmp_path: Path,
) -> None:
    new = known[scenario](tmp_path)
    found = difference(scenario, recorded(scenario), new, asked(scenario, machine))
    assert found is None, found


@pytest.mark.parametrize("run", RESUMED)
def test_a_run_stopped_by_the_recorded_code_goes_on(
    run: str, machine: Machine, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(HALF_WAY / run, folder)
    new = RESUMED[run](folder, WHOLE)
    found = difference(run, recorded(run), new, asked(run, machine))
    assert found is None, found


def test_compiled_kernels_answer_as_recorded(
    machine: Machine,
) -> None:
    """Else a changed kernel would pass for another machine, and nothing be equal."""
    old, new = machine
    if old["arithmetic"] != new["arithmetic"]:
        pytest.skip("another machine: numbers are compared, not bytes")
    if old["kernels"]["compiled"] != new["kernels"]["compiled"]:
        pytest.skip("compiled kernels are not in use, as they were")
    assert new["kernels"] == old["kernels"]


def test_everything_recorded_is_compared() -> None:
    folders = {path.name for path in EXPECTED.iterdir() if path.is_dir()}
    assert folders == set(scenarios(not_started))
    assert {path.name for path in HALF_WAY.iterdir()} == set(RESUMED)
    assert set(CHANGED) <= folders
    assert all(change.reason.endswith(".") for change in CHANGED.values())


def test_differences_are_told() -> None:
    old = b'{"round":1,"entry":0,"weights":[0.5,0.5],"status":"gap 1.5"}\n'
    new = old.replace(b"0.5]", b"0.50000001]").replace(b"1.5", b"1.50001")
    text = difference("w", {"t": old}, {"t": new}, Closeness(None))
    where = "scenario w, file t, round 1, entry 0, field weights[1]"
    assert text == f"{where}: recorded 0.5, now 0.50000001"
    assert difference("w", {"t": old}, {"t": new}, Closeness(CLOSE)) == text
    assert difference("w", {"t": old}, {"t": new}, Closeness(1e-7)) is None
    assert difference("w", {"t": old}, {"t": old}, Closeness(None)) is None
    longer = difference("w", {"t": old}, {"t": old + new}, Closeness(None))
    assert longer == "scenario w, file t, 1 lines recorded, now 2"
    other = old.replace(b"gap", b"no gap")
    apart = Closeness(CLOSE, ("status",))
    assert difference("w", {"t": old}, {"t": other}, apart) is None
    told = difference("w", {"t": old}, {"t": other}, Closeness(CLOSE))
    assert told is not None
    assert "field status" in told
    missing = difference("w", {"t": old}, {}, apart)
    assert missing == "scenario w: recorded files ['t'], now []"
