"""Lines and branches that tests reach, room by room; the gaps of files below 95 %."""

import json
import sys
from collections import defaultdict
from pathlib import Path


def main() -> None:
    """Print a table of the rooms in a report, and the files below 95 %."""
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
        if s["percent_covered"] < 95:
            low.append((s["percent_covered"], "/".join(inside)))
    print(f"{'room':14} {'lines':>8} {'branches':>9}")
    for room, (a, b, c, d) in sorted(rooms.items()):
        print(f"{room:14} {100 * a / max(b, 1):7.1f}% {100 * c / max(d, 1):8.1f}%")
    print("\nfiles below 95 %:")
    for percent, name in sorted(low):
        print(f"  {percent:5.1f}% {name}")


if __name__ == "__main__":
    main()
