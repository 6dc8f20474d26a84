"""Sweeps, `hewfl table`, `hewfl plot` and `hewfl new`, as a user types them."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hewfl.cli import app
from tests.experiments.runs import TEXT

runner = CliRunner(env={"COLUMNS": "120"})
SWEEP = ["--sweep", "clients.alpha=0.3,10.0", "--sweep", "clients.batch_size=2,4"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "small.toml").write_text(TEXT)
    return folder


@pytest.fixture(scope="module")
def sweep(place: Path) -> Path:
    """The folder of a sweep of four runs, of which two were run before."""
    few = [*SWEEP[:3], "clients.batch_size=2"]
    for words in (few, SWEEP):
        command = ["run", str(place / "small.toml"), "--runs-dir", str(place / "runs")]
        result = runner.invoke(app, [*command, "--jobs", "0", *words])
        assert result.exit_code == 0, result.output
    assert result.output.count("done before") == 2
    assert "test accuracy after 6 rounds, 2 seeds" in result.output
    (folder,) = (place / "runs").iterdir()
    return folder


@pytest.fixture(autouse=True)
def settings(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEWFL_CACHE", str(place / "cache"))
    monkeypatch.chdir(place)


def output(*words: object, code: int = 0) -> str:
    result = runner.invoke(app, list(map(str, words)))
    assert result.exit_code == code, result.output
    return result.output


def test_a_sweep_is_one_table_and_one_page(sweep: Path) -> None:
    table = output("table", sweep, "--format", "markdown").splitlines()
    head = table[2].strip("| ").split(" | ")
    assert head[1:3] == ["alpha=0.3, batch_size=2", "alpha=0.3, batch_size=4"]
    assert [line.split(" | ")[0] for line in table[4:7]] == [
        "| HEW",
        "| HewHet",
        "| FedAvgM",
    ]
    output("report", sweep, "-o", "page.html")
    assert Path("page.html").read_text("utf-8").count("<article") == 4
    assert output("ls", "runs").count(f"{sweep.name}/small-alpha=") == 4
    assert "done before" in output("resume", sweep, "--jobs", "0")


def test_the_table_shows_mean_and_deviation_with_the_same_digits(sweep: Path) -> None:
    (run,) = sweep.glob("small-alpha=0.3-batch_size=2-*")
    row = output("table", run, "--format", "markdown", "--quantity", "objective")
    numbers = re.findall(r"([\d.]+) ± ([\d.]+)", row)
    assert len(numbers) == 3
    assert len({len(n.partition(".")[2]) for pair in numbers for n in pair}) == 1


def test_a_table_for_latex_escapes_and_marks_the_best(sweep: Path) -> None:
    text = output("table", sweep, "--format", "latex", "--quantity", "objective")
    assert r"alpha=0.3, batch\_size=2" in text
    assert r"\textbf{" in text
    assert r"$\pm$" in text
    assert text.count(r" \\") == 4
    assert text.rstrip().endswith(r"\end{tabular}")


def test_rounds_to_a_target(sweep: Path) -> None:
    text = output("table", sweep, "--target", "test_accuracy=2")
    assert text.count("not reached") == 12
    assert "rounds to test accuracy 2" in text


def test_a_wide_table_has_rows_for_its_columns(sweep: Path) -> None:
    narrow = CliRunner(env={"COLUMNS": "60"}).invoke(app, ["table", str(sweep)])
    assert max(map(len, narrow.output.splitlines()[:8])) <= 80
    assert "…" not in narrow.output


@pytest.mark.parametrize("name", ["fig.pdf", "fig.png", "fig.svg"])
def test_a_figure_has_the_width_of_a_column(name: str, sweep: Path) -> None:
    (run,) = sweep.glob("small-alpha=0.3-batch_size=2-*")
    assert f"wrote {name}" in output("plot", run, "-o", name)
    content = Path(name).read_bytes()
    if name == "fig.png":
        width = int.from_bytes(content[16:20])  # 200 points per inch
        assert np.isclose(width, 3.25 * 200, atol=1)
    if name == "fig.pdf":
        box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", content)
        assert box is not None
        assert np.isclose(float(box[1]), 3.25 * 72)


def test_panels_of_a_sweep_are_as_wide_as_a_page(sweep: Path) -> None:
    output("plot", sweep, "-o", "wide.png", "--axis", "scalars")
    assert int.from_bytes(Path("wide.png").read_bytes()[16:20]) == 6.75 * 200


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["plot", "-o", "a.pdf", "--quantity", "test_acc"],
            "did you mean `test_accuracy`",
        ),
        (["plot", "-o", "a.pdf", "--axis", "round"], "did you mean `rounds`?"),
        (["plot", "-o", "a.pdf", "--width", "wide"], "column, page, or inches"),
        (["plot", "-o", "a.doc"], "a path ending in .png or .pdf or .svg"),
        (["table", "--quantity", "loss"], "`--quantity` must be one of objective"),
        (["table", "--target", "lost=1"], "`--target` must be of a quantity that was"),
    ],
)
def test_mistakes_are_named(words: list[str], text: str, sweep: Path) -> None:
    assert text in output(words[0], sweep, *words[1:], code=2)


def test_a_mistake_in_one_point_leaves_nothing() -> None:
    words = ["--sweep", "clients.alpha=0.1,-1.0", "--runs-dir", "nothing"]
    assert "`clients.alpha` must be" in output("run", "small.toml", *words, code=2)
    assert not Path("nothing").exists()


def test_a_new_study_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = output("new", "my-study").splitlines()
    assert printed[1].split() == ["cd", "my-study"]
    monkeypatch.chdir("my-study")
    exec(
        compile(Path("my_data.py").read_text(), "my_data.py", "exec"),
        {"__name__": "__main__"},
    )
    words = printed[3].split()[1:]
    shown = output(*words, "--jobs", "0", "--set", "seeds=[0]", "--set", "rounds=4")
    assert "NearTheMedian" in shown
    assert "after 4 rounds, 1 seeds" in shown
    os.chdir("..")
    assert "must be one that does not exist yet" in output("new", "my-study", code=2)
    assert "`name` must be a name for a folder" in output("new", "a/.b", code=2)
