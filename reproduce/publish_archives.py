"""Publish deep-learning lines and the robustness study from archives or run folders.

    python -m reproduce publish cnn.tar.gz head.tar.gz runs --output docs/results

Sources are archives of `python -m reproduce pieces`, or folders of runs. Of runs of the
same name those of the last source count: the CNN may come from another machine than the
convex panels. Each finished line goes into a folder of its own (cnn, cnn-equal-ground,
head, head-equal-ground) with tables, claims, curves, figures, spec, tuning and times;
README.md of the output gets its tables anew, between their marks. Finished runs of the
study go into `robustness`.
"""

import argparse
import shutil
import tarfile
import tempfile
from pathlib import Path

from hewfl.experiments.run_folder import open_folder
from reproduce.claims import judge_cnn, judge_equal, judge_head
from reproduce.figures import draw_cnn, draw_head
from reproduce.publish import publish_deep, put_table
from reproduce.robustness.publish_robustness import finished_runs, publish_robustness

LINES = {
    "fashion-cnn": ("cnn", judge_cnn, draw_cnn),
    "fashion-cnn-equal-ground": ("cnn-equal-ground", judge_cnn, draw_cnn),
    "agnews-head": ("head", judge_head, draw_head),
    "agnews-head-equal-ground": ("head-equal-ground", judge_equal, draw_head),
}
"""Folder, claims and figures of each line, by the name of its spec."""


def main() -> None:
    """Gather finished runs in one folder and publish what is in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", type=Path, nargs="+", help="folders or archives")
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    parser.add_argument("--quick", action="store_true", help="runs of a first look")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "all"
        for k, source in enumerate(asked.sources):
            folder = source
            if source.is_file():
                folder = Path(name) / str(k)
                with tarfile.open(source) as packed:
                    packed.extractall(folder, filter="data")
            for file in sorted(folder.rglob("summary.json")):
                _gather(file.parent, root)
        publish_lines(root, asked.output)
        if any(root.glob("robustness-*")):
            runs = finished_runs(root, is_quick=asked.quick)
            for verdict in publish_robustness(runs, asked.output / "robustness"):
                print(f"  {verdict.statement}: {verdict.answer} ({verdict.because})")


def publish_lines(root: Path, output: Path) -> None:
    """Publish every deep-learning line among some finished runs."""
    for file in sorted(root.glob("*/spec.toml")):
        folder = open_folder(file.parent)
        name = folder.spec.name.removesuffix("-quick")
        if name not in LINES:
            continue
        place, judge, draw = LINES[name]
        is_quick = name != folder.spec.name
        claims = publish_deep(folder, output / place, judge, is_quick=is_quick)
        draw(folder.results, output / place)
        if (page := output / "README.md").exists() and not is_quick:
            put_table(page, place, folder)
        print(f"{folder.spec.name}: {output / place}")
        for claim in claims:
            print(f"  {claim.statement}: {claim.verdict} ({claim.because})")


def _gather(run: Path, root: Path) -> None:
    """Copy a finished run in place of an earlier one of the same name."""
    name, _, _ = run.name.rpartition("-")  # behind it the digest of the spec
    shutil.rmtree(root / name, ignore_errors=True)
    shutil.copytree(run, root / name, ignore=shutil.ignore_patterns("*.safetensors"))
