"""Publish the study of unequal quality from runs and archives of runs.

    python benchmarks/quality_publish.py runs quality-cnn.tar.gz

Of runs of the same name those given last stand: the CNN may come from another machine
than the convex panels. A field of modules that is gone since, `convolutions`, at its
default and without effect, is taken out of old specs.
"""

import argparse
import shutil
import tarfile
import tempfile
from pathlib import Path

from reproduce.quality.publish_quality import finished, publish_quality

WANTED = ("*.toml", "*.json")
"""Files of a run that publishing reads."""


def main() -> None:
    """Gather finished runs in one folder and write figure, tables and verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", type=Path, nargs="+", help="folders or archives")
    parser.add_argument("--output", type=Path, default=Path("docs/results/quality"))
    parser.add_argument("--quick", action="store_true", help="runs of a first look")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "all"
        for k, source in enumerate(asked.sources):
            here = source
            if source.is_file():
                here = Path(name) / str(k)
                with tarfile.open(source) as packed:
                    packed.extractall(here, filter="data")
            for file in sorted(here.rglob("summary.json")):
                _gather(file.parent, root)
        judged = publish_quality(finished(root, is_quick=asked.quick), asked.output)
    for verdict in judged:
        print(f"  {verdict.statement}: {verdict.answer} ({verdict.because})")


def _gather(run: Path, root: Path) -> None:
    """Copy a finished run, in place of an earlier one of the same name."""
    name, _, _ = run.name.rpartition("-")  # behind it the digest of the spec
    place = root / name
    place.mkdir(parents=True, exist_ok=True)
    for pattern in WANTED:
        for file in run.glob(pattern):
            shutil.copy(file, place / file.name)  # an earlier one is written over
    for file in place.glob("*.toml"):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = (line for line in lines if not line.startswith("convolutions"))
        file.write_text("".join(kept), encoding="utf-8")


if __name__ == "__main__":
    main()
