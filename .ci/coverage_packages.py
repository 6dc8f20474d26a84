"""Lines and branches that tests reach, by package; gaps of files below 95 %."""

import json
import sys
from collections import defaultdict
from pathlib import Path

CORE = [
    "core",
    "solver",
    "displacements",
    "control",
    "algorithms",
    "aggregators",
    "methods",
    "server",
    "federation",
    "theory",
]
"""Packages that others build on: they come first, and their gaps are listed."""


def main() -> None:
    """Print a table of the packages, and the gaps in files of the core packages."""
    files = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["files"]
    packages: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    low = []
    for name, report in files.items():
        parts = Path(name).parts
        inside = parts[parts.index("hewfl") + 1 :] if "hewfl" in parts else parts
        package = inside[0] if len(inside) > 1 else "hewfl"
        s = report["summary"]
        counts = (s["covered_lines"], s["num_statements"])
        counts += (s["covered_branches"], s["num_branches"])
        totals = packages[package]
        packages[package] = [a + b for a, b in zip(totals, counts, strict=True)]
        if s["percent_covered"] < 95 and package in CORE:
            gaps = ", ".join(map(str, report["missing_lines"]))
            low.append((s["percent_covered"], "/".join(inside), gaps))
    others = sorted(packages.keys() - set(CORE))
    print("| package | lines | reached | branches | reached |\n|---|--:|--:|--:|--:|")
    for package in [*(name for name in CORE if name in packages), *others]:
        a, b, c, d = packages[package]
        share = 100 * a / max(b, 1), 100 * c / max(d, 1)
        print(f"| {package} | {b} | {share[0]:.1f} % | {d} | {share[1]:.1f} % |")
    print("\nfiles of core packages below 95 %, and the lines that no test reaches:")
    for percent, name, gaps in sorted(low):
        print(f"  {percent:5.1f}% {name}: {gaps}")


if __name__ == "__main__":
    main()
