"""`hewfl data`, as a user types it."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hewfl.cli.data_commands import data
from hewfl.data.catalogue import CATALOGUE
from hewfl.data.load import load
from hewfl.data.partitions import class_counts, dirichlet_partition
from hewfl.data.prepare import prepare
from tests.data.mirror import Mirror, serve, small_images, small_mnist

runner = CliRunner()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEWFL_DATA", raising=False)
    return tmp_path / "cache"


def run(*words: str) -> Result:
    return runner.invoke(data, list(words))


def test_list_names_all_and_says_what_is_here() -> None:
    result = run("list")
    assert result.exit_code == 0
    for text in (*CATALOGUE, "hewfl", "MB online", "CC BY 4.0"):
        assert text in result.output


def test_list_for_machines() -> None:
    records = {r["name"]: r for r in json.loads(run("list", "--json").output)}
    assert set(records) == set(CATALOGUE)
    assert records["digits"]["state"] == "embedded"
    assert records["covertype"]["state"] == "absent"
    assert records["covertype"]["downloadable"]
    assert not records["ag_news"]["downloadable"]
    assert records["mnist"]["bytes"] == 9912422 + 28881 + 1648877 + 4542


def test_get_then_check(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    files = small_images()
    with serve(Mirror(files)) as mirror:
        monkeypatch.setitem(CATALOGUE, "mnist", small_mnist(files, mirror.url))
        result = run("get", "mnist")
        assert result.exit_code == 0
        assert " 40 " in result.output
    (record,) = json.loads(run("check", "mnist", "--json").output)
    assert record["samples"] == 30
    assert record["source"] == str(cache / "files" / "mnist")
    names = [r["name"] for r in json.loads(run("check", "--json").output)]
    assert names == ["digits", "mnist"]
    (cache / "files" / CATALOGUE["mnist"].files[0].path).write_bytes(b"")
    result = run("check", "mnist")
    assert result.exit_code == 1
    assert "is damaged" in result.stderr
    result = run("check", "mnist", "digits", "--json")  # goes on to the next
    assert result.exit_code == 1
    assert [r["name"] for r in json.loads(result.stdout)] == ["digits"]


def test_get_without_mirror_is_one_line() -> None:
    result = run("get", "ag_news")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ag_news: ")
    assert result.stderr.count("\n") == 1


def test_check_of_an_absent_one_fails() -> None:
    result = run("check", "covertype")
    assert result.exit_code == 1
    assert "hewfl data get covertype" in result.stderr
    assert result.stdout == ""


def test_check_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "own[1].csv").write_text("a,kind,b\n1,x,2\n3,y,4\n")
    result = run("check", str(tmp_path / "own[1].csv"), "--label-column", "kind")
    assert result.exit_code == 0
    assert "own[1].csv" in result.output


@pytest.mark.parametrize("command", ["check", "show"])
def test_labels_in_another_column_are_pointed_out_as_an_option(
    tmp_path: Path, command: str
) -> None:
    own = tmp_path / "own.csv"
    own.write_text("species,a,b\nx,1,0\ny,2,1\n")
    result = run(command, str(own))
    assert (
        "column 'species' (if that is the label: --label-column species)"
        in result.stderr
    )
    own.write_text("20,30,it's\n5,6,x\n7,8,y\n7,9,y\n")
    assert """pass --label-column 'it'"'"'s' if the""" in run(command, str(own)).stderr


def test_show_is_the_partition_of_the_training_part() -> None:
    words = ("--clients", "7", "--alpha", "0.4", "--seed", "3", "--min-samples", "20")
    shown = json.loads(run("show", "digits", *words, "--json").output)
    labels = prepare(load("digits"), 3).labels
    partition = dirichlet_partition(labels, 7, 0.4, 3, min_samples=20)
    assert shown["counts"] == class_counts(labels, partition, 10).tolist()
    text = run("show", "digits", *words).output
    for shard in partition:
        assert f" {len(shard)} │" in text


def test_show_even_shards_and_save_them(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    output = tmp_path / "picture.png"
    result = run("show", "--iid", "--clients", "3", "--output", str(output))
    assert result.exit_code == 0
    assert "IID, equal sizes" in result.output
    assert output.stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nothing",), "`name` must be one of"),
        (("--alpha", "0"), "`--alpha` must be a positive finite number"),
        (("--min-samples", "1000"), "`--clients` must be at most"),
        (("--label-column", "kind"), "`label_column` must be left out"),
        (("--output", "picture.txt"), "`output` must be a path ending in"),
    ],
)
def test_show_says_what_is_wrong(words: tuple[str, ...], told: str) -> None:
    result = run("show", *words)
    assert result.exit_code == 2
    assert told in result.stderr
