"""`python -m reproduce paper`, small, on the real data."""

import csv
import json
import os
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from reproduce import parts
from reproduce.__main__ import app
from reproduce.specs import FIGURE_2, REGIMES, quick, quick_deep
from typer.testing import CliRunner

from hewfl import plotting
from hewfl.cli.progress import Bars
from hewfl.experiments.spec import Spec, spec_from_table
from hewfl.experiments.spec_lint import refuse_unused_fields

pytestmark = [
    pytest.mark.unchecked,
    pytest.mark.data,
]
runner = CliRunner()
TABLES = {"claims.md", "results.md", "summary.json", "table.csv", "report.html"}
TABLES |= {"curves.csv.gz", "weights.csv.gz"}
GRID = TABLES | {"panels"}
KEPT = {"spec.toml", "tuned.toml", "tuning.json", "times.json"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for all tests here: what one has run the next one finds."""
    folder = tmp_path_factory.mktemp("paper")
    before = os.environ.get("HEWFL_CACHE")
    os.environ["HEWFL_CACHE"] = str(folder / "cache")
    yield folder
    if before is None:
        del os.environ["HEWFL_CACHE"]
    else:
        os.environ["HEWFL_CACHE"] = before


def smaller(spec: Spec) -> Spec:
    """Even less than --quick: one set of images, two values of a list, few samples."""
    methods = tuple(
        replace(m, grid={name: values[:2] for name, values in m.grid.items()})
        for m in quick(spec).methods
    )
    data = replace(spec.data, subsample=300)
    clients = replace(spec.clients, n=6, min_samples=min(4, spec.clients.min_samples))
    return replace(quick(spec), methods=methods, data=data, clients=clients, rounds=4)


def smaller_deep(spec: Spec) -> Spec:
    """Even less than --quick: few samples, one value of a list."""
    known = quick_deep(spec)
    methods = tuple(
        replace(m, grid={name: values[:1] for name, values in m.grid.items()})
        for m in known.methods
    )
    clients = replace(known.clients, n=3, min_samples=3, participation=2, batch_size=8)
    data = replace(known.data, subsample=80)
    return replace(known, methods=methods, data=data, clients=clients)


@pytest.fixture(autouse=True)
def less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "DATA", ("mnist",))
    monkeypatch.setattr(parts, "quick", smaller)
    monkeypatch.setattr(parts, "quick_deep", smaller_deep)


@pytest.fixture
def numbers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of figures hold the numbers drawn: to lay a figure out takes seconds.

    Figure 2 is drawn in full here, the others in `tests/reproduce`.
    """

    def corners(bar: Patch) -> Any:
        return bar.get_patch_transform().transform(bar.get_path().vertices)

    def save_as(draw: Any, size: tuple[float, float], *files: Path) -> None:
        figure = Figure(figsize=size)
        draw(figure)
        drawn = [
            *(line.get_xydata() for axes in figure.axes for line in axes.lines),
            *(corners(bar) for axes in figure.axes for bar in axes.patches),
            *(p.get_offsets() for axes in figure.axes for p in axes.collections),
        ]
        numbers = np.concatenate([np.ravel(part) for part in drawn]).tolist()
        for file in files:
            file.write_text(json.dumps(numbers))

    monkeypatch.setattr(plotting, "save_as", save_as)


def words(place: Path, figure: str) -> list[str]:
    where = ["--runs-dir", str(place / "runs"), "--output", str(place / figure)]
    return ["paper", figure, "--quick", *where]


def paper(place: Path, figure: str) -> Result:
    result = runner.invoke(app, [*words(place, figure), "--jobs", "0"])
    assert result.exit_code == 0, result.output
    return result


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@pytest.mark.slow
def test_figure_2_stopped_by_ctrl_c_goes_on_when_called_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at the first news of a second trial; test_run.py sends a real one."""

    def step(bars: Bars, task: int, done: int) -> None:  # noqa: ARG001 - as called
        if list(place.glob("runs/*/trials/last-0.json")):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Bars, "step", step)
        stopped = runner.invoke(app, [*words(place, "fig2"), "--jobs", "0"])
    assert stopped.exit_code == 130
    command = "python -m reproduce paper fig2 --quick --jobs 0 --runs-dir "
    message = f"stopped; resume with: {command}"
    assert stopped.stderr.count("stopped") == 1
    assert message in stopped.stderr
    result = paper(place, "fig2")
    assert result.output.count(": resumed, to be tuned") == 2
    assert ": resumed, to be tuned, 1 of 1 trials done" in result.output
    output = place / "fig2"
    panels = {f"mnist-{r}" for r in FIGURE_2}
    assert names(output) == GRID | {"figure2.png", "figure2.pdf"}
    assert names(output / "panels") == panels
    for panel in panels:
        assert names(output / "panels" / panel) == KEPT
        for name in ("spec.toml", "tuned.toml"):
            text = (output / "panels" / panel / name).read_text()
            refuse_unused_fields(spec_from_table(tomllib.loads(text)))
        times = json.loads((output / "panels" / panel / "times.json").read_text())
        assert times["resumed"]
        assert times["runs"] == 2
    claims = (output / "claims.md").read_text()
    assert claims.startswith("The paper compares «under matched communication budgets")
    assert "2 seeds, 4 rounds. They are a trial (`--quick`)" in claims
    # of each panel an advantage or none by three measures on two sets of rivals, uneven
    # weights, the worst
    assert claims.count("\n| ") == 2 + 2 * 8
    assert claims.count("**no verdict**") == 2 * 8
    again = paper(place, "fig2")
    assert again.output.count(": done before") == 2


@pytest.mark.sweep
@pytest.mark.usefixtures("numbers_only")
def test_all_is_figure_1_and_2_and_the_fourth_regime(place: Path) -> None:
    result = paper(place, "all")
    shown = ("figure1", "figure1_paper_count", "figure2")
    drawn = {f"{name}.{kind}" for name in shown for kind in ("png", "pdf")}
    assert names(place / "all") == GRID | drawn
    assert names(place / "all" / "panels") == {f"mnist-{r}" for r in REGIMES}
    assert "HEW has no clear advantage" not in result.output  # a trial
    claims = (place / "all" / "claims.md").read_text(encoding="utf-8")
    assert "het-equal, at equal rounds, on the paper's own methods: HEW has" in claims
    table = (place / "all" / "table.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(table.splitlines()))
    assert len(rows) == 11 + 11 + 14 + 12
    assert all(float(row["objective mean"]) > 0 for row in rows)
    assert {row["regime"] for row in rows} == set(REGIMES)
    file = place / "all" / "figure2.png"
    before = json.loads(file.read_text())
    assert len(before) > 50
    file.unlink()
    words_ = ["paper", "all", "--redraw", "--output", str(place / "all")]
    redrawn = runner.invoke(app, words_)
    assert redrawn.exit_code == 0, redrawn.output
    # from the published curves alone, which have nine digits
    np.testing.assert_allclose(json.loads(file.read_text()), before, rtol=1e-8)
    first = paper(place, "fig1")
    assert first.output.count(": done before") == 3
    assert names(place / "fig1") == GRID | {name for name in drawn if "1" in name}


@pytest.mark.slow
def test_the_extended_comparison(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(parts.WANTED, parts.Part.extended, ("het-random",))
    result = paper(place, "extended")
    assert "the paper's claims" not in result.output
    output = place / "extended"
    assert names(output) == TABLES | {"panels", "figure1.pdf", "figure1.png"}
    assert names(output / "panels" / "mnist-het-random") == KEPT
    summary = json.loads((output / "summary.json").read_text())
    (panel,) = summary.values()
    assert len(panel["methods"]) == 13 + 6
    assert "pairs" not in panel
    table = (output / "results.md").read_text()
    assert " of 19 choices lie at an end of a list" in table
    assert "| averaged objective | averaged test accuracy | objective |" in table
    claims = (output / "claims.md").read_text()
    assert claims.startswith(
        "These runs: 2 seeds, 4 rounds. They are a trial (`--quick`)"
    )
    assert "**" not in claims


@pytest.mark.torch
@pytest.mark.sweep
@pytest.mark.usefixtures("numbers_only")
@pytest.mark.parametrize(
    ("figure", "drawn", "claim"),
    [
        ("fig3", ("figure3", "figure4"), "last round: HEW (Alg. 2) is above HEW-Fixed"),
        (
            "fig5",
            ("figure5", "figure6"),
            "last round: HEW (Alg. 3) beats FedAvg in accuracy",
        ),
    ],
)
def test_the_lines(
    place: Path, figure: str, drawn: tuple[str, ...], claim: str
) -> None:
    result = paper(place, figure)
    assert claim not in result.output
    assert "a trial (--quick): it gives no verdicts" in result.output
    made = {f"{name}.{kind}" for name in drawn for kind in ("png", "pdf")}
    assert names(place / figure) == TABLES | KEPT | made
    claims = (place / figure / "claims.md").read_text()
    assert f"| {claim} | **no verdict** |" in claims
    assert "These runs: 2 seeds, 3 rounds. They are a trial (`--quick`)" in claims
    table = (place / figure / "results.md").read_text()
    assert "| validation accuracy | test accuracy | validation loss |" in table
    assert "diverged" not in table


def test_redrawing_needs_published_curves(place: Path) -> None:
    words_ = ["paper", "all", "--redraw", "--output", str(place)]
    result = runner.invoke(app, words_)
    assert result.exit_code == 1
    assert "the published curves in " in result.output


def test_mistakes_are_one_line(place: Path) -> None:
    result = runner.invoke(app, [*words(place, "fig2"), "--device", "tpu"])
    assert result.exit_code == 2
    assert "`device` must be one of 'numpy', 'cpu', 'cuda'; got 'tpu'" in result.output
