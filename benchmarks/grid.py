"""Run the paper's main grid and the comparisons beyond it in pieces.

    python benchmarks/grid.py all wide extended --jobs 12 --seconds 540

Every finished trial and seed is kept in the folder of runs and packed into one small
archive at the end, without models: a call on another machine unpacks it first and goes
on. `hewfl paper all`, `wide` and `extended` with the same folder as `--runs-dir` then publish. Exit
status 0: all is done; 3: the time was up.
"""

import argparse
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.deep_lines import Lines, TimeUpError, _pack, _unpack
from reproduce.parts import Part, specs_of

from hewfl.experiments.run import run_all
from hewfl.experiments.run_folder import folder_for

PARTS = (Part.all, Part.wide, Part.extended)


def main() -> int:
    """Do what is left of the parts asked for, until the time is up."""
    asked = _arguments()
    began = time.monotonic()
    root: Path = asked.root
    root.mkdir(parents=True, exist_ok=True)
    for archive in (*asked.before, asked.kept):
        if archive.exists():
            _unpack(archive, root)

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as called
        raise TimeUpError

    signal.signal(signal.SIGALRM, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.setitimer(signal.ITIMER_REAL, asked.seconds)
    status = 0
    try:
        for part in asked.parts:
            specs = specs_of(Part(part), is_quick=asked.quick).values()
            folders = [folder_for(spec, root) for spec in specs]
            run_all(folders, jobs=asked.jobs, progress=Lines(began))
            print(f"{part}: done after {time.monotonic() - began:.0f} s", flush=True)
    except TimeUpError:
        print("the time is up", flush=True)
        status = 3
    signal.setitimer(signal.ITIMER_REAL, 0)
    _pack(root, asked.kept)
    return status


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=[part.value for part in PARTS])
    parser.add_argument("--seconds", type=float, default=1e6, help="time of this call")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="of the runs")
    parser.add_argument("--kept", type=Path, default=Path("grid.tar.gz"))
    parser.add_argument("--before", type=Path, nargs="*", default=(), help="archives")
    parser.add_argument("--quick", action="store_true", help="a first look")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
