"""Lines and branches that tests reach, room by room; the gaps of files below 95 %."""

import json
import sys
from collections import defaultdict
from pathlib import Path

CORE = [
    "core",
    "solver",
    "aggregate",
    "predictive",
    "controllers",
    "baselines",
    "server",
    "theory",
]
"""The rooms that others rest on come first, and their gaps are listed."""


def main() -> None:
    """Print a table of the rooms in a report, and gaps of files of core rooms."""
    files = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["files"]
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    low = []
    for name, found in files.items():
        parts = Path(name).parts
        inside = parts[parts.index("hewfl") + 1 :] if "hewfl" in parts else parts
        room = inside[0] if len(inside) > 1 else "hewfl"
        s = found["summary"]
        counts = (s["covered_lines"], s["num_statements"])
        counts += (s["covered_branches"], s["num_branches"])
        rooms[room] = [a + b for a, b in zip(rooms[room], counts, strict=True)]
        if s["percent_covered"] < 95 and room in CORE:
            gaps = ", ".join(map(str, found["missing_lines"]))
            low.append((s["percent_covered"], "/".join(inside), gaps))
    others = sorted(rooms.keys() - set(CORE))
    print("| room | lines | reached | branches | reached |\n|---|--:|--:|--:|--:|")
    for room in [*(room for room in CORE if room in rooms), *others]:
        a, b, c, d = rooms[room]
        share = 100 * a / max(b, 1), 100 * c / max(d, 1)
        print(f"| {room} | {b} | {share[0]:.1f} % | {d} | {share[1]:.1f} % |")
    print("\nfiles of core rooms below 95 %, and the lines that no test reaches:")
    for percent, name, gaps in sorted(low):
        print(f"  {percent:5.1f}% {name}: {gaps}")


if __name__ == "__main__":
    main()
