"""Experiments from the command line, as a user types them."""

import errno
import io
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest
import tomli_w
from rich.console import Console
from typer.testing import CliRunner

from hewfl.cli import app
from hewfl.cli.execute import show_summary
from hewfl.core.atomic import write_checksums, write_json
from hewfl.experiments.run_folder import Folder, lock, open_folder
from hewfl.experiments.spec import spec_from_table
from tests.experiments.runs import TEXT, small

runner = CliRunner()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(TEXT)
    return tmp_path


def test_run_ls_report_resume(place: Path) -> None:
    assert "no runs in runs" in runner.invoke(app, ["ls"]).output
    result = runner.invoke(app, ["run", "small.toml", "--jobs", "0"])
    assert result.exit_code == 0, result.output
    for text in ("HEW", "FedAvgM", "after 6 rounds, 2 seeds", "test accuracy"):
        assert text in result.output
    (folder,) = (place / "runs").iterdir()
    listed = runner.invoke(app, ["ls"])
    assert "done" in listed.output
    assert folder.name[:8] in listed.output
    again = runner.invoke(app, ["resume", str(folder), "--jobs", "0"])
    assert again.exit_code == 0
    assert "after 6 rounds" in again.output
    words = ["--watch", "--target", "test_accuracy=0.5"]
    page = runner.invoke(app, ["report", str(folder), "-o", "page.html", *words])
    assert page.exit_code == 0, page.output
    text = (place / "page.html").read_text()
    assert "<html" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


@pytest.mark.parametrize("command", ["run", "tune"])
@pytest.mark.parametrize("file", ["/dev/zero", "endless.toml"])
def test_a_file_that_is_no_spec_is_not_read_whole(
    command: str, file: str, place: Path
) -> None:
    with (place / "endless.toml").open("wb") as stream:
        stream.truncate(2**42)  # a hole: no disk has so much
    result = runner.invoke(app, [command, file])
    assert result.exit_code == 1
    expected = f"error: the spec {file} is not TOML: it has more than 4 MB\n"
    assert result.output == expected


def test_tune_alone_writes_the_choice(place: Path) -> None:
    result = runner.invoke(app, ["tune", "small.toml", "--jobs", "0"])
    assert result.exit_code == 0, result.output
    assert "amplitude" in result.output
    (folder,) = (place / "runs").iterdir()
    tuned = spec_from_table(tomllib.loads((folder / "tuned.toml").read_text()))
    assert tuned.is_tuned
    assert not (folder / "summary.json").exists()
    unfinished = runner.invoke(app, ["report", str(folder)])
    assert unfinished.exit_code == 0, unfinished.output
    assert "wrote report.html, of the rounds done so far" in unfinished.output
    assert "nothing to show yet" in (place / "report.html").read_text()


def test_fields_can_be_changed(place: Path) -> None:
    changes = ["--set", "rounds=2", "--set", "seeds=[4]", "--set", "name=other"]
    result = runner.invoke(app, ["run", "small.toml", "--jobs", "0", *changes])
    assert result.exit_code == 0, result.output
    (folder,) = (place / "runs").iterdir()
    assert folder.name.startswith("other-")
    assert (folder / "seed-4" / "trace.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["run", "none.toml"], 1, "cannot read the spec none.toml"),
        (["run", "small.toml", "--set", "rounds=x"], 2, "`rounds` must be a whole"),
        (
            ["run", "small.toml", "--set", "clients.m=1"],
            2,
            "`clients.m` must be one of",
        ),
        (
            ["run", "small.toml", "--set", "data.label_column=kind"],
            2,
            "`data.label_column` must be left out",
        ),
        (["run", "small.toml", "--runs-dir", "small.toml"], 1, "small.toml"),
        (["report", "nowhere", "-o", "."], 2, "`--output` must be a file"),
        (
            ["ls", "nosuch"],
            2,
            "`runs_dir` must be a folder that holds runs; got 'nosuch'",
        ),
        (["resume", "nowhere"], 1, "nowhere is not a run"),
        (["report", "nowhere"], 1, "nowhere is not a run"),
        (["report", "nowhere", "--target", "a=b"], 2, "`--target` must be a quantity"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], code: int, text: str) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == code
    assert text in result.output
    assert "Traceback" not in result.output


def test_warnings_are_one_line(place: Path) -> None:
    (place / "file").write_bytes(b"")
    command = [sys.executable, "-m", "hewfl.cli", "run", "small.toml", "--jobs", "0"]
    given = {"HEWFL_CACHE": str(place / "file")}
    done = subprocess.run(
        [*command, "--set", "seeds=[0]"],
        cwd=place,
        env=os.environ | given,
        capture_output=True,
        text=True,
        check=True,
    )
    told = f"warning: cannot write to the cache {place / 'file'} (Not a directory)"
    assert done.stderr == f"{told}; set HEWFL_CACHE\n"


def test_own_data_that_changed_are_noticed(place: Path) -> None:
    rows = [f"{i % 7},{i % 3},{i % 2}" for i in range(60)]
    own = place / "own.csv"
    own.write_text("a,b,label\n" + "\n".join(rows) + "\n")
    changes = ["--set", "data.name=own.csv", "--set", "data.label_column=label"]
    changes += ["--set", "clients.min_samples=1", "--set", "clients.partition=iid"]
    changes += ["--set", "clients.alpha=0.2"]
    changes += ["--set", "rounds=2", "--set", "tune.rounds=1", "--set", "seeds=[0]"]
    command = ["run", "small.toml", "--jobs", "0", *changes]
    (place / "small.toml").write_text(TEXT.replace("subsample = 300", ""))
    done = runner.invoke(app, command)
    assert done.exit_code == 0, done.output
    own.write_text("a,b,label\n" + "\n".join(rows[:40]) + "\n")
    again = runner.invoke(app, command)
    assert again.exit_code == 1
    assert "has changed since the run" in again.output.replace("\n", " ")
    own.unlink()
    gone = runner.invoke(app, command)
    assert "no such file" in gone.output.replace("\n", " ")
    assert len(list((place / "runs").iterdir())) == 1


def test_a_run_that_fails_at_the_start_is_not_listed(place: Path) -> None:
    (place / "own.csv").write_text("a,b\n1,x\n2\n")
    for command in ("run", "tune"):
        bad = [command, "small.toml", "--jobs", "0", "--set", "data.name=own.csv"]
        result = runner.invoke(app, bad)
        assert result.exit_code == 1
        text = result.output.replace("\n", "")
        assert "rows must have 2 fields, as the first has; got 1 in line 3" in text
        assert "no runs in runs" in runner.invoke(app, ["ls"]).output


def test_the_second_of_two_is_told_who_the_first_is(place: Path) -> None:
    runner.invoke(app, ["tune", "small.toml", "--jobs", "0"])
    (folder,) = (place / "runs").iterdir()
    with lock(folder):
        for words in (["run", "small.toml"], ["resume", str(folder)]):
            result = runner.invoke(app, [*words, "--jobs", "0"])
            assert result.exit_code == 1
            told = f"{folder.name} is in use by process {os.getpid()} on "
            assert told in result.output.replace("\n", "")
            assert "going on" not in result.output
        listed = runner.invoke(app, ["ls"], env={"COLUMNS": "200"})
        assert f"0 % of the rounds, process {os.getpid()} on" in listed.output
    again = runner.invoke(app, ["resume", str(folder), "--jobs", "0"])
    assert again.exit_code == 0
    assert "resumed, 0 % of the rounds" in again.output.replace("\n", "")


def test_one_damaged_run_does_not_hide_the_others(place: Path) -> None:
    runner.invoke(app, ["tune", "small.toml", "--jobs", "0"])
    bad = place / "runs" / "bad"
    bad.mkdir()
    (bad / "spec.toml").write_text("x")
    listed = runner.invoke(app, ["ls"], env={"COLUMNS": "200"})
    assert listed.exit_code == 0
    assert "small-" in listed.output
    assert "the spec runs/bad/spec.toml is not TOML: " in listed.output
    (good,) = place.glob("runs/small-*")
    long = good.with_name("a name of some length " * 3)
    good.rename(long)
    for width in ("50", "80"):
        narrow = runner.invoke(app, ["ls"], env={"COLUMNS": width})
        rows = [line for line in narrow.output.splitlines() if line.startswith("│")]
        names = [name for row in rows if (name := row.split("│")[1].strip())]
        assert names == [long.name.strip(), "bad"]  # whole, to be typed again
    long.rename(good)
    (good / "seed-0").mkdir()
    (good / "seed-0" / "manifest.json").write_text("{")
    listed = runner.invoke(app, ["ls"], env={"COLUMNS": "200"})
    assert f"{good.name}/seed-0/manifest.json is damaged: " in listed.output


def test_ls_does_not_ask_the_hub(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose run it is decides what the library of the hub would load."""
    runner.invoke(app, ["tune", "small.toml", "--jobs", "0"])
    (folder,) = (place / "runs").iterdir()
    spec = tomllib.loads((folder / "spec.toml").read_text())
    spec["data"] = {"name": "hf:somebody/something"}
    (folder / "spec.toml").write_text(tomli_w.dumps(spec))
    write_checksums(folder / "data.json", {"data file": "x"})
    asked: list[str] = []
    monkeypatch.setattr(sys.modules["hewfl.data.load"], "fingerprint", asked.append)
    listed = runner.invoke(app, ["ls"], env={"COLUMNS": "200"})
    assert "something" in listed.output
    assert not asked


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("tuned.toml", "x", "tuned.toml is damaged: "),
        ("seed-1/manifest.json", "{}", "seed-1/manifest.json is damaged: "),
        ("seed-1/constants.json", "{", "seed-1/constants.json is damaged: "),
    ],
)
def test_a_run_without_checksums_with_a_damaged_file_is_not_called_done(
    place: Path, file: str, text: str, told: str
) -> None:
    tuned = runner.invoke(app, ["tune", "small.toml", "--jobs", "0"])
    assert tuned.exit_code == 0
    (folder,) = (place / "runs").iterdir()
    write_json(folder / "summary.json", {"methods": []})
    for seed in (0, 1):
        write_json(folder / f"seed-{seed}" / "constants.json", {})
        (folder / f"seed-{seed}" / "trace.jsonl").write_text("")
    listed = runner.invoke(app, ["ls"], env={"COLUMNS": "250"}).output
    assert "results are there, other files are missing: resume it" in listed
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(text)
    listed = runner.invoke(app, ["ls"], env={"COLUMNS": "250"}).output
    assert f"{folder.name}/{told}" in listed
    assert "resume it" not in listed


def test_labels_in_another_column_are_pointed_out_as_the_command_takes_them(
    place: Path,
) -> None:
    (place / "own.csv").write_text("the kind,a,b\nx,1,0\ny,2,1\n")
    words = ["run", "small.toml", "--jobs", "0", "--set", "data.name=own.csv"]
    result = runner.invoke(app, words)
    assert "if that is the label: --set 'data.label_column=the kind')" in result.output


def test_seeds_that_diverged_are_noted(place: Path) -> None:
    some = {"mean": 0.5, "std": None, "seeds": [0.5, None, None]}
    none = {"mean": None, "std": None, "seeds": [None] * 3}
    finals = {"a": {"objective": some}, "b": {"objective": none}, "c": {}}
    methods = [{"label": label, "final": final} for label, final in finals.items()]
    summary = {"name": "x", "rounds": 1, "seeds": [0, 1, 2], "methods": methods}
    summary |= {"pairs": []}
    write_json(place / "summary.json", summary)
    text = io.StringIO()
    show_summary(Folder(place, small()), Console(file=text, width=100))
    rows = [" ".join(line.split()) for line in text.getvalue().splitlines()[4:7]]
    assert rows == ["a 0.5000 (2 of 3 seeds diverged)", "b diverged", "c -"]


def test_the_printed_spec_is_one() -> None:
    result = runner.invoke(app, ["spec"])
    assert result.exit_code == 0
    assert spec_from_table(tomllib.loads(result.output)).name == "example"


def test_ctrl_c_leaves_a_run_that_resumes(place: Path) -> None:
    command = [sys.executable, "-m", "hewfl.cli", "run", "small.toml", "--jobs", "1"]
    command += ["--set", "rounds=300000", "--set", "evaluate_every=1000"]
    process = subprocess.Popen(
        command,
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 600
    while not list(place.glob("runs/*/seed-*/manifest.json")):
        assert time.monotonic() < deadline, "the run did not begin"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    assert "resume with: hewfl resume" in errors
    assert "Traceback" not in errors
    listed = runner.invoke(app, ["ls"])
    assert "%" in listed.output


@pytest.mark.unchecked
@pytest.mark.sweep
def test_the_demo_makes_a_page(place: Path) -> None:
    result = runner.invoke(app, ["demo", "--jobs", "0"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert all(len(line) < 80 for line in lines)
    screen = lines[lines.index(next(line for line in lines if "random" in line)) :]
    assert screen[0] == (
        "Three of twenty clients have random labels: 5, 7 and 13 (seed 0)."
    )
    assert screen[1].startswith("Trust gives no weight to 5, 7 and 13;")
    assert "RootWeights have more accuracy than FedAvg." in screen[8]
    rows = [re.findall(r"^  (\S.*?)  +([\d.]+) ± ([\d.]+) %", line) for line in screen]
    numbers = {name: (float(mean), sd) for row in rows for name, mean, sd in row[:1]}
    assert numbers["RootWeights"][0] > numbers["AngleMix + median"][0] > 90
    assert all(len(sd.partition(".")[2]) == 1 for _, sd in numbers.values())
    for folder in (place / "hewfl-demo" / "runs").iterdir():
        assert not any(choice.at_edge for choice in open_folder(folder).choices)
    assert (place / "hewfl-demo" / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            1,
            "error: No space left on device; free some space, then run the same "
            "command again to continue\n",
        ),
        (
            OSError(13, "Permission denied", "there"),
            1,
            "error: there: Permission denied",
        ),
        (
            MemoryError("Unable to allocate 7 TiB"),
            1,
            "error: not enough memory: Unable",
        ),
        (BrokenExecutor("gone"), 1, "error: a worker process was killed"),
        (KeyboardInterrupt(), 130, "stopped; resume with: hewfl resume "),
    ],
)
def test_what_the_system_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, told: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("hewfl.experiments.tune.simulate", fails)
    result = runner.invoke(app, ["run", "small.toml", "--jobs", "0"])
    assert result.exit_code == code
    assert result.stderr.startswith(told)
    assert result.stderr.count("\n") == 1


def test_ctrl_c_outside_of_a_run_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hewfl.cli.run_commands.open_runs", stop)
    result = runner.invoke(app, ["resume", "x"])
    assert (result.exit_code, result.stderr) == (130, "stopped\n")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("clients.batch_size=1000000000000", "`clients.batch_size` must be at most"),
        ("rounds=1000000000000000000", "`rounds` must be at most 2147483647"),
    ],
)
def test_numbers_beyond_all_reason(change: str, told: str) -> None:
    result = runner.invoke(app, ["run", "small.toml", "--set", change])
    assert result.exit_code == 2
    assert told in result.output


def test_a_console_of_few_letters(place: Path) -> None:
    """Windows consoles know 256 letters; a spec is UTF-8 for all that."""
    code = "import hewfl_command; hewfl_command.main()"
    given = os.environ | {"PYTHONIOENCODING": "cp1252"}
    for words, stream in ((["spec"], "utf-8"), (["data", "show"], "cp1252")):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env=given,
            cwd=place,
            capture_output=True,
            check=True,
        )
        assert done.stderr == b""
        text = done.stdout.decode(stream)
        assert "λ" in text if stream == "utf-8" else "?" in text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
def test_output_that_cannot_be_written(place: Path) -> None:
    code = "import hewfl_command; hewfl_command.main()"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "ls"],
            *(-1, None, None, full, subprocess.PIPE),
            cwd=place,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == b"error: standard output: No space left on device\n"


@pytest.mark.parametrize("words", [["-h"], ["--version"], ["run", "-h"]])
def test_short_help_and_version(words: list[str]) -> None:
    result = runner.invoke(app, words)
    assert result.exit_code == 0
    assert "hewfl " in result.output or "Usage" in result.output
