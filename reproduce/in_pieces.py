"""Run parts of the paper and studies in pieces: stopped by the clock, taken up again.

    python -m reproduce pieces all wide extended --jobs 12 --seconds 540
    python -m reproduce pieces cnn head --device cuda --seconds 540
    python -m reproduce pieces robustness-cnn --device cuda --jobs 8 --seconds 540

Every finished trial and seed is kept in the folder of runs and packed into one small
archive at the end, without models: a call on another machine unpacks it first and goes
on. `--list` says how many candidates there are, and runs nothing. `python -m reproduce
paper` (grids, with the same `--runs-dir`) and `python -m reproduce publish` (archives)
write the results. Exit status 0: all is done; 1: a part failed; 3: the time was up.
"""

import argparse
import os
import signal
import tarfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from hewfl.errors import HewError
from hewfl.experiments.candidates import all_candidates
from hewfl.experiments.executor import Progress, Task
from hewfl.experiments.run import rounds_done, run_all
from hewfl.experiments.run_folder import Folder, folder_for
from hewfl.experiments.spec import Spec, read_spec
from reproduce.parts import Part, specs_of
from reproduce.robustness.robustness_specs import Part as Half
from reproduce.robustness.robustness_specs import robustness_specs
from reproduce.specs import (
    cnn_equal_spec,
    cnn_spec,
    head_equal_spec,
    head_printed_spec,
    head_spec,
    quick_deep,
)


def _grid(part: Part, *, is_quick: bool) -> list[Spec]:
    return list(specs_of(part, is_quick=is_quick).values())


def _line(make: Callable[[], Spec], *, is_quick: bool) -> list[Spec]:
    return [quick_deep(make()) if is_quick else make()]


def _study(half: Half, *, is_quick: bool) -> list[Spec]:
    return list(robustness_specs(half, is_quick=is_quick).values())


PARTS: dict[str, Callable[..., list[Spec]]] = {
    **{p.value: partial(_grid, p) for p in (Part.all, Part.wide, Part.extended)},
    "cnn": partial(_line, cnn_spec),
    "cnn-equal": partial(_line, cnn_equal_spec),
    "head": partial(_line, head_spec),
    "head-equal": partial(_line, head_equal_spec),
    "head-printed": partial(_line, head_printed_spec),
    **{f"robustness-{half.value}": partial(_study, half) for half in Half},
}
"""What makes the specs of a part, which are run side by side."""
KEPT = ("*.toml", "*.json", "trials/*.json")
"""Files of a run that its archive holds, beside those of the seeds that are done."""
OF_SEED = ("trace.jsonl", "constants.json", "manifest.json")


class TimeUpError(Exception):
    """The time of this call is over."""


class ProgressLines(Progress):
    """A line of text for every stage, and one every 20 seconds."""

    def __init__(self, began: float) -> None:
        self.began, self.printed = began, 0.0
        self.tasks: Sequence[Task] = ()
        self.done: list[int] = []

    def begin(self, tasks: Sequence[Task]) -> None:
        """A stage begins."""
        self.tasks, self.done = tasks, [task.done for task in tasks]
        self.print_line()

    def step(self, task: int, done: int) -> None:
        """Steps of a task are done."""
        self.done[task] = done
        if time.monotonic() - self.printed > 20:
            self.print_line()

    def print_line(self) -> None:
        """Print how far the stage is."""
        self.printed = time.monotonic()
        cost = sum(task.cost * task.steps for task in self.tasks)
        pairs = list(zip(self.tasks, self.done, strict=True))
        share = sum(task.cost * done for task, done in pairs) / max(cost, 1)
        name = f"{self.tasks[0].name.split(',')[0]}, {self.tasks[0].stage}"
        whole = sum(done == task.steps for task, done in pairs)
        text = f"{name}: {share:.0%}, {whole} of {len(self.tasks)} tasks"
        print(f"[{self.printed - self.began:6.1f} s] {text}", flush=True)


def main() -> int:
    """Do what is left of the parts asked for, until the time is up."""
    asked = _arguments()
    began = time.monotonic()
    root: Path = asked.runs_dir
    root.mkdir(parents=True, exist_ok=True)
    for archive in (*asked.before, asked.kept):
        if archive.exists():
            _unpack(archive, root)
    # Torch convolves in TF32 on a GPU by default: other products are to be alike.
    os.environ.setdefault("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as called
        raise TimeUpError

    signal.signal(signal.SIGALRM, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.setitimer(signal.ITIMER_REAL, asked.seconds)
    status, folders = 0, list[Folder]()
    try:
        for part in asked.parts:
            specs = PARTS[part](is_quick=asked.quick)
            runs = [folder_for(replace(s, device=asked.device), root) for s in specs]
            folders += runs
            for folder in runs:
                print(f"{part}: {folder.path}, {_left(folder)}", flush=True)
            if asked.list:
                continue
            try:
                run_all(runs, jobs=asked.jobs, progress=ProgressLines(began))
                print(f"{part}: done after {time.monotonic() - began:.0f} s")
            except (HewError, RuntimeError):  # other parts do not depend on it
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


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=tuple(PARTS))
    parser.add_argument("--device", default="numpy", choices=("numpy", "cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=1e6, help="time of this call")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--runs-dir", type=Path, default=Path("runs"), help="of the runs"
    )
    parser.add_argument("--kept", type=Path, default=Path("runs.tar.gz"))
    parser.add_argument("--before", type=Path, nargs="*", default=(), help="archives")
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
    count = sum(map(len, all_candidates(folder.spec)))
    climbs = folder.spec.tune.local_search
    return f"{count} candidates to try{', of which it climbs to some' * climbs}"


def _show(folder: Folder) -> None:
    """Print what was chosen and what was reached."""
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
