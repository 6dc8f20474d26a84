"""Publish finished deep-learning lines from the archives of `deep_lines.py`.

    python benchmarks/deep_publish.py cnn.tar.gz head.tar.gz --output docs/results

Each finished line goes into a folder of its own: cnn, cnn-equal-ground, head and
head-equal-ground, with tables, claims, curves, figures, spec, tuning and times. The
page README.md of the output gets its tables anew, between their marks.
"""

import argparse
import tarfile
import tempfile
from pathlib import Path

from reproduce.claims import judge_cnn, judge_equal, judge_head
from reproduce.figures import draw_cnn, draw_head
from reproduce.publish import publish_deep, put_table

from hewfl.experiments.run_folder import open_folder

PLACES = {
    "fashion-cnn": ("cnn", judge_cnn, draw_cnn),
    "fashion-cnn-equal-ground": ("cnn-equal-ground", judge_cnn, draw_cnn),
    "agnews-head": ("head", judge_head, draw_head),
    "agnews-head-equal-ground": ("head-equal-ground", judge_equal, draw_head),
}


def main() -> None:
    """Unpack the archives and publish every line in them that is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archives", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for archive in asked.archives:
            with tarfile.open(archive) as packed:
                packed.extractall(name, filter="data")
        for file in sorted(Path(name).glob("*/spec.toml")):
            folder = open_folder(file.parent)
            spec = folder.spec.name.removesuffix("-quick")
            if not folder.is_done or spec not in PLACES:
                print(f"{folder.spec.name}: not done")
                continue
            place, judge, draw = PLACES[spec]
            is_quick = spec != folder.spec.name
            output = asked.output / place
            claims = publish_deep(folder, output, judge, is_quick=is_quick)
            draw(folder.results, output)
            if (page := asked.output / "README.md").exists() and not is_quick:
                put_table(page, place, folder)
            print(f"{folder.spec.name}: {output}")
            for claim in claims:
                print(f"  {claim.statement}: {claim.verdict} ({claim.because})")


if __name__ == "__main__":
    main()
