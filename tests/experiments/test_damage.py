"""Folders that are damaged in many ways: said in one line, and made again."""

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hewfl.errors import HewError
from hewfl.experiments.executor import Progress
from hewfl.experiments.run import run_all
from hewfl.experiments.run_folder import Folder, folder_for, open_folder
from tests.experiments.runs import small

CHECKPOINT = ("manifest.json", ".safetensors")
"""What a finished seed needs no more: neither missed nor looked at."""
SEED = 20261116


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    place = tmp_path_factory.mktemp("damage")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEWFL_CACHE", str(place / "cache"))
        spec = small()
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
    spec = done.spec
    places = [*files_of(done.path), "seed-0"]
    for name in places:
        copy = tmp_path / done.path.name
        shutil.copytree(done.path, copy)
        victim = copy / name
        shutil.rmtree(victim) if victim.is_dir() else victim.unlink()
        if name == "spec.toml":  # then only the user knows what it was
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
            if name == "spec.toml":
                victim.write_bytes(content)
            else:  # what the errors tell the user to do
                victim.unlink(missing_ok=True)
            again(copy)
            assert contents(copy) == before, (name, how)
            shutil.rmtree(copy)
    # spec, tuned, tuning, trace, constants, summary, checksums
    assert noticed == 2 * 7


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
