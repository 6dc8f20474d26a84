"""Folders that are damaged in many ways: said in one line, and made again."""

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hewfl.cli import app
from hewfl.core.atomic import read_checksums
from hewfl.errors import DataError, HewError
from hewfl.experiments.executor import Progress
from hewfl.experiments.run import run_all
from hewfl.experiments.run_folder import Folder, folder_for, open_folder, verify
from hewfl.experiments.spec import Spec, spec_from_table, spec_table
from hewfl.report.page import write_report
from tests.experiments.runs import small

CHECKPOINT = ("manifest.json", ".safetensors")
"""What a finished seed needs no more: neither missed nor looked at."""
SEED = 20261116


RULES = """
from beside import SHARE
from hewfl.aggregators import Mean as Own
from dataclasses import dataclass

@dataclass(frozen=True)
class Law:
    most: int = 2
    def draw(self, seed, t, sizes, batches):
        return 1 + (sizes + t) % self.most
"""


def with_own_files(spec: Spec, place: Path) -> Spec:
    """The spec on a data file, with code of the user's own."""
    (place / "beside.py").write_text("SHARE = 1.0\n")
    (place / "rules.py").write_text(RULES)
    rng = np.random.default_rng(SEED)
    rows = [f"{x:.3f},{y:.3f},{k % 3}" for k, (x, y) in enumerate(rng.random((90, 2)))]
    (place / "own.csv").write_text("\n".join(["a,b,kind", *rows]) + "\n")
    rule = {"method": "rules:Own", "label": "own", "learning_rate": 0.1}
    table = spec_table(spec) | {"data": {"name": str(place / "own.csv")}}
    table["methods"] = [*table["methods"][:1], rule]
    table["clients"] = table["clients"] | {"local_steps": "rules:Law"}
    return spec_from_table(table, place)


@pytest.fixture(scope="module", params=["library", "own"])
def done(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Folder]:
    place = tmp_path_factory.mktemp("damage")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEWFL_CACHE", str(place / "cache"))
        spec = small() if request.param == "library" else with_own_files(small(), place)
        tune = replace(spec.tune, rounds=1, seeds=(0,))
        folder = folder_for(
            replace(spec, rounds=3, seeds=(0,), tune=tune), place / "runs"
        )
        run_all([folder], jobs=0, progress=Progress())
        yield folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in files
        if file.name != "times.json" and not file.name.endswith(CHECKPOINT)
    }


def files_of(folder: Path) -> list[str]:
    found = (str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())
    return sorted(found)


def changed(content: bytes, how: str, rng: random.Random) -> bytes:
    """The bytes of a file after an accident."""
    if how == "empty":
        return b""
    if how == "half":
        return content[: len(content) // 2]
    if how == "more":
        return content + b"0"
    digits = [k for k, byte in enumerate(content) if 48 <= byte < 57]
    at = rng.choice(digits or range(len(content)))
    return content[:at] + bytes([content[at] + 1]) + content[at + 1 :]


def again(path: Path) -> None:
    folder = open_folder(path)
    run_all([folder], jobs=0, progress=Progress())
    _ = folder.results, folder.summary


def complaint(path: Path) -> str:
    try:
        again(path)
    except HewError as error:
        return str(error)
    return ""


@pytest.mark.unchecked
def test_whatever_is_deleted_is_made_again(done: Folder, tmp_path: Path) -> None:
    before = contents(done.path)
    spec = done.given or done.spec
    places = [*files_of(done.path), "seed-0"]
    for name in places:
        copy = tmp_path / done.path.name
        shutil.copytree(done.path, copy)
        victim = copy / name
        shutil.rmtree(victim) if victim.is_dir() else victim.unlink()
        if name == "spec.toml" or name.startswith("code/"):
            told = complaint(copy)  # only the user knows what it was
            assert "is not a run" in told or "put it back or run its spec" in told
            run_all([folder_for(spec, tmp_path)], jobs=0, progress=Progress())
        again(copy)
        assert contents(copy) == before, name
        assert (copy / "times.json").exists()
        shutil.rmtree(copy)


@pytest.mark.unchecked
def test_whatever_is_changed_is_said_and_made_again(
    done: Folder, tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    before, noticed = contents(done.path), 0
    for name in files_of(done.path):
        for how in ("digit", rng.choice(("half", "empty", "more"))):
            copy = tmp_path / done.path.name
            shutil.copytree(done.path, copy)
            victim = copy / name
            content = victim.read_bytes()
            victim.write_bytes(changed(content, how, rng))
            told = complaint(copy)
            noticed += told != ""
            assert "\n" not in told
            # nothing that a report shows may go unseen
            assert told or name not in before, (name, how)
            assert copy.name in told or not told or name == "spec.toml"
            if name == "spec.toml" or name.startswith("code/"):
                assert name == "spec.toml" or "put the old one back" in told
                victim.write_bytes(content)
            else:  # what the errors tell the user to do
                victim.unlink(missing_ok=True)
            again(copy)
            assert contents(copy) == before, (name, how)
            shutil.rmtree(copy)
            listed = "damaged" if name == "checksums.json" else Path(name).name
            assert listed in told or not told
    # spec, tuned, tuning, trace, constants, summary, checksums; and of the user's own
    # files data.json, code.json and two files of code
    assert noticed == 2 * (7 if done.spec.data.name == "digits" else 11)


@pytest.mark.unchecked
def test_ls_and_resume_agree(done: Folder, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    for name in files_of(done.path):
        for how in ("digit", "empty", "gone"):
            copy = tmp_path / done.path.name
            shutil.copytree(done.path, copy)
            victim = copy / name
            if how == "gone":
                victim.unlink()
            else:
                victim.write_bytes(changed(victim.read_bytes(), how, rng))
            listed = CliRunner().invoke(app, ["ls", str(tmp_path)]).output
            told = complaint(copy)
            said = "".join(listed.replace("│", "").split())
            if name == "spec.toml" and how == "gone":
                assert "no runs in" in listed
            elif told:
                assert "".join(told.split()) in said, (name, how)
            else:
                assert "damaged" not in said, (name, how)
                assert "delete" not in said, (name, how)
            shutil.rmtree(copy)


def test_a_damaged_table_of_times_blocks_nothing(done: Folder, tmp_path: Path) -> None:
    copy = tmp_path / done.path.name
    shutil.copytree(done.path, copy)
    for content in ("{", "[]", "3", ""):
        (copy / "times.json").write_text(content)
        page = tmp_path / "page.html"
        assert write_report([open_folder(copy)], page)
        is_shown = "damaged; delete it" in page.read_text()
        assert is_shown == (content not in ("[]",))
        again(copy)


def test_a_damaged_table_of_checksums_is_named(done: Folder, tmp_path: Path) -> None:
    copy = tmp_path / done.path.name
    shutil.copytree(done.path, copy)
    sums = copy / "checksums.json"
    content = sums.read_bytes()
    for k in range(len(content)):
        flipped = bytes([content[k] ^ 1])
        sums.write_bytes(content[:k] + flipped + content[k + 1 :])
        if json_of(sums) == json.loads(content):  # a tab in the place of a space
            assert read_checksums(sums) == json.loads(content)["files"]
            continue
        with pytest.raises(DataError) as error:
            verify(copy)
        assert f"{sums} is damaged" in str(error.value), k


def json_of(file: Path) -> object:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None


def test_a_deleted_table_is_not_made_from_other_data(
    done: Folder, tmp_path: Path
) -> None:
    if done.spec.data.name == "digits":
        return
    copy, data = tmp_path / done.path.name, Path(done.spec.data.name)
    shutil.copytree(done.path, copy)
    (copy / "data.json").unlink()
    content = data.read_text()
    data.write_text(content.replace("0.1", "0.2"))
    try:
        told = complaint(copy)
    finally:
        data.write_text(content)
    assert "data.json cannot be made again: data or code have changed" in told
    again(copy)
    assert contents(copy) == contents(done.path)


@pytest.mark.unchecked
def test_an_unfinished_run_with_pieces_missing(done: Folder, tmp_path: Path) -> None:
    rng, before = random.Random(SEED), contents(done.path)
    for _ in range(6):
        copy = tmp_path / done.path.name
        shutil.copytree(done.path, copy)
        for name in ("summary.json", "checksums.json"):
            (copy / name).unlink()
        for name in rng.sample(files_of(copy), 3):
            if name != "spec.toml":
                (copy / name).unlink()
        again(copy)
        assert contents(copy) == before
        shutil.rmtree(copy)
