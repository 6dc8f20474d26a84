"""Run the paper's deep-learning lines in pieces: stopped by the clock, taken up again.

    python benchmarks/deep_lines.py cnn head --device cuda --seconds 540
    python benchmarks/deep_lines.py quality --device cuda --jobs 8 --seconds 540

`quality` is the CNN of `hewfl study quality`, all its scenarios side by side.

Every finished trial and seed is kept in the folder of runs, and packed into one small
archive at the end, without models: a call on another machine unpacks it first and goes
on. `--list` says how many candidates there are, and runs nothing. Exit status 0: all
lines are done; 1: one failed; 3: the time was up.
"""

import argparse
import os
import signal
import sys
import tarfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from reproduce.quality.quality_specs import Part, quality_specs
from reproduce.specs import (
    cnn_equal_spec,
    cnn_spec,
    head_equal_spec,
    head_spec,
    quick_deep,
)

from hewfl.errors import HewError
from hewfl.experiments.executor import Task
from hewfl.experiments.run import Progress, rounds_done, run_all
from hewfl.experiments.run_folder import Folder, folder_for
from hewfl.experiments.spec import Spec
from hewfl.experiments.tune import candidates_of

LINES = {
    "cnn": cnn_spec,
    "cnn-equal": cnn_equal_spec,
    "head": head_spec,
    "head-equal": head_equal_spec,
}
STUDY = "quality"
KEPT = ("*.toml", "*.json", "trials/*.json")
"""Files of a run that its archive holds, beside those of the seeds that are done."""
OF_SEED = ("trace.jsonl", "constants.json", "manifest.json")


class TimeUpError(Exception):
    """The time of this call is over."""


class Lines(Progress):
    """A line of text for every stage, and one every 20 seconds."""

    def __init__(self, began: float) -> None:
        self.began, self.told = began, 0.0
        self.tasks: Sequence[Task] = ()
        self.done: list[int] = []

    def begin(self, tasks: Sequence[Task]) -> None:
        """A stage begins."""
        self.tasks, self.done = tasks, [task.done for task in tasks]
        self.told = 0.0
        self.say()

    def step(self, task: int, done: int) -> None:
        """Steps of a task are done."""
        self.done[task] = done
        if time.monotonic() - self.told > 20:
            self.say()

    def say(self) -> None:
        """How far the stage is."""
        self.told = time.monotonic()
        cost = sum(task.cost * task.steps for task in self.tasks)
        pairs = zip(self.tasks, self.done, strict=True)
        share = sum(task.cost * done for task, done in pairs) / max(cost, 1)
        name = f"{self.tasks[0].name.split(',')[0]}, {self.tasks[0].stage}"
        whole = sum(d == t.steps for t, d in zip(self.tasks, self.done, strict=True))
        text = f"{name}: {share:.0%}, {whole} of {len(self.tasks)} tasks"
        print(f"[{self.told - self.began:6.1f} s] {text}", flush=True)


def main() -> int:
    """Do what is left of the lines asked for, until the time is up."""
    asked = _arguments()
    began = time.monotonic()
    root: Path = asked.root
    root.mkdir(parents=True, exist_ok=True)
    if asked.kept.exists():
        _unpack(asked.kept, root)
    # Torch convolves in TF32 on a GPU by default: other products are to be alike.
    os.environ.setdefault("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as called
        raise TimeUpError

    signal.signal(signal.SIGALRM, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.setitimer(signal.ITIMER_REAL, asked.seconds)
    status, folders = 0, []
    try:
        for line in asked.lines:
            specs = _specs(line, is_quick=asked.quick)
            own = [folder_for(replace(s, device=asked.device), root) for s in specs]
            folders += own
            for folder in own:
                print(f"{line}: {folder.path}, {_left(folder)}", flush=True)
            if asked.list:
                continue
            try:
                run_all(own, jobs=asked.jobs, progress=Lines(began))
                print(f"{line}: done", flush=True)
            except (HewError, RuntimeError):  # other lines are not to wait for it
                traceback.print_exc()
                status = 1
    except TimeUpError:
        print("the time is up", flush=True)
        status = 3
    signal.setitimer(signal.ITIMER_REAL, 0)
    if not asked.list:
        _pack(root, asked.kept)
    for folder in folders:
        _show(folder)
    return status


def _specs(line: str, *, is_quick: bool) -> list[Spec]:
    """The runs of a line, which are done side by side."""
    if line == STUDY:
        return list(quality_specs(Part.cnn, is_quick=is_quick).values())
    spec = LINES[line]()
    return [quick_deep(spec) if is_quick else spec]


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lines", nargs="+", choices=(*LINES, STUDY))
    parser.add_argument("--device", default="numpy", choices=("numpy", "cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=1e6, help="time of this call")
    parser.add_argument("--jobs", type=int, default=4, help="processes")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="of the runs")
    parser.add_argument("--kept", type=Path, default=Path("deep.tar.gz"))
    parser.add_argument("--list", action="store_true", help="say what is left")
    parser.add_argument("--quick", action="store_true", help="a first look")
    return parser.parse_args()


# ------------------------------------------------------------------ the archive


def _pack(root: Path, kept: Path) -> None:
    """Write what is worth keeping, all of it small."""
    files: list[Path] = []
    for run in sorted(path.parent for path in root.glob("*/spec.toml")):
        for pattern in KEPT:
            files += sorted(run.glob(pattern))
        for seed in sorted(run.glob("seed-*")):
            if (run / "summary.json").exists() or _is_done(run, seed):
                files += [seed / name for name in OF_SEED if (seed / name).exists()]
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(kept, "w:gz") as archive:
        for file in files:
            archive.add(file, file.relative_to(root))
    print(f"kept: {kept}, {kept.stat().st_size / 2**20:.1f} MiB, {len(files)} files")


def _is_done(run: Path, seed: Path) -> bool:
    from hewfl.experiments.spec import read_spec  # noqa: PLC0415

    return rounds_done(seed) == read_spec(run / "spec.toml").rounds


def _unpack(kept: Path, root: Path) -> None:
    """Add what an earlier call kept; what is here already stays."""
    with tarfile.open(kept) as archive:
        for member in archive.getmembers():
            if not (root / member.name).exists():
                archive.extract(member, root, filter="data")


def _left(folder: Folder) -> str:
    """How many candidates are to be tried, before lists grow."""
    if folder.tuned is not None:
        return "tuned"
    count = sum(map(len, candidates_of(folder.spec)))
    climbs = folder.spec.tune.local_search
    return f"{count} candidates to try{', of which it climbs to some' * climbs}"


# ------------------------------------------------------------------ what came of it


def _show(folder: Folder) -> None:
    for choice in folder.choices if (folder.path / "tuning.json").exists() else ():
        edge = f" at the edge: {', '.join(choice.at_edge)}" if choice.at_edge else ""
        print(f"  {choice.label}: {dict(choice.parameters)}{edge}")
    if not folder.is_done:
        return
    for method in folder.summary["methods"]:
        final = {
            name: round(value["mean"], 4)
            for name, value in method["final"].items()
            if ("accuracy" in name or "loss" in name) and value["mean"] is not None
        }
        print(f"  {method['label']}: {final}")


if __name__ == "__main__":
    sys.exit(main())
